"""Arrow IPC files and streams, and what `save_to_disk` of `datasets` writes, without conversion."""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from penstock.server.sources.access import check_columns, require
from penstock.server.sources.arrow import ArrowRows, dtype_of_lists
from penstock.server.sources.blocked import (
    BLOCK_BYTES,
    Block,
    FileIndex,
    RowFiles,
    check_block_bytes,
)
from penstock.server.sources.cache import Rows
from penstock.server.sources.columns import BlockColumns
from penstock.server.sources.content import ReadAt
from penstock.server.sources.files import DataFile, FileSet, refusing
from penstock.server.sources.first_bytes import FIRST_BYTES, refuse_other_kinds
from penstock.server.sources.hf import json_decoder
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import BadItem, InvalidJob
from penstock.wire.nearest import listed
from penstock.wire.resources import usable_memory_bytes

_MAGIC = b"ARROW1"
_HEAD_BYTES = 16 << 10  # one read brings most messages' metadata whole
_TAIL_BYTES = 4 + len(_MAGIC)  # of a file: the length of the footer, and the magic word
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_OPEN_FILES = 16


class Message(NamedTuple):
    """A message of an Arrow stream, not decoded.

    Attributes:
        start: Where it starts in the file, in bytes.
        stop: Where it ends, its body included.
        kind: 1 = a schema, 2 = a dictionary, 3 = a record batch.
        rows: The rows of a record batch.
        is_compressed: Whether the buffers of a record batch are.
    """

    start: int
    stop: int
    kind: int
    rows: int
    is_compressed: bool


def messages(read_at: ReadAt, size: int) -> Iterator[Message]:
    """Yield the messages of an Arrow stream, or of an Arrow file up to its footer.

    The layout is that of the Arrow columnar format, "Serialization and Interprocess Communication
    (IPC)", format version 1.0: a file is a stream between two magic words, with a footer. Only what
    stands before the messages' bodies is read.

    Raises:
        ValueError: It is neither.
    """
    at = 8 if read_at(0, min(size, 8)).startswith(_MAGIC) else 0
    while at + 4 <= size:
        head = read_at(at, min(size, at + _HEAD_BYTES))
        length, prefix = int.from_bytes(head[:4], "little"), 4
        if length == 0xFFFFFFFF:
            length, prefix = int.from_bytes(head[4:8], "little"), 8
        if length == 0:
            return
        if at + prefix + length > size:
            raise ValueError(f"a message at byte {at} goes on beyond the end of the file")
        if prefix + length > len(head):
            head = read_at(at, at + prefix + length)
        try:
            message = _Table(head[prefix : prefix + length])
            body = message.number(3, "<q")
            kind, header = message.number(1, "<B"), message.table(2)
            rows = header.number(0, "<q") if kind == _BATCH else 0
            compressed = kind == _BATCH and header.table(3).is_there
        except (struct.error, IndexError) as error:
            raise ValueError(f"the message at byte {at} is damaged: {error}") from None
        stop = at + prefix + length + body
        if kind not in (_SCHEMA, _DICTIONARY, _BATCH) or body < 0 or rows < 0 or stop > size:
            raise ValueError(f"there is no Arrow message at byte {at}")
        yield Message(at, stop, kind, rows, compressed)
        at = stop


class _Table:
    """A table of FlatBuffers (flatbuffers.dev, "Internals"): only what a message's head needs."""

    def __init__(self, data: bytes, at: int | None = None) -> None:
        self._data = data
        self._at = struct.unpack_from("<I", data)[0] if at is None else at

    @property
    def is_there(self) -> bool:
        return self._at > 0

    def number(self, field: int, kind: str) -> int:
        """Return a scalar; 0, its default, where it is not written."""
        place = self._field(field)
        return int(struct.unpack_from(kind, self._data, place)[0]) if place else 0

    def table(self, field: int) -> _Table:
        """Return the table that a field points to."""
        place = self._field(field)
        if not place:
            return _Table(self._data, 0)
        return _Table(self._data, place + int(struct.unpack_from("<I", self._data, place)[0]))

    def _field(self, field: int) -> int:
        if not self._at:
            return 0
        vtable = self._at - struct.unpack_from("<i", self._data, self._at)[0]
        (length,) = struct.unpack_from("<H", self._data, vtable)
        slot = 4 + 2 * field
        if slot + 2 > length:
            return 0
        (offset,) = struct.unpack_from("<H", self._data, vtable + slot)
        return self._at + int(offset) if offset else 0


