"""Sizes of items without processing, and the policy for items that failed.

`BadItem` is about the bytes: the same bytes failed twice, so it fails on every node, and the job's
policy decides: stop, or a verdict that is durable before anything that depends on it is given out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.media.medium import HEAD_BYTES
from penstock.server.pipeline.known_verdicts import Bad, Quarantined, VerdictBook, content_hash
from penstock.server.pipeline.processing import NEVER_ABOUT_AN_ITEM, Filtered, ProcessedItems
from penstock.server.pipeline.retry import RETRY_DEADLINE_S, Progress, RoleCall
from penstock.server.roles.number_columns import why_no_length
from penstock.server.roles.role import Role
from penstock.server.roles.samples import MAX_SIZE, RawItem, Sample, SampleSizes, wrong_counts
from penstock.server.roles.source import IndexedSource
from penstock.server.usercode.contained import contained
from penstock.wire.errors import BadItem
from penstock.wire.plain import clean_text

MAX_REASON = 200
"""Characters of a verdict's reason: a job may have thousands of verdicts."""


Outcome = list[Sample] | Filtered | Quarantined


class Items(ProcessedItems):
    """Fetches, processes, sizes and judges the items of one job in one process.

    Args:
        job: The job.
        verdicts: The verdicts that hold.
        progress: Told what is being worked on.
        retry_deadline_s: How long a source may be unavailable.
    """

    def __init__(
        self,
        job: Job,
        verdicts: VerdictBook | None = None,
        progress: Progress | None = None,
        retry_deadline_s: float = RETRY_DEADLINE_S,
    ) -> None:
        super().__init__(job, progress, retry_deadline_s)
        self.verdicts = verdicts or VerdictBook(limit=job.max_quarantined)

    def samples(
        self, items: Sequence[ItemRef], stage: str, lane: int = 0, offset: int = 0
    ) -> list[Outcome]:
        """Return what processing gives for each item, judged.

        Args:
            items: The items, each known to be wanted.
            stage: `draw` where the planner asks, `exit` where a maker does.
            lane: The lane of the batch that they are for.
            offset: Its offset.

        Raises:
            SourceUnavailable: A read failed until the deadline.
            BadItem: An item failed twice and the job's policy is to stop.
        """
        outcomes: dict[ItemRef, Outcome] = {}
        wanted: list[ItemRef] = []
        for item in dict.fromkeys(items):
            verdict = self.verdicts.find(stage, item, lane, offset)
            if verdict is None:
                wanted.append(item)
            else:
                outcomes[item] = Quarantined(verdict)
        for item, outcome in zip(wanted, self.outcomes(wanted, stage), strict=True):
            if isinstance(outcome, Bad):
                outcomes[item] = self.judge(stage, item, outcome, lane, offset)
            else:
                outcomes[item] = outcome
        return [outcomes[item] for item in items]

    # --- sizes ---

    def sizes(self, items: Sequence[ItemRef]) -> list[int | SampleSizes | Bad]:
        """Return the sizes of items as their sources, or the processor, know them unprocessed.

        If a source has no heads of items the whole items are read, and kept until the batch is
        made, most often by this worker.

        Raises:
            SourceUnavailable: A read failed until the deadline.
        """
        if not items:
            return []
        roles = self.job.roles_of(items[0].source)  # a lane's items are all of one set of roles
        if roles.sized_sources:
            return self._told_sizes(roles.sized_sources, items)
        self.set_up()
        try:
            raws = self.read(items, heads=True) if roles.has_heads else self.raws(items)
        except BadItem as error:
            if len(items) > 1:
                return [self.sizes([item])[0] for item in items]
            return [Bad(error, content_hash(None), self.chance.fetch_is_pure(items[0]))]
        if self.takes_media and self.media.waits and not self.careful:
            self.media.ask(items, raws, now=True, count=HEAD_BYTES)
        found = [self._size(item, raw) for item, raw in zip(items, raws, strict=True)]
        if self.takes_media:
            self.media.release(items)
        if not roles.has_heads:
            self.keeper().keep(items, raws)
        return found

    def _told_sizes(
        self, sources: Mapping[str, IndexedSource], items: Sequence[ItemRef]
    ) -> list[int | SampleSizes | Bad]:
        if len(sources) == 1:
            return self._told_by(next(iter(sources.values())), items)
        found: dict[ItemRef, int | SampleSizes | Bad] = {}
        for name, source in sources.items():
            own = [item for item in items if item.source == name]
            if own:
                found.update(zip(own, self._told_by(source, own), strict=True))
        return [found[item] for item in items]

    def _told_by(
        self, source: IndexedSource, items: Sequence[ItemRef]
    ) -> list[int | SampleSizes | Bad]:
        what = RoleCall(source, "sizes", reading=True)
        self.progress("fetch", items[0])
        indices = [item.index for item in items]
        try:
            told = partial(self.job.roles_of(items[0].source).told_sizes, source, indices)
            sizes = self.retried(lambda: contained(lambda: self.of_source(told)), what, items[0])
            if isinstance(sizes, np.ndarray):
                return [
                    size if size >= 0 else self._no_numbers(item)
                    for item, size in zip(items, sizes.tolist(), strict=True)
                ]
            return [
                self._checked_size(source, "sizes", item, size, None)
                for item, size in zip(items, () if sizes is None else sizes, strict=True)
            ]
        except NEVER_ABOUT_AN_ITEM:
            raise
        except Exception as error:
            if len(items) > 1:  # one of them fails, and is named when it is alone
                return [self._told_by(source, [item])[0] for item in items]
            bad = self.bad_item("draw", what, items[0], error)
            return [Bad(bad, content_hash(None), every_epoch=True)]

    def _no_numbers(self, item: ItemRef) -> Bad:
        reason = why_no_length(self.job.roles_of(item.source).batcher_facts.length_key)
        wrong = BadItem(
            f"item {item} of job {self.job.name!r} cannot be packed: {reason}; leave such rows out",
            item=list(item),
            stage="draw",
            reason=reason,
        )
        return Bad(wrong, content_hash(None), every_epoch=True)

    def _size(self, item: ItemRef, raw: RawItem) -> int | SampleSizes | Bad:
        processor = self.job.roles_of(item.source).processor
        what = RoleCall(processor, "size")
        try:
            size = self.retried(lambda: self.media.size(item, raw, processor), what, item)
        except NEVER_ABOUT_AN_ITEM:
            raise
        except Exception as error:
            bad = self.bad_item("draw", what, item, error)
            return Bad(bad, content_hash(raw), every_epoch=True)
        return self._checked_size(processor, "size", item, size, raw)

    def _checked_size(
        self, role: Role, method: str, item: ItemRef, size: Any, raw: RawItem
    ) -> int | SampleSizes | Bad:
        """Return a size that a role has told, and counts if it should, or what is wrong."""
        measures, told = self.job.roles_of(item.source).measures, size
        counts: tuple[int, ...] = ()
        if isinstance(size, SampleSizes):
            size, counts = size
        if isinstance(size, np.integer):
            size = int(size)
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= MAX_SIZE:
            kind = "source" if method == "sizes" else "processor"
            wrong = BadItem(
                f"{type(role).__name__}.{method}() gave {size!r} for item {item}: a {kind} "
                f"that overrides {method}() must know it for every item",
                item=list(item),
                stage="draw",
                reason=f"{method}() gave {size!r}",
            )
            return Bad(wrong, content_hash(raw), every_epoch=True)
        if not measures and not counts:
            return size
        if (why := wrong_counts(counts, measures)) is not None:
            wrong = BadItem(
                f"{type(role).__name__}.{method}() gave {told!r} for item {item}: {why}",
                item=list(item),
                stage="draw",
                reason=f"{method}() gave {told!r}",
            )
            return Bad(wrong, content_hash(raw), every_epoch=True)
        return SampleSizes(size, tuple(map(int, counts)))

    # --- items that failed ---

    def judge(self, stage: str, item: ItemRef, bad: Bad, lane: int, offset: int) -> Quarantined:
        """Apply the job's policy to an item that failed: a durable verdict, or the error.

        Args:
            stage: `draw`, `exit` or `size`.
            item: The item.
            bad: What is wrong with it.
            lane: The lane of the batch that is being planned or made.
            offset: Its offset: the verdict holds from here on.

        Raises:
            BadItem: The policy is to stop, or `max_quarantined` is reached.
            LogDiverged: The item was good when later batches were given out.
        """
        if self.job.on_item_error != "quarantine":
            raise bad.error
        held = self.verdicts.find(stage, item, lane, offset)
        if held is None:
            reason = clean_text(bad.error.reason or bad.error.message, MAX_REASON)
            held = self.verdicts.add(
                Verdict(stage, item, bad.digest, reason, bad.every_epoch, lane, offset)
            )
        return Quarantined(held)

    def refuse(
        self, stage: str, item: ItemRef, error: BadItem, lane: int, offset: int
    ) -> Quarantined:
        """Judge an item that was processed, and that the batcher or the maker cannot use.

        Raises:
            BadItem, LogDiverged: As `judge`.
            SourceUnavailable: It cannot be read again, to see whether it depends on random draws.
        """
        if self.job.on_item_error != "quarantine":
            raise error
        held = self.verdicts.find(stage, item, lane, offset)
        if held is not None:
            return Quarantined(held)
        # What is planned from refs has its size from the raw form alone.
        from_raw = stage == "draw" and self.job.roles_of(item.source).plans_from_refs
        chance = not from_raw and self.chance.is_chance(item, self.processing(item))
        bad = Bad(error, content_hash(None), every_epoch=not chance)
        return self.judge(stage, item, bad, lane, offset)
