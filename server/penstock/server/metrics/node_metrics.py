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

from prometheus_client import CollectorRegistry, Info, disable_created_metrics
from typing_extensions import override

from penstock.common import tracing
from penstock.common.metric_table import help_of
from penstock.server.core.reasons import QUARANTINED, RETRIES, SIZES
from penstock.server.job.job import Job
from penstock.server.media.media_cpu import MEDIA_STAGES
from penstock.server.media.video.frame_counts import FRAMES, OPENS
from penstock.server.metrics.scraped import CallerCollector, StatusCollector
from penstock.server.metrics.series import Series, made
from penstock.server.node.protocol.observer import Observer
from penstock.server.roles.distinct_episodes import EPISODES
from penstock.server.roles.distributor import Target
from penstock.wire.errors import PenstockError
from penstock.wire.left_reasons import LEFT_REASONS
from penstock.wire.plain import clean_text

COUNTING = "count"
"""What the processes that count spend their seconds on, beside the stages of workers."""

SPANS = {"Begin": "begin", "Commit": "commit"}
"""Calls that have a span each, where spans are wanted."""

MAX_LABEL = 120
"""Characters of a label's value."""

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

REFUSALS = ("unauthenticated", "forbidden")
"""Why a call may be refused to who makes it, by the code of the error."""

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
        self._children: dict[tuple[Any, tuple[str, ...]], Any] = {}
        info = Info("penstock_build", help_of("penstock_build_info"), registry=registry)
        info.info({"version": version, "python": platform.python_version()})
        # What every batch counts costs an addition: prometheus_client's own locks cost too much
        # there.
        self._batches = Series("penstock_batches_produced_total", registry)
        self._bytes = Series("penstock_produced_bytes_total", registry)
        self._tokens = Series("penstock_tokens_packed_total", registry)
        self._padding = Series("penstock_padding_tokens_total", registry)
        self._episodes = Series("penstock_batch_episodes_total", registry)
        self._items = Series("penstock_drawn_items_total", registry)
        self._fill = made(
            "penstock_packing_fill_ratio",
            registry,
            buckets=(0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0),
        )
        self._stages = Series("penstock_decode_duration_seconds", registry)
        self._read = Series("penstock_source_read_bytes_total", registry)
        self._media = Series("penstock_media_read_bytes_total", registry)
        self._frames = Series("penstock_video_frames_total", registry)
        self._opens = Series("penstock_video_opens_total", registry)
        self._media_cpu = Series("penstock_video_cpu_seconds_total", registry)
        self._drawn = Series("penstock_source_drawn_bytes_total", registry)
        self._sent = Series("penstock_batches_sent_total", registry)
        self._sent_bytes = Series("penstock_sent_bytes_total", registry)
        self._sent_tokens = Series("penstock_sent_tokens_total", registry)
        self._lent = Series("penstock_batches_lent_total", registry)
        self._lent_bytes = Series("penstock_batches_lent_bytes_total", registry)
        self._wait = made("penstock_consumer_wait_seconds", registry, buckets=_WAIT_BUCKETS)
        self._skipped = Series("penstock_samples_skipped_total", registry)
        self._tail_batches = made("penstock_tail_dropped_batches", registry)
        self._tail_samples = made("penstock_tail_dropped_samples", registry)
        self._quarantined = made("penstock_quarantined_items", registry)
        self._batcher = made("penstock_batcher_counts_total", registry)
        self._of_parts = {
            "items": Series("penstock_part_items_total", registry),
            "tokens": Series("penstock_part_tokens_total", registry),
        }
        self._targets: dict[str, list[Target]] = {}  # by job, the parts of its mixtures
        self._part_target = made("penstock_part_target_ratio", registry)
        self._retried = made("penstock_retries_total", registry)
        self._failed = made("penstock_decode_errors_total", registry)
        self._verified = made("penstock_verified_batches_total", registry)
        self._impure = made("penstock_impure_batches_total", registry)
        self._witnesses = made("penstock_witnesses_compared_total", registry)
        self._other_witnesses = made("penstock_witnesses_diverged_total", registry)
        self._restarts = made("penstock_worker_restarts_total", registry)
        self.streams = made("penstock_streams", registry)
        self.fenced = made("penstock_cursor_fenced_total", registry)
        self.restarts = made("penstock_stream_restarts_total", registry)
        self._failovers = made("penstock_failovers_total", registry)
        self._commit = made(
            "penstock_cursor_commit_duration_seconds", registry, buckets=_CALL_BUCKETS
        )
        self._cursor = made(
            "penstock_cursor_call_duration_seconds", registry, buckets=_CALL_BUCKETS
        )
        self._refused = made("penstock_calls_refused_total", registry)
        for code in REFUSALS:
            self._of(self._refused, "", code)
        self._store_errors = made("penstock_store_errors_total", registry)
        for code in STORE_ERRORS:
            self._store_errors.labels(code)
        self.polled = made("penstock_store_polls_total", registry)
        self.fenced_elsewhere = made("penstock_fenced_elsewhere_total", registry)
        self.draining = made("penstock_draining", registry)
        self.store_away_s: Callable[[], float] = lambda: 0.0  # the composition root says better
        self._item_bytes: dict[str, float] = {}  # by job, of an item in storage
        self._kinds: dict[str, set[tuple[str, ...]]] = {}
        self._seen: dict[tuple[str, int], dict[str, int]] = {}
        self._reasons: dict[tuple[Any, str], set[str]] = {}

    def begin(self, jobs: Mapping[str, Job]) -> None:
        """Make the series of these jobs, at 0.

        `increase()` sees a counter's second value first: one that appeared with its first event
        would never raise an alert for it.
        """
        for name, job in jobs.items():
            for tally in (
                *(self._items, self._read, self._media),
                *(self._batches, self._bytes, self._tokens, self._padding),
                *(self._sent, self._sent_bytes, self._sent_tokens, self._lent, self._lent_bytes),
            ):
                tally.add(0, name)
            if job.decodes_videos:
                self.decoded(
                    name, dict.fromkeys((*FRAMES, *OPENS), 0), dict.fromkeys(MEDIA_STAGES, 0)
                )
            if item_bytes := _item_bytes(job):
                self._item_bytes[name] = item_bytes
                self._drawn.add(0, name)
            compared = self._verified, self._impure, self._witnesses, self._other_witnesses
            for metric in (self._fill, self._wait, *compared, self.restarts):
                self._of(metric, name)
            for reason in LEFT_REASONS.values():
                self._of(self._failovers, name, reason)
            self._of(self._quarantined, name, "", "", "none").set(0)
            for code in FAILURES:
                self._of(self._failed, name, code)
            batchers = [roles.batcher.clone() for roles in job.role_sets]
            skipped = [f"dropped:{reason}" for each in batchers for reason in each.dropped()]
            for reason in RETRIES:
                self._of(self._retried, name, reason)
            for reason in (*QUARANTINED, "filtered:none", *skipped):
                self._of(self._skipped, name, self._bounded(self._skipped, name, reason))
            targets = [each for roles in job.role_sets for each in roles.distributor.targets()]
            self._targets[name] = targets
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

    @override
    def produced(self, job: str, nbytes: int, counts: Mapping[str, int]) -> None:
        self._batches.add(1, job)
        self._bytes.add(nbytes, job)
        if (episodes := counts.get(EPISODES, 0)) > 0:
            self._episodes.add(episodes, job)
        tokens, padding = counts.get("tokens", 0), counts.get("padding_tokens", 0)
        # A user's collator may count anything under these names.
        if tokens > 0 and padding >= 0:
            self._tokens.add(tokens, job)
            self._padding.add(padding, job)
            self._of(self._fill, job).observe(tokens / (tokens + padding))

    @override
    def worked(
        self,
        job: str,
        batches: int,
        stages_s: Mapping[str, float],
        read_bytes: int,
        media_bytes: int,
        drawn: int,
    ) -> None:
        for stage, seconds in stages_s.items():
            self._stages.add(seconds, job, stage, count=batches)
        self._items.add(drawn, job)
        self._count_read(job, read_bytes, media_bytes)
        if drawn and job in self._item_bytes:
            self._drawn.add(drawn * self._item_bytes[job], job)

    @override
    def decoded(self, job: str, frames: Mapping[str, int], cpu_s: Mapping[str, float]) -> None:
        for name, count in frames.items():
            (self._opens if name in OPENS else self._frames).add(count, job, name)
        for stage, seconds in cpu_s.items():
            self._media_cpu.add(seconds, job, stage)

    def counting(self, job: str, seconds: float, read_bytes: int, media_bytes: int) -> None:
        """What it cost to find out where lanes end: nothing is drawn for it, so it is read more."""
        self._stages.add(seconds, job, COUNTING, count=0)
        self._count_read(job, read_bytes, media_bytes)

    def _count_read(self, job: str, of_sources: int, of_media: int) -> None:
        if of_sources:
            self._read.add(of_sources, job)
        if of_media:
            self._media.add(of_media, job)

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
                if any(rest == target.part for target in self._targets.get(job, ())):
                    self._of(self._of_parts[kind], job, rest).inc(new)
                continue
            # What is split or cut is delivered, and cut tokens are not samples.
            metric, reason = (self._batcher, rest) if kind == "batcher" else (self._skipped, name)
            self._of(metric, job, self._bounded(metric, job, reason)).inc(new)
        self._seen[job, lane] = {k: max(v, before.get(k, 0)) for k, v in counters.items()}

    @override
    def left_out(self, job: str, exits: Mapping[str, int]) -> None:
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

    @override
    def worker_died(self) -> None:
        self._restarts.inc()

    @override
    def failed(self, job: str, code: str) -> None:
        self._of(self._failed, job, code).inc()

    def failed_over(self, job: str, reason: str) -> None:
        """A reader of a job has left another node, and reads here; by the name of why."""
        self._of(self._failovers, job, reason).inc()

    def store_failed(self, error: PenstockError) -> None:
        """A call to the store has failed: counted if it is the store that failed."""
        if error.code in STORE_ERRORS:
            self._of(self._store_errors, error.code).inc()

    @override
    def verified(self, job: str, pure: bool) -> None:
        self._of(self._verified, job).inc()
        if not pure:
            self._of(self._impure, job).inc()

    @override
    def witnessed(self, job: str, compared: int, diverged: int) -> None:
        self._of(self._witnesses, job).inc(compared)
        self._of(self._other_witnesses, job).inc(diverged)

    # --- what the edge tells ---

    def sent(self, job: str, each_bytes: Iterable[int], tokens: int = 0) -> None:
        """Batches of so many bytes have gone out to a reader, sent or lent.

        Args:
            job: The job.
            each_bytes: The bytes of each.
            tokens: Tokens in all of them, without padding.
        """
        sizes = list(each_bytes)
        self._sent.add(len(sizes), job)
        self._sent_bytes.add(sum(sizes), job)
        self._sent_tokens.add(tokens, job)

    def lent(self, job: str, each_bytes: Sequence[int]) -> None:
        """Of these, batches of so many bytes were lent."""
        if each_bytes:
            self._lent.add(len(each_bytes), job)
            self._lent_bytes.add(sum(each_bytes), job)

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
        start, began_ns = time.perf_counter(), time.time_ns()
        error: BaseException | None = None
        try:
            yield
        except BaseException as failure:
            error = failure
            raise
        finally:
            if method in SPANS:
                tracing.record(f"node.{SPANS[method]}", began_ns, {}, error=error)
            histogram = self._commit if method == "Commit" else self._of(self._cursor, method)
            histogram.observe(time.perf_counter() - start)

    def figures(self, job: str) -> dict[str, Any]:
        """Return what was counted of a job since the node started, for `Feed.Status`."""
        targets = self._targets.get(job, [])
        drawn = {kind: tally.sums(job) for kind, tally in self._of_parts.items()}
        return {
            "items": int(self._items.sums(job).get((), 0)),
            "read_bytes": int(self._read.sums(job).get((), 0) + self._media.sums(job).get((), 0)),
            "tokens": int(self._tokens.sums(job).get((), 0)),
            "padding_tokens": int(self._padding.sums(job).get((), 0)),
            "sent_batches": int(self._sent.sums(job).get((), 0)),
            "sent_bytes": int(self._sent_bytes.sums(job).get((), 0)),
            "sent_tokens": int(self._sent_tokens.sums(job).get((), 0)),
            "stages_s": {
                stage: round(spent, 3) for (stage,), spent in self._stages.sums(job).items()
            },
            "video_frames": {name: int(count) for (name,), count in self._frames.sums(job).items()},
            "video_cpu_s": {
                stage: round(spent, 3) for (stage,), spent in self._media_cpu.sums(job).items()
            },
            "skipped": {
                reason: int(count) for (reason,), count in self._skipped.sums(job).items() if count
            },
            "parts": [
                {
                    "part": target.part,
                    "by": target.by,
                    "target": target.share,
                    "items": int(drawn["items"].get((target.part,), 0)),
                    "tokens": int(drawn["tokens"].get((target.part,), 0)),
                }
                for target in targets
            ],
        }

    def watch(self, status: Callable[[], dict[str, Any]]) -> None:
        """Ask for the node's status at each scrape."""
        self.registry.register(StatusCollector(status))

    def watch_callers(
        self, names: Callable[[], Sequence[str]], used: Callable[[], Mapping[str, tuple[int, int]]]
    ) -> None:
        """Ask at each scrape what the callers of a file of tokens use.

        Args:
            names: Gives the names in the file.
            used: Gives by name open streams, and the bytes that were sent.
        """
        self.begin_callers(names())
        self.registry.register(CallerCollector(names, used))

    def begin_callers(self, names: Iterable[str]) -> None:
        """Make the series of refusals of these callers, at 0; as `begin` does, for the same."""
        for name in names:
            for code in REFUSALS:
                self._of(self._refused, name, code)

    def refused(self, name: str, code: str) -> None:
        """A call was refused; `name` is whose it was, empty = nobody's that is known."""
        self._of(self._refused, name, code).inc()

    def watch_certificate(self, left_s: Callable[[], float]) -> None:
        """Ask at each scrape how long the node's certificate is valid, in seconds."""
        made("penstock_certificate_expires_seconds", self.registry).set_function(left_s)


def _item_bytes(job: Job) -> float:
    """Return the bytes of an item in storage, in the mean over the lanes; 0 = not known."""
    total = 0.0
    for roles in job.role_sets:
        for reading in roles.readings:
            lanes = roles.lanes if reading.lanes is None else len(reading.lanes)
            total += lanes * reading.share * reading.item_bytes
    return total / sum(roles.lanes for roles in job.role_sets)
