"""Megatron-LM's indexed datasets: token ids in `.bin`, where each sequence lies in `.idx`."""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.roles.parameters import OneOf, declared
from penstock.server.sources.blocked import FileBlock, FileIndex
from penstock.server.sources.file_source import Files
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import invalid_files
from penstock.server.sources.tokens import TokenFiles
from penstock.wire.errors import InvalidJob

_MAGIC = b"MMIDIDX\x00\x00"
_HEAD = struct.Struct("<9sQBQQ")
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_AT_ONCE = 1 << 20
"""Documents of an index that are looked at together, as it is opened."""

_KEPT_SPANS = 1 << 22
"""Sequences whose places are kept in memory, 16 bytes each."""

SAMPLE_BY = ("document", "sequence")


class IndexHead(NamedTuple):
    """What the head of an index says.

    Attributes:
        dtype: Of the ids.
        sequences: How many there are.
        bounds: How many bounds of documents, one more than documents.
    """

    dtype: str
    sequences: int
    bounds: int

    @property
    def lengths_at(self) -> int:
        """Where the lengths of the sequences are in the index, in bytes."""
        return _HEAD.size

    @property
    def pointers_at(self) -> int:
        """Where the places of the sequences are."""
        return self.lengths_at + 4 * self.sequences

    @property
    def bounds_at(self) -> int:
        """Where the bounds of the documents are."""
        return self.pointers_at + 8 * self.sequences


