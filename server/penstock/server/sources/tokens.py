"""Token ids that lie one after another in flat files: `.npy` and raw `.bin`."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY
from tokenize import TokenError
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from penstock.server.roles.number_columns import Indices
from penstock.server.roles.parameters import AtLeast, OneOf, TrueOrFalse, declared
from penstock.server.roles.reading import Blocks
from penstock.server.sources.block_columns import BlockColumns, ListRows
from penstock.server.sources.blocked import BlockedFiles, FileBlock, FileIndex, cut
from penstock.server.sources.file_source import Files
from penstock.server.sources.files import reading
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import check_indices, invalid_files
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidJob

COLUMN = "input_ids"
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")

_ALONE = 8
"""Where blocks are not kept, items are read by themselves unless they are so large a part of their
block (an eighth) that reading it whole costs no more."""


class Sequences(NamedTuple):
    """The sequences of a block as columns: no Python object for any of them.

    Attributes:
        values: The ids of all, one sequence after another: (ids,), read-only.
        starts: Where each starts in `values`, then where the last one ends: int64 (sequences + 1,).
    """

    values: NDArray[Any]
    starts: NDArray[np.int64]

    def items(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return some sequences as items; each owns its memory."""
        starts, values, native = self.starts, self.values, self.values.dtype.newbyteorder("=")
        return [{COLUMN: values[starts[row] : starts[row + 1]].astype(native)} for row in rows]

    def length(self, column: str, row: int) -> int:
        """Return how many ids a sequence has."""
        return int(self.starts[row + 1] - self.starts[row])

    def numbers(self, column: str, row: int, start: int, stop: int) -> NDArray[Any]:
        """Return ids `[start, stop)` of a sequence, read-only."""
        first = self.starts[row]
        return self.values[first + start : first + stop]


class _LoneSequence(NamedTuple):
    """A sequence that was read by itself."""

    values: NDArray[Any]

    def length(self, column: str, row: int) -> int:
        """Return how many ids it has."""
        return len(self.values)

    def numbers(self, column: str, row: int, start: int, stop: int) -> NDArray[Any]:
        """Return ids `[start, stop)` of it."""
        return self.values[start:stop]