def _asks_for_too_much(error: MemoryError) -> bool:
    """Tell whether more was asked for at once than this machine has, as damaged lengths do."""
    asked = re.search(r"size (\d+)|capacity too large", str(error))
    return asked is not None and int(asked[1] or sys.maxsize) > usable_memory_bytes() // 2


def _not_arrow(file: DataFile, error: Exception) -> InvalidJob:
    return InvalidJob(
        f"{file.path} is not an Arrow IPC file or stream, or is damaged "
        f"({error_line(error, 300)}): write it with pyarrow.ipc.new_file or new_stream; Feather "
        "files of version 1 are not",
        key="source.files",
    )


class ArrowSource(RowFiles, BlockColumns):
    """The rows of Arrow IPC files and streams, also compressed ones.

    A block is a record batch, or several small ones that follow one another. Items are dicts as
    `ArrowRows` gives them: a list of numbers is an array. Feather files (version 2) are Arrow IPC
    files.

    Args:
        files: Paths, globs, folders or URLs (`s3://...`, `memory://...`); one or a list.
        columns: Which columns to read, in this order; None = all.
        block_bytes: Record batches of fewer bytes are read and decoded together up to about so
            many. Part of the order of items.
        cache_bytes: The most bytes of decoded blocks that one worker keeps. None = as many as its
            reading groups draw from. It changes no batch.
        storage_options: Options of the fsspec filesystem, such as endpoint and credentials. They
            change no batch.

    Raises:
        InvalidJob: No file matches, a file is not Arrow IPC, a column is missing, no rows.
        MissingExtra: pyarrow, fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "arrow"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".arrows", ".feather", ".ipc")

    def __init__(
        self,
        files: str | Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        block_bytes: int = BLOCK_BYTES,
        cache_bytes: int | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        self._open_arrow(files, columns, block_bytes, cache_bytes, storage_options)

    def _open_arrow(
        self,
        files: str | Sequence[str],
        columns: Sequence[str] | None,
        block_bytes: int,
        cache_bytes: int | None,
        storage_options: dict[str, Any] | None,
    ) -> None:
        check_block_bytes(block_bytes)
        self._block_bytes = block_bytes
        self._arrow = require("pyarrow")
        self._ipc = require("pyarrow.ipc")
        self._prefixes: OrderedDict[str, bytes] = OrderedDict()
        self.open_files(
            files,
            cache_bytes=cache_bytes,
            storage_options=storage_options,
            decides=[block_bytes, self._arrow.__version__],
            what="rows",
        )
        first = self.shards[0].name
        self._types: dict[str, str] = dict(self.indexes[0].more["columns"])
        self.columns = check_columns(columns, list(self._types), first)
        for file, index in zip(self.shards, self.indexes, strict=True):
            existing = list(index.more["columns"])
            check_columns(self.columns, existing, file.name)
            extra = [name for name in existing if name not in self._types]
            if columns is None and extra:
                raise InvalidJob(
                    f"{file.name} has columns that {first} lacks ({listed(extra)}): name those "
                    "to read with columns",
                    key="source.columns",
                )

    def columns_of_items(self) -> dict[str, str]:
        """Return the columns, with their types in the first file."""
        return {name: self._types[name] for name in self.columns}

    def sequence_dtype(self, column: str) -> np.dtype[Any] | None:
        """Return the dtype of the numbers in a column of lists, if it is the same in all files."""
        kinds = {index.more["columns"].get(column, "") for index in self.indexes}
        return dtype_of_lists(kinds.pop()) if len(kinds) == 1 and column in self.columns else None

    def waits(self) -> bool:
        """Tell whether files lie at URLs."""
        return not self.files.is_local

    def list_rows(self, indices: Sequence[int]) -> Iterator[tuple[ArrowRows, int]]:
        """Yield the decoded block of each item, and the item's row in it."""
        blocks: dict[int, ArrowRows] = {}
        for index in indices:
            number, row = self.block_of(index)
            if number not in blocks:
                blocks[number] = self.arrow_rows(self.rows(number, index))
            yield blocks[number], row

    def arrow_rows(self, rows: Rows) -> ArrowRows:
        """Return the columns of a block's rows."""
        assert isinstance(rows, ArrowRows)
        return rows

    def index_of(self, file: DataFile) -> FileIndex:
        """Return the record batches, small ones together, and the columns with their types.

        Raises:
            InvalidJob: It is not Arrow IPC.
        """
        read_at = self.files.reader(file)
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
                    message.kind != _BATCH or message.stop - waiting[0].start > self._block_bytes
                ):
                    put()
                if message.kind == _SCHEMA:
                    more["schema"] = [message.start, message.stop]
                    schema = self._schema(file, read_at(message.start, message.stop))
                    more["columns"] = {field.name: str(field.type) for field in schema}
                elif more["schema"] is None:
                    raise ValueError(f"a message at byte {message.start} comes before a schema")
                elif message.kind == _DICTIONARY:
                    more["dictionaries"].append([message.start, message.stop])
                else:
                    waiting.append(message)
                    batches += 1
            put()
            if more["schema"] is None:
                raise ValueError("it has no schema")
            if read_at(0, min(8, file.size)).startswith(_MAGIC):
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
        end = self.files.read(file, max(0, file.size - _TAIL_BYTES), file.size)
        length = int.from_bytes(end[:4], "little")
        start = file.size - _TAIL_BYTES - length
        if not end.endswith(_MAGIC) or start < len(_MAGIC):
            raise ValueError("it has no footer: it was not written whole")
        footer = self.files.read(file, start, file.size)
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

    def rows_of(self, block: Block, data: bytes) -> Rows:
        """Return the rows of a block, decoded."""
        return self.items_of(block, ArrowRows(self.table(block, data), block.bad_value))

    def items_of(self, block: Block, rows: ArrowRows) -> Rows:
        """Return what makes items of a block's rows."""
        return rows

    def table(self, block: Block, data: bytes) -> Any:
        """Return the columns of a block that are read, as a table."""
        prefix = self._prefixes.get(block.file.path)
        if prefix is None:
            prefix = self._prefix(block.file, block.layout.more)
            self._prefixes[block.file.path] = prefix
            while len(self._prefixes) > _OPEN_FILES:
                self._prefixes.popitem(last=False)
        names = list(block.layout.more["columns"])
        options = self._ipc.IpcReadOptions(
            included_fields=sorted(names.index(name) for name in self.columns), use_threads=False
        )
        table = self._ipc.open_stream(prefix + data, options=options).read_all()
        # In full: damaged offsets, indices and texts would end the process when they are used.
        table.validate(full=True)
        if table.num_rows != block.items:
            raise ValueError(f"{table.num_rows} rows where the file's index has {block.items}")
        return table.select(self.columns)

    def _prefix(self, file: DataFile, more: Any) -> bytes:
        """Return what stands before the batches of a stream: its schema and dictionaries."""
        places = [more["schema"], *more["dictionaries"]]
        return b"".join(self.files.read(file, start, stop) for start, stop in places)


