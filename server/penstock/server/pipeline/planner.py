"""The sequential half of a line: draws, sizes, batches; what each batch of a lane is made of.

Its state is refs with sizes and spans, and a few counters: never data. So it restarts at any offset
from a snapshot; a replay reads items only where sizes are needed, and processes them only where no
`size()` gives these.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from penstock.server.core.contained import as_exception, contained
from penstock.server.core.frames import error_line, user_traceback
from penstock.server.core.held import held_bytes
from penstock.server.core.refs import BatchPlan, ItemRef, Rows, SampleRef
from penstock.server.core.verdict import Verdict
from penstock.server.job import Job
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.items import Filtered, Items
from penstock.server.pipeline.retry import Call
from penstock.server.pipeline.verdicts import Bad
from penstock.server.roles.base import Sample, SampleBatcher
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.role import Role
from penstock.wire.errors import (
    BadBatch,
    BadItem,
    BadSnapshot,
    LaneStarved,
    LogDiverged,
    PenstockError,
    SourceUnavailable,
    clean_text,
)

logger = logging.getLogger("penstock")

MAX_REASONS, MAX_REASON_CHARACTERS = 32, 80
"""A reason that a role makes of each item anew (`too short: 17`) must not let snapshots and metrics
grow with the run: what comes after so many of them is counted together."""

LOOK_AHEAD, BATCHES_PER_ITEM_AHEAD = 16, 16
"""Items fetched and processed at once, at most: coalesced reads, and processors' batch calls. What
is processed for later batches delays the next one, so a lane begins with one item, and looks ahead
of as many as a batch takes, or as one for so many batches that it made."""

AHEAD_BYTES = 4 << 20
"""Memory that a lane may take for what it has processed ahead, beyond the item that it needs: large
samples gain nothing from company, and every lane of a node holds some."""

MIN_DRAWS_WITHOUT_SAMPLE, STARVED_EPOCHS = 1000, 4
"""A lane is starved after so many whole epochs' draws, and no fewer draws than these: a lane's own
part of an epoch may be a handful of items, and that a strict filter rejects all of them is chance.
"""

MIN_DRAWS_WITHOUT_BATCH, MAX_DRAWS = 100_000, 1_000_000
"""A batcher may hold many samples before it finishes a batch, but not for ever: the lane of a small
job stops after the first number, and no lane draws more than the second."""


class Planner:
    """Plans the batches of one lane, one after another.

    Args:
        job: The job.
        lane: The lane.
        items: Fetches and processes, where sizes or filters need it.
    """

    def __init__(self, job: Job, lane: int, items: Items) -> None:
        self.job, self.lane, self.items = job, lane, items
        self.offset = 0
        self.ended = False
        self.counters: Counter[str] = Counter()
        self.draws: LaneDraws = job.distributor.open(lane, job.lanes)
        self._take_batcher(job.batcher.clone())
        self._from_refs = job.plans_from_refs
        self._can_seek = (
            self._from_refs and self.draws.can_seek() and self.batcher.draws_before(0) is not None
        )
        self.ready: deque[Rows] = deque()
        self.samples: dict[tuple[ItemRef, int], Sample] = {}
        self._ahead: dict[ItemRef, list[Sample] | Filtered | Bad | int] = {}
        self._verdicts = 0  # the highest number of a verdict that removed a draw
        self._without_sample = 0
        self._without_batch = 0
        self._draws_of_batch = 0  # of the last finished one; 0 before the second, which has no pool
        self._outcome_bytes = 0.0  # memory that an item takes once it is processed, in the mean

    @property
    def last_verdict(self) -> int:
        """Return the highest number of a verdict that removed a draw of this lane; 0 = none."""
        return self._verdicts

    @property
    def end(self) -> int | None:
        """Return how many batches the lane holds; None before its last item was drawn."""
        return self.offset + len(self.ready) if self.ended else None

    def _take_batcher(self, batcher: SampleBatcher) -> None:
        """Go on with a batcher: a fresh one, or one that was restored."""
        self.batcher = batcher
        self._dropped = sum(batcher.dropped().values())

    # --- planning ---

    def next(self) -> BatchPlan | None:
        """Return the plan of the batch at `offset` and step over it; None when the lane is over.

        Raises:
            BadItem: An item failed and the job's policy is to stop.
            SourceUnavailable: A read failed to the deadline.
            LaneStarved: As many draws as several epochs have gave no sample.
            LogDiverged: The lane ends elsewhere than where it was counted to end.
        """
        end = self.job.lane_end(self.lane)
        last = self.offset + 1 == end
        # Nothing must come after the last batch that was counted, so that is looked for, too.
        self._fill(2 if last else 1)
        if not self.ready:
            if end is not None and self.offset < end:
                raise self._miscounted(end, str(self.offset))
            return None
        if last and len(self.ready) > 1:
            raise self._miscounted(self.offset + 1, "more")
        plan = BatchPlan(self.lane, self.offset, self.ready.popleft())
        self.offset += 1
        return plan

    def _miscounted(self, counted: int, now: str) -> LogDiverged:
        return LogDiverged(
            f"lane {self.lane} of job {self.job.name!r} was counted to hold {counted} batches, and "
            f"now holds {now}: a role gives another number of samples than before, or an item "
            "fails or works that did not; run `penstockd check`",
            what=f"end of lane {self.lane}",
            ours=now,
            theirs=counted,
        )

    def _fill(self, batches: int) -> None:
        """Draw until so many batches are ready, or the lane is over."""
        while len(self.ready) < batches and not self.ended:
            before = self.draws.state()
            try:
                item = self._draw()
            except PenstockError:
                raise
            except BaseException as raised:
                raise self._failure(
                    as_exception(raised), self.job.distributor, "a draw"
                ) from raised
            if item is None:
                try:
                    self.ready.extend(contained(self.batcher.flush))
                except PenstockError:
                    raise
                except Exception as error:
                    raise self._failure(error, self.batcher, "flush()") from error
                self._dropped = sum(self.batcher.dropped().values())
                self.ended = True
            else:
                taken = False
                try:
                    self._take(item)
                    taken = True
                finally:
                    if not taken:  # it stays the next draw: a retry must not step over it
                        self.draws.restore(before)
                        self.counters["drawn"] -= 1

    def _draw(self) -> ItemRef | None:
        try:
            return self.draws.next()
        except SourceUnavailable:
            reading = Call(self.job.distributor, "open", reading=True)
            return self.items.retried(self.draws.next, reading)

    def _take(self, item: ItemRef) -> None:
        self.counters["drawn"] += 1
        batches: list[Rows] = []
        accepted = False
        taken = 0
        if self._from_refs:
            size = self._size(item) if self.batcher.needs_sizes else 0
            if size is not None:
                batches, accepted = self._add_all((SampleRef(item, 0, size),), (None,))
                taken = size
        else:
            outcome = self._outcome(item)
            if isinstance(outcome, Filtered):
                self._count_filtered(outcome.reason)
            elif outcome is not None:
                refs = [
                    SampleRef(item, part, self._size_of(item, sample))
                    for part, sample in enumerate(outcome)
                ]
                batches, accepted = self._add_all(refs, outcome)
                taken = sum(ref.size for ref in refs)
        self.draws.took(item, taken if accepted else 0)
        self.ready.extend(batches)
        self._watch_starvation(accepted, bool(batches))

    def _add_all(
        self, refs: Sequence[SampleRef], samples: Sequence[Sample | None]
    ) -> tuple[list[Rows], bool]:
        """Give the samples of an item to the batcher: all of them, or none if one is bad.

        Returns:
            The finished batches, and whether a sample was kept.
        """
        copies = len(refs) > 1 and self.batcher.may_refuse
        before = self.batcher.state() if copies else None
        batches: list[Rows] = []
        accepted = False
        try:
            for ref, sample in zip(refs, samples, strict=True):
                batches += self._add(ref, sample)
                before_it, self._dropped = self._dropped, sum(self.batcher.dropped().values())
                if self._dropped == before_it:
                    accepted = True
                    if sample is not None:
                        self.samples[ref.item, ref.part] = sample
        except Exception as error:
            if before is not None:
                # A verdict is about the item: a replay, which knows it, adds no part of it either.
                # And before the store is asked, which may fail: then the item is drawn again.
                self._take_batcher(self._restored(before))
            for ref in refs:
                self.samples.pop((ref.item, ref.part), None)
            if not isinstance(error, BadItem):
                raise
            held = self.items.refuse("draw", refs[0].item, error, self.lane, self.offset)
            self._count_verdict(held.verdict)
            return [], False
        return batches, accepted

    def _add(self, ref: SampleRef, sample: Sample | None) -> list[Rows]:
        """Give a sample to the batcher; return the finished batches."""
        try:
            return self.batcher.add(ref, sample if self.batcher.needs_content else None)
        except PenstockError:
            raise
        except BaseException as raised:
            doing = f"sample {ref.part} of item {ref.item}"
            raise self._failure(as_exception(raised), self.batcher, doing) from raised

    def _failure(self, error: Exception, role: Role, doing: str) -> PenstockError:
        what = f"{role.code_of()} fails on {doing}, in lane {self.lane},"
        return self.items.failure(error, what, self.lane, self.offset)

    def _size_of(self, item: ItemRef, sample: Sample) -> int:
        if not self.batcher.needs_sizes:
            return 0
        try:
            size: int = contained(lambda: self.batcher.size_of(sample))
        except PenstockError:
            raise
        except Exception as error:
            raise BadBatch(
                f"{self.batcher.code_of()} finds no size of a sample of item {item} of job "
                f"{self.job.name!r}: {error_line(error)}; the sample has {', '.join(sample)}",
                lane=self.lane,
                offset=self.offset,
                traceback=user_traceback(error),
            ) from error
        return size

    def _count_filtered(self, reason: str) -> None:
        name = f"filtered:{_cut(reason)}"
        if name not in self.counters and len(self.counters) >= MAX_REASONS:
            name = "filtered:other reasons"
        self.counters[name] += 1

    def _leave_out(self, item: ItemRef, bad: Bad) -> None:
        """Have an item judged at the place where its verdict takes effect."""
        held = self.items.judge("draw", item, bad, self.lane, self.offset)
        self._count_verdict(held.verdict)

    def _count_verdict(self, verdict: Verdict) -> None:
        self.counters["quarantined:draw"] += 1
        self._verdicts = max(self._verdicts, verdict.number)

    def _left_out(self, item: ItemRef) -> bool:
        """Tell whether a verdict removes this draw; whatever was known of it ahead is forgotten."""
        verdict = self.items.verdicts.find("draw", item, self.lane, self.offset)
        if verdict is None:
            return False
        self._ahead.pop(item, None)
        self._count_verdict(verdict)
        return True

    def count_mark(self) -> tuple[int, int, int]:
        """Return what changes whenever `counts` does, draws aside; cheap enough for every batch."""
        drawn = self.counters["drawn"]
        beside = sum(self.batcher.counters().values())
        return sum(self.counters.values()) - drawn, self._dropped, beside

    def counts(self) -> dict[str, int]:
        """Return all that was counted since the lane's beginning, each name with its kind.

        `drawn`; `filtered:REASON` and `quarantined:STAGE`, of items; `dropped:REASON`, of samples
        that the batcher has left out; `batcher:NAME`, what else it counts.
        """
        return {
            **self.counters,
            **{f"dropped:{_cut(reason)}": n for reason, n in self.batcher.dropped().items()},
            **{f"batcher:{_cut(name)}": n for name, n in self.batcher.counters().items()},
        }

    def _watch_starvation(self, accepted: bool, finished: bool) -> None:
        if finished and self.offset + len(self.ready) > 1:
            self._draws_of_batch = self._without_batch + 1
        self._without_sample = 0 if accepted else self._without_sample + 1
        self._without_batch = 0 if finished else self._without_batch + 1
        if (
            self._without_sample <= MIN_DRAWS_WITHOUT_SAMPLE
            and self._without_batch <= MIN_DRAWS_WITHOUT_BATCH
        ):
            return  # whatever an epoch has
        if self.job.epochs is not None:
            return  # a finite lane ends by itself
        epoch = self.job.distributor.epoch_draws(1)
        many = MAX_DRAWS if epoch is None else STARVED_EPOCHS * epoch
        starved = self._without_sample > min(max(many, MIN_DRAWS_WITHOUT_SAMPLE), MAX_DRAWS)
        stuck = self._without_batch > min(max(many, MIN_DRAWS_WITHOUT_BATCH), MAX_DRAWS)
        if starved or stuck:
            reasons = self.counts()
            drawn = self._without_sample if starved else self._without_batch
            raise LaneStarved(
                f"lane {self.lane} of job {self.job.name!r} drew {drawn} items in a row without "
                f"{'one sample' if starved else 'finishing a batch'} ({_reasons(reasons)}); loosen "
                "the filter, or look at the data",
                lane=self.lane,
                drawn=drawn,
                reasons=reasons,
            )

    # --- items, some ahead ---

    def _outcome(self, item: ItemRef) -> list[Sample] | Filtered | None:
        """Return what processing gives for a drawn item; None if it is quarantined."""
        if self._left_out(item):
            return None
        if item not in self._ahead:
            count = self._useful_ahead()
            items = [item, *self._coming(item, count)]
            # What follows these is read while they are processed; this draw is one of them.
            later = self._peek(count - 1, LOOK_AHEAD) if self.items.reads_ahead else []
            outcomes = self.items.outcomes(items, "draw", later)
            # One of them will do: they are many, and alike.
            taken = held_bytes(outcomes[-1])
            before = self._outcome_bytes or taken
            self._outcome_bytes = before + 0.25 * (taken - before)
            self._ahead.update(zip(items, outcomes, strict=True))
        outcome = self._ahead.pop(item)
        if isinstance(outcome, Bad):
            self._leave_out(item, outcome)
            return None
        assert not isinstance(outcome, int)
        return outcome

    def _size(self, item: ItemRef) -> int | None:
        """Return an item's size from its raw form, unprocessed; None if it is quarantined."""
        if self._left_out(item):
            return None
        if item not in self._ahead:
            items = [item, *self._coming(item, LOOK_AHEAD)]
            self._ahead.update(zip(items, self.items.sizes(items), strict=True))
        size = self._ahead.pop(item)
        if isinstance(size, Bad):
            self._leave_out(item, size)
            return None
        assert isinstance(size, int)
        return size

    def _useful_ahead(self) -> int:
        """Return how many items to process at once, so that the next batch is soon there."""
        made = (self.offset + len(self.ready)) // BATCHES_PER_ITEM_AHEAD
        ahead = max(self._without_batch // 2, self._draws_of_batch, made)
        room = AHEAD_BYTES / max(1.0, self._outcome_bytes)
        return max(1, min(ahead, LOOK_AHEAD, int(room)))

    def _coming(self, item: ItemRef, count: int) -> list[ItemRef]:
        """Return the items to fetch together with this one: distinct, and not known to be bad.

        Args:
            item: The item that is drawn.
            count: How many to fetch together, with this one.
        """
        if self.items.careful or count == 1:
            return []
        coming = dict.fromkeys(self._peek(0, count - 1))
        coming.pop(item, None)
        find = self.items.verdicts.find
        return [
            one
            for one in coming
            if one not in self._ahead and find("draw", one, self.lane, self.offset) is None
        ]

    def _peek(self, past: int, count: int) -> list[ItemRef]:
        """Return up to `count` coming draws, those after the next `past`."""
        try:
            return self.draws.peek(past + count)[past:]
        except Exception as error:  # of a user's distributor
            # It stops the lane, by name, when that draw is the next one.
            logger.debug("lane %d looks no further ahead: %s", self.lane, error_line(error))
            return []

    def coming(self, plan: BatchPlan) -> list[ItemRef]:
        """Return what the batch after the latest plan is likely to be made of, if that is of use.

        Only where batches are planned from draws alone: else the planner itself reads ahead.
        """
        if not (self._can_seek and self.items.reads_ahead):
            return []
        return self._peek(0, sum(map(len, plan.rows)))

    def forget(self) -> None:
        """Let go of every sample that nothing pending needs: of past batches, and left out ones."""
        if not self.samples:
            return
        held = {(ref.item, ref.part) for ref in self.batcher.pending}
        held |= {(ref.item, ref.part) for batch in self.ready for row in batch for ref in row}
        for key in [key for key in self.samples if key not in held]:
            del self.samples[key]

    # --- going elsewhere ---

    def can_seek(self) -> bool:
        """Tell whether any offset is reached by arithmetic."""
        return self._can_seek

    def seek(self, offset: int) -> None:
        """Go to `offset` by arithmetic; only where `can_seek`."""
        before = self.batcher.draws_before(offset)
        assert before is not None
        total = self.job.distributor.draws(self.lane, self.job.lanes)
        drawn = before if total is None else min(before, total)
        self.draws.seek(drawn)
        self._take_batcher(self.job.batcher.clone())
        self.ready.clear()
        self._ahead.clear()
        self.ended = total is not None and before >= total and drawn < before
        self.counters = Counter({"drawn": drawn} if drawn else {})
        self.offset = offset
        self._without_sample = self._without_batch = self._verdicts = 0

    def snapshot(self) -> bytes:
        """Return the canonical bytes from which a line restarts at `offset`."""
        state = {
            "draws": self.draws.state(),
            "batcher": self.batcher.state(),
            "ready": [[[ref.to_json() for ref in row] for row in batch] for batch in self.ready],
            "ended": self.ended,
            "counters": {name: count for name, count in self.counters.items() if count},
            "without": [self._without_sample, self._without_batch],
        }
        if self._verdicts:
            state["verdicts"] = self._verdicts
        return snapshot.encode(self.job.log_id, self.lane, self.offset, state)

    def restore(self, data: bytes) -> None:
        """Go on from a snapshot.

        Raises:
            BadSnapshot: It is damaged or belongs elsewhere.
        """
        offset, state = snapshot.decode(data, self.job.log_id, self.lane)
        try:
            self._restore(offset, state)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadSnapshot(
                f"a snapshot of lane {self.lane} at offset {offset} has not the form that this "
                f"version reads: {type(error).__name__}: {error}",
                lane=self.lane,
                offset=offset,
            ) from error

    def _restored(self, state: Any) -> SampleBatcher:
        batcher: SampleBatcher = self.job.batcher.clone()
        batcher.restore(state)
        return batcher

    def _restore(self, offset: int, state: dict[str, Any]) -> None:
        self.draws.restore(state["draws"])
        self._take_batcher(self._restored(state["batcher"]))
        self.ready = deque(
            [[SampleRef.from_json(ref) for ref in row] for row in batch] for batch in state["ready"]
        )
        self.ended = bool(state["ended"])
        self.counters = Counter(state["counters"])
        self._without_sample, self._without_batch = state["without"]
        self._verdicts = int(state.get("verdicts", 0))
        self.samples.clear()
        self._ahead.clear()
        self.offset = offset


@lru_cache(1024)  # the same few words at every batch
def _cut(reason: str) -> str:
    return clean_text(reason[:MAX_REASON_CHARACTERS], MAX_REASON_CHARACTERS)


def _reasons(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()) if count)


__all__ = ["AHEAD_BYTES", "LOOK_AHEAD", "MAX_REASONS", "MAX_REASON_CHARACTERS", "Planner"]
