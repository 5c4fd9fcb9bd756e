"""Arrow IPC files and streams, without conversion."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from penstock.common.resources import usable_memory_bytes
from penstock.server.files.filesystems import require
from penstock.server.roles.parameters import declared
from penstock.server.sources.arrow import ArrowRows, dtype_of_lists
from penstock.server.sources.arrow_stream import BATCH, DICTIONARY, MAGIC, SCHEMA, Message, messages
from penstock.server.sources.block_columns import BlockColumns
from penstock.server.sources.blocked import BlockedFiles, FileBlock, FileIndex
from penstock.server.sources.cache import BlockRows
from penstock.server.sources.file_blocks import RowFiles
from penstock.server.sources.file_source import Files
from penstock.server.sources.first_bytes import FIRST_BYTES, refuse_other_kinds
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import check_columns, invalid_files, refuse_more_columns
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidJob

_TAIL_BYTES = 4 + len(MAGIC)  # of a file: the length of the footer, and the magic word
_OPEN_FILES = 16


def _asks_for_too_much(error: MemoryError) -> bool:
    """Tell whether more was asked for at once than this machine has, as damaged lengths do."""
    asked = re.search(r"size (\d+)|capacity too large", str(error))
    return asked is not None and int(asked[1] or sys.maxsize) > usable_memory_bytes() // 2


def _not_arrow(file: DataFile, error: Exception) -> InvalidJob:
    return invalid_files(
        f"{file.path} is not an Arrow IPC file or stream, or is damaged "
        f"({error_line(error, 300)}): write it with pyarrow.ipc.new_file or new_stream; Feather "
        "files of version 1 are not"
    )


@declared
class ArrowFiles(RowFiles, BlockedFiles, BlockColumns):
    """Files of Arrow IPC: a block is a record batch, or several small ones that follow one another.

    Args:
        block_bytes: Record batches of fewer bytes are read and decoded together up to about so
            many. Part of the order of items.
    """

    def open_arrow(self, files: Files, columns: Sequence[str] | None) -> None:
        """Find the files, where the record batches in them lie, and which columns are read.

        Raises:
            InvalidJob, MissingExtra, SourceUnavailable: As the sources.
        """
        self._arrow = require("pyarrow")
        self._ipc = require("pyarrow.ipc")
        self._prefixes: OrderedDict[str, bytes] = OrderedDict()
        self.open_files(files, "rows", self.block_bytes, self._arrow.__version__)
        first = self.shards[0].name
        self._types: dict[str, str] = dict(self.indexes[0].more["columns"])
        self.names = check_columns(columns, list(self._types), first)
        for file, index in zip(self.shards, self.indexes, strict=True):
            existing = list(index.more["columns"])
            check_columns(self.names, existing, file.name)
            if columns is None:
                refuse_more_columns(file.name, existing, self._types, first)

    def columns_of_items(self) -> dict[str, str]:
        """Return the columns, with their types in the first file."""
        return {name: self._types[name] for name in self.names}

    def sequence_dtype(self, column: str) -> np.dtype[Any] | None:
        """Return the dtype of the numbers in a column of lists, if it is the same in all files."""
        kinds = {index.more["columns"].get(column, "") for index in self.indexes}
        return dtype_of_lists(kinds.pop()) if len(kinds) == 1 and column in self.names else None

    def index_of(self, file: DataFile) -> FileIndex:
        """Return the record batches, small ones together, and the columns with their types.

        Raises:
            InvalidJob: It is not Arrow IPC.
        """
        read_at = self.file_set.reader(file)
        refuse_other_kinds(file, read_at(0, min(FIRST_BYTES, file.size)), "arrow")
        more: dict[str, Any] = {"schema": None, "dictionaries": [], "columns": {}}
        index, row, batches, schema = FileIndex.empty(), 0, 0, None
        waiting: list[Message] = []

        def put() -> None:
            nonlocal row
            if not waiting:
                return
            start, stop = waiting[0].start, waiting[-1].stop
            rows = sum(message.rows for message in waiting)
            nbytes = stop - start
            if any(message.is_compressed for message in waiting):
                data = self._prefix(file, more) + read_at(start, stop)
                with self._decoding(file):
                    table = self._ipc.open_stream(data).read_all()
                    table.validate(full=True)  # before anything follows its offsets
                    nbytes = table.nbytes
            if rows:
                index.add(start, stop, rows, nbytes=nbytes, first=row)
            row += rows
            waiting.clear()

        try:
            for message in messages(read_at, file.size):
                if waiting and (
                    message.kind != BATCH or message.stop - waiting[0].start > self.block_bytes
                ):
                    put()
                if message.kind == SCHEMA:
                    more["schema"] = [message.start, message.stop]
                    schema = self._schema(file, read_at(message.start, message.stop))
                    more["columns"] = {field.name: str(field.type) for field in schema}
                elif more["schema"] is None:
                    raise ValueError(f"a message at byte {message.start} comes before a schema")
                elif message.kind == DICTIONARY:
                    more["dictionaries"].append([message.start, message.stop])
                else:
                    waiting.append(message)
                    batches += 1
            put()
            if more["schema"] is None:
                raise ValueError("it has no schema")
            if read_at(0, min(8, file.size)).startswith(MAGIC):
                self._check_footer(file, schema, batches)
        except ValueError as error:
            raise _not_arrow(file, error) from None
        return index._replace(more=more)

    def _schema(self, file: DataFile, data: bytes) -> Any:
        """Return the schema of a schema's message."""
        with self._decoding(file):
            schema = self._ipc.read_schema(self._arrow.BufferReader(data))
            if len({field.name for field in schema}) < len(schema):
                raise ValueError("two of its columns have one name")
        return schema

    def _check_footer(self, file: DataFile, schema: Any, batches: int) -> None:
        """Refuse an Arrow file whose footer says something else than what precedes it.

        Raises:
            InvalidJob: It has no footer, as one that was not closed, or is damaged.
        """
        end = self.file_set.read(file, max(0, file.size - _TAIL_BYTES), file.size)
        length = int.from_bytes(end[:4], "little")
        start = file.size - _TAIL_BYTES - length
        if not end.endswith(MAGIC) or start < len(MAGIC):
            raise ValueError("it has no footer: it was not written whole")
        footer = self.file_set.read(file, start, file.size)
        with self._decoding(file):
            # Opening looks at the footer alone, but counts on a file before it.
            said = self._ipc.open_file(self._arrow.BufferReader(bytes(16) + footer))
            if said.num_record_batches != batches or not said.schema.equals(schema):
                raise ValueError("its footer says something else than what precedes it")

    @contextlib.contextmanager
    def _decoding(self, file: DataFile) -> Iterator[None]:
        """Name the file whose bytes, which are in memory, Arrow cannot make sense of.

        Raises:
            InvalidJob: They are damaged.
        """
        try:
            yield
        except MemoryError as error:
            if not _asks_for_too_much(error):
                raise
            raise _not_arrow(file, error) from None
        # Arrow raises OSError for damaged bytes, and Python's own errors for names in them.
        except (OSError, ValueError, OverflowError, self._arrow.ArrowException) as error:
            raise _not_arrow(file, error) from None

    def rows_of(self, block: FileBlock, data: bytes) -> BlockRows:
        """Return the rows of a block, decoded."""
        return self.items_of(block, ArrowRows(self.table(block, data), block.bad_value))

    def items_of(self, block: FileBlock, rows: ArrowRows) -> BlockRows:
        """Return what makes items of a block's rows."""
        return rows

    def table(self, block: FileBlock, data: bytes) -> Any:
        """Return the columns of a block that are read, as a table."""
        prefix = self._prefixes.get(block.file.path)
        if prefix is None:
            prefix = self._prefix(block.file, block.more)
            self._prefixes[block.file.path] = prefix
            while len(self._prefixes) > _OPEN_FILES:
                self._prefixes.popitem(last=False)
        names = list(block.more["columns"])
        options = self._ipc.IpcReadOptions(
            included_fields=sorted(names.index(name) for name in self.names), use_threads=False
        )
        table = self._ipc.open_stream(prefix + data, options=options).read_all()
        # In full: damaged offsets, indices and texts would end the process when they are used.
        table.validate(full=True)
        if table.num_rows != block.items:
            raise ValueError(f"{table.num_rows} rows where the file's index has {block.items}")
        return table.select(self.names)

    def _prefix(self, file: DataFile, more: Any) -> bytes:
        """Return what stands before the batches of a stream: its schema and dictionaries."""
        places = [more["schema"], *more["dictionaries"]]
        return b"".join(self.file_set.read(file, start, stop) for start, stop in places)


@declared
class ArrowSource(ArrowFiles):
    """The rows of Arrow IPC files and streams, also compressed ones.

    A block is a record batch, or several small ones that follow one another. Items are dicts as
    `ArrowRows` gives them: a list of numbers is an array. Feather files (version 2) are Arrow IPC
    files.

    Args:
        files: Paths, globs, folders or URLs (`s3://...`, `memory://...`); one or a list.
        columns: Which columns to read, in this order; None = all.

    Raises:
        InvalidJob: No file matches, a file is not Arrow IPC, a column is missing, no rows.
        MissingExtra: pyarrow, fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "arrow"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".arrows", ".feather", ".ipc")

    files: Files
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.open_arrow(self.files, self.columns)
