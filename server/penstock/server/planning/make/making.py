"""Indexes of sizes are made: what is missing is measured, and all of a set becomes one file."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.server.planning.index.index_file import SizeIndex, SourceBlocks, is_index, write_index
from penstock.server.planning.index.index_place import IndexPlace
from penstock.server.planning.index.inputs import SEED, differences
from penstock.server.planning.make.dealt_blocks import BlockTask, all_blocks
from penstock.server.planning.make.finished_blocks import FinishedBlock, Parts
from penstock.server.planning.make.measuring import Measuring
from penstock.server.planning.make.measuring_pool import Answer, Hears
from penstock.wire.errors import BadItem, InvalidJob

MAX_NAMED = 3
"""How many of the items that are left out an error names."""

Engine = Callable[[Sequence[BlockTask], Hears], Awaitable[None]]
"""Measures blocks, in any order, and tells of each that is finished."""


@dataclass
class MakingProgress:
    """How far the making of an index is.

    Attributes:
        items: How many positions there are in all.
        measured: How many of them are measured.
        found: How many of these were measured by an earlier command.
        samples: Samples of the finished blocks.
        tokens: The sum of their sizes.
        bad: The items that this command has left out because they fail, each with why.
    """

    items: int
    measured: int = 0
    found: int = 0
    samples: int = 0
    tokens: int = 0
    bad: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def sum_of(cls, each: Sequence[MakingProgress]) -> MakingProgress:
        """Return how far several are together."""
        return cls(
            sum(done.items for done in each),
            sum(done.measured for done in each),
            sum(done.found for done in each),
            sum(done.samples for done in each),
            sum(done.tokens for done in each),
            [bad for done in each for bad in done.bad],
        )


Watch = Callable[[MakingProgress], None]
"""Told of what is done, now and then."""

Warn = Callable[[str], None]
"""Told what people should know of, as a sentence."""


@dataclass(frozen=True)
class MadeIndex:
    """An index, as it is there now.

    Attributes:
        index: It.
        is_new: Whether this command has made it.
        seconds: How long that took, with all that were made beside it.
        done: What was done for it.
    """

    index: SizeIndex
    is_new: bool
    seconds: float
    done: MakingProgress


class Making:
    """Makes the index of one set of roles.

    Args:
        measuring: What of the job says sizes.
        url: Where the index shall lie: a path, or a URL of fsspec.
        storage_options: Options of the filesystem.

    Attributes:
        inputs: What the sizes depend on.
        positions: How many positions each source has, by name.
        place: Where the index shall lie.
        done: How far it is.
    """

    def __init__(
        self, measuring: Measuring, url: str, storage_options: dict[str, Any] | None = None
    ) -> None:
        self._job = measuring.job
        self.inputs, self.positions = measuring.inputs, measuring.positions
        self._url, self._options = url, storage_options or {}
        self.place = IndexPlace(url, self._options)
        self._parts = Parts(self.place, self.inputs, self.positions)
        self.done = MakingProgress(sum(self.positions.values()))
        self._under_way: dict[BlockTask, int] = {}
        self._quarantined = 0
        self._drew = False

    def there(self, *, force: bool) -> SizeIndex | None:
        """Return the index, if it is there and need not be made.

        Raises:
            InvalidJob: There is another one, or something else; or it is damaged.
        """
        known = is_index(self.place)
        if known is None:
            return None
        if not known:
            raise InvalidJob(
                f"there is a file {self._url!r}, which is not an index of sizes: name another "
                "place for the index, or remove the file",
                key="plan.index",
            )
        if force:
            return None
        index = SizeIndex.open(self._url, self._options)
        if differs := differences(index.inputs, self.inputs):
            raise InvalidJob(
                f"there is an index {self._url!r} already, of another job: {differs[0]} differs; "
                "give --force to replace it, or name another place",
                key="plan.index",
            )
        index.check()  # whoever makes it anew, as it was found damaged, must not hear that it fits
        self._parts.remove_leftovers()
        return index

    def missing(self, *, force: bool) -> list[BlockTask]:
        """Return the blocks that are not finished, and take note of those that are.

        Raises:
            InvalidJob: There is the beginning of another index.
            BadItem: More items fail than may be left out.
        """
        names = self._parts.begin(force=force)
        finished = (block for block in all_blocks(self.positions) if block.name in names)
        whole: set[str] = set()
        for block, part in self._parts.load_all(finished):
            if part is not None:
                whole.add(block.name)
                self.done.found += block.stop - block.start
                self._note(block, part)
        return [block for block in all_blocks(self.positions) if block.name not in whole]

    async def finished(self, block: BlockTask, answer: Answer) -> None:
        """Keep a block that is finished.

        Raises:
            BadItem: More items fail than may be left out.
        """
        self.done.bad += answer.bad
        part = FinishedBlock.of(answer.data, answer.drew)
        await asyncio.to_thread(self._parts.save, block, part)
        self._note(block, part)

    def progressed(self, block: BlockTask, measured: int) -> None:
        """Note that so many positions of a block are measured."""
        before = self._under_way.get(block, 0)
        self._under_way[block] = measured
        self.done.measured += measured - before

    def _note(self, block: BlockTask, part: FinishedBlock) -> None:
        before = self._under_way.pop(block, 0)
        self.done.measured += block.stop - block.start - before
        self.done.samples += part.samples
        self.done.tokens += part.tokens
        self._drew |= part.drew
        self._quarantined += part.quarantined
        if self._quarantined > self._job.max_quarantined:
            named = ", ".join(f"{item} ({why})" for item, why in self.done.bad[:MAX_NAMED])
            look = f"the first are {named}" if named else "an earlier command has named them"
            raise BadItem(
                f"{self._quarantined} items of job {self._job.name!r} fail, and max_quarantined = "
                f"{self._job.max_quarantined} may be left out; look at the data ({look}), or raise "
                "max_quarantined",
                stage="draw",
                reason="quarantine budget spent",
            )

    def assemble(self) -> SizeIndex:
        """Return the index, which is made of its finished blocks."""
        inputs = self.inputs
        if not self._drew:  # no size depends on the seed
            inputs = {key: value for key, value in inputs.items() if key != SEED}
        sources = [
            SourceBlocks(name, items, self._parts.bytes_of(self._blocks_of(name)))
            for name, items in self.positions.items()
        ]
        write_index(self._url, inputs, sources, self._options)
        index = SizeIndex.open(self._url, self._options)
        self._parts.remove()
        return index

    def _blocks_of(self, name: str) -> Iterator[BlockTask]:
        return (block for block in all_blocks(self.positions) if block.source == name)


def make(
    makings: Sequence[Making],
    engine: Engine,
    *,
    force: bool = False,
    watch: Watch = lambda done: None,
    warn: Warn = lambda sentence: None,
) -> list[MadeIndex]:
    """Make the indexes of the sets of a job that are not there, all blocks of them side by side.

    Args:
        makings: One for each set; no two sets have a source of the same name.
        engine: Measures blocks.
        force: Make those anew that are there; throw away what is there of other jobs.
        watch: Told of what is done.
        warn: Told, as a sentence, what people should know of.

    Raises:
        InvalidJob: There is something else at the place of one.
        BadItem: An item fails, and the job's policy is to stop; or too many do.
        PenstockError: What `engine` met.
    """
    began_s = time.monotonic()
    there = [making.there(force=force) for making in makings]
    wanted = [making for making, index in zip(makings, there, strict=True) if index is None]
    missing = [block for making in wanted for block in making.missing(force=force)]
    hears = _Sets(wanted, watch, warn)
    if wanted:
        hears.tell()
    if missing:
        asyncio.run(_run(engine, missing, hears))
    found = []
    for making, index in zip(makings, there, strict=True):
        made = making.assemble() if index is None else index
        seconds = time.monotonic() - began_s if index is None else 0.0
        found.append(MadeIndex(made, index is None, seconds, making.done))
    return found


async def _run(engine: Engine, missing: Sequence[BlockTask], hears: Hears) -> None:
    await engine(missing, hears)


class _Sets:
    """What the engine tells, for the sets that the blocks are of."""

    def __init__(self, makings: Sequence[Making], watch: Watch, warn: Warn) -> None:
        self._makings, self._watch, self._warn = makings, watch, warn
        self._of = {source: making for making in makings for source in making.positions}

    def tell(self) -> None:
        self._watch(MakingProgress.sum_of([making.done for making in self._makings]))

    async def finished(self, block: BlockTask, answer: Answer) -> None:
        await self._of[block.source].finished(block, answer)
        self.tell()

    def progressed(self, block: BlockTask, done: int) -> None:
        self._of[block.source].progressed(block, done)
        self.tell()

    def died(self, block: BlockTask, how: str) -> None:
        self.progressed(block, 0)
        self._warn(f"{how}; its block is measured again")


def left_out(index: SizeIndex) -> Counter[str]:
    """Return how many items have no sample, by reason, over all sources."""
    total: Counter[str] = Counter()
    for source in index.sources.values():
        total.update(source.left_out)
    return total
