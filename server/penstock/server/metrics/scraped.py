"""Gauges that are asked for at each scrape: of the node's status, and of its processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from penstock.server.metrics.series import family

SLOWEST_RANKS = 8


class StatusCollector(Collector):
    """Gauges made of a node's status at the moment of a scrape."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names need no check against a status that is not there yet."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the gauges."""
        status = self._status()
        for name, value in (
            ("workers_ready", sum(worker["ready"] for worker in status["workers"])),
            ("ready_bound_bytes", status["bound_bytes"]),
            ("lent_bytes", status["lent_bytes"]),
            ("start_time_seconds", status["started_at"]),
            ("start_duration_seconds", status["start_s"]),
            ("store_away_seconds", status["store"]["away_s"]),
            ("snapshots_waiting", status["store"]["snapshots_waiting"]),
        ):
            yield _one(name, [((), value)])
        yield _one("memory_bytes", [((part,), value) for part, value in status["memory"].items()])
        jobs = status["jobs"]
        for name, key in (
            ("ready_batches", "ready_batches"),
            ("ready_bytes", "ready_bytes"),
            ("wanted_nodes", "wanted_nodes"),
            ("needed_workers", "needed_workers"),
            ("units", "units"),
            ("units_asked", "units_asked"),
            ("recomputed_batches_total", "recomputed"),
            ("unread_batches_total", "unread"),
            ("cache_hits_total", "cache_hits"),
            ("environment_refused", "refused"),
        ):
            yield _one(name, [((job["name"],), job[key]) for job in jobs])
        groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for job in jobs:
            for stream in sorted(job["groups"], key=lambda stream: str(stream["group"])):
                groups.setdefault((job["name"], stream["group"]), []).append(stream)
        yield _one("group_readers", [(of, len(streams)) for of, streams in groups.items()])
        lowest = [(of, min(each["next"] for each in streams)) for of, streams in groups.items()]
        yield _one("group_next_position", lowest)
        for name, key in (
            ("group_waiting_seconds", "waiting_s"),
            ("group_stalled_seconds", "stalled_s"),
            ("consumer_lag_batches", "lag_batches"),
        ):
            found = [
                ((*of, rank), value)
                for of, streams in groups.items()
                for rank, value in _highest(streams, key)
            ]
            yield _one(name, found)


class CallerCollector(Collector):
    """What callers use, as gauges and counters.

    Args:
        names: Gives the names in the file of tokens.
        used: Gives by name open streams, and the bytes that were sent.
    """

    def __init__(
        self, names: Callable[[], Sequence[str]], used: Callable[[], Mapping[str, tuple[int, int]]]
    ) -> None:
        self._names, self._used = names, used

    def collect(self) -> Iterable[Metric]:
        """Return a sample for every name of the file."""
        used = self._used()
        found = [((name,), used.get(name, (0, 0))) for name in self._names()]
        yield _one("token_streams", [(labels, streams) for labels, (streams, _) in found])
        yield _one("token_sent_bytes_total", [(labels, nbytes) for labels, (_, nbytes) in found])


def _one(name: str, samples: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    made = family(f"penstock_{name}")
    for labels, value in samples:
        made.add_metric(labels, value)
    return cast(Metric, made)


def _highest(streams: Iterable[Mapping[str, Any]], key: str) -> list[tuple[str, float]]:
    """Return the ranks where a value is highest: a series for each rank would be too many."""
    by_rank: dict[str, float] = {}
    for stream in streams:
        rank = str(stream["rank"])
        by_rank[rank] = max(by_rank.get(rank, 0.0), stream[key])
    return sorted(by_rank.items(), key=lambda pair: -pair[1])[:SLOWEST_RANKS]
