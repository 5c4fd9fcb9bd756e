"""An index of sizes is made: what is missing is measured, and all of it becomes one file."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.server.indexing.blocks import Block, all_blocks
from penstock.server.indexing.crew import Answer, Hears
from penstock.server.indexing.measuring import Measuring
from penstock.server.indexing.parts import Part, Parts
from penstock.server.planned.index_file import SizeIndex, SourceBlocks, is_index, write_index
from penstock.server.planned.index_inputs import SEED, differences
from penstock.server.planned.place import Place
from penstock.wire.errors import BadItem, InvalidJob

MAX_NAMED = 3
"""How many of the items that are left out an error names."""

Engine = Callable[[Sequence[Block], Hears], Awaitable[None]]
"""Measures blocks, in any order, and tells of each that is finished."""


@dataclass
class Done:
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


Watch = Callable[[Done], None]
"""Told of what is done, now and then."""


@dataclass(frozen=True)
class Made:
    """An index, as it is there now.

    Attributes:
        index: It.
        is_new: Whether this command has made it.
        seconds: How long that took.
        done: What was done for it.
    """

    index: SizeIndex
    is_new: bool
    seconds: float
    done: Done


class Making:
    """Makes the index of one job.

    Args:
        measuring: What of the job says sizes.
        url: Where the index shall lie: a path, or a URL of fsspec.
        storage_options: Options of the filesystem.
        watch: Told of what is done.
        warn: Told, as a sentence, what people should know of.
    """

    def __init__(
        self,
        measuring: Measuring,
        url: str,
        storage_options: dict[str, Any] | None = None,
        watch: Watch = lambda done: None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self._job = measuring.job
        self.inputs, self._positions = measuring.inputs, measuring.positions
        self._url, self._options = url, storage_options or {}
        self._place = Place(url, self._options)
        self._parts = Parts(self._place, self.inputs, self._positions)
        self._watch, self._warn = watch, warn
        self._done = Done(sum(self._positions.values()))
        self._under_way: dict[Block, int] = {}
        self._quarantined = 0
        self._drew = False

    def run(self, engine: Engine, *, force: bool = False) -> Made:
        """Make the index, unless it is there.

        Args:
            engine: Measures blocks.
            force: Make it anew if it is there; throw away what is there of another job.

        Raises:
            InvalidJob: There is something else at its place.
            BadItem: An item fails, and the job's policy is to stop; or too many do.
            PenstockError: What `engine` met.
        """
        began_s = time.monotonic()
        if (there := self._there(force=force)) is not None:
            self._parts.remove_leftovers()
            return Made(there, False, 0.0, self._done)
        missing = self._missing(self._parts.begin(force=force))
        self._watch(self._done)
        if missing:
            asyncio.run(self._run(engine, missing))
        self._assemble()
        index = SizeIndex.open(self._url, self._options)
        self._parts.remove()
        return Made(index, True, time.monotonic() - began_s, self._done)

    def _there(self, *, force: bool) -> SizeIndex | None:
        """Return the index, if it is there and need not be made.

        Raises:
            InvalidJob: There is another one, or something else.
        """
        known = is_index(self._place)
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
        return index

    def _missing(self, names: set[str]) -> list[Block]:
        """Return the blocks that are not finished, and take note of those that are."""
        finished = (block for block in all_blocks(self._positions) if block.name in names)
        whole: set[str] = set()
        for block, part in self._parts.load_all(finished):
            if part is not None:
                whole.add(block.name)
                self._done.found += block.stop - block.start
                self._note(block, part)
        return [block for block in all_blocks(self._positions) if block.name not in whole]

    async def _run(self, engine: Engine, missing: Sequence[Block]) -> None:
        await engine(missing, self)

    # --- what the engine tells ---

    async def finished(self, block: Block, answer: Answer) -> None:
        """Keep a block that is finished.

        Raises:
            BadItem: More items fail than may be left out.
        """
        self._done.bad += answer.bad
        part = Part.of(answer.data, answer.drew)
        await asyncio.to_thread(self._parts.save, block, part)
        self._note(block, part)

    def progressed(self, block: Block, done: int) -> None:
        """Note that so many positions of a block are measured."""
        before = self._under_way.get(block, 0)
        self._under_way[block] = done
        self._done.measured += done - before
        self._watch(self._done)

    def died(self, block: Block | None, how: str) -> None:
        """Note that a process died."""
        if block is not None:
            self.progressed(block, 0)
        self._warn(f"{how}; its block is measured again")

    def _note(self, block: Block, part: Part) -> None:
        before = self._under_way.pop(block, 0)
        self._done.measured += block.stop - block.start - before
        self._done.samples += part.samples
        self._done.tokens += part.tokens
        self._drew |= part.drew
        self._quarantined += part.quarantined
        self._watch(self._done)
        if self._quarantined > self._job.max_quarantined:
            named = ", ".join(f"{item} ({why})" for item, why in self._done.bad[:MAX_NAMED])
            look = f"the first are {named}" if named else "an earlier command has named them"
            raise BadItem(
                f"{self._quarantined} items of job {self._job.name!r} fail, and max_quarantined = "
                f"{self._job.max_quarantined} may be left out; look at the data ({look}), or raise "
                "max_quarantined",
                stage="draw",
                reason="quarantine budget spent",
            )

    # --- one file ---

    def _assemble(self) -> None:
        inputs = self.inputs
        if not self._drew:  # no size depends on the seed
            inputs = {key: value for key, value in inputs.items() if key != SEED}
        sources = [
            SourceBlocks(name, items, self._parts.bytes_of(self._blocks_of(name)))
            for name, items in self._positions.items()
        ]
        write_index(self._url, inputs, sources, self._options)

    def _blocks_of(self, name: str) -> Iterator[Block]:
        return (block for block in all_blocks(self._positions) if block.source == name)


def left_out(index: SizeIndex) -> Counter[str]:
    """Return how many items have no sample, by reason, over all sources."""
    total: Counter[str] = Counter()
    for source in index.sources.values():
        total.update(source.left_out)
    return total


__all__ = ["Done", "Engine", "Made", "Making", "Watch", "left_out"]