class TokenFiles(BlockedFiles, BlockColumns):
    """Sequences of token ids in files of ids; a format says where each sequence lies.

    Items are `{"input_ids": array}` with the ids as the file has them, of shape (tokens,).
    """

    def columns_of_items(self) -> dict[str, str]:
        """Return the only column."""
        return {COLUMN: f"list<{self.dtype_of(0)}>"}

    def blocks(self) -> Blocks:
        """Return the blocks; a sequence may be read alone."""
        found = super().blocks()
        assert found is not None
        return Blocks(found.items, found.nbytes, found.stored, items_are_apart=True)

    def dtype_of(self, shard: int) -> np.dtype[Any]:
        """Return the dtype of the ids in a file."""
        dtype: np.dtype[Any] = np.dtype(self.indexes[shard].more["dtype"])
        return dtype

    def spans(self, block: FileBlock, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return where sequences of a block lie in their file, without reading it.

        Args:
            block: The block.
            rows: Which of its sequences.

        Returns:
            Bytes, `[start, stop)`: int64 (rows, 2); None = only the block itself tells.
        """
        return None

    def token_count(self) -> int:
        """Return how many ids all sequences have, by where their blocks lie: nothing is read."""
        return sum(
            sum(stop - start for start, stop in zip(index.starts, index.stops, strict=True))
            // self.dtype_of(shard).itemsize
            for shard, index in enumerate(self.indexes)
        )

    def knows_sizes(self) -> bool:
        """Tell whether sizes are known without reading the ids."""
        return True

    def sizes(self, indices: Sequence[int]) -> NDArray[np.int64] | None:  # type: ignore[override]
        """Return how many ids each sequence has: int64 (indices,); None = only the ids tell.

        Raises:
            IndexError, SourceUnavailable, SourceChanged: As `fetch`.
        """
        if not self.knows_sizes():
            return None
        check_indices(indices, len(self))
        wanted = np.asarray(indices, np.int64)
        numbers = np.searchsorted(np.asarray(self.starts), wanted, "right") - 1
        found = np.empty(len(wanted), np.int64)
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            block = self.block(number)
            with reading(block.file, int(wanted[chosen][0])):
                spans = self.spans(block, wanted[chosen] - self.starts[number])
            assert spans is not None
            itemsize = np.dtype(block.more["dtype"]).itemsize
            found[chosen] = (spans[:, 1] - spans[:, 0]) // itemsize
        return found

    def starts_of(self, block: FileBlock, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return where the sequences of a block start in its ids, then where the last one ends."""
        spans = self.spans(block, np.arange(block.items))
        assert spans is not None
        return (np.append(spans[:, 0], spans[-1:, 1]) - block.start) // values.itemsize

    def rows_of(self, block: FileBlock, data: bytes) -> Sequences:
        """Return the sequences of a block."""
        values = np.frombuffer(data, np.dtype(block.more["dtype"]))
        return Sequences(values, self.starts_of(block, values))

    def sequence_dtype(self, column: str) -> np.dtype[Any] | None:
        """Return the dtype of the ids, if it is the same in all files."""
        found = {self.dtype_of(shard).newbyteorder("=") for shard in range(len(self.indexes))}
        return found.pop() if column == COLUMN and len(found) == 1 else None

    def lengths(self, column: str, indices: Indices) -> Indices:
        """Return how many ids sequences have, without reading them where that can be."""
        sizes = self.sizes(indices.tolist())
        return super().lengths(column, indices) if sizes is None else sizes

    def alone(self, number: int, row: int, index: int) -> ListRows | None:
        """Return the ids of a sequence, read by themselves; None where only its block tells."""
        if self.keeps_read_blocks:
            return None
        block = self.block(number)
        spans = self.spans(block, np.array([row]))
        if spans is None:
            return None
        [[start, stop]] = spans.tolist()
        with reading(block.file, index):
            data = self.file_set.read(block.file, start, stop)
        self.count_read(len(data))
        return _LoneSequence(np.frombuffer(data, np.dtype(block.more["dtype"])))

    def fetch(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the sequences at `indices`, in that order.

        Raises:
            IndexError: An index is negative or not below the length.
            SourceUnavailable: They cannot be read at the moment.
            SourceChanged: A file is not the one that was opened.
        """
        if self.keeps_read_blocks:
            return super().fetch(indices)
        check_indices(indices, len(self))
        wanted: dict[int, list[int]] = {}
        for place, index in enumerate(indices):
            wanted.setdefault(self.block_of(index)[0], []).append(place)
        items: list[Any] = [None] * len(indices)
        for number, places in wanted.items():
            chosen = [indices[place] for place in places]
            for place, item in zip(places, self._few(number, chosen), strict=True):
                items[place] = item
        return items

    def _few(self, number: int, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return sequences of one block: read each by itself where that is less."""
        block = self.block(number)
        rows = np.asarray(indices, np.int64) - self.starts[number]
        spans = self.spans(block, rows)
        if spans is None or int((spans[:, 1] - spans[:, 0]).sum()) * _ALONE > (
            block.stop - block.start
        ):
            return super().fetch(indices)
        items = []
        with reading(block.file, indices[0]):
            for start, stop in spans.tolist():
                data = self.file_set.read(block.file, start, stop)
                self.count_read(len(data))
                values = np.frombuffer(data, np.dtype(block.more["dtype"]))
                items.append({COLUMN: values.astype(values.dtype.newbyteorder("="))})
        return items


@declared
class TokensSource(TokenFiles):
    """Flat files of token ids: `.npy` of one or two dimensions, or raw little-endian `.bin`.

    An array of two dimensions has a sequence in every row. In one of one dimension, and in a raw
    file, sequences end after each id `eos`, that one included, or are all `sequence_length` long.
    Items are `{"input_ids": array}` of the file's dtype.

    Args:
        files: Paths, globs, folders or URLs (`s3://...`, `memory://...`); one or a list.
        dtype: The dtype of raw files, such as `uint16`; a `.npy` file says its own.
        eos: The id that ends a document.
        sequence_length: Tokens of every sequence, where documents are not told apart.
        drop_last: Leave out the ids at the end of a file that do not fill a sequence of
            `sequence_length`. False makes a shorter last sequence of them.
        header_bytes: The length of the header of raw files, in bytes.

    Raises:
        InvalidJob: No file matches, a raw file without a dtype, neither or both of `eos` and
            `sequence_length` where one is needed, no ids, or no document that `eos` ends.
        MissingExtra: fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "tokens"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".npy", ".bin")
    index_version: ClassVar[int] = 2

    files: Files
    dtype: Annotated[str | None, OneOf(DTYPES)] = None
    _: KW_ONLY
    eos: int | None = None
    sequence_length: Annotated[int | None, AtLeast(1)] = None
    drop_last: Annotated[bool, TrueOrFalse()] = False
    header_bytes: Annotated[int, AtLeast(0)] = 0

    def __post_init__(self) -> None:
        if self.eos is not None and self.sequence_length is not None:
            raise InvalidJob(
                "eos and sequence_length are both given: sequences end at one of them; remove the "
                "other",
                key="source.eos",
            )
        cuts = (self.dtype, self.eos, self.sequence_length, self.drop_last, self.header_bytes)
        self.open_files(self.files, "tokens", *cuts, self.block_bytes)
        if not any(index.more["length"] or index.more["ended"] for index in self.indexes):
            raise InvalidJob(
                f"the files that match {self.files!r} do not hold the id {self.eos} that is to end "
                "a document: give the id that ends documents there, or cut them with "
                "sequence_length: N",
                key="source.eos",
            )

    def knows_sizes(self) -> bool:
        """Tell whether all sequences of a file have one length."""
        return all(index.more["length"] for index in self.indexes)

    def spans(self, block: FileBlock, rows: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """Return where sequences of one length lie; None where they end at an id."""
        return self._fixed(block, rows) if block.more["length"] else None

    @override
    def starts_of(self, block: FileBlock, values: NDArray[Any]) -> NDArray[np.int64]:
        if block.more["length"]:
            return super().starts_of(block, values)
        return self.starts_in(values)

    def index_of(self, file: DataFile) -> FileIndex:
        """Return blocks of whole sequences.

        Raises:
            InvalidJob: It is not a file of ids, or nothing says where sequences end.
        """
        start, dtype, length = self._layout(file)
        stop = start + (file.size - start) // dtype.itemsize * dtype.itemsize
        if stop != file.size:
            raise InvalidJob(
                f"{file.path} holds {file.size - start} bytes of ids after its header, which is "
                f"not a multiple of {dtype.itemsize}, the bytes of {dtype.name}: name the dtype "
                "that it was written in, and header_bytes if it has a header",
                key="source.dtype",
            )
        index = FileIndex.empty({"dtype": dtype.str, "length": length, "ended": False})
        if length:
            self._cut_alike(index, start, stop, length * dtype.itemsize)
            return index
        if self.eos is None:
            raise InvalidJob(
                f"{file.path} is one row of ids: say where documents end with eos: ID, or cut it "
                "with sequence_length: N",
                key="source.eos",
            )
        sequence = 0

        def end_of(data: bytes, is_last: bool) -> int:
            whole = len(data) // dtype.itemsize
            ends = np.flatnonzero(np.frombuffer(data, dtype, whole) == self.eos)
            if is_last:
                return len(data)
            return (int(ends[-1]) + 1) * dtype.itemsize if len(ends) else 0

        for place, data in cut(
            self.file_set.from_start_to_end(file), start, stop, self.block_bytes, end_of
        ):
            values = np.frombuffer(data, dtype)
            items = len(self.starts_in(values)) - 1
            index.more["ended"] |= items > 1 or bool(values[-1] == self.eos)
            index.add(place, place + len(data), items, first=sequence)
            sequence += items
        return index

    def starts_in(self, values: NDArray[Any]) -> NDArray[np.int64]:
        """Return where documents start in some ids, then where the last one ends."""
        ends = np.flatnonzero(values == self.eos) + 1
        starts = np.concatenate([[0], ends])
        return starts if starts[-1] == len(values) else np.append(starts, len(values))

    def _cut_alike(self, index: FileIndex, start: int, stop: int, nbytes: int) -> None:
        """Add blocks of sequences of `nbytes` bytes each."""
        if self.drop_last:
            stop = start + (stop - start) // nbytes * nbytes
        step = max(1, self.block_bytes // nbytes) * nbytes
        for place in range(start, stop, step):
            end = min(stop, place + step)
            index.add(place, end, -(-(end - place) // nbytes), first=(place - start) // nbytes)

    def _fixed(self, block: FileBlock, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        more = block.more
        nbytes = more["length"] * np.dtype(more["dtype"]).itemsize
        starts = block.start + rows * nbytes
        return np.stack([starts, np.minimum(starts + nbytes, block.stop)], axis=1)

    def _layout(self, file: DataFile) -> tuple[int, np.dtype[Any], int | None]:
        """Return where the ids start, their dtype, and the length of every sequence if known."""
        if not file.path.endswith(".npy"):
            if self.dtype is None:
                raise InvalidJob(
                    f"{file.path} does not say what its ids are: give dtype, such as uint16",
                    key="source.dtype",
                )
            return self.header_bytes, np.dtype(self.dtype).newbyteorder("<"), self.sequence_length
        head = io.BytesIO(self.file_set.read(file, 0, min(file.size, 1 << 16)))
        try:
            version = np.lib.format.read_magic(head)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, is_fortran, dtype = read(head)
        # NumPy reads the header with Python's own parser, which has errors of its own.
        except (ValueError, SyntaxError, TokenError, TypeError, RecursionError) as error:
            raise invalid_files(
                f"{file.path} is not a .npy file ({error_line(error, 300)}): write it with "
                "numpy.save"
            ) from None
        if dtype.kind not in "iu" or len(shape) not in (1, 2) or (is_fortran and len(shape) == 2):
            raise invalid_files(
                f"{file.path} holds {dtype.name} of shape {shape}{', by columns' * is_fortran}: "
                "write token ids as whole numbers, in one row or in rows of one length"
            )
        length = shape[1] if len(shape) == 2 else self.sequence_length
        if min(shape) < 0 or head.tell() + math.prod(shape) * dtype.itemsize != file.size:
            raise invalid_files(
                f"{file.path} has {file.size} bytes and not those of shape {shape} of "
                f"{dtype.name}: it was not written whole; write it again"
            )
        return head.tell(), dtype, length
