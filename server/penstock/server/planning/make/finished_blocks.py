"""The finished blocks of an index that is being made, beside its place: a killed command goes on.

`URL.parts/inputs.json` says what they are of, and each block has a file, `SOURCE-NUMBER`: SHA-256
of the rest (32 bytes), whether processing drew random numbers (1 byte), and the block itself.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from penstock.server.core.canonical import canonical
from penstock.server.planning.index.block import QUARANTINED, LeftOut, decode_block
from penstock.server.planning.index.index_file import version_of
from penstock.server.planning.index.index_place import IndexPlace
from penstock.server.planning.index.inputs import differences
from penstock.server.planning.make.dealt_blocks import BlockTask
from penstock.wire.errors import InvalidJob, SourceUnavailable

T = TypeVar("T")
R = TypeVar("R")

INPUTS = "inputs.json"
_HASH_BYTES = 32

READERS = 16
"""Threads that read parts of a store: they wait for it."""


class FinishedBlock(NamedTuple):
    """A finished block.

    Attributes:
        data: The block's bytes.
        drew: Whether processing drew random numbers.
        samples: How many samples it has.
        tokens: The sum of their sizes.
        quarantined: How many items were left out because they fail.
    """

    data: bytes
    drew: bool
    samples: int
    tokens: int
    quarantined: int

    @classmethod
    def of(cls, data: bytes, drew: bool) -> FinishedBlock:
        """Return what the bytes of a block say.

        Raises:
            ValueError: They are not a block.
        """
        block = decode_block(data)
        left_out = block.read(0, block.positions, 0).left_out
        assert isinstance(left_out, LeftOut)
        return cls(data, drew, block.samples, block.tokens, left_out.tally()[QUARANTINED])


class Parts:
    """The finished blocks of one index.

    Args:
        place: Where the index shall lie.
        inputs: What its sizes depend on.
        positions: How many positions each source has, by name.
    """

    def __init__(
        self, place: IndexPlace, inputs: Mapping[str, Any], positions: Mapping[str, int]
    ) -> None:
        self._place, self._inputs = place, inputs
        self._header = {
            "inputs": dict(inputs),
            "positions": [[name, items] for name, items in positions.items()],
            "version": version_of(inputs),
        }

    def begin(self, *, force: bool) -> set[str]:
        """Return the names of the blocks that are there; begin, where nothing is there.

        Args:
            force: Remove what is there of another index.

        Raises:
            InvalidJob: There is something of another index.
            SourceUnavailable: The place cannot be reached.
        """
        names = set(self._place.part_names())
        if names:
            differs = self._differs()
            if not differs:
                return names - {INPUTS}
            if not force:
                raise InvalidJob(
                    f"{self._place.url + '.parts'!r} holds the beginning of another index: "
                    f"{differs} differs; give --force to throw that away, or another place",
                    key="plan.index",
                )
            self._place.remove_parts()
        self._place.part(INPUTS).write([canonical(self._header)])
        return set()

    def _differs(self) -> str:
        """Return in words in what the parts that are there differ from these; "" = in nothing."""
        place = self._place.part(INPUTS)
        try:
            told = json.loads(place.read(0, place.size()))
            found = differences(told["inputs"], self._inputs)
            return found[0] if found else "" if told == self._header else "the number of items"
        except FileNotFoundError:
            return f"{INPUTS} is missing, so what it is of"
        except (ValueError, KeyError, TypeError, AttributeError):
            return f"{INPUTS} is damaged, so what it is of"

    def save(self, block: BlockTask, part: FinishedBlock) -> None:
        """Keep a finished block.

        Raises:
            InvalidJob, SourceUnavailable: It cannot be written.
        """
        rest = bytes([part.drew]) + part.data
        self._place.part(block.name).write([hashlib.sha256(rest).digest(), rest])

    def load(self, block: BlockTask) -> FinishedBlock | None:
        """Return a finished block; None = it is not there whole.

        Raises:
            InvalidJob, SourceUnavailable: It cannot be read.
        """
        place = self._place.part(block.name)
        try:
            data = place.read(0, place.size())
            rest = data[_HASH_BYTES:]
            if hashlib.sha256(rest).digest() != data[:_HASH_BYTES] or rest[:1] not in (
                b"\0",
                b"\1",
            ):
                return None
            part = FinishedBlock.of(rest[1:], rest[0] == 1)
        except (FileNotFoundError, ValueError):
            return None
        return part

    def load_all(
        self, blocks: Iterable[BlockTask]
    ) -> Iterator[tuple[BlockTask, FinishedBlock | None]]:
        """Yield finished blocks in order, each with its content; some are read ahead."""
        if self._place.is_local:
            yield from ((block, self.load(block)) for block in blocks)
        else:
            yield from _ahead(self.load, blocks)

    def bytes_of(self, blocks: Iterable[BlockTask]) -> Iterator[bytes]:
        """Yield the bytes of finished blocks.

        Raises:
            SourceUnavailable: One is not there any more.
        """
        for block, part in self.load_all(blocks):
            if part is None:
                raise SourceUnavailable(
                    f"a finished part of the index, {self._place.part(block.name).url!r}, is gone "
                    "or damaged: run the command again, which makes what is missing; and let only "
                    "one command make an index at a time",
                    item=block.name,
                )
            yield part.data

    def remove_leftovers(self) -> None:
        """Remove what a command has left that was ended after the index was in its place.

        Raises:
            InvalidJob, SourceUnavailable: It cannot be removed.
        """
        if self._place.part_names() and not self._differs():
            self.remove()

    def remove(self) -> None:
        """Remove all of it.

        Raises:
            InvalidJob, SourceUnavailable: It cannot be removed.
        """
        self._place.remove_parts()


def _ahead(load: Callable[[T], R], things: Iterable[T]) -> Iterator[tuple[T, R]]:
    """Yield what a call gives for each thing, in order, with some calls made ahead in threads."""
    waiting: deque[tuple[T, Future[R]]] = deque()
    with ThreadPoolExecutor(READERS) as pool:
        for thing in things:
            waiting.append((thing, pool.submit(load, thing)))
            if len(waiting) > 2 * READERS:
                first, found = waiting.popleft()
                yield first, found.result()
        for first, found in waiting:
            yield first, found.result()
