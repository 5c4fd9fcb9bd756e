"""What a node is doing, for operators: `penstock top` and the gauges show it."""

from __future__ import annotations

import time
from typing import Any

from penstock.server.node.node import Node
from penstock.server.rpc.opening import VERSION
from penstock.server.rpc.streams import Streams


def status(node: Node, streams: Streams, *, lent_bytes: int, draining: bool) -> dict[str, Any]:
    """Return what this node is doing, for `penstock top`; the keys are in docs/operate.md."""
    jobs = []
    for name, job in sorted(node.jobs.items()):
        log = node.log(job)
        batches = {
            "ready_batches": sum(1 for e in log.entries.values() if e.span is not None),
            "ready_bytes": log.ready_bytes,
            "kept_bytes": log.kept.nbytes,
            "produced": log.produced,
            "recomputed": log.recomputed,
            "cache_hits": log.cache_hits,
        }
        if log.job is not job:  # those of the log are told once, or sums over jobs would be wrong
            batches = dict.fromkeys(batches, 0)
        named = {"name": name, "log_id": job.log_id.hex(), "lanes": job.lanes}
        jobs.append({**named, **batches, **streams.status(name)})
    return {
        "version": VERSION,
        "node": node.incarnation,
        "uptime_s": round(time.monotonic() - node.started_at, 1),
        "draining": draining,
        "bound_bytes": node.bound_bytes,
        "lent_bytes": lent_bytes,
        "workers": [
            {
                "pid": worker.pid,
                "ready": worker.ready,
                "busy": bool(worker.tickets),
                "stage": worker.current().stage,
            }
            for worker in node.workers
        ],
        "jobs": jobs,
    }


__all__ = ["status"]
