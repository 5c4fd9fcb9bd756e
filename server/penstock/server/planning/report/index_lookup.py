"""What an index of sizes says of single items: as their processor would, without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from penstock.server.core.refs import ItemRef
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.known_verdicts import Bad, content_hash
from penstock.server.pipeline.processing import Filtered
from penstock.server.planning.index.block import QUARANTINED, ItemSizes, joined
from penstock.server.planning.index.index_file import IndexedSizes, SizeIndex
from penstock.server.planning.index.inputs import check_inputs, kept_items
from penstock.server.planning.report.known_sizes import SizedSample
from penstock.server.roles.filling import Numbers
from penstock.server.roles.samples import Sample, SampleSizes
from penstock.wire.errors import BadItem

READ_ITEMS = 1 << 20
"""Positions that are read from the file at once."""


class IndexLookup:
    """The sizes of all items of a set of roles, in memory.

    About 12 bytes for each of one sample, 20 for each without, 4 where each item has one.

    Args:
        index: The index.
        roles: The set of roles, opened.
        seed: The job's seed.
        job: The job's name, for errors.
        say: KnownSizes what is being done.

    Attributes:
        drew: The sizes may depend on random numbers, and are those of the first epoch.

    Raises:
        InvalidJob: The index is of other data, or the set cannot have one.
        SourceUnavailable: It cannot be read.
    """

    def __init__(
        self,
        index: SizeIndex,
        roles: RoleSet,
        seed: int,
        job: str,
        say: Callable[[str], None] = lambda doing: None,
    ) -> None:
        check_inputs(index.url, index.inputs, roles, seed)
        self._job = job
        self.drew = "seed" in index.inputs
        self._sources = {
            name: _Sizes(found, _ranks(roles, name), say) for name, found in index.sources.items()
        }

    def outcome(self, item: ItemRef) -> list[Sample] | Filtered | Bad:
        """Return the samples of an item, each a `SizedSample`; or why there are none."""
        found = self._sources[item.source]
        position = found.position(item.index)
        first, last = found.bounds(position)
        if first < last:
            return [SizedSample(found.told(number)) for number in range(first, last)]
        reason = found.left_out[position]
        if reason != QUARANTINED:
            return Filtered(reason.removeprefix("filtered:"))
        why = "it failed when its size was measured"
        error = BadItem(
            f"item {item} of job {self._job!r} fails: {why}, and it has no size in the index",
            item=list(item),
            stage="draw",
            reason=why,
        )
        return Bad(error, content_hash(None), every_epoch=True)

    def sizes(self, source: str, indices: Sequence[int], parts: Sequence[int]) -> Numbers:
        """Return the sizes of samples: int64 (n,).

        Args:
            source: The source.
            indices: The item of each.
            parts: Which of the item's samples it is.
        """
        found = self._sources[source]
        firsts = [found.bounds(found.position(index))[0] for index in indices]
        numbers = np.array(firsts, np.int64) + np.array(parts, np.int64)
        return found.sizes[numbers].astype(np.int64)


class _Sizes:
    """Those of one source.

    Attributes:
        sizes: Of each sample.
        left_out: Why positions have no sample.
    """

    def __init__(
        self, source: IndexedSizes, ranks: Numbers | None, say: Callable[[str], None]
    ) -> None:
        self._ranks = ranks
        sizes, counts, left_out, is_one_each = [], [], [], True
        measured: list[Numbers] = []
        none = ItemSizes(np.empty(0, np.uint32), np.empty(0, np.int64))
        for start in range(0, source.items, READ_ITEMS):
            say(f"sizes of {source.name}: {start:,} of {source.items:,} items read")
            stop = min(start + READ_ITEMS, source.items)
            found = source.read(start, stop)
            most = int(found.sizes.max()) if len(found.sizes) else 0
            sizes.append(found.sizes.astype(np.uint32) if most < 1 << 32 else found.sizes)
            is_one_each &= found.counts is None
            if found.measured is not None:
                measured.append(found.measured)
            counts.append(
                np.ones(stop - start, np.uint32) if found.counts is None else found.counts
            )
            left_out.append(none._replace(left_out=found.left_out))
        self.sizes: Numbers = np.concatenate([*sizes, np.empty(0, np.uint32)])
        self.left_out: Mapping[int, str] = joined(left_out).left_out
        self._measured = np.concatenate(measured) if source.counted and measured else None
        self._starts: Numbers | None = None
        if not is_one_each:
            self._starts = np.concatenate([[0], np.cumsum(np.concatenate(counts), dtype=np.int64)])

    def told(self, number: int) -> int | SampleSizes:
        """Return the size of a sample, with its counts if it has some."""
        size = int(self.sizes[number])
        if self._measured is None:
            return size
        return SampleSizes(size, tuple(self._measured[number].tolist()))

    def position(self, item: int) -> int:
        """Return which of the kept items it is."""
        return item if self._ranks is None else int(self._ranks[item])

    def bounds(self, position: int) -> tuple[int, int]:
        """Return where the samples of a position begin and end in `sizes`."""
        if self._starts is None:
            return position, position + 1
        return int(self._starts[position]), int(self._starts[position + 1])


def _ranks(roles: RoleSet, name: str) -> Numbers | None:
    """Return of each item of a source how many before it are kept; None = all are."""
    kept = kept_items(roles, name)
    return None if kept is None else np.cumsum(kept.mask(), dtype=np.int64) - 1
