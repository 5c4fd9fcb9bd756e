"""Prometheus metrics of a loader node: one registry, labels that stay few for any number of ranks.

What happens is counted where it happens; what *is* (ready bytes, readers) is asked at each scrape.
Ranks never get a series each: a group shows its ranks' sums, and its slowest ranks by number.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    disable_created_metrics,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from penstock.server.core.reasons import QUARANTINED, RETRIES, SIZES
from penstock.server.job import Job
from penstock.server.node.observer import Observer
from penstock.wire.errors import PenstockError, clean_text

SLOWEST_RANKS = 8

MAX_LABEL = 120
"""Characters of a label's value."""

JOB = "penstock_job"
"""The label of a job's name. `job` is Prometheus's own: a target's label of that name arrives as
`exported_job`."""

MAX_REASONS = 32
"""Reasons of one job that get a series each, over all of its lanes; the others share one."""

FAILURES = (
    "bad_batch",
    "bad_item",
    "bad_snapshot",
    "internal",
    "job_changed",
    "lane_starved",
    "log_diverged",
    "position_far",
    "source_changed",
    "source_exhausted",
    "source_unavailable",
    "store_unavailable",
    "worker_crashed",
)
"""What may keep a batch from being made, by the code of the error."""

STORE_ERRORS = ("store_corrupt", "store_unavailable")
"""What a store may answer that is about the store, and not about the question."""

_WAIT_BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 300)
_CALL_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 30)


