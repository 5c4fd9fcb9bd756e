"""The sequential half of a line: draws, sizes, batches; what each batch of a lane is made of.

Its state is refs with sizes and spans, and a few counters: never data. So it restarts at any offset
from a snapshot; a replay reads items only where sizes are needed, and processes them only where no
`size()` gives these.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from penstock.server.core.refs import BatchPlan, ItemRef, Rows, SampleRef
from penstock.server.job.job import Job, LaneRoles
from penstock.server.pipeline import snapshot
from penstock.server.pipeline.batching import Batching
from penstock.server.pipeline.draw_verdicts import DrawVerdicts
from penstock.server.pipeline.draws_ahead import LookAhead
from penstock.server.pipeline.end_check import miscounted
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.lane_counts import LaneAccounts, all_counts, count_filtered
from penstock.server.pipeline.plans_before import PlansBefore
from penstock.server.pipeline.processing import Filtered
from penstock.server.pipeline.retry import RoleCall
from penstock.server.pipeline.runs import Runs
from penstock.server.pipeline.starvation import Starvation
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.samples import Sample, SampleSizes, ref_of
from penstock.server.usercode.contained import as_exception
from penstock.wire.errors import BadItem, PenstockError, SourceUnavailable


class SamplePlanner:
    """Plans the batches of one lane from its draws: what the batcher makes of their samples.

    Args:
        job: The job.
        lane: The lane.
        items: Fetches and processes, where sizes or filters need it.
        part: Which of several sets of roles of the lane this plans for; None = it has only one.

    Attributes:
        before: How many batches of the lane other sets have made before the next one of this.
    """

    def __init__(self, job: Job, lane: int, items: Items, part: LaneRoles | None = None) -> None:
        self.job, self.lane, self.items = job, lane, items
        self.offset = self.before = 0
        self.ended = False
        self.counters: Counter[str] = Counter()
        self._ends = part is None and job.epochs is not None  # the lane, where this does
        self._part = part or job.lane_roles(lane)[0]
        self.roles = self._part.roles
        self.draw_from(self._part.open_draws())
        self.batching = Batching(job, lane, self.roles, items)
        self._counts_parts = bool(self.draws.counts())
        self._from_refs, self._needs_sizes = self.roles.plans_from_refs, self.roles.needs_sizes
        self._may_fail = self.roles.distributor.is_of_user()
        self._can_seek = self._part.can_seek(self.draws)
        self.ready: deque[Rows] = deque()
        self._flushed = False  # what is ready, if anything, is the end of the lane
        self._before = PlansBefore(job.later_within)
        self._accounts = LaneAccounts()
        self._starvation = Starvation(job, lane, self._part)
        self._verdicts_of_draws = DrawVerdicts(items, lane, self.counters)
        self._draws_of_batch = 0  # of the last finished one; 0 before the second, which has no pool
        self._counted_before = self.counts()

    def draw_from(self, draws: LaneDraws) -> None:
        """Go on with these draws, which are at the same place of the lane."""
        self.draws = draws
        self.ahead = LookAhead(self.lane, self.items, draws, self.roles)
        self._runs = Runs(self.items, draws, self.roles, self.ahead)

    @property
    def place(self) -> int:
        """Return the offset that the next batch has in the lane."""
        return self.offset + self.before

    @property
    def samples(self) -> Mapping[tuple[ItemRef, int], Sample]:
        """Return the samples that are in memory, by (item, part)."""
        return self.batching.samples

    @property
    def drawn(self) -> int:
        """Return how many items were drawn since the lane's beginning."""
        return self.counters["drawn"]

    @property
    def last_verdict(self) -> int:
        """Return the highest number of a verdict that has removed a draw."""
        return self._verdicts_of_draws.last

    @property
    def end(self) -> int | None:
        """Return how many batches the lane holds; None before its last item was drawn."""
        return self.offset + len(self.ready) if self.ended else None

    # --- planning ---

    def next(self) -> BatchPlan | None:
        """Return the plan of the batch at `offset` and step over it; None when the lane is over.

        Raises:
            BadItem: An item failed and the job's policy is to stop.
            SourceUnavailable: A read failed to the deadline.
            LaneStarved: As many draws as several epochs have gave no sample.
            LogDiverged: The lane ends elsewhere than where it was counted to end.
        """
        end = self.job.lane_end(self.lane) if self._ends else None
        last = self.offset + 1 == end
        # Nothing must come after the last batch that was counted, so that is looked for, too.
        self._fill(2 if last else 1)
        if not self.ready:
            if end is not None and self.offset < end:
                raise miscounted(self.job, self.lane, end, str(self.offset))
            return None
        if last and len(self.ready) > 1:
            raise miscounted(self.job, self.lane, self.offset + 1, "more")
        rows, accounting = self.ready.popleft(), self._accounts.next()
        plan = BatchPlan(self.lane, self.place, rows, self.roles.number, accounting)
        self.offset += 1
        return self._before.complete(plan, lambda: self._flushed and not self.ready)

    def _fill(self, batches: int) -> None:
        """Draw until so many batches are ready, or the lane is over."""
        while len(self.ready) < batches and not self.ended:
            if self._runs.may_come and self._take_run():
                continue
            before = self.draws.state()
            try:
                item = self._draw()
            except PenstockError:
                raise
            except BaseException as raised:
                raise self._draw_failure(raised) from raised
            if item is None:
                rest = self.batching.flush(self.place)
                self._finish(rest)
                self.ended, self._flushed = True, bool(rest)
                self._starvation.begin()  # as a line has it that was sought behind the end
            else:
                taken = False
                try:
                    self._take(item)
                    taken = True
                finally:
                    if not taken:  # it stays the next draw: a retry must not step over it
                        self.draws.restore(before)
                        self.counters["drawn"] -= 1
                        self._runs.forget()

    def _take_run(self) -> bool:
        """Take coming draws together, up to one that finishes a batch; False = none could be."""
        refs = self._runs.next()
        if not refs or not self._starvation.has_room(len(refs)):
            return False
        # Steps of our own draws are arithmetic. Where a user's fail, nothing was taken.
        undo = (self.draws.state(), self.batching.batcher.state()) if self._may_fail else None
        taken, batches = self.batching.add_run(refs, self.place)
        if not taken:
            return False
        items, _, sizes, _, _ = zip(*refs[:taken], strict=True)
        try:
            self.draws.step(items, [0] * taken if self._can_seek else sizes)
            undo = None
        except SourceUnavailable:
            if undo is None:
                raise
            return False  # the next draw comes alone: there it is tried again
        except PenstockError:
            raise
        except BaseException as raised:
            raise self._draw_failure(raised) from raised
        finally:
            if undo is not None:
                self.draws.restore(undo[0])
                self.batching.restore(undo[1])
                self._runs.forget()
        self._runs.took(taken)
        self.counters["drawn"] += taken
        self._took(batches, taken)
        return True

    def _draw_failure(self, raised: BaseException) -> PenstockError:
        what = f"{self.roles.distributor.code_of()} fails on a draw, in lane {self.lane},"
        return self.items.failure(as_exception(raised), what, self.lane, self.place)

    def _draw(self) -> ItemRef | None:
        try:
            return self.draws.next()
        except SourceUnavailable:
            reading = RoleCall(self.roles.distributor, "open", reading=True)
            return self.items.retried(self.draws.next, reading)

    def _take(self, item: ItemRef) -> None:
        self.counters["drawn"] += 1
        place = self.place
        batches: list[Rows] = []
        accepted = False
        taken = 0
        if self._from_refs:
            size = self._size(item) if self._needs_sizes else 0
            if size is not None:
                ref = ref_of(item, size)
                batches, accepted = self._add([ref], [None], place)
                taken = ref.size
        else:
            outcome = self._outcome(item, place)
            if isinstance(outcome, Filtered):
                count_filtered(self.counters, outcome.reason)
            elif outcome is not None:
                refs = self.batching.refs(item, outcome, place)
                taken = sum([ref.size for ref in refs]) if self._needs_sizes else 0
                batches, accepted = self._add(refs, outcome, place)
        # Draws that can be sought depend on no size, and must not count what seeking leaves out.
        self.draws.took(item, taken if accepted and not self._can_seek else 0)
        self._took(batches, 1, accepted=accepted)

    def _took(self, batches: Sequence[Rows], draws: int, *, accepted: bool = True) -> None:
        """Note what came of draws, of which only the last may have finished batches."""
        self._finish(batches)
        if batches and self.offset + len(self.ready) > 1:
            self._draws_of_batch = self._starvation.without_batch + draws
        finished = bool(batches)
        self._starvation.drew(draws, accepted=accepted, finished=finished, counts=self.counts)

    def _finish(self, batches: Sequence[Rows]) -> None:
        if batches:
            self.ready.extend(batches)
            drawn = self.counters["drawn"]
            self._accounts.finished(len(batches), self.count_mark(), drawn, self.counts)

    def _add(
        self, refs: Sequence[SampleRef], samples: Sequence[Sample | None], place: int
    ) -> tuple[list[Rows], bool]:
        """Give the batcher an item's samples; return finished batches, and whether one was kept."""
        try:
            return self.batching.add(refs, samples, place)
        except BadItem as error:
            self._verdicts_of_draws.refuse(refs[0].item, error, self.place)
            return [], False

    def _left_out(self, item: ItemRef) -> bool:
        """Tell whether a verdict removes this draw; whatever was known of it ahead is forgotten."""
        if not self._verdicts_of_draws.removes(item, self.place):
            return False
        self.ahead.forget(item)
        self._runs.forget()
        return True

    def count_mark(self) -> tuple[int, int, int]:
        """Return what changes whenever `counts` does, draws aside; cheap enough for every batch."""
        drawn = self.counters["drawn"]
        batching, beside = self.batching, 0
        if batching.counts_more:
            beside = sum(batching.batcher.counters().values())
        others = sum(self.counters.values()) - drawn + drawn * self._counts_parts
        return others, batching.dropped, beside

    def counts(self) -> dict[str, int]:
        """Return all that was counted since the lane's beginning; see `all_counts`."""
        return {**all_counts(self.counters, self.batching.batcher), **self.draws.counts()}

    def counts_before(self) -> dict[str, int]:
        """Return what was counted where it began."""
        return self._counted_before

    # --- items, some ahead ---

    def _outcome(self, item: ItemRef, place: int) -> list[Sample] | Filtered | None:
        """Return what processing gives for a drawn item; None if it is quarantined."""
        if not self.items.verdicts.is_empty and self._left_out(item):
            return None
        made = self.offset + len(self.ready)
        useful = max(self._starvation.without_batch // 2, self._draws_of_batch)
        outcome = self.ahead.outcome(item, place, useful, made)
        if isinstance(outcome, Bad):
            self._verdicts_of_draws.quarantine(item, outcome, place)
            return None
        return outcome

    def _size(self, item: ItemRef) -> int | SampleSizes | None:
        """Return an item's size from its raw form, unprocessed; None if it is quarantined."""
        if not self.items.verdicts.is_empty and self._left_out(item):
            return None
        size: int | SampleSizes | Bad | None = self._runs.size(item)
        if size is None:
            size = self.ahead.size(item, self.place)
        if isinstance(size, Bad):
            self._verdicts_of_draws.quarantine(item, size, self.place)
            return None
        return size

    def coming(self, plan: BatchPlan) -> list[ItemRef]:
        """Return what the batch after the latest plan is likely to be made of, if that is of use.

        Only where batches are planned from draws alone: else the planner itself reads ahead.
        """
        if not (self._can_seek and self.items.reads_ahead):
            return []
        return self.ahead.peek(0, max(self.items.items_ahead, sum(map(len, plan.rows))))

    def forget(self) -> None:
        """Forget every sample that nothing pending needs: of past batches, and left out ones."""
        self.batching.forget(self.ready)

    # --- going elsewhere ---

    def can_seek(self) -> bool:
        """Tell whether any offset is reached by arithmetic."""
        return self._can_seek

    def seek(self, offset: int) -> None:
        """Go to `offset` by arithmetic; only where `can_seek`."""
        before = self.roles.batcher_facts.draws_before(offset)
        assert before is not None
        total = self._part.draws
        drawn = before if total is None else min(before, total)
        self.draws.seek(drawn)
        self.batching.begin()
        self.ready.clear()
        self.ahead.clear()
        self._runs.forget()
        self.ended = total is not None and before >= total and drawn < before
        self._flushed = False
        self._count_from({"drawn": drawn} if drawn else {})
        self._counted_before = self.counts()
        self._accounts.begin(self._counted_before)
        self.offset = offset
        self._starvation.begin()
        self._verdicts_of_draws.last = 0

    def _count_from(self, counters: Mapping[str, int]) -> None:
        self.counters.clear()
        self.counters.update(counters)

    def snapshot(self) -> bytes:
        """Return the canonical bytes from which a line restarts at `offset`."""
        return snapshot.encode(self.job.log_id, self.lane, self.offset, self.state())

    def state(self) -> dict[str, Any]:
        """Return what a snapshot holds beside the offset, JSON-able and canonical."""
        state = {
            "draws": self.draws.state(),
            "batcher": self.batching.batcher.state(),
            "ready": [[[ref.to_json() for ref in row] for row in batch] for batch in self.ready],
            "ended": self.ended,
            "counters": {name: count for name, count in self.counters.items() if count},
            "accounts": self._accounts.state(),
            "without": [self._starvation.without_sample, self._starvation.without_batch],
        }
        if self.last_verdict:
            state["verdicts"] = self.last_verdict
        if self.roles.number:
            state["role_set"] = self.roles.number
        if self.job.later_within:
            state["before"] = self._before.state()
        return state

    def restore(self, data: bytes) -> None:
        """Go on from a snapshot.

        Raises:
            BadSnapshot: It is damaged or belongs elsewhere.
        """
        snapshot.restore(data, self.job.log_id, self.lane, self.take_state)

    def _check_counts(self) -> None:
        """Refuse samples that count something else than the processor does now.

        Raises:
            ValueError: Says how many counts there are.
        """
        measures = self.roles.measures
        # Where nothing asks for sizes, samples may have been drawn without them.
        fits = {len(measures)} if self.roles.batcher.needs_sizes else {len(measures), 0}
        ready = (ref for batch in self.ready for row in batch for ref in row)
        for ref in chain(self.batching.batcher.pending, ready):
            if len(ref.counts) not in fits:
                raise ValueError(
                    f"sample {ref.part} of item {ref.item} has {len(ref.counts)} counts, and the "
                    f"processor counts {', '.join(measures) or 'nothing'}"
                )

    def take_state(self, offset: int, state: dict[str, Any]) -> None:
        """Go on at an offset from what `state` gave there.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: It has another form.
        """
        if state.get("role_set", 0) != self.roles.number:
            raise ValueError(f"it is of the set of roles {state.get('role_set', 0)}")
        self.draws.restore(state["draws"])
        self.batching.restore(state["batcher"])
        self.ready = deque(
            [[SampleRef.from_json(ref) for ref in row] for row in batch] for batch in state["ready"]
        )
        self._check_counts()
        self.ended = bool(state["ended"])
        self._count_from(state["counters"])
        self._accounts.restore(state["accounts"])
        self._starvation.without_sample, self._starvation.without_batch = state["without"]
        self._flushed = self.ended and bool(self.ready)
        self._before.restore(state.get("before", []))
        self._verdicts_of_draws.last = int(state.get("verdicts", 0))
        self.batching.samples.clear()
        self.ahead.clear()
        self._runs.forget()
        self.offset = offset
        self._counted_before = self.counts()
