"""What flows through a node, from its source to the cursor, and what holds it up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

STAGES = {
    "fetch": "source",
    "retrying": "source",
    "process": "process",
    "plan": "pack",
    "replay": "pack",
    "collate": "pack",
    "encode": "pack",
    "build": "pack",
    "setup": "pack",
}
"""The part of the strip that each stage of a worker belongs to."""

WAITING_SHARE = 0.05
"""Readers that wait for less than this share of their time are kept busy."""

BUSY_SHARE = 0.6
"""Workers that work for more than this share of their time could not do much more."""

WORKED = ("source", "process", "pack")


def strip(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return for each job what went through each part in a second, and the bottleneck.

    Args:
        before: An earlier status of the same node.
        now: Its status.
    """
    seconds = max(1e-3, now["uptime_s"] - before["uptime_s"])
    earlier = {job["name"]: job for job in before["jobs"]}
    return {
        job["name"]: _job(earlier[job["name"]], job, seconds, now)
        for job in now["jobs"]
        if job["name"] in earlier
    }


def _job(
    before: Mapping[str, Any], now: Mapping[str, Any], seconds: float, status: Mapping[str, Any]
) -> dict[str, Any]:
    past, counts = before["counts"], now["counts"]

    def rate(name: str) -> float:
        return round(max(0.0, float(counts[name] - past[name])) / seconds, 3)

    busy = dict.fromkeys(WORKED, 0.0)
    for stage, spent in counts["stages_s"].items():
        if stage in STAGES:
            busy[STAGES[stage]] += max(0.0, spent - past["stages_s"].get(stage, 0.0)) / seconds
    tokens, padding = (counts[name] - past[name] for name in ("tokens", "padding_tokens"))
    shares = _wait_shares(before, now, seconds)
    lags = [reader["lag_batches"] for reader in now["groups"]]
    found = {
        "source": {
            "items_per_s": rate("items"),
            "bytes_per_s": rate("read_bytes"),
            "workers": round(busy["source"], 2),
        },
        "process": {"items_per_s": rate("items"), "workers": round(busy["process"], 2)},
        "pack": {
            "batches_per_s": round(max(0, now["produced"] - before["produced"]) / seconds, 3),
            "fill": round(tokens / (tokens + padding), 4) if tokens > 0 else None,
            "workers": round(busy["pack"], 2),
        },
        "ready": {
            "batches": now["ready_batches"],
            "bytes": now["ready_bytes"],
            "bound_bytes": status["bound_bytes"],
        },
        "sent": {
            "batches_per_s": rate("sent_batches"),
            "tokens_per_s": rate("sent_tokens"),
            "bytes_per_s": rate("sent_bytes"),
        },
        "committed": {
            "batches_per_s": round(_committed(before, now) / seconds, 3),
            "lag_batches": max(lags, default=0),
        },
        "wait_share": round(max(shares, default=0.0), 3),
        "readers": len(now["groups"]),
    }
    part, why = _bottleneck(found, busy, now, len(status["workers"]))
    return {**found, "bottleneck": part, "why": why}


def _wait_shares(before: Mapping[str, Any], now: Mapping[str, Any], seconds: float) -> list[float]:
    """Return the share of the time that each reader waited, of those that were there before."""
    past = {reader["id"]: reader["waiting_s"] for reader in before["groups"]}
    return [
        min(1.0, max(0.0, reader["waiting_s"] - past[reader["id"]]) / seconds)
        for reader in now["groups"]
        if reader["id"] in past
    ]


def _committed(before: Mapping[str, Any], now: Mapping[str, Any]) -> int:
    """Return how many batches groups have committed meanwhile."""
    sizes = {reader["group"]: reader["batches_per_step"] for reader in now["groups"]}
    total = 0
    for group, step in now["cursors"].items():
        past = before["cursors"].get(group)
        if step is not None and past is not None:
            total += max(0, step - past) * sizes.get(group, 1)
    return total


def _bottleneck(
    found: Mapping[str, Any], busy: Mapping[str, float], job: Mapping[str, Any], workers: int
) -> tuple[str | None, str]:
    """Return the part that holds the job up, and why it is that one, in a sentence."""
    if not found["readers"]:
        return None, "Nobody reads this job."
    if found["wait_share"] < WAITING_SHARE:
        return "committed", "Readers find their batches ready: training sets the pace."
    most = max(busy, key=lambda part: busy[part])
    stalled = [reader for reader in job["groups"] if reader["waits_for"] is not None]
    stages = [STAGES.get(reader["waits_for"]["stage"]) for reader in stalled]
    if sum(busy.values()) >= BUSY_SHARE * workers:
        share = f"{100 * busy[most] / max(1e-9, sum(busy.values())):.0f}%"
        return most, f"Readers wait, and workers are busy: {share} of their time goes here."
    for part in WORKED:
        if part in stages:
            return part, "Readers wait for a batch that is held up here."
    if job["ready_batches"]:
        return "sent", "Readers wait while batches are ready: the network, or their prefetch."
    return most, "Readers wait, and most of what workers do is done here."
