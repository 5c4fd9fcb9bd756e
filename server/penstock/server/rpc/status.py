"""What a node is doing, for operators: `penstock top`, the status page and the gauges show it."""

from __future__ import annotations

import time
from typing import Any

from penstock.server.access.caller import Caller
from penstock.server.job.job import Job
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.node import Node
from penstock.server.process.usage import memory
from penstock.server.rpc.autoscaling import AutoscalingSignal
from penstock.server.rpc.opening import VERSION
from penstock.server.rpc.streams import OpenRead, Streams


def status(
    node: Node,
    streams: Streams,
    metrics: Metrics,
    wanted: AutoscalingSignal,
    *,
    lent_bytes: int,
    draining: bool,
) -> dict[str, Any]:
    """Return what this node is doing, for `penstock top`; the keys are in docs/operate.md."""
    waits: dict[str, dict[int, dict[str, Any]]] = {}
    for number, stream in streams.numbered():
        if (found := _waits_for(node, stream)) is not None:
            waits.setdefault(stream.request.job, {})[number] = found
    up_s = time.monotonic() - node.started_at
    return {
        "version": VERSION,
        "node": node.incarnation,
        "uptime_s": round(up_s, 1),
        "started_at": round(time.time() - up_s, 1),
        "start_s": round(node.start_s, 2),
        "draining": draining,
        "bound_bytes": node.bound_bytes,
        "lent_bytes": lent_bytes,
        "memory": memory(worker.pid for worker in node.workers if worker.pid is not None),
        "store": {
            "away_s": round(metrics.store_away_s(), 1),
            "snapshots_waiting": node.unsaved_snapshots,
            "shared": node.store.shared,
        },
        "workers": [
            {
                "pid": worker.pid,
                "ready": worker.ready,
                "busy": bool(worker.tickets),
                "stage": worker.current().stage,
            }
            for worker in node.workers
        ],
        "jobs": [
            {
                **_job(node, streams, metrics, name, job, waits.get(name, {})),
                **wanted.figures(name),
            }
            for name, job in sorted(node.jobs.items())
        ],
    }


def seen_by(caller: Caller, status: dict[str, Any]) -> dict[str, Any]:
    """Return what a caller may see of a status: its own jobs and groups; items with their scope."""
    jobs = []
    for job in status["jobs"]:
        if caller.sees_job(job["name"]):
            groups = [
                _as_seen(caller, group)
                for group in job["groups"]
                if caller.sees_group(group["group"])
            ]
            cursors = {name: at for name, at in job["cursors"].items() if caller.sees_group(name)}
            jobs.append({**job, "groups": groups, "cursors": cursors})
    return {**status, "jobs": jobs}


def _as_seen(caller: Caller, reader: dict[str, Any]) -> dict[str, Any]:
    """Return what a reader does; the item that it waits for only if the caller may see it."""
    wait = reader["waits_for"]
    if wait is None or caller.sees_item(wait["stage"]):
        return reader
    return {**reader, "waits_for": {**wait, "item": ""}}


def _job(
    node: Node,
    streams: Streams,
    metrics: Metrics,
    name: str,
    job: Job,
    waits: dict[int, dict[str, Any]],
) -> dict[str, Any]:
    shown = streams.status(name)
    for reader in shown["groups"]:
        reader["waits_for"] = waits.get(reader["id"])
    left_out = [
        {"source": source, "stage": stage, "reason": reason, "items": count}
        for (source, stage, reason), count in node.left_out(job).items()
    ]
    return {
        "name": name,
        "log_id": job.log_id.hex(),
        "lanes": job.lanes,
        **node.figures(job),
        "counts": metrics.figures(name),
        "left_out": left_out,
        **shown,
    }


def _waits_for(node: Node, stream: OpenRead) -> dict[str, Any] | None:
    """Return what a reader waits for; None = it need not wait."""
    if stream.waiting_since is None:
        return None
    lane, offset, stage, item = node.waiting_for(stream.reader)
    return {"lane": lane, "offset": offset, "stage": stage, "item": item}
