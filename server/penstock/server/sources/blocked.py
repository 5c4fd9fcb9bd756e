"""What sources of files have in common that are read a block of consecutive items at a time.

Blocks are found by one pass over each file, when it is first opened; where they lie is kept in the
catalog with the files' hashes, so that neither a worker nor the next start makes that pass again. A
block is some megabytes, one read on a disk and one request to a store; only those of its items that
are wanted are made from it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from penstock.common.resources import usable_cpus
from penstock.server.files.content import ReadAt
from penstock.server.files.ranges import LOOKERS
from penstock.server.roles.condition import Condition
from penstock.server.roles.parameters import AtLeast, declared
from penstock.server.roles.reading import Blocks
from penstock.server.sources.cache import BlockRows
from penstock.server.sources.file_blocks import FileBlocks
from penstock.server.sources.file_source import Files
from penstock.server.sources.files import reading
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import invalid_files
from penstock.server.usercode.frames import error_line
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import BadItem, InvalidJob, PenstockError
from penstock.wire.plain import clean_text

logger = logging.getLogger("penstock")

BLOCK_BYTES = 4 << 20
"""Bytes of a block, about: one request to a store then takes longer than its round trip, and
thousands of blocks mix a corpus of some gigabytes well."""

MAX_RECORD_BYTES = 256 << 20
"""Of a line or an element: where damage hides its end, a file of any size would come into memory,
several times over."""

_LOOKED_AT = 64
"""Items that tell whether there is a column of some name."""

_MAX_REASON = 200


class RecordTooLong(Exception):
    """A line or an element of a file has no end that can be found."""


class FileIndex(NamedTuple):
    """Where the blocks of a file lie, in the order of the items; each list has an entry per block.

    Attributes:
        starts: Where it starts in the file, in bytes.
        stops: Where it ends.
        items: How many items it holds.
        nbytes: About how many bytes it takes in memory.
        first: The number of its first line or record in the file, for messages.
        more: What else the format has to know of the file, JSON-able.
    """

    starts: list[int]
    stops: list[int]
    items: list[int]
    nbytes: list[int]
    first: list[int]
    more: Any = None

    @classmethod
    def empty(cls, more: Any = None) -> FileIndex:
        """Return an index without blocks."""
        return cls([], [], [], [], [], more)

    def add(
        self, start: int, stop: int, items: int, *, nbytes: int | None = None, first: int
    ) -> None:
        """Add the next block."""
        self.starts.append(start)
        self.stops.append(stop)
        self.items.append(items)
        self.nbytes.append(stop - start if nbytes is None else nbytes)
        self.first.append(first)


class FileBlock(NamedTuple):
    """A block of a file, as the reader of a format gets it.

    Attributes:
        file: The file.
        start: Where it starts in the file, in bytes.
        stop: Where it ends.
        items: How many items it holds.
        nbytes: About how many bytes it takes in memory.
        first: The number of its first line or record in the file.
        more: What else the format knows of the file.
    """

    file: DataFile
    start: int
    stop: int
    items: int
    nbytes: int
    first: int
    more: Any

    def bad(self, what: str, said: str, remedy: str) -> BadItem:
        """Return the error of an item that cannot be made from its bytes.

        Args:
            what: Which line or record it is.
            said: What is wrong with it.
            remedy: What to do about it.
        """
        said = clean_text(said, _MAX_REASON)
        return BadItem(
            f"{self.file.path}: {what} {said}: {remedy}",
            path=self.file.path,
            reason=f"{self.file.name}: {what} {said}",
        )

    def bad_value(self, row: int, column: str, error: Exception) -> BadItem:
        """Return the error of a value that has no form in Python, in a row of the block."""
        return self.bad(
            f"row {self.first + row}, column {clean_text(repr(column), 100)},",
            f"cannot be decoded ({error_line(error, 300)})",
            "write it again, or let on_item_error: quarantine skip it",
        )


@declared
class BlockedFiles(FileBlocks):
    """Items of files that are read a block at a time; each format derives its source from it.

    A format says where the blocks of a file lie (`index_of`) and what items a block has
    (`rows_of`). Its `__post_init__` calls `open_files`.

    Args:
        block_bytes: About how many bytes are read at once. Smaller blocks mix batches better with
            fewer in memory, larger ones need fewer requests to a store. Part of the order of items.
    """

    _: KW_ONLY
    block_bytes: Annotated[int, AtLeast(1)] = BLOCK_BYTES

    index_version: ClassVar[int] = 1
    """Raised when `index_of` finds other blocks in the same file, or notes other things."""

    def open_files(self, files: Files, what: str, *decides: Any) -> None:
        """Find the files, and where the blocks in them lie.

        Args:
            files: What names them.
            what: What the items are called, for messages.
            decides: What decides where blocks lie, JSON-able.

        Raises:
            InvalidJob: No file matches, or one of them is not of the format, or all are empty.
            SourceUnavailable: A file cannot be read at the moment.
        """
        self.find_files(files)
        self.find_blocks(f"{self.type_name} {self.index_version} {json.dumps(decides)}")
        self.shards = self.data_files()
        self.note_all(self._index, usable_cpus() if self.file_set.is_local else LOOKERS)
        self.indexes = [FileIndex(*self.file_set.known(file, self._fact)) for file in self.shards]
        self.take_blocks([index.items for index in self.indexes])
        if not self.starts[-1]:
            raise invalid_files(
                f"the {len(self.shards)} files that match {files!r} hold no {what}; the first is "
                f"{self.shards[0].path}"
            )

    # --- what a format says ---

    @abstractmethod
    def index_of(self, file: DataFile) -> FileIndex:
        """Return where the blocks of a file lie; called once for each version of the file.

        Raises:
            InvalidJob: It is not of the format.
            OSError: It cannot be read at the moment.
        """

    @abstractmethod
    def rows_of(self, block: FileBlock, data: bytes) -> BlockRows:
        """Return the items of a block.

        Raises:
            BadItem: It cannot be decoded.
        """

    def data_files(self) -> list[DataFile]:
        """Return the files that hold items, in order; by default all."""
        return self.file_set.files

    def read_block(self, block: FileBlock) -> bytes:
        """Return the bytes of a block, for `rows_of`."""
        return self.file_set.read(block.file, block.start, block.stop)

    # --- what a source does ---

    def blocks(self) -> Blocks | None:
        """Return the blocks, in index order."""
        places = [(self.indexes[shard], number) for shard, number in self.places]
        return Blocks(
            self.block_items,
            [index.nbytes[number] for index, number in places],
            [index.stops[number] - index.starts[number] for index, number in places],
        )

    def has_column(self, name: str) -> bool:
        """Tell whether items have this column; where only items tell, whether one of the first has.

        Raises:
            SourceUnavailable, SourceChanged, BadItem: As `fetch`.
        """
        known = self.columns_of_items()
        if known is not None:
            return name in known
        looked = self.fetch(range(min(_LOOKED_AT, len(self))))
        return any(isinstance(item, Mapping) and name in item for item in looked)

    def column(self, name: str, start: int, stop: int) -> list[Any]:
        """Return a column of the items `[start, stop)`; None = an item has none.

        Raises:
            SourceUnavailable, SourceChanged: As `fetch`.
            InvalidJob: An item cannot be decoded.
        """
        try:
            items = self.fetch(range(start, stop))
        except BadItem as error:
            raise InvalidJob(
                f"where looks at {name!r} of every item, and one has none: {error.message}",
                key="distributor.where",
            ) from error
        return [item.get(name) if isinstance(item, Mapping) else None for item in items]

    @override
    def kept_of(self, where: Condition, blocks: range) -> list[NDArray[np.bool_]]:
        found = []
        for number in blocks:
            start, stop = self.starts[number], self.starts[number + 1]
            holds = [where.holds(name, self.column(name, start, stop)) for name in where.columns]
            found.append(np.logical_and.reduce(holds))
        return found

    def load(self, number: int, index: int) -> tuple[BlockRows, int]:
        """Return the items of a block, and about how many bytes they take."""
        block = self.block(number)
        with reading(block.file, index):
            data = self.read_block(block)
        self.count_read(len(data))
        try:
            return self.rows_of(block, data), block.nbytes
        except PenstockError:
            raise
        except Exception as error:
            if is_transient(error):
                raise
            raise block.bad(
                f"the bytes {block.start} to {block.stop}",
                f"cannot be decoded ({error_line(error, 300)})",
                "the file is damaged: put it back as it was written, as a new job",
            ) from error

    def block(self, number: int) -> FileBlock:
        """Return a block by its number, in index order."""
        shard, within = self.places[number]
        starts, stops, items, nbytes, first, more = self.indexes[shard]
        return FileBlock(
            self.shards[shard],
            starts[within],
            stops[within],
            items[within],
            nbytes[within],
            first[within],
            more,
        )

    def digests(self) -> Mapping[str, str]:
        """Return the hash of where the items of each file lie, by path."""
        return {
            file.path: hashlib.sha256(json.dumps(index).encode()).hexdigest()
            for file, index in zip(self.shards, self.indexes, strict=True)
        }

    def _index(self, file: DataFile) -> FileIndex:
        try:
            return self.index_of(file)
        except RecordTooLong as error:
            raise invalid_files(f"{file.path}: {error}") from None


def cut(
    read_at: ReadAt,
    start: int,
    size: int,
    block_bytes: int,
    end_of: Callable[[bytes, bool], int],
) -> Iterator[tuple[int, bytes]]:
    """Yield the blocks of a file: where each starts, and its bytes.

    Args:
        read_at: Reads a range of the file.
        start: Where its first record starts.
        size: Where its last record ends.
        block_bytes: The most bytes of a block of several records; one record may be longer.
        end_of: `(bytes from the start of a record on, whether these are the last) -> where the last
            whole record in them ends`; 0 = they hold none.

    Raises:
        RecordTooLong: A record is longer than `MAX_RECORD_BYTES`.
    """
    while start < size:
        length = block_bytes
        while True:
            stop = min(size, start + length)
            data = read_at(start, stop)
            end = end_of(data, stop == size)
            if end or stop == size:
                break
            if length >= MAX_RECORD_BYTES:
                raise RecordTooLong(
                    f"what begins at byte {start} has no end within {length >> 20} MiB (a line "
                    "end, a quote or bracket that is closed, the id that ends documents): the file "
                    "is damaged, or of another kind"
                )
            length = min(2 * length, max(length, MAX_RECORD_BYTES))
        yield start, data[: end or len(data)]
        start += end or len(data)