class SavedSource(ArrowSource):
    """The rows of a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote.

    Its Arrow files are read as they are, from disks or by URL. Items are dicts as `ArrowRows`
    gives them; JSON that `datasets` stores as text becomes values. Images, audio and video are
    dicts of `bytes` and `path`; where their bytes lie in other files use type `hf`.

    Args:
        path: The folder, or its URL.
        split: Which split; required where there are several.
        columns: Which columns to read, in this order; None = all.
        block_bytes: Record batches of fewer bytes are read and decoded together up to about so
            many. Part of the order of items.
        cache_bytes: The most bytes of decoded blocks that one worker keeps. None = as many as its
            reading groups draw from. It changes no batch.
        storage_options: Options of the fsspec filesystem, such as endpoint and credentials. They
            change no batch.

    Raises:
        InvalidJob: The folder was not written by `save_to_disk`, has no such split, or a file or a
            column is missing.
        MissingExtra: pyarrow, fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "saved"
    version: ClassVar[int | str | None] = 1
    path_params: ClassVar[tuple[str, ...]] = ("path",)
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", "state.json", "dataset_dict.json")

    def __init__(
        self,
        path: str,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        *,
        block_bytes: int = BLOCK_BYTES,
        cache_bytes: int | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        folder = path.rstrip("/")
        listed = FileSet(
            folder, suffix=self.suffixes[1:], storage_options=storage_options, key="source.path"
        )
        self.split = _saved_split(listed, path, split)
        self._open_arrow(
            f"{folder}/{self.split}" if self.split else folder,
            columns,
            block_bytes,
            cache_bytes,
            storage_options,
        )
        self._decoders = self._json_columns()

    def data_files(self) -> list[DataFile]:
        """Return the files of rows in their order, and not what `map` has cached beside them."""
        [state] = [file for file in self.files.files if file.name == "state.json"]
        with refusing(state, "source.path"):
            data = self.files.read(state, 0, state.size)
        by_name = {file.name: file for file in self.files.files}
        try:
            names = _named_files(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise InvalidJob(
                f"{state.path} is not what save_to_disk writes ({error_line(error, 300)}): save "
                "the dataset again",
                key="source.path",
            ) from None
        if lost := [name for name in names if name not in by_name]:
            raise InvalidJob(
                f"{state.path} names {lost[0]}, which is not there: copy the folder again, whole",
                key="source.path",
            )
        return [by_name[name] for name in names]

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, with the split that was chosen."""
        found = super().parameters()
        return {**found, "split": self.split} if self.split else found

    def items_of(self, block: Block, rows: ArrowRows) -> Rows:
        """Return what makes items of a block's rows, with JSON decoded."""
        return _Decoded(rows, self._decoders, block.bad_value) if self._decoders else rows

    def arrow_rows(self, rows: Rows) -> ArrowRows:
        """Return the columns of a block's rows, as they are stored."""
        return super().arrow_rows(rows.rows if isinstance(rows, _Decoded) else rows)

    def _json_columns(self) -> dict[str, Callable[[Any], Any]]:
        start, stop = self.indexes[0].more["schema"]
        schema = self._ipc.read_schema(
            self._arrow.BufferReader(self.files.read(self.shards[0], start, stop))
        )
        found = {name: json_decoder(schema.field(name).type) for name in self.columns}
        return {name: decode for name, decode in found.items() if decode is not None}


