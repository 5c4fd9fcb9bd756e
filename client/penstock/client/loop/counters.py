"""Prometheus counters of Loaders, in a registry that the caller gives: `Loader(metrics=registry)`.

Nothing is counted twice, and nothing is added to the loop: a scrape reads what the Loaders count in
any case. It runs in the scraper's thread, so it reads nothing but values that are replaced as a
whole.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.client.calls.background_thread import in_background
from penstock.client.loop.reader import LoopReader
from penstock.common.metric_table import METRICS, help_of
from penstock.wire.left_reasons import LEFT_REASONS

Labels = tuple[str, ...]
Values = Mapping[tuple[str, Labels], float]

GAUGES = ("first_batch_seconds", "next_position")
"""What says nothing any more once a Loader has ended."""


class LoaderCounters:
    """All Loaders of one registry, as a collector of prometheus_client.

    What Loaders that have ended have counted stays: a counter never decreases.
    """

    def __init__(self) -> None:
        self._live: list[CountedLoader] = []
        self._ended: dict[tuple[str, Labels], float] = {}
        self._lock = threading.Lock()  # taken by scrapes only

    def add(self, counted: CountedLoader) -> None:
        """Count a Loader from now on."""
        self._live.append(counted)

    def describe(self) -> Iterable[Any]:
        """Return the families without samples: two metrics of one name are refused."""
        return list(_families().values())

    def collect(self) -> Iterable[Any]:
        """Return the samples as they are now."""
        with self._lock:
            sums = dict(self._ended)
            for counted in list(self._live):
                has_ended = counted.look()
                for place, value in counted.values.items():
                    if not has_ended or place[0] not in GAUGES:
                        sums[place] = sums.get(place, 0) + value
                    if has_ended and place[0] not in GAUGES:
                        self._ended[place] = self._ended.get(place, 0) + value
                if has_ended:
                    self._live.remove(counted)
        families = _families()
        for (name, labels), value in sums.items():
            families[name].add_metric(labels, value)
        return list(families.values())


class CountedLoader:
    """What one Loader has counted, as it was when it was looked at last.

    Args:
        reader: Its reader; it is not kept alive.
        job: The job's name.
        group: The group's name, or nothing.
    """

    def __init__(self, reader: LoopReader, job: str, group: str | None) -> None:
        self._reader = weakref.ref(reader)
        self._job, self._group = job, group or ""
        self.values: Values = {}

    def look(self) -> bool:
        """Read the counts again; return whether the Loader has ended."""
        reader = self._reader()
        if reader is None:
            return True
        at, waits, closed = reader.at, reader.intake.waits, reader.is_closed
        if at.session is None:
            return closed
        labels = (self._job, self._group, str(at.session.share.rank))
        tally, later = at.tally, waits.later
        if at.feed is not None:
            tally = tally.with_feed(at.feed)
        found = {
            "batches_total": tally.batches,
            "padding_batches_total": tally.padding_batches,
            "skipped_batches_total": tally.skipped_batches,
            "bytes_total": tally.bytes,
            "samples_total": tally.samples,
            "tokens_total": tally.tokens,
            "reconnects_total": tally.reconnects,
            "first_batch_seconds": waits.first_batch_s,
            "next_position": at.next,
        }
        values: dict[tuple[str, Labels], float] = {
            (name, labels): float(value) for name, value in found.items()
        }
        for reason in LEFT_REASONS.values():
            count = tally.failovers.get(reason, 0)
            values["failovers_total", (*labels, reason)] = float(count)
        for name, waited in later._asdict().items():
            values["wait_seconds_total", (*labels, name.removesuffix("_s"))] = waited
        self.values = values
        return closed


def count_in(registry: Any, reader: LoopReader, job: str, group: str | None) -> CountedLoader:
    """Count a Loader in a registry from now on; return what is to look once more at its end.

    Raises:
        ValueError: The registry has another metric of one of these names.
    """
    counted = CountedLoader(reader, job, group)

    def add(_: object) -> None:
        with _LOCK:
            found = _BY_REGISTRY.get(registry)
            if found is None:
                found = LoaderCounters()
                registry.register(found)
                _BY_REGISTRY[registry] = found
        found.add(counted)

    in_background(add)
    return counted


def _families() -> dict[str, Any]:
    """Return the families of the table's metrics of Loaders, by what follows `penstock_loader_`."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    return {
        name.removeprefix(PREFIX): kinds[metric.kind](name, help_of(name), labels=metric.labels)
        for name, metric in METRICS.items()
        if name.startswith(PREFIX)
    }


PREFIX = "penstock_loader_"

_LOCK = threading.Lock()  # taken in the background only
_BY_REGISTRY: weakref.WeakKeyDictionary[Any, LoaderCounters] = weakref.WeakKeyDictionary()
