"""What a job costs and gives, from a few items and batches: times per role, packing, reading."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from penstock.common.batch_text import ids_text, summary
from penstock.common.documents import token_table
from penstock.server.commands import purity
from penstock.server.commands.block_reading import WindowRead, read_window
from penstock.server.commands.lane_warnings import warnings_of_lanes
from penstock.server.commands.left_behind import left_behind
from penstock.server.commands.memory_formula import NodeMemory, node_memory
from penstock.server.commands.meter import Meter, Metered, lanes_beside, pass_start, to_their_ends
from penstock.server.commands.mixture_shares import PartShare, part_shares
from penstock.server.commands.plan_windows import Apart
from penstock.server.commands.progress import Say, silent
from penstock.server.commands.side_by_side import SideBySide
from penstock.server.commands.token_text import decoder
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.batching import Batching
from penstock.server.pipeline.items import Items, Outcome
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.known_verdicts import Quarantined
from penstock.server.pipeline.line import Computed, Line
from penstock.server.pipeline.processing import Filtered
from penstock.server.planning.log.planned_log import planned_log
from penstock.server.planning.report.planned_figures import check_fits
from penstock.server.process.allocator import chosen
from penstock.server.roles.batchers import PoolPackingBatcher, SimpleBatcher
from penstock.server.roles.distributors import WITH_EPOCHS
from penstock.server.roles.reading import MOST_AMPLIFICATION
from penstock.server.usercode.held_bytes import held_bytes
from penstock.wire.errors import BadItem
from penstock.wire.frame import read_header

MAX_BATCHES, MAX_SECONDS = 64, 5.0
"""Enough batches for two digits; a job of slow batches is measured by fewer of them."""

WINDOWS = 8
"""Windows whose rates are compared, to tell how noisy a measurement was."""

PADS_EACH = (SimpleBatcher, PoolPackingBatcher)
"""Batchers that give each sample a row of its own."""


class Stopwatch:
    """Adds up seconds by stage: the `progress` of `Items`, told before each stage begins.

    Args:
        say: Told of each stage, too.
        what: What is measured, for `say`.
        clock: Seconds.
    """

    def __init__(
        self,
        say: Say = silent,
        what: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.what = what
        self._say, self._clock = say, clock
        self._stage, self._since = "", clock()

    def __call__(self, stage: str, item: ItemRef | None = None) -> None:
        """End the running stage and begin another."""
        now = self._clock()
        self.seconds[self._stage] += now - self._since
        self._stage, self._since = stage, now
        if stage:
            self._say(f"{self.what}: {stage}" + (f" of item {item}" if item else ""))


@dataclass
class JobMeasures:
    """The results of `penstockd check` for a job.

    Attributes:
        job: Its name.
        log_id: Hex.
        items: Raw items in all sources; None = not known before they are read.
        epoch_draws: Draws of an epoch, where `where` or `sample_ratio` makes other ones of these;
            else None.
        lanes: Lanes.
        batches: Batches in the log; None if it is endless, or not counted yet.
        epochs: As in the job; None if it is endless.
        items_run: Items that were processed.
        batches_run: Batches that were made.
        ms: Milliseconds by stage: fetch, process and batch per item, collate and encode per batch;
            pack per window, in planned jobs.
        filtered: Items without a sample, by reason.
        quarantined: Items that fail, by reason, where the job's policy is to leave them out.
        counts: Sums of the batches' counts.
        measures: What their samples count beside their sizes, by measure.
        parts: Of each part of a mixture what it shall have, and what it had in these batches.
        bytes_per_batch: Mean bytes of a body.
        efficiency: tokens / (tokens + padding tokens) of the `paced_batches`, or None where the
            collator counts none.
        paced_batches: Batches past the lane's start, from which efficiency and rates are; 0 where
            the lane ends before, and the efficiency is that of its first batches.
        pool_filled: The pool had been filled before these; None if the batcher has none.
        per_second: Samples and, where they are counted, tokens per second of one process alone.
        ranges: Of the same the slowest and the fastest of some windows; empty = too few batches.
        workers: Processes that the node would have here.
        together: As many processes at the same time, as far as there is work for each.
        reading: How a window of storage blocks is read, or None if there are none.
        memory: What the node takes while it serves this job.
        allocator: The library that its workers have for malloc; None = the system's.
        shares: Which part of all batches each set of roles makes, in a joint job; of others empty.
        warnings: Sentences; nothing is wrong, but something may surprise.
        sample: The first sample as text.
    """

    job: str
    log_id: str
    items: int | None
    lanes: int
    batches: int | None
    epochs: int | None
    epoch_draws: int | None = None
    items_run: int = 0
    batches_run: int = 0
    ms: dict[str, float] = field(default_factory=dict)
    filtered: dict[str, int] = field(default_factory=dict)
    quarantined: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    measures: dict[str, int] = field(default_factory=dict)
    parts: list[PartShare] = field(default_factory=list)
    bytes_per_batch: int = 0
    efficiency: float | None = None
    paced_batches: int = 0
    pool_filled: bool | None = None
    per_second: dict[str, float] = field(default_factory=dict)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    workers: int = 1
    together: SideBySide = field(default_factory=SideBySide)
    reading: WindowRead | None = None
    memory: NodeMemory | None = None
    allocator: str | None = None
    shares: dict[str, float] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    sample: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        memory = self.memory.to_json() if self.memory is not None else None
        return {**asdict(self), "memory": memory}


def examine(
    job: Job,
    elsewhere: purity.Gather,
    *,
    item_count: int = 32,
    batch_count: int = 4,
    workers: int = 1,
    ready_bytes: int = 1 << 30,
    together: Callable[[], SideBySide] = SideBySide,
    say: Say = silent,
) -> JobMeasures:
    """Run items and batches of a job here and elsewhere, compare, and measure.

    Args:
        job: The job, built.
        elsewhere: Gives what `purity.gather_backwards` gives of the same job elsewhere.
        item_count: How many items.
        batch_count: How many batches of one lane of each set of roles.
        workers: Processes that the node would have here.
        ready_bytes: Its bound on ready batches here.
        together: Measures their rate at the same time.
        say: Told what is being done.

    Raises:
        BadBatch: A planned batch has more documents than its collator has room for.
        LogDiverged: Something is not pure; names the first item or batch, and key.
        BadItem: An item fails and the job's policy is to stop; carries the user's traceback.
        PenstockError: Anything else that a server would stop with.
    """
    say(f"job {job.name}: hashing its source and roles")
    order = purity.order_of(job)
    found = JobMeasures(
        job=job.name,
        log_id=job.log_id.hex(),
        items=job.items,
        lanes=job.lanes,
        batches=order.batches,
        epochs=job.epochs,
        epoch_draws=_epoch_draws(job),
        workers=workers,
        allocator=None if (allocator := chosen()) is None else str(allocator),
        shares=job.shares(),
    )
    for roles in job.role_sets:
        if roles.planned is not None:
            check_fits(roles, roles.epochs, Apart(job, say))
    watch = Stopwatch(say, f"job {job.name}, {item_count} items")
    items = Items(job, progress=watch)
    refs = purity.first_items(job, item_count)
    outcomes = _outcomes(items, refs)
    watch("")
    found.items_run = len(refs)
    for stage in ("fetch", "process"):
        found.ms[f"{stage} per item"] = 1000 * watch.seconds[stage] / max(1, len(refs))
    _count_outcomes(found, outcomes)
    seconds_batching = _batching_seconds(items, refs, outcomes, found.quarantined)
    if seconds_batching is not None:
        found.ms["batch per item"] = 1000 * seconds_batching / max(1, len(refs))
    if any(roles.planned is not None for roles in job.role_sets):
        found.ms["pack per window"] = 1000 * _packing_seconds(job)
    found.reading = read_window(job, items, say)
    raws = purity.raw_facts(items, refs, outcomes)
    found.sample = _sample_text(job, refs, outcomes)

    watch = Stopwatch(say, f"job {job.name}, {batch_count} batches")
    lines = [Line(job, lane, Items(job, progress=watch)) for lane in purity.first_lanes(job)]
    counts = {line.lane: purity.batches_with_all(job, line, batch_count) for line in lines}
    made = {line.lane: purity.first_batches(line, 1) for line in lines}
    watch("")
    first, ones = watch.seconds.copy(), sum(map(len, made.values()))
    watch.seconds.clear()
    for line in lines:
        made[line.lane] += purity.first_batches(line, counts[line.lane] - 1)
    watch("")
    batches = [batch for of_lane in made.values() for batch in of_lane]
    # First batches also pay for imports and first calls: their times stand only if they are alone.
    more = len(batches) - ones
    seconds, timed = (watch.seconds, more) if more else (first, ones)
    for stage in ("collate", "encode"):
        found.ms[f"{stage} per batch"] = 1000 * seconds[stage] / max(1, timed)
    if not batches and job.epochs is not None:
        known = KnownOrder(job, items)
        known.count(is_enough=lambda: known.numbering.least > 0)
        job.check_not_empty(known.numbering)
    _count_batches(found, batches)
    found.measures = _measured(job, batches)
    good = [
        ref for ref, out in zip(refs, outcomes, strict=True) if not isinstance(out, Quarantined)
    ]
    for line in lines:
        purity.check_promises(job, items, good, line)
    watch.what = f"job {job.name}, past its start"
    _measure_pace(found, lines, batch_count)
    found.parts = part_shares(job, lines)
    found.memory = node_memory(
        job,
        workers=workers,
        ready_bytes=ready_bytes,
        imported=sys.modules.keys(),
        sample_bytes=_sample_bytes(outcomes),
        batch_bytes=found.bytes_per_batch,
    )
    found.together = together()
    found.warnings = [*left_behind(job, outcomes, batches), *_warnings(job, found)]

    ours = {
        "log_id": found.log_id,
        "items": {
            str(ref): purity.item_facts(out) for ref, out in zip(refs, outcomes, strict=True)
        },
        "raws": raws,
        "batches": {
            str(lane): [purity.batch_facts(batch) for batch in of_lane]
            for lane, of_lane in made.items()
        },
    }

    def gather(where: purity.Surroundings) -> dict[str, Any]:
        say(f"job {job.name}: all of it again with {where.name}")
        return elsewhere(where)

    found.warnings += purity.find_dependences(job, ours, gather)
    return found


def _epoch_draws(job: Job) -> int | None:
    """Return the draws of an epoch over all sets of roles, where these are not the items."""
    distributors = [roles.distributor for roles in job.role_sets]
    if not all(isinstance(distributor, WITH_EPOCHS) for distributor in distributors):
        return None  # a mixture has no epoch, but each of its parts
    drawn = sum(distributor.epoch_draws(1) or 0 for distributor in distributors)
    return None if drawn == job.items else drawn


def _outcomes(items: Items, refs: Sequence[ItemRef]) -> list[Outcome]:
    """Return what processing gives for each item.

    Items are processed together that are of one set of roles, as a lane does: each has its own
    processor.
    """
    of_sets: defaultdict[int, list[ItemRef]] = defaultdict(list)
    for ref in refs:
        of_sets[items.job.roles_of(ref.source).number].append(ref)
    found: dict[ItemRef, Outcome] = {}
    for of_set in of_sets.values():
        found.update(zip(of_set, items.samples(of_set, "draw"), strict=True))
    return [found[ref] for ref in refs]


def _count_outcomes(found: JobMeasures, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if isinstance(outcome, Filtered):
            found.filtered[outcome.reason] = found.filtered.get(outcome.reason, 0) + 1
        elif isinstance(outcome, Quarantined):
            reason = outcome.verdict.reason
            found.quarantined[reason] = found.quarantined.get(reason, 0) + 1


def _sample_bytes(outcomes: Sequence[Outcome]) -> float:
    """Return the memory of a sample, in the mean; 0 where there are none."""
    sizes = [
        held_bytes(sample)
        for outcome in outcomes
        if not isinstance(outcome, Filtered | Quarantined)
        for sample in outcome
    ]
    return sum(sizes) / max(1, len(sizes))


def _batching_seconds(
    items: Items,
    refs: Sequence[ItemRef],
    outcomes: Sequence[Outcome],
    quarantined: dict[str, int],
) -> float | None:
    """Return what the batcher alone takes for these samples; None where all of it is planned.

    Args:
        items: Those of the job.
        refs: Items.
        outcomes: What became of each of them.
        quarantined: Counts of bad items by reason; those that the batcher refuses are added where
            the job's policy is to leave them out.

    Raises:
        BadItem: The batcher refuses a sample, and the job's policy is to stop.
        BadBatch: The batcher fails; carries the user's traceback.
    """
    job = items.job
    batchers = {
        roles.number: Batching(job, 0, roles, items)
        for roles in job.role_sets
        if roles.planned is None
    }
    if not batchers:
        return None
    begin = time.perf_counter()
    for ref, outcome in zip(refs, outcomes, strict=True):
        batching = batchers.get(job.roles_of(ref.source).number)
        if batching is None or isinstance(outcome, Filtered | Quarantined):
            continue
        try:
            batching.add(batching.refs(ref, outcome, 0), outcome, 0)
            batching.forget(())
        except BadItem as error:
            if job.on_item_error == "stop":
                raise
            reason = error.reason or error.message
            quarantined[reason] = quarantined.get(reason, 0) + 1
    seconds = time.perf_counter() - begin
    for batching in batchers.values():
        # A value that cannot be in a snapshot is found here, not hours later.
        batching.batcher.state()
    return seconds


def _packing_seconds(job: Job) -> float:
    """Return what the first windows of the plans take, from the index to batches, in the mean.

    Raises:
        BadItem: A sample does not fit, and the batcher refuses it.
        InvalidJob, SourceUnavailable: The index is damaged, or cannot be read.
    """
    logs = [planned_log(roles) for roles in job.role_sets if roles.planned is not None]
    streams = [next(stream for stream in log.streams if stream.windows) for log in logs]
    begin = time.perf_counter()
    for stream in streams:
        stream.window(0)
    return (time.perf_counter() - begin) / len(streams)


def _count_batches(found: JobMeasures, batches: Sequence[Computed]) -> None:
    found.batches_run = len(batches)
    counts: Counter[str] = Counter()
    for batch in batches:
        header = read_header(batch.header)
        counts.update({count.name: count.value for count in header.counts})
    found.counts = dict(counts)
    if batches:
        found.bytes_per_batch = sum(len(batch.body) for batch in batches) // len(batches)
    tokens, padding = counts.get("tokens", 0), counts.get("padding_tokens")
    if padding is not None and tokens + padding > 0:
        found.efficiency = tokens / (tokens + padding)


def _measured(job: Job, batches: Sequence[Computed]) -> dict[str, int]:
    """Return what the samples of batches count beside their sizes, by measure."""
    found: Counter[str] = Counter()
    for plan in (batch.plan for batch in batches if batch.plan is not None):
        names = job.role_sets[plan.role_set].measures
        for ref in (ref for row in plan.rows for ref in row if ref.counts):
            found.update(dict(zip(names, ref.counts, strict=True)))
    return dict(found)


def _measure_pace(found: JobMeasures, lines: Sequence[Line], least: int) -> None:
    """Go on past the start of lanes, whose first rows are chosen from a pool that fills.

    Args:
        found: Gets the figures.
        lines: One of each set of roles: of each as many batches are made.
        least: Batches to make however long they take.
    """
    every = list(lines)
    for line in lines:
        beside = lanes_beside(line.job, line.lane)[1:]
        every += [Line(line.job, lane, line.items) for lane in beside]

    def enough(so_far: Metered) -> bool:
        slow = so_far.batches >= least and so_far.seconds > MAX_SECONDS
        return so_far.batches >= MAX_BATCHES or slow

    found.pool_filled = pass_start(every)
    meter = Meter()
    meter.run(to_their_ends(every), enough)
    past = meter.found
    found.paced_batches = past.batches
    found.per_second, found.ranges = past.per_second(), past.ranges(WINDOWS)
    if past.batches:
        found.efficiency = past.efficiency


def _sample_text(job: Job, refs: Sequence[ItemRef], outcomes: Sequence[Outcome]) -> str:
    """Return the first sample as people read it."""
    for ref, outcome in zip(refs, outcomes, strict=True):
        if isinstance(outcome, Filtered | Quarantined):
            continue
        sample = outcome[0]
        table = token_table(sample)
        if table is not None and (decode := decoder(job.roles_of(ref.source))) is not None:
            return ids_text(table[0], decode)
        return "\n".join(f"{name}: {summary(value)}" for name, value in sample.items())
    return ""


def _warnings(job: Job, found: JobMeasures) -> list[str]:
    warnings = job.cautions()
    for roles in job.role_sets:
        warnings += warnings_of_lanes(roles)
    for what, reasons in (("give no sample", found.filtered), ("fail", found.quarantined)):
        for reason, count in reasons.items():
            warnings.append(f"{count} of {found.items_run} items {what}: {reason}")
    for reading in job.readings():
        if reading.is_read_by_all and found.workers > 1:
            warnings.append(
                f"shuffle: none has each of {found.workers} workers read and decode all "
                f"{reading.all_blocks:,} storage blocks, since all lanes go through them together: "
                "shuffle: blocks reads each once, and workers: 1 does with this order"
            )
        elif reading.groups and (reading.amplification(found.workers) or 0) > MOST_AMPLIFICATION:
            warnings.append(
                f"{found.workers} workers read the {reading.all_blocks:,} storage blocks "
                f"{reading.amplification(found.workers):.2f} times in an epoch, since two read "
                "each that lies on a border between them: smaller blocks, such as row groups of "
                "fewer rows, are read once"
            )
    if found.together.why_not:
        warnings.append(
            f"what {found.workers} workers give together was not measured: {found.together.why_not}"
        )
    if found.efficiency is not None and found.efficiency < 0.9:
        pads = any(isinstance(roles.batcher, PADS_EACH) for roles in job.role_sets)
        remedy = "a packing batcher (best_fit) or a larger pool_size wastes less"
        if not pads:
            remedy = "more items for each lane, or a larger pool, waste less"
        warnings.append(f"{1 - found.efficiency:.0%} of the tokens are padding: {remedy}")
    return warnings