class Metrics(Observer):
    """The metrics of one node.

    Args:
        version: The package's version, for `penstock_build_info`.
    """

    def __init__(self, version: str) -> None:
        # A second series for every counter helps nobody.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # untyped in prometheus_client
        self.registry = registry = CollectorRegistry()
        info = Info("penstock_build", "Versions of this node.", registry=registry)
        info.info({"version": version, "python": platform.python_version()})
        job = (JOB,)
        # What every batch counts costs an addition: prometheus_client's own locks cost too much
        # there.
        self._batches = Tally(
            "penstock_batches_produced",
            "Batches made, those that were made again included.",
            job,
            registry,
        )
        self._bytes = Tally("penstock_produced_bytes", "Bytes of these batches.", job, registry)
        self._tokens = Tally(
            "penstock_tokens_packed",
            "Tokens in these batches, without padding; 0 where the collator does not count them.",
            job,
            registry,
        )
        self._fill = Histogram(
            "penstock_packing_fill_ratio",
            "Tokens of each batch made, divided by its tokens and padding.",
            job,
            buckets=(0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0),
            registry=registry,
        )
        self._stages = Tally(
            "penstock_decode_duration_seconds",
            "Seconds of the workers by stage (setup, fetch, process, collate, encode, replay, "
            "retrying), and the batches that they were spent on.",
            (JOB, "stage"),
            registry,
            SummaryMetricFamily,
        )
        self._read = Tally(
            "penstock_source_read_bytes",
            "Bytes read from storage by sources that count them: parquet and hf.",
            job,
            registry,
        )
        self._drawn = Tally(
            "penstock_source_drawn_bytes",
            "Bytes that the items drawn take in storage, of sources that read it in blocks: what "
            "reading every block once takes.",
            job,
            registry,
        )
        self._sent = Tally("penstock_batches_sent", "Batches sent to readers.", job, registry)
        self._sent_bytes = Tally("penstock_sent_bytes", "Bytes of batches sent.", job, registry)
        self._wait = Histogram(
            "penstock_consumer_wait_seconds",
            "How long a reader that could take a batch waited for its next one, for each wait.",
            job,
            buckets=_WAIT_BUCKETS,
            registry=registry,
        )
        self._skipped = Counter(
            "penstock_samples_skipped_total",
            "Items filtered by the processor or quarantined at the draw, and samples dropped by "
            "the batcher, as they were planned; samples quarantined in batches that were made; by "
            "reason.",
            (JOB, "reason"),
            registry=registry,
        )
        self._tail_batches = Gauge(
            "penstock_tail_dropped_batches",
            "Batches at the end of a finite job that filled no step of the last reader that was to "
            "leave these out.",
            job,
            registry=registry,
        )
        self._tail_samples = Gauge(
            "penstock_tail_dropped_samples",
            "Samples in these batches.",
            job,
            registry=registry,
        )
        self._quarantined = Gauge(
            "penstock_quarantined_items",
            "Items that verdicts leave out now, by source, stage and kind of error; "
            "max_quarantined of the job bounds their sum.",
            (JOB, "source", "stage", "reason"),
            registry=registry,
        )
        self._batcher = Counter(
            "penstock_batcher_counts_total",
            "What the batchers count beside samples that are left out: split, cut tokens, ...; "
            "and sizes that were not as told, in batches that were made.",
            (JOB, "count"),
            registry=registry,
        )
        part_items = Counter(
            "penstock_part_items_total",
            "Items drawn from each part of a mixture, as they were planned.",
            (JOB, "part"),
            registry=registry,
        )
        part_tokens = Counter(
            "penstock_part_tokens_total",
            "Tokens, as the batcher counts them, of the items drawn from each part of a mixture.",
            (JOB, "part"),
            registry=registry,
        )
        self._of_parts = {"items": part_items, "tokens": part_tokens}
        self._parts: dict[str, set[str]] = {}  # by job, the names of the parts of its mixtures
        self._part_target = Gauge(
            "penstock_part_target_ratio",
            "The share that each part of a mixture shall have, of what `by` says.",
            (JOB, "part", "by"),
            registry=registry,
        )
        self._retried = Counter(
            "penstock_retries_total",
            "Times that something was tried again: unavailable, an error that may be temporary; "
            "second_try, an item that failed once.",
            (JOB, "reason"),
            registry=registry,
        )
        self._failed = Counter(
            "penstock_decode_errors_total",
            "How often a batch could not be made, by the code of the error.",
            (JOB, "reason"),
            registry=registry,
        )
        self._verified = Counter(
            "penstock_verified_batches_total",
            "Batches made twice and compared: about one in 1,000.",
            job,
            registry=registry,
        )
        self._impure = Counter(
            "penstock_impure_batches_total",
            "Batches that were made twice and differed: a role of the job is not pure.",
            job,
            registry=registry,
        )
        self._restarts = Counter(
            "penstock_worker_restarts_total",
            "Worker processes that ended unasked.",
            registry=registry,
        )
        self.streams = Gauge("penstock_streams", "Open Read streams.", registry=registry)
        self.fenced = Counter(
            "penstock_cursor_fenced_total",
            "Calls and streams refused because a newer attempt has taken over.",
            registry=registry,
        )
        self.restarts = Counter(
            "penstock_stream_restarts_total",
            "Streams that a rank has opened again within one attempt.",
            job,
            registry=registry,
        )
        self._commit = Histogram(
            "penstock_cursor_commit_duration_seconds",
            "Time of a call of Commit, until it is durable, or has failed.",
            buckets=_CALL_BUCKETS,
            registry=registry,
        )
        self._cursor = Histogram(
            "penstock_cursor_call_duration_seconds",
            "Time of the other calls of the Cursors service.",
            ("method",),
            buckets=_CALL_BUCKETS,
            registry=registry,
        )
        self._store_errors = Counter(
            "penstock_store_errors_total",
            "Times that the store could not do what it was asked, by the code of the error.",
            ("reason",),
            registry=registry,
        )
        for code in STORE_ERRORS:
            self._store_errors.labels(code)
        self.draining = Gauge("penstock_draining", "1 while this node drains.", registry=registry)
        self._item_bytes: dict[str, float] = {}  # by job, of an item in storage
        self._kinds: dict[str, set[tuple[str, ...]]] = {}
        self._seen: dict[tuple[str, int], dict[str, int]] = {}
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        self._reasons: dict[tuple[Any, str], set[str]] = {}

    def begin(self, jobs: Mapping[str, Job]) -> None:
        """Make the series of these jobs, at 0.

        `increase()` sees a counter's second value first: one that appeared with its first event
        would never raise an alert for it.
        """
        for name, job in jobs.items():
            for tally in (self._batches, self._bytes, self._tokens, self._read, self._sent):
                tally.add(0, name)
            if item_bytes := _item_bytes(job):
                self._item_bytes[name] = item_bytes
                self._drawn.add(0, name)
            self._sent_bytes.add(0, name)
            for metric in (self._fill, self._wait, self._verified, self._impure, self.restarts):
                self._of(metric, name)
            for code in FAILURES:
                self._of(self._failed, name, code)
            batchers = [roles.batcher.clone() for roles in job.role_sets]
            skipped = [f"dropped:{reason}" for each in batchers for reason in each.dropped()]
            for reason in RETRIES:
                self._of(self._retried, name, reason)
            for reason in (*QUARANTINED, "filtered:none", *skipped):
                self._of(self._skipped, name, self._bounded(self._skipped, name, reason))
            targets = [each for roles in job.role_sets for each in roles.distributor.targets()]
            self._parts[name] = {target.part for target in targets}
            for target in targets:
                self._of(self._part_target, name, target.part, target.by).set(target.share)
                for counter in self._of_parts.values() if target.by != "lanes" else ():
                    self._of(counter, name, target.part)
            sizes = SIZES if any(roles.plans_from_refs for roles in job.role_sets) else ()
            for count in (*sizes, *(count for each in batchers for count in each.counters())):
                self._of(self._batcher, name, self._bounded(self._batcher, name, count))

    def _bounded(self, metric: Any, job: str, reason: str) -> str:
        """Return the label of a reason: itself, or one for all that come after `MAX_REASONS`."""
        known = self._reasons.setdefault((metric, job), set())
        if reason not in known and len(known) >= MAX_REASONS:
            kind, colon, _ = reason.partition(":")
            return f"{kind}:other reasons" if colon else "other"
        known.add(reason)
        return reason

    def _of(self, metric: Any, *labels: str) -> Any:
        """Return a metric's child, found by its labels once: for every batch that would be slow.

        Labels may be a user's words; one that is not Unicode would cost the whole scrape.
        """
        child = self._children.get((metric, labels))
        if child is None:
            clean = [clean_text(label, MAX_LABEL) for label in labels]
            child = self._children[metric, labels] = metric.labels(*clean)
        return child

    # --- what the node tells ---

    def produced(self, job: str, nbytes: int, counts: Mapping[str, int]) -> None:
        """A batch was made."""
        self._batches.add(1, job)
        self._bytes.add(nbytes, job)
        tokens, padding = counts.get("tokens", 0), counts.get("padding_tokens", 0)
        # A user's collator may count anything under these names.
        if tokens > 0 and padding >= 0:
            self._tokens.add(tokens, job)
            self._of(self._fill, job).observe(tokens / (tokens + padding))

    def worked(
        self,
        job: str,
        batches: int,
        stages_s: Mapping[str, float],
        read_bytes: int,
        drawn: int,
    ) -> None:
        """What some batches cost: a worker's seconds by stage, bytes read from storage, draws."""
        for stage, seconds in stages_s.items():
            self._stages.add(seconds, job, stage, count=batches)
        if read_bytes:
            self._read.add(read_bytes, job)
        if drawn and job in self._item_bytes:
            self._drawn.add(drawn * self._item_bytes[job], job)

    def counted(
        self, job: str, lane: int, counters: Mapping[str, int], before: Mapping[str, int]
    ) -> None:
        """The counters of a lane: what is new since the last time is added."""
        # What was counted before this node started is not of this node.
        before = self._seen.get((job, lane), before)
        for name, count in counters.items():
            # A line that restarts from a snapshot counts from there again: only growth is new.
            new = count - before.get(name, 0)
            kind, _, rest = name.partition(":")
            if new <= 0 or kind == "drawn":
                continue
            if kind in self._of_parts:
                # Their names are in the job file, so there is a series for each, and for no other.
                if rest in self._parts.get(job, ()):
                    self._of(self._of_parts[kind], job, rest).inc(new)
                continue
            # What is split or cut is delivered, and cut tokens are not samples.
            metric, reason = (self._batcher, rest) if kind == "batcher" else (self._skipped, name)
            self._of(metric, job, self._bounded(metric, job, reason)).inc(new)
        self._seen[job, lane] = {k: max(v, before.get(k, 0)) for k, v in counters.items()}

    def left_out(self, job: str, exits: Mapping[str, int]) -> None:
        """Samples that making a batch left out, or found larger or smaller than they were told."""
        for name, count in exits.items():
            metric = self._skipped if name.startswith("quarantined:") else self._batcher
            self._of(metric, job, self._bounded(metric, job, name)).inc(count)

    def retried(self, job: str, retries: Mapping[str, int]) -> None:
        """How often something was tried again, by why."""
        for reason, count in retries.items():
            self._of(self._retried, job, reason).inc(count)

    def quarantined(self, job: str, left_out: Mapping[tuple[str, str, str], int]) -> None:
        """How many items are left out now, by source, stage and kind of reason."""
        sums = dict.fromkeys(self._kinds.setdefault(job, set()), 0)  # some may have been released
        for (source, stage, reason), count in left_out.items():
            kind = source, *self._bounded(self._quarantined, job, f"{stage}:{reason}").split(":", 1)
            sums[kind] = sums.get(kind, 0) + count
        for kind, count in sums.items():
            self._of(self._quarantined, job, *kind).set(count)
        self._kinds[job].update(sums)

    def worker_died(self) -> None:
        """A worker process ended unasked."""
        self._restarts.inc()

    def failed(self, job: str, code: str) -> None:
        """A batch could not be made."""
        self._of(self._failed, job, code).inc()

    def store_failed(self, error: PenstockError) -> None:
        """A call to the store has failed: counted if it is the store that failed."""
        if error.code in STORE_ERRORS:
            self._of(self._store_errors, error.code).inc()

    def verified(self, job: str, pure: bool) -> None:
        """A batch was made twice, and was the same, or was not."""
        self._of(self._verified, job).inc()
        if not pure:
            self._of(self._impure, job).inc()

    # --- what the edge tells ---

    def sent(self, job: str, batches: int, nbytes: int) -> None:
        """Batches have gone out to a reader."""
        self._sent.add(batches, job)
        self._sent_bytes.add(nbytes, job)

    def waited(self, job: str, seconds: float) -> None:
        """A reader had waited for so long."""
        self._of(self._wait, job).observe(seconds)

    def tail_dropped(self, job: str, batches: int, samples: int) -> None:
        """A reader was given all of a finite job but the batches that fill no step."""
        self._of(self._tail_batches, job).set(batches)
        self._of(self._tail_samples, job).set(samples)

    @contextlib.contextmanager
    def cursor_call(self, method: str) -> Iterator[None]:
        """Time a call to the cursors."""
        start = time.perf_counter()
        try:
            yield
        finally:
            histogram = self._commit if method == "Commit" else self._of(self._cursor, method)
            histogram.observe(time.perf_counter() - start)

    def watch(self, status: Callable[[], dict[str, Any]]) -> None:
        """Ask for the node's status at each scrape."""
        self.registry.register(_StatusCollector(status))


