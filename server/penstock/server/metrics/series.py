"""Metrics that are made of rows of the table, and counters that cost an addition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from penstock.common.metric_table import METRICS, help_of


def made(name: str, registry: CollectorRegistry, **options: Any) -> Any:
    """Return a metric of prometheus_client, of the kind and with the labels of the table."""
    metric = METRICS[name]
    kinds = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[metric.kind]
    return kinds(name, help_of(name), metric.labels, registry=registry, **options)


class _Cell:
    """What a `Series` counts under one set of labels."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def inc(self, by: float = 1) -> None:
        """Add to it."""
        self._values[0] += by
        self._values[1] += 1


class Series(Collector):
    """A counter, or a summary, that one thread adds to, and that becomes samples at a scrape.

    Args:
        name: Its name in the table of metrics.
        registry: Where scrapes find it.
    """

    def __init__(self, name: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._values: dict[tuple[str, ...], list[float]] = {}
        registry.register(self)

    def add(self, value: float, *labels: str, count: int = 1) -> None:
        """Add to the sum, and to the count, of these labels."""
        found = self._values.get(labels)
        if found is None:
            found = self._values[labels] = [0, 0]
        found[0] += value
        found[1] += count

    def labels(self, *labels: str) -> _Cell:
        """Return what is counted under these labels; from now on there is a sample of it."""
        self.add(0, *labels, count=0)
        return _Cell(self._values[labels])

    def sums(self, *first: str) -> dict[tuple[str, ...], float]:
        """Return the sums of all whose labels begin with these, by the other labels."""
        at = len(first)
        found = list(self._values.items())
        return {labels[at:]: total for labels, (total, _) in found if labels[:at] == first}

    def describe(self) -> Iterable[Metric]:
        """Return the family without samples: two metrics of one name are refused."""
        return [family(self._name)]

    def collect(self) -> Iterable[Metric]:
        """Return the samples as they are now."""
        made = family(self._name)
        for labels, (total, count) in list(self._values.items()):
            if isinstance(made, SummaryMetricFamily):
                made.add_metric(labels, count_value=int(count), sum_value=total)
            else:
                made.add_metric(labels, total)
        return [made]


def family(name: str) -> Any:
    """Return the family of a metric of the table, for samples that are made at a scrape."""
    metric = METRICS[name]
    made = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "summary": SummaryMetricFamily,
    }[metric.kind]
    return made(name, help_of(name), labels=metric.labels)
