"""What the footers of Parquet files say, read without ending the process where one is damaged."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.files.content import ReadAt
from penstock.server.files.filesystems import require
from penstock.server.files.ranges import RangeStream
from penstock.server.sources.files import FileSet
from penstock.server.sources.first_bytes import FIRST_BYTES, refuse_other_kinds
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import invalid_files
from penstock.server.usercode.frames import error_line

VERSION = 2
"""Of what is noted of a footer (`Noted`): raised when it is another list."""

_TAIL_BYTES = 64 << 10  # one read brings most footers whole
_MAGIC = b"PAR1"


class Noted(NamedTuple):
    """What is noted of a footer, JSON-able; lists have an entry for each row group.

    Attributes:
        schema: Where the catalog keeps names and types of the columns, which many files share.
        rows: How many rows.
        stored: The compressed bytes of each column that is read, in the file's order.
        decoded: The bytes of these columns before compression.
        sha256: The hash of the footer.
    """

    schema: str
    rows: list[int]
    stored: list[list[int]]
    decoded: list[int]
    sha256: str


class Schema(NamedTuple):
    """The columns of a file, in its order, and Arrow's name of the type of each."""

    columns: tuple[str, ...]
    types: dict[str, str]


class Footers:
    """What is noted of the footers of a source's files.

    Args:
        files: The files.
        fact: Under which name that is noted.
        columns: The columns that are asked for; None = all.
    """

    def __init__(self, files: FileSet, fact: str, columns: Sequence[str] | None) -> None:
        self._files, self._fact, self._columns = files, fact, columns

    def noted(self, file: DataFile) -> Noted:
        """Return what is noted of a file's footer."""
        return Noted(*self._files.known(file, self._fact))

    def schemas(self) -> list[Schema]:
        """Return the schema of each file; one for all files that have it."""
        found: dict[str, Schema] = {}
        keys = [self.noted(file).schema for file in self._files.files]
        for key in dict.fromkeys(keys):
            pairs = self._files.catalog.shared(key)
            found[key] = Schema(tuple(name for name, _ in pairs), dict(pairs))
        return [found[key] for key in keys]

    def stored(self, blocks: Sequence[tuple[int, int]], names: Sequence[str]) -> NDArray[np.int64]:
        """Return the compressed bytes of columns: int64 (blocks, names).

        Args:
            blocks: The numbers of the file and of its row group, in the order of files.
            names: The columns.
        """
        found = np.empty((len(blocks), len(names)), np.int64)
        numbers: dict[int, list[list[int]]] = {}
        places: dict[int, list[int]] = {}  # by file, where the columns stand in it
        schemas = self.schemas()
        for block, (shard, group) in enumerate(blocks):
            if shard not in numbers:
                existing = self._chosen(schemas[shard].columns)
                numbers = {shard: self.noted(self._files.files[shard]).stored}
                places = {shard: [existing.index(name) for name in names]}
            found[block] = [numbers[shard][group][place] for place in places[shard]]
        return found

    def _chosen(self, existing: Sequence[str]) -> list[str]:
        """Return which of a file's columns are read, in its order."""
        return [name for name in existing if self._columns is None or name in self._columns]

    def note(self, file: DataFile) -> Noted:
        """Return what a file's footer says.

        Raises:
            InvalidJob: It is not a Parquet file, or cannot be opened by us.
            OSError: It cannot be read at the moment.
        """
        arrow = require("pyarrow")
        read_at = self._files.reader(file)
        tail = read_tail(read_at, file.size)
        is_parquet = tail[-4:] == _MAGIC
        head = b"" if is_parquet else read_at(0, min(FIRST_BYTES, file.size))
        refuse_other_kinds(file, head, "parquet")
        if len(tail) < 12 or not is_parquet:
            kind = "encrypted" if tail[-4:] == b"PARE" else "not a Parquet file"
            raise invalid_files(f"{file.path} is {kind}: it does not end in PAR1")
        try:
            metadata = require("pyarrow.parquet").read_metadata(arrow.BufferReader(tail))
            _check_footer(metadata, file.size)
            schema = [[field.name, str(field.type)] for field in metadata.schema.to_arrow_schema()]
            groups = _groups(metadata, self._chosen([name for name, _ in schema]))
        # The bytes were read: Arrow raises OSError for damaged ones, and Python for names in them.
        except (OSError, ValueError, OverflowError, arrow.ArrowException) as error:
            raise invalid_files(
                f"{file.path} has no readable Parquet footer ({error_line(error, 300)}): it is "
                "damaged; write it again"
            ) from None
        digest = hashlib.sha256(tail).hexdigest()
        return Noted(self._files.catalog.share(schema), *groups, digest)


def leaves(metadata: Any) -> list[str]:
    """Return the top-level column of each leaf column."""
    return [
        metadata.schema.column(leaf).path.partition(".")[0] for leaf in range(metadata.num_columns)
    ]


def read_tail(read_at: ReadAt, size: int) -> bytes:
    """Return a file's footer with its length and magic, as far as the file has one."""
    tail = read_at(max(0, size - _TAIL_BYTES), size)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < length <= size:
        tail = read_at(size - length, size)
    return tail[-length:] if length >= 12 else tail


def _groups(metadata: Any, names: list[str]) -> tuple[list[int], list[list[int]], list[int]]:
    """Return the rows of each row group, its columns' bytes in storage, and all its bytes decoded.

    Raises:
        ValueError: A number cannot be.
        OSError, ArrowException: The footer is damaged.
    """
    columns = [(leaf, name) for leaf, name in enumerate(leaves(metadata)) if name in names]
    rows, stored, decoded = [], [], []
    for group in (metadata.row_group(number) for number in range(metadata.num_row_groups)):
        found = dict.fromkeys(names, 0)
        for leaf, name in columns:
            found[name] += group.column(leaf).total_compressed_size
        rows.append(group.num_rows)
        stored.append(list(found.values()))
        decoded.append(sum(group.column(leaf).total_uncompressed_size for leaf, _ in columns))
    if min([0, *rows, *decoded, *(nbytes for group in stored for nbytes in group)]) < 0:
        raise ValueError("a number of rows or bytes in it is below 0")
    return rows, stored, decoded


def _check_footer(metadata: Any, size: int) -> None:
    """Let Arrow look at every column chunk of a footer where its errors are caught.

    What `RowGroupMetaData.column` of pyarrow throws ends the process, as of pyarrow 26. Reading
    with `pre_buffer` looks at all column chunks before any byte is read, and throws as errors what
    that finds: 9 ms for 8,000 of them.

    Args:
        metadata: What the footer says.
        size: How long the file is.

    Raises:
        OSError, ArrowException: It is damaged.
    """
    arrow, asked_for = require("pyarrow"), list[int]()

    def nothing(start: int, _: int) -> bytes:
        asked_for.append(start)
        return b""

    # Nothing is read and no error is raised through Arrow, which writes out its traceback: that
    # took as long as all the rest.
    stream = arrow.PythonFile(RangeStream(nothing, size), mode="r")
    reader = require("pyarrow.parquet").ParquetFile(stream, metadata=metadata, pre_buffer=True)
    try:
        reader.read_row_groups(list(range(metadata.num_row_groups)), use_threads=False)
    except (OSError, arrow.ArrowException):
        if not asked_for:  # else the footer had been gone through by then
            raise
