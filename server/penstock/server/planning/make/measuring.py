"""What a block of positions of a source holds: how many samples each item gives, of what sizes.

It depends on the job and the block alone, so it does not matter which process computes it, or when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from typing import Any, NamedTuple

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.items import MAX_REASON, Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.processing import Filtered
from penstock.server.pipeline.retry import Progress
from penstock.server.pipeline.sizes import counts_of, sizes_of
from penstock.server.planning.index.block import QUARANTINED, ItemSizes, filtered
from penstock.server.planning.index.inputs import (
    index_inputs,
    indexed_sources,
    kept_items,
    may_draw,
    size_rule,
)
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.batchers import BestFitPackingBatcher
from penstock.server.roles.condition import Kept
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.processor import MediaProcessor, RawItemProcessor
from penstock.server.roles.role import asked
from penstock.server.roles.samples import Sample, SampleSizes
from penstock.server.usercode.held_bytes import held_bytes
from penstock.wire.errors import InvalidJob
from penstock.wire.plain import clean_text

TOGETHER = 64
"""Items that are read and processed at once, at most: more of them cost no less each."""

TOGETHER_BYTES = 16 << 20
"""Memory that the samples of so many items may take, about: large ones come fewer at a time."""

SIZES_TOGETHER = 4096
"""Items whose sizes are asked for at once, of sources and processors that tell them unprocessed."""

KEPT_BLOCKS = 2
"""Storage blocks that a source keeps: positions are read in order, some of them ahead."""


class MeasuredBlock(NamedTuple):
    """What a block holds.

    Attributes:
        sizes: Samples and sizes; positions count from the source's first.
        bad: The items that fail, each with why, where the job leaves such items out.
        drew: Whether processing drew random numbers: sizes may depend on the seed then.
    """

    sizes: ItemSizes
    bad: list[tuple[str, str]]
    drew: bool


class Measuring:
    """Measures the items of one set of roles, in one process.

    Args:
        job: The job.
        progress: Told what is being worked on.
        role_set: The number of the set in the job.

    Attributes:
        items: Fetches and processes.
        inputs: What the sizes depend on.
        positions: How many positions each source has, by name, in the set's order.

    Raises:
        InvalidJob: The set cannot be planned.
    """

    def __init__(self, job: Job, progress: Progress | None = None, role_set: int = 0) -> None:
        roles = job.role_sets[role_set]
        try:
            sources = indexed_sources(roles)
            self.inputs = index_inputs(roles, job.seed)
            self._rule = size_rule(roles)
        except InvalidJob as error:
            if not roles.name:
                raise
            whose = f"set {roles.name!r} of job {job.name!r}"
            raise error.reworded(f"{whose}: {error.message}") from error
        self._kept = {name: kept_items(roles, name) for name in sources}
        self.positions = {
            name: len(source) if kept is None else len(kept)
            for (name, source), kept in zip(sources.items(), self._kept.values(), strict=True)
        }
        self._quarantines = job.on_item_error == "quarantine"
        self._source_draws = any(source.uses_global_rng for source in sources.values())
        processor = _counting(roles.processor, self._rule)
        takes_media = isinstance(processor, MediaProcessor)
        # The roles that matter, and no others: nothing here depends on the job's order.
        self.job = Job(
            sources,
            MapDistributor(shuffle="none"),
            processor,
            _lengths(self._rule) or roles.batcher,
            media=roles.media.files if roles.media and takes_media else None,
            seed=job.seed,
            lanes=1,
            epochs=1,
            on_item_error=job.on_item_error,
            max_quarantined=job.max_quarantined,
            name=job.name,
        )
        self._roles: RoleSet = self.job.role_sets[0]
        for source in sources.values():
            source.keep_blocks(KEPT_BLOCKS)
        self.items = Items(self.job, progress=progress)
        self.items.watches_draws = may_draw(roles)
        self._together = 1

    def block(
        self, name: str, start: int, stop: int, tell: Callable[[int], None] = lambda done: None
    ) -> MeasuredBlock:
        """Return what positions `[start, stop)` of a source hold.

        Args:
            name: The source.
            start: The first position.
            stop: The one after the last.
            tell: Told now and then how many of them are measured.

        Raises:
            BadItem: An item fails, and the job's policy is to stop.
            BadBatch: A sample has no size.
            SourceUnavailable: A read failed to the deadline.
        """
        self.items.drew = False
        found = _Found(start)
        refs = [ItemRef(name, item, 0) for item in _items(self._kept[name], start, stop)]
        if self._rule is None and self._roles.processor.one_to_one and not self._roles.measures:
            found.add_sizes([0] * len(refs))
        elif self._has_sizes:
            for at in range(0, len(refs), SIZES_TOGETHER):
                tell(at)
                self._take_sizes(found, refs[at : at + SIZES_TOGETHER])
        else:
            for at, some in self._chunks(refs, tell):
                self._process(found, some, refs[at + len(some) : at + 2 * len(some)])
        tell(len(refs))
        return MeasuredBlock(
            found.sizes(len(self._roles.measures)), found.bad, self._source_draws or self.items.drew
        )

    @property
    def _has_sizes(self) -> bool:
        """Tell whether sizes are known unprocessed: by the processor, or by the sources."""
        processor = self._roles.processor
        return processor.one_to_one and (processor.knows_size() or bool(self._roles.sized_sources))

    def _chunks(
        self, refs: Sequence[ItemRef], tell: Callable[[int], None]
    ) -> Iterator[tuple[int, Sequence[ItemRef]]]:
        at = 0
        while at < len(refs):
            tell(at)
            some = refs[at : at + self._together]
            yield at, some
            at += len(some)

    def _take_sizes(self, found: _Found, refs: Sequence[ItemRef]) -> None:
        for ref, size in zip(refs, self.items.sizes(refs), strict=True):
            if isinstance(size, Bad):
                self._take_bad(found, ref, size)
            else:
                found.add([size])

    def _process(self, found: _Found, refs: Sequence[ItemRef], coming: Sequence[ItemRef]) -> None:
        ahead = coming if self.items.reads_ahead else ()
        outcomes = self.items.outcomes(refs, "draw", ahead)
        for ref, outcome in zip(refs, outcomes, strict=True):
            if isinstance(outcome, Bad):
                self._take_bad(found, ref, outcome)
            elif isinstance(outcome, Filtered):
                found.leave_out(filtered(outcome.reason))
            else:
                found.add([self._size(ref, sample) for sample in outcome])
        room = TOGETHER_BYTES // max(1, held_bytes(outcomes[-1]))
        self._together = max(1, min(room, 2 * self._together, TOGETHER))

    def _take_bad(self, found: _Found, ref: ItemRef, bad: Bad) -> None:
        if not self._quarantines:
            raise bad.error
        reason = clean_text(bad.error.reason or bad.error.message, MAX_REASON)
        found.bad.append((str(ref), reason))
        found.leave_out(QUARANTINED)

    def _size(self, ref: ItemRef, sample: Sample) -> int | SampleSizes:
        if self._rule is not None and not (isinstance(self._rule, dict) and "else" in self._rule):
            return sizes_of(self.items, self._roles, ref, sample)
        value = None if self._rule is None else sample.get(self._rule["length_of"])
        length = len(value) if isinstance(value, Sized) else 0
        if not self._roles.measures:
            return length
        return SampleSizes(length, counts_of(self.items, self._roles, ref, sample))


class _Found:
    """What was found of a block so far."""

    def __init__(self, start: int) -> None:
        self._start = start
        self._counts: list[int] = []
        self._sizes: list[int] = []
        self._measured: list[tuple[int, ...]] = []  # of each of these, in jobs with measures
        self._left_out: dict[int, str] = {}
        self.bad: list[tuple[str, str]] = []

    def add(self, sizes: Sequence[int | SampleSizes]) -> None:
        """Take the samples of the next position."""
        self._counts.append(len(sizes))
        for size in sizes:
            if isinstance(size, SampleSizes):
                self._measured.append(size.counts)
                size = size.size
            self._sizes.append(size)

    def add_sizes(self, sizes: Sequence[int]) -> None:
        """Take the next positions, with a sample each."""
        self._counts += [1] * len(sizes)
        self._sizes += sizes

    def leave_out(self, reason: str) -> None:
        """Take the next position, without a sample."""
        self._left_out[self._start + len(self._counts)] = reason
        self._counts.append(0)

    def sizes(self, measures: int) -> ItemSizes:
        """Return all of it, with so many counts of each sample."""
        counts, sizes = np.array(self._counts, np.uint32), np.array(self._sizes, np.int64)
        if not measures:
            return ItemSizes(counts, sizes, self._left_out)
        measured = np.array(self._measured, np.int64).reshape(len(sizes), measures)
        return ItemSizes(counts, sizes, self._left_out, measured)


def _items(kept: Kept | None, start: int, stop: int) -> Sequence[int]:
    """Return the items at positions `[start, stop)` of a source."""
    if kept is None:
        return range(start, stop)
    found: list[int] = kept.run(start, stop).tolist()
    return found


def _counting(processor: RawItemProcessor, rule: Any) -> RawItemProcessor:
    """Return a processor of the same sizes, where these are lengths.

    Raises:
        InvalidJob: A user's `for_lengths` fails, or gives something else.
    """
    if not isinstance(rule, dict) or "length_of" not in rule:
        return processor
    found = asked(processor, "for_lengths", rule["length_of"])
    if not isinstance(found, RawItemProcessor):
        raise InvalidJob(
            f"{processor.code_of('for_lengths')} gave {found!r}: return a processor, such as self",
            key="processor",
        )
    return found


def _lengths(rule: Any) -> SampleBatcher | None:
    """Return a batcher of the same sizes, where these are lengths: what it packs does not matter.

    So sources that tell lengths tell them whatever batcher the job has.
    """
    if isinstance(rule, dict) and rule.keys() == {"length_of"}:
        return BestFitPackingBatcher(max_tokens=1, length_key=rule["length_of"])
    return None