class Tally(Collector):
    """A counter, or a summary, that one thread adds to, and that becomes samples at a scrape.

    Args:
        name: Its name; a counter's samples have `_total` behind it.
        text: What it counts.
        labels: The names of its labels.
        registry: Where scrapes find it.
        family: What its samples are: a counter's sums, or a summary's sums and counts.
    """

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        registry: CollectorRegistry,
        family: type[CounterMetricFamily | SummaryMetricFamily] = CounterMetricFamily,
    ) -> None:
        self._name, self._text, self._labels, self._family = name, text, labels, family
        self._values: dict[tuple[str, ...], list[float]] = {}
        registry.register(self)

    def add(self, value: float, *labels: str, count: int = 1) -> None:
        """Add to the sum, and to the count, of these labels."""
        found = self._values.get(labels)
        if found is None:
            found = self._values[labels] = [0, 0]
        found[0] += value
        found[1] += count

    def describe(self) -> Iterable[Metric]:
        """Return the family without samples: two metrics of one name are refused."""
        return [self._family(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[Metric]:
        """Return the samples as they are now."""
        family = self._family(self._name, self._text, labels=self._labels)
        for labels, (total, count) in list(self._values.items()):
            if isinstance(family, SummaryMetricFamily):
                family.add_metric(labels, count_value=int(count), sum_value=total)
            else:
                family.add_metric(labels, total)
        return [family]


class _StatusCollector(Collector):
    """Gauges made of a node's status at the moment of a scrape."""

    def __init__(self, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status

    def describe(self) -> Iterable[Metric]:
        """Return nothing: names need no check against a status that is not there yet."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Return the gauges."""
        status = self._status()
        yield GaugeMetricFamily(
            "penstock_workers_ready",
            "Worker processes that are ready.",
            value=sum(worker["ready"] for worker in status["workers"]),
        )
        yield GaugeMetricFamily(
            "penstock_lent_bytes",
            "Bytes of batches that processes on this host read in the node's memory.",
            value=status["lent_bytes"],
        )
        job = [JOB]
        ready = GaugeMetricFamily(
            "penstock_ready_batches",
            "Batches made and not yet taken by every reader that wants them.",
            labels=job,
        )
        size = GaugeMetricFamily("penstock_ready_bytes", "Bytes of these batches.", labels=job)
        again = CounterMetricFamily(
            "penstock_recomputed_batches",
            "Batches made again: no longer kept when a reader wanted them.",
            labels=job,
        )
        hits = CounterMetricFamily(
            "penstock_cache_hits",
            "Batches that a late reader was given from those that were kept.",
            labels=job,
        )
        group = [JOB, "group"]
        readers = GaugeMetricFamily(
            "penstock_group_readers", "Open readers of a group.", labels=group
        )
        first = GaugeMetricFamily(
            "penstock_group_next_position", "The lowest position still to be sent.", labels=group
        )
        waits = GaugeMetricFamily(
            "penstock_group_waiting_seconds",
            "How long the slowest readers of a group have waited since they opened.",
            labels=[JOB, "group", "rank"],
        )
        lag = GaugeMetricFamily(
            "penstock_consumer_lag_batches",
            "Batches sent to the readers that are furthest behind, and not finished by them.",
            labels=[JOB, "group", "rank"],
        )
        for job in status["jobs"]:
            ready.add_metric([job["name"]], job["ready_batches"])
            size.add_metric([job["name"]], job["ready_bytes"])
            again.add_metric([job["name"]], job["recomputed"])
            hits.add_metric([job["name"]], job["cache_hits"])
            groups: dict[str, list[dict[str, Any]]] = {}
            for stream in job["groups"]:
                groups.setdefault(stream["group"], []).append(stream)
            for name, streams in sorted(groups.items()):
                labels = [job["name"], name]
                readers.add_metric(labels, len(streams))
                first.add_metric(labels, min(stream["next"] for stream in streams))
                for family, key in ((waits, "waiting_s"), (lag, "lag_batches")):
                    for rank, value in _highest(streams, key):
                        family.add_metric([*labels, rank], value)
        yield from (ready, size, again, hits, readers, first, waits, lag)


def _item_bytes(job: Job) -> float:
    """Return the bytes of an item in storage, in the mean over the lanes; 0 = not known."""
    total = 0.0
    for roles in job.role_sets:
        for reading in roles.readings:
            lanes = roles.lanes if reading.lanes is None else len(reading.lanes)
            total += lanes * reading.share * reading.item_bytes
    return total / sum(roles.lanes for roles in job.role_sets)


def _highest(streams: Iterable[Mapping[str, Any]], key: str) -> list[tuple[str, float]]:
    """Return the ranks where a value is highest: a series for each rank would be too many."""
    by_rank: dict[str, float] = {}
    for stream in streams:
        rank = str(stream["rank"])
        by_rank[rank] = max(by_rank.get(rank, 0.0), stream[key])
    return sorted(by_rank.items(), key=lambda pair: -pair[1])[:SLOWEST_RANKS]


__all__ = ["SLOWEST_RANKS", "Metrics"]
