"""Where the sizes of a job's samples are known from, before anything of it is decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.pipeline.processing import Filtered
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.filling import Numbers
from penstock.server.roles.number_columns import tells_lengths, why_no_length
from penstock.server.roles.samples import Sample, SampleSizes
from penstock.server.roles.source import IndexedSource
from penstock.wire.errors import BadItem, InvalidJob

SOURCE, SIZE, INDEX, NONE = "source", "size", "index", "none"
"""Sizes are told by the sources, by the processor's `size`, by an index, or nobody looks at any."""

KEY = "input_ids"
"""What collators lay out; its length is a sample's size where a batcher does not say otherwise."""


class IndexedOutcomes(Protocol):
    """What an index of sizes says of items, as a processor would.

    Attributes:
        drew: The sizes may depend on random numbers, and are those of the first epoch.
    """

    drew: bool

    def outcome(self, item: ItemRef) -> list[Sample] | Filtered | Bad:
        """Return the samples of an item, each a `SizedSample`; or why there are none."""
        ...

    def sizes(self, source: str, indices: Sequence[int], parts: Sequence[int]) -> Numbers:
        """Return the sizes of samples, each by its item and its number there: int64 (n,)."""
        ...


class SizedSample(dict[str, object]):
    """A sample of which only the size is known.

    Attributes:
        sizes: As the batcher's `size_of` counts it, with the processor's counts where it has some.
    """

    def __init__(self, sizes: int | SampleSizes) -> None:
        super().__init__()
        self.sizes = sizes


class KnownSizes(NamedTuple):
    """How the sizes of a set of roles are known.

    Attributes:
        by: `source`, `size`, `index` or `none`.
        of_samples: Gives the sizes of samples of a source, by item and part, where the planner does
            not look at them; None = it does, or nobody knows them.
    """

    by: str
    of_samples: Callable[[str, Sequence[int], Sequence[int]], Numbers] | None = None


def known_sizes(roles: RoleSet, job: str, index: IndexedOutcomes | None) -> KnownSizes:
    """Return how the sizes are known of the samples that a set of roles makes.

    Args:
        roles: The set.
        job: The job's name, for errors.
        index: The index of sizes, if there is one.

    Raises:
        InvalidJob: They are not known before items are decoded; says what to do.
    """
    for name, source in roles.sources.items():
        if not isinstance(source, IndexedSource):
            raise InvalidJob(
                f"source {name!r} of job {job!r} is a stream, whose rows are known as they are "
                "read, so nothing can be planned: give a source whose items have numbers, such as "
                "parquet or jsonl",
                key="source",
            )
    if roles.batcher.needs_content:
        raise InvalidJob(
            f"the batcher {roles.batcher.code_of()} of job {job!r} looks into samples, and not at "
            "their sizes alone, so nothing can be planned before they are processed: use one that "
            "does not, such as best_fit",
            key="batcher",
        )
    if roles.planned is not None:
        return KnownSizes(
            INDEX, index.sizes if index is not None and not roles.needs_sizes else None
        )
    if roles.plans_from_refs and not roles.needs_sizes:
        return _beside(roles, index)
    if roles.plans_from_refs and roles.sized_sources:
        return KnownSizes(SOURCE)
    if roles.plans_from_refs and roles.has_heads:
        return KnownSizes(SIZE)
    if index is not None:
        return KnownSizes(INDEX)
    raise InvalidJob(_unknown(roles, job), key="processor")


def _unknown(roles: RoleSet, job: str) -> str:
    """Return why sizes are not known, and what to do."""
    processor = roles.processor.code_of()
    name = f"{roles.name}=" if roles.name else ""
    whose = f"set {roles.name!r} of job {job!r}" if name else f"job {job!r}"
    if roles.plans_from_refs:
        why = f"{roles.processor.code_of('size')} looks at whole items, which are read for it"
    elif not roles.processor.one_to_one:
        why = f"whether and how many samples an item gives is known when {processor} has seen it"
    else:
        why = f"neither the source nor {processor} tells them"
    return (
        f"the sizes of the samples of {whose} are not known before its items are decoded "
        f"({why}): make an index of them with `penstockd index FILE {job} --output {name}URL`, "
        f"and name it with --index{' ' + name + 'URL' if name else ''}"
    )


def _beside(roles: RoleSet, index: IndexedOutcomes | None) -> KnownSizes:
    """Return how sizes are known that planning does not look at."""
    knows = all(_knows(source) for source in roles.sources.values())
    if knows and roles.processor.keeps_sizes():
        return KnownSizes(
            SOURCE, lambda name, items, parts: _sizes_of(name, roles.sources[name], items)
        )
    return KnownSizes(NONE) if index is None else KnownSizes(INDEX, index.sizes)


def _knows(source: object) -> bool:
    if tells_lengths(source, KEY):
        return True
    return isinstance(source, IndexedSource) and source.knows_sizes()


def _sizes_of(name: str, source: object, indices: Sequence[int]) -> Numbers:
    if tells_lengths(source, KEY):
        found = source.lengths(KEY, np.array(indices, np.int64))
    else:
        assert isinstance(source, IndexedSource)
        found = np.array(source.sizes(indices), np.int64)
    if len(missing := np.flatnonzero(found < 0)):
        item = ItemRef(name, indices[missing[0]], 0)
        reason = why_no_length(KEY)
        raise BadItem(
            f"{item}: {reason}, so no batch can be made of it; leave such rows out",
            item=list(item),
            stage="draw",
            reason=reason,
        )
    return found


def collates_by_size(batcher: SampleBatcher) -> bool:
    """Tell whether a size is the length of what collators lay out."""
    if batcher.keeps(SampleBatcher, "size_of"):
        return True
    return not batcher.is_of_user() and getattr(batcher, "length_key", None) == KEY


class SizedItems(Items):
    """Items of which only the sizes are asked: nothing of them is read, nothing is processed.

    Args:
        job: The job.
        known: How sizes are known, for each set of roles.
        indexes: The indexes of sizes, by the number of a set.
    """

    def __init__(
        self, job: Job, known: Sequence[KnownSizes], indexes: Mapping[int, IndexedOutcomes]
    ) -> None:
        super().__init__(job)
        self._known_by, self._indexes = known, indexes

    @property
    def reads_ahead(self) -> bool:
        """Return False: nothing is read."""
        return False

    def outcomes(
        self, items: Sequence[ItemRef], stage: str, coming: Sequence[ItemRef] = ()
    ) -> list[list[Sample] | Filtered | Bad]:
        """Return what the index says of each item."""
        return [
            self._indexes[self.job.roles_of(item.source).number].outcome(item) for item in items
        ]

    def sizes(self, items: Sequence[ItemRef]) -> list[int | SampleSizes | Bad]:
        """Return sizes as the source, the processor or the index tells them."""
        if items and self._known_by[self.job.roles_of(items[0].source).number].by == INDEX:
            return [self._size_in_index(item) for item in items]
        return super().sizes(items)

    def _size_in_index(self, item: ItemRef) -> int | SampleSizes | Bad:
        [outcome] = self.outcomes([item], "draw")
        if isinstance(outcome, Bad):
            return outcome
        assert not isinstance(outcome, Filtered)  # the processor is one to one
        [sample] = outcome
        assert isinstance(sample, SizedSample)
        return sample.sizes