@declared
class MegatronSource(TokenFiles):
    """The documents of Megatron-LM's indexed datasets, `NAME.bin` with `NAME.idx` beside it.

    The layout is that of `megatron/core/datasets/indexed_dataset.py`. Items are `{"input_ids":
    array}` of the dtype in the index. Sizes come from the index: with the `identity` processor
    batches are planned without reading an id. A node reads the index once whole, and a worker no
    more of it than it needs.

    Args:
        files: The `.bin` files: paths, globs, folders or URLs; one or a list.
        sample_by: What an item is: a `document`, its sequences one after another, or a `sequence`,
            where documents were split into sentences.

    Raises:
        InvalidJob: No file matches, an index is missing or does not go with its ids, no documents.
        MissingExtra: fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "megatron"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".bin", ".idx")

    files: Files
    sample_by: Annotated[str, OneOf(SAMPLE_BY)] = "document"

    def __post_init__(self) -> None:
        self._spans: OrderedDict[tuple[str, int], NDArray[np.int64]] = OrderedDict()
        given = [self.files] if isinstance(self.files, str) else self.files
        self.open_files(
            [name for text in given for name in _with_index(text)],
            "documents",
            self.sample_by,
            self.block_bytes,
        )

    def data_files(self) -> list[DataFile]:
        """Return the files of ids."""
        self._index_files = {
            file.path[: -len(".idx")]: file
            for file in self.file_set.files
            if file.path.endswith(".idx")
        }
        found = [file for file in self.file_set.files if file.path.endswith(".bin")]
        for file in found:
            if file.path[: -len(".bin")] not in self._index_files:
                raise invalid_files(
                    f"{file.path} has no .idx beside it, which says where its documents are: copy "
                    "both; for ids without an index use type: tokens"
                )
        if not found:
            raise invalid_files("there is no .bin file beside the index: copy both")
        return found

    def index_of(self, file: DataFile) -> FileIndex:
        """Return blocks of whole documents.

        Raises:
            InvalidJob: The index is not one, or names other bytes than the file has.
        """
        layout = self._layout(file)
        index = FileIndex.empty({"dtype": layout.dtype, "sequences": layout.sequences})
        index.more["bounds"] = layout.bounds
        total = layout.bounds - 1 if self.sample_by == "document" else layout.sequences
        end, start, first = 0, 0, 0
        for number, ends in self._ends(file, layout, total):
            if len(ends) and (ends[0] < end or (np.diff(ends) < 0).any()):
                raise self._torn(file, f"document {number} or one after it ends before its start")
            for place, stop in enumerate(ends.tolist(), number):
                if stop - start > self.block_bytes and place > first:
                    index.add(start, end, place - first, first=first)
                    start, first = end, place
                end = stop
        if total > first:
            index.add(start, end, total - first, first=first)
        if end != file.size:
            raise self._torn(file, f"its documents end at byte {end} of {file.size}")
        return index

    def spans(self, block: FileBlock, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where sequences of a block lie in their file: int64 (rows, 2), bytes."""
        key = (block.file.path, block.first)
        if (found := self._spans.get(key)) is None:
            more = block.more
            layout = IndexHead(more["dtype"], more["sequences"], more["bounds"])
            ends = self._ends_of(block.file, layout, block.first, block.items)
            found = np.stack([np.concatenate([[block.start], ends[:-1]]), ends], axis=1)
            self._spans[key] = found
            while len(self._spans) > 1 and sum(map(len, self._spans.values())) > _KEPT_SPANS:
                self._spans.popitem(last=False)
        return found[rows]

    def close(self) -> None:
        """Release what is in memory."""
        super().close()
        self._spans.clear()

    def _layout(self, file: DataFile) -> IndexHead:
        idx = self._idx(file)
        head = self.file_set.read(idx, 0, min(idx.size, _HEAD.size))
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise invalid_files(
                f"{idx.path} is not an index of Megatron-LM: it does not begin with MMIDIDX; for "
                "ids without an index use type: tokens"
            )
        _, version, code, sequences, bounds = _HEAD.unpack(head)
        if version != 1 or code not in _DTYPES:
            raise invalid_files(
                f"{idx.path} is of version {version} with values of kind {code}: penstock reads "
                "token ids, as whole numbers, of version 1"
            )
        layout = IndexHead(_DTYPES[code], sequences, bounds)
        if idx.size < layout.bounds_at + 8 * bounds or bounds < 1:
            raise self._torn(file, f"its index has {idx.size} bytes, too few for what it lists")
        return layout

    def _ends(
        self, file: DataFile, layout: IndexHead, total: int
    ) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield where items end, many at once: the number of the first, then int64 (items,)."""
        for number in range(0, total, _AT_ONCE):
            count = min(_AT_ONCE, total - number)
            yield number, self._ends_of(file, layout, number, count)

    def _ends_of(
        self, file: DataFile, layout: IndexHead, first: int, count: int
    ) -> NDArray[np.int64]:
        """Return where `count` items from `first` on end in their file: int64 (count,), bytes."""
        if self.sample_by == "sequence":
            starts, lengths = self._sequences(file, layout, first, first + count)
            return starts + lengths
        bounds = self._numbers(file, layout.bounds_at + 8 * first, count + 1, "<i8")
        low, high = int(bounds[0]), int(bounds[-1])
        if not 0 <= low <= high <= layout.sequences or (np.diff(bounds) < 0).any():
            raise self._torn(file, f"document {first} or one after it has no valid bounds")
        starts, lengths = self._sequences(file, layout, low, high)
        ends = np.concatenate([starts[:1] if len(starts) else [0], starts + lengths])
        return ends[bounds[1:] - low]

    def _sequences(
        self, file: DataFile, layout: IndexHead, low: int, high: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where sequences start, and their lengths, in bytes: int64 (high - low,) each."""
        itemsize = np.dtype(layout.dtype).itemsize
        count = high - low
        lengths = self._numbers(file, layout.lengths_at + 4 * low, count, "<i4") * itemsize
        starts = self._numbers(file, layout.pointers_at + 8 * low, count, "<i8")
        if (lengths < 0).any() or (starts[1:] != (starts + lengths)[:-1]).any():
            raise self._torn(file, f"sequence {low} or one after it does not follow the one before")
        return starts, lengths

    def _numbers(self, file: DataFile, start: int, count: int, kind: str) -> NDArray[np.int64]:
        width = np.dtype(kind).itemsize
        data = self.file_set.read(self._idx(file), start, start + count * width)
        return np.frombuffer(data, kind).astype(np.int64)

    def _idx(self, file: DataFile) -> DataFile:
        return self._index_files[file.path[: -len(".bin")]]

    def _torn(self, file: DataFile, said: str) -> InvalidJob:
        return invalid_files(
            f"{file.path} does not go with its .idx: {said}; copy both again, or write them again"
        )


def _with_index(pattern: str) -> list[str]:
    """Return the patterns of a file of ids, or of its index, and of the other of the two."""
    for one, other in ((".bin", ".idx"), (".idx", ".bin")):
        if pattern.endswith(one):
            return [pattern, pattern[: -len(one)] + other]
    return [pattern]