def _named_files(said: Any) -> list[str]:
    """Return the files that a `state.json` names.

    Raises:
        ValueError: It names none.
    """
    entries = said.get("_data_files") if isinstance(said, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError("it has no list of _data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("one of its _data_files has no filename")
    return [str(name) for name in names]


class _Decoded:
    def __init__(
        self,
        rows: ArrowRows,
        decoders: dict[str, Callable[[Any], Any]],
        bad: Callable[[int, str, Exception], BadItem],
    ) -> None:
        self.rows, self._decoders, self._bad = rows, decoders, bad

    def items(self, rows: Sequence[int]) -> list[Any]:
        """Return the items with the values of JSON in place of its text.

        Raises:
            BadItem: A text is not JSON.
        """
        items = self.rows.items(rows)
        for row, item in zip(rows, items, strict=True):
            for name, decode in self._decoders.items():
                try:
                    item[name] = decode(item[name])
                except (ValueError, RecursionError) as error:
                    raise self._bad(row, name, error) from None
        return items


def _saved_split(listed: FileSet, path: str, split: str | None) -> str | None:
    """Return which split of a saved folder is read; None = it has none."""
    named = {file.name: file for file in listed.files}
    if "state.json" in named:
        if split is not None:
            raise InvalidJob(
                f"{path!r} holds one dataset without splits: leave split out", key="source.split"
            )
        return None
    if "dataset_dict.json" not in named:
        raise InvalidJob(
            f"{path!r} has neither a state.json nor a dataset_dict.json: name the folder that "
            "save_to_disk wrote",
            key="source.path",
        )
    splits = [posixpath.dirname(name) for name in named if posixpath.basename(name) == "state.json"]
    if split is None and len(splits) == 1:
        return splits[0]
    if split not in splits:
        said = f"has no split {split!r}: it has" if split else "has the splits"
        raise InvalidJob(
            f"{path!r} {said} {', '.join(splits)}; choose one with split", key="source.split"
        )
    return split


__all__ = ["ArrowSource", "Message", "SavedSource", "messages"]
