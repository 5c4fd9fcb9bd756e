"""A sample as its plan counted on it: of the size that was planned, and cut to its piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add, gt, sub

from penstock.server.core.refs import BatchPlan, ItemRef, SampleRef
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.later import Fit, RowsOf, is_larger, spare, takes
from penstock.server.pipeline.sizes import sizes_of
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.samples import Sample, SampleSizes, media_places, ref_of
from penstock.wire.errors import BadItem, PenstockError

Found = dict[tuple[ItemRef, int], Sample]
"""Samples by (item, part)."""


class Exits:
    """What the making of one batch left out, and which sizes it found other than they were told.

    Attributes:
        counts: By name: samples that are not in the batch, and sizes that were not as they were
            told (`penstock.server.core.reasons`).
        refused: What does not fit its plan, though another piece of its sample may.
        verdicts: Each asks for a verdict about what is left out, in order: whoever makes the batch
            asks for them, and who only looks at it does not.
        put_off: Of what is refused, what may join another row or batch: the same of its real size
            and counts, and the sample itself.
    """

    def __init__(self) -> None:
        # Plain dicts: most batches count nothing, and each has these.
        self.counts: dict[str, int] = {}
        self.refused: set[SampleRef] = set()
        self.verdicts: list[Callable[[], object]] = []
        self.put_off: dict[SampleRef, tuple[SampleRef, Sample]] = {}
        self._real: dict[SampleRef, SampleRef] = {}  # where sizes are not as they were told
        self._given: dict[int, list[int]] = {}  # by row, what samples have beyond their sizes

    def count(self, name: str, number: int = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + number
        if not self.counts[name]:
            del self.counts[name]

    def grants(self, ref: SampleRef, real: SampleRef, plan: BatchPlan, facts: BatcherFacts) -> bool:
        """Tell whether a sample's row has room for more than was planned; then it is taken.

        Samples ask in the order of the plan, and room is that between the planned ones: so it does
        not matter who makes the batch, or what else of it is left out.
        """
        number = next(n for n, row in enumerate(plan.rows) if any(ref is other for other in row))
        more = [max(0, each) for each in map(sub, takes(facts, real), takes(facts, ref))]
        given = list(map(add, self._given.get(number, [0] * len(more)), more))
        if any(map(gt, given, spare(facts, plan.rows[number]))):
            return False
        self._given[number] = given
        self.note(ref, real)
        return True

    def ask_verdicts(self) -> None:
        """Ask for the verdicts about what is left out.

        Raises:
            BadItem: The policy is to stop.
        """
        for ask in self.verdicts:
            ask()

    def real(self, ref: SampleRef) -> SampleRef:
        """Return a sample with its size and counts, told or as they turned out."""
        return self.put_off[ref][0] if ref in self.put_off else self._real.get(ref, ref)

    def leaves(self, ref: SampleRef, real: SampleRef, sample: Sample) -> None:
        """Note that a sample is not in its row, and may join another."""
        if self._real.pop(ref, ref) != ref:
            self._count_size(ref, real, -1)
        self.put_off[ref] = real, sample
        self.refused.add(ref)

    def stays(self, ref: SampleRef) -> Sample:
        """Note that a sample which was to leave its row does not; return it."""
        real, sample = self.put_off.pop(ref)
        self.refused.remove(ref)
        self.note(ref, real)
        return sample

    def note(self, ref: SampleRef, real: SampleRef) -> None:
        """Note a sample that stays, and is not of the size that was told.

        One that is smaller has padding in its place.
        """
        self._real[ref] = real
        self._count_size(ref, real, 1)

    def _count_size(self, ref: SampleRef, real: SampleRef, by: int) -> None:
        more = real.size - ref.size
        if is_larger(ref, real):
            self.count("size:larger", by)
            self.count("size:larger_tokens", by * max(0, more))
        elif more:
            self.count("size:smaller", by)
            self.count("size:smaller_tokens", -by * more)

    def fit(self, plan: BatchPlan) -> Fit:
        """Return what the batch leaves to others; once all of its samples were looked at."""
        if not (self._real or self.refused):
            return Fit(plan.rows)
        rows = [
            [self._real.get(ref, ref) for ref in row if ref not in self.refused]
            for row in plan.rows
        ]
        return Fit(rows, tuple(real for real, _ in self.put_off.values()))


class Fitting:
    """Fits the samples of one job to the plans that they are part of.

    Args:
        items: Judges those that do not fit.
    """

    def __init__(self, items: Items) -> None:
        self._items, self._job = items, items.job

    def sample(
        self,
        ref: SampleRef,
        samples: Sequence[Sample],
        plan: BatchPlan,
        exits: Exits,
        *,
        comes_later: bool = False,
    ) -> Sample | None:
        """Return the sample that a ref means, of those that processing gave for its item.

        It may be smaller than it was told, and larger where its row has room for that; a piece must
        be there to its end. None if it is not there, or does not fit: then it may join another row,
        or its item is bad.

        Args:
            ref: The sample.
            samples: Those of its item.
            plan: What it is part of.
            exits: Where it is noted if it does not fit.
            comes_later: It has found its row by its real size.
        """
        if ref.part < len(samples):
            sample = samples[ref.part]
            real = self._real(ref, sample, plan)
            if self._fits(ref, real, plan, exits, comes_later):
                return sample
            if not comes_later and self._may_come_later(ref, real, plan):
                exits.leaves(ref, real, sample)
                return None
            reason = self._why(ref, real, plan)
        else:
            reason = f"it gave {len(samples)} samples, and sample {ref.part} was planned"
        text = f"is not what it was when its batch was planned: {reason}"
        exits.verdicts.append(partial(self._leave_out, ref, text, reason, plan))
        exits.count("quarantined:size")
        if self._job.later_within:
            exits.count("size:put_off")
        exits.refused.add(ref)
        return None

    def rearrange(self, plan: BatchPlan, found: Found, exits: Exits) -> None:
        """Where a sample leaves its row, let the smallest leave in its place: these find room.

        Args:
            plan: The batch.
            found: Its samples; those that leave go, and those that stay after all come.
            exits: What was noted of it.
        """
        room = RowsOf(self._items, plan)
        for row in plan.rows:
            if not any(ref in exits.put_off for ref in row):
                continue
            # What fails leaves no room, and a piece does not leave the others of its sample.
            free = [ref for ref in row if ref in exits.put_off or _is_free(ref, found)]
            kept = [ref for ref in row if ref not in exits.refused and ref not in free]
            for ref in sorted(free, key=lambda ref: -exits.real(ref).size):
                real = exits.real(ref)
                if room.joins(kept, real):
                    kept.append(real)
                    if ref in exits.put_off:
                        found[ref[:2]] = exits.stays(ref)
                elif ref not in exits.put_off:
                    exits.leaves(ref, real, found.pop(ref[:2]))

    def left_over(self, ref: SampleRef, plan: BatchPlan) -> None:
        """Have an item judged whose sample found no room in the last batch where it might have.

        Raises:
            BadItem: The policy is to stop.
        """
        within = self._job.later_within
        reason = f"no row had room for its {ref.size} up to {within} batches later"
        text = f"has found no room: sizes told of its row were too small, and {reason}"
        self._leave_out(ref, text, reason, plan)

    def _leave_out(self, ref: SampleRef, text: str, reason: str, plan: BatchPlan) -> None:
        error = BadItem(
            f"item {ref.item} of job {self._job.name!r} {text}; size() must not be below what "
            "process() gives, and process() must be pure",
            item=list(ref.item),
            stage="size",
            reason=f"SIZE_MISMATCH: {reason}",
        )
        # The verdict tells people. It is never looked up: another piece of the same item may fit,
        # and every worker that makes this batch finds the same of this one.
        self._items.refuse("size", ref.item, error, plan.lane, plan.offset)

    def _why(self, ref: SampleRef, real: SampleRef, plan: BatchPlan) -> str:
        """Return why a sample does not fit."""
        roles = self._job.role_sets[plan.role_set]
        is_cut = ref.span is not None and counts_media(roles, real)
        if is_cut or (ref.span is None and real.size <= ref.size):
            names = roles.measures
            more = [n for n, each in enumerate(real.counts) if each > ref.counts[n]]
            has, told = (
                ", ".join(f"{each.counts[n]} {names[n]}" for n in more) for each in (real, ref)
            )
            return f"it counts {has}, and it was planned with {told}"
        planned = ref.size if ref.span is None else ref.span.stop
        return f"its size is {real.size}, and it was planned with {planned}"

    def _may_come_later(self, ref: SampleRef, real: SampleRef, plan: BatchPlan) -> bool:
        if not self._job.later_within or ref.span is not None:
            return False
        return RowsOf(self._items, plan).joins([], real)

    def _fits(
        self, ref: SampleRef, real: SampleRef, plan: BatchPlan, exits: Exits, comes_later: bool
    ) -> bool:
        roles, size = self._job.role_sets[plan.role_set], real.size
        if ref.span is not None:
            if counts_media(roles, real):
                return False  # it was told to be of tokens alone, and is cut as if it were
            if size > ref.span.stop and roles.plans_from_refs and roles.plan is None:
                # Its last piece ends where the told size does: what is beyond is in no batch.
                [told] = self._items.sizes([ref.item])
                told = told.size if isinstance(told, SampleSizes) else told
                if not isinstance(told, Bad) and ref.span.stop == told:
                    exits.count("size:cut_tokens", size - told)
            return size >= ref.span.stop
        facts = roles.batcher_facts
        if not any(map(gt, takes(facts, real), takes(facts, ref))):
            if real != ref:
                exits.note(ref, real)
            return True
        return not comes_later and exits.grants(ref, real, plan, facts)

    def piece(self, ref: SampleRef, sample: Sample, plan: BatchPlan) -> Sample:
        """Return the piece of a sample that a ref means; all of it where it is not split."""
        span, processor = ref.span, self._job.role_sets[plan.role_set].processor
        if span is None:
            return sample
        size = self._real(ref, sample, plan).size
        try:
            return processor.cut(sample, span.start, span.stop, size)
        except PenstockError:
            raise
        except Exception as error:
            place = f"lane {plan.lane}, offset {plan.offset}"
            what = f"{processor.code_of()} fails on cut() of item {ref.item}, at {place},"
            raise self._items.failure(error, what, plan.lane, plan.offset) from error

    def _real(self, ref: SampleRef, sample: Sample, plan: BatchPlan) -> SampleRef:
        """Return a sample of its real size, which of a piece is that of the whole."""
        roles, place = self._job.role_sets[plan.role_set], (plan.lane, plan.offset)
        found = sizes_of(self._items, roles, ref.item, sample, lane=place[0], offset=place[1])
        return ref_of(ref.item, found, ref.part)


def counts_media(roles: RoleSet, ref: SampleRef) -> bool:
    """Tell whether a sample counts more than tokens."""
    return any(ref.counts[place] for place in media_places(roles.measures, len(ref.counts)))


def _is_free(ref: SampleRef, found: Found) -> bool:
    return ref.span is None and ref[:2] in found
