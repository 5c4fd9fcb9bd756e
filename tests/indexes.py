"""Indexes of sizes for tests: made of arrays, or of jobs, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.server.job.job import Job
from penstock.server.planning.index.block import ItemSizes, encode_block
from penstock.server.planning.index.index_file import SourceBlocks, blocks_of, write_index
from penstock.server.planning.make.dealt_blocks import BlockTask
from penstock.server.planning.make.making import MadeIndex, Making, make
from penstock.server.planning.make.measuring import Measuring
from penstock.server.planning.make.measuring_pool import Answer, Hears


def written(
    path: Path | str, *sources: tuple[str, ItemSizes], inputs: dict[str, Any] | None = None
) -> bytes:
    """Write an index of sizes that are given; return its root."""
    told = [SourceBlocks(name, found.positions, blocks_of(found)) for name, found in sources]
    return write_index(str(path), {"made": "for a test"} if inputs is None else inputs, told)


def one_each(*sizes: int) -> ItemSizes:
    """Return positions of one sample each."""
    return ItemSizes(None, np.array(sizes, np.int64))


def samples_of(*items: Sequence[int] | str) -> ItemSizes:
    """Return positions, each with the sizes of its samples, or with why it has none."""
    counts = [0 if isinstance(item, str) else len(item) for item in items]
    sizes = [size for item in items if not isinstance(item, str) for size in item]
    left_out = {at: item for at, item in enumerate(items) if isinstance(item, str)}
    return ItemSizes(np.array(counts, np.uint32), np.array(sizes, np.int64), left_out)


def as_items(found: ItemSizes, first: int = 0) -> list[list[int] | str]:
    """Return what `samples_of` was given."""
    if found.counts is None:
        return [[size] for size in found.sizes.tolist()]
    items: list[list[int] | str] = []
    at = 0
    for position, count in enumerate(found.counts.tolist()):
        sizes = found.sizes[at : at + count].tolist()
        items.append(sizes if count else found.left_out[first + position])
        at += count
    return items


class Here:
    """Measures blocks in this process, in an order of its own.

    Attributes:
        measured: The blocks that it was asked for.
    """

    def __init__(self, measuring: Measuring, *, backwards: bool = False, most: int = 1 << 30):
        self.measuring, self.backwards, self.most = measuring, backwards, most
        self.measured: list[BlockTask] = []

    async def __call__(self, blocks: Sequence[BlockTask], hears: Hears) -> None:
        """Measure them, or the first `most` of them.

        Raises:
            InterruptedError: There are more.
        """
        for block in reversed(blocks) if self.backwards else blocks:
            if len(self.measured) == self.most:
                raise InterruptedError
            self.measured.append(block)
            found = self.measuring.block(
                block.source,
                block.start,
                block.stop,
                lambda done, block=block: hears.progressed(block, done),  # type: ignore[misc]
            )
            data = encode_block(found.sizes, block.start)
            await hears.finished(block, Answer(data, found.drew, found.bad))


def made(job: Job, path: Path | str, **options: Any) -> MadeIndex:
    """Make the index of a job, in this process."""
    measuring = Measuring(job)
    return make([Making(measuring, str(path))], Here(measuring), **options)[0]


__all__ = ["Here", "as_items", "made", "one_each", "samples_of", "written"]
