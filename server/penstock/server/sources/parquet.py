"""Parquet files without conversion, on local disks or at any fsspec URL."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sys
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.condition import Condition, Kept, as_text, from_text
from penstock.server.core.transient import is_transient
from penstock.server.roles.parameters import declared
from penstock.server.roles.reading import Blocks
from penstock.server.sources.access import (
    check_columns,
    check_indices,
    refuse_more_columns,
    require,
)
from penstock.server.sources.arrow import ArrowRows, dtype_of_lists
from penstock.server.sources.cache import BlockCache, gathered
from penstock.server.sources.columns import BlockColumns
from penstock.server.sources.file_source import Files, FileSource
from penstock.server.sources.files import LOOKERS, DataFile, refusing, unavailable
from penstock.server.sources.first_bytes import FIRST_BYTES, refuse_other_kinds
from penstock.server.sources.footers import check_footer
from penstock.server.sources.pieces import Pieces
from penstock.server.sources.versions import read_unchanged
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import BadItem, InvalidJob, SourceChanged
from penstock.wire.plain import clean_text

logger = logging.getLogger("penstock")

Read = TypeVar("Read")

CACHE_BYTES = 512 << 20
"""Decoded row groups that a process keeps if `keep_blocks` was not called."""

HEAD_BYTES = 64 << 20
"""The same of the few columns that sizes are known from."""

_TAIL_BYTES = 64 << 10  # one read brings most footers whole
_CHUNK_SLACK = (
    128  # old parquet-mr wrote a column chunk's size too small by its dictionary's header
)
_OPEN_FILES = 16

_ROW_GROUPS = 2
"""Version of what is noted of a footer (`_read_footer`): raised when it is another list."""


class _Schema(NamedTuple):
    columns: tuple[str, ...]
    types: dict[str, str]  # Arrow's name of each column's type


class _Footer(NamedTuple):
    schema: _Schema  # one for all files that have it
    rows: tuple[int, ...]
    sha256: str


@declared
class ParquetSource(FileSource, BlockColumns):
    """The rows of Parquet files, in the order of the files' logical names.

    A row group is a block: it is read and decoded once for all rows that a fetch wants of it, and
    as many decoded groups are kept as the job's reading groups draw from at a time. Items are dicts
    as `ArrowRows` gives them. `fetch` may be called from several threads; calls run one at a time.

    Args:
        files: Paths, globs, folders or URLs (`s3://...`, `memory://...`); one or a list.
        columns: Which columns to read, in this order; None = all. Fewer are read faster and take
            less memory.
        cache_bytes: The most bytes of decoded row groups that one worker keeps. None = as many as
            its reading groups draw from. A smaller bound saves memory, and row groups are then read
            and decoded again and again. It changes no batch.

    Raises:
        InvalidJob: No file matches, a file is no Parquet file, a column is missing, no rows.
        MissingExtra: pyarrow, fsspec or the filesystem's package is not installed.
        SourceUnavailable: A footer cannot be read at the moment.
    """

    type_name: ClassVar[str] = "parquet"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".parquet",)

    files: Files
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._pq = require("pyarrow.parquet")
        self.find_files(self.files)
        self._read: list[DataFile] = []  # files that were opened here, with what was found noted
        arrow = require("pyarrow").__version__  # it names the columns' types
        self._fact = f"row groups {_ROW_GROUPS} {arrow} {json.dumps(self.columns)}"
        self._footers = self._open_footers()
        self.names = self._check_schemas()
        self._groups = [  # block -> (file, row group), without empty row groups
            (number, group)
            for number, footer in enumerate(self._footers)
            for group, rows in enumerate(footer.rows)
            if rows
        ]
        self._sizes = [self._footers[file].rows[group] for file, group in self._groups]
        self._starts = [0, *accumulate(self._sizes)]
        if not self._groups:
            raise InvalidJob(
                f"the {len(self.file_set.files)} files that match {self.files!r} hold zero rows",
                key="source.files",
            )
        self._stored = self._stored_bytes()
        self._lock = threading.Lock()
        self._cache: BlockCache[ArrowRows] = BlockCache(
            CACHE_BYTES if self.cache_bytes is None else self.cache_bytes
        )
        self._open: OrderedDict[int, tuple[Any, Any]] = OrderedDict()
        self._damaged: dict[int, BadItem] = {}  # by block: it is read once, and not for each item
        self._heads: BlockCache[ArrowRows] = BlockCache(HEAD_BYTES)
        self._head_columns: list[str] = []

    def __len__(self) -> int:
        return self._starts[-1]

    def blocks(self) -> Blocks:
        """Return the row groups, in index order; empty ones are left out.

        What a decoded one takes is what its footer says of the columns that are read, before
        compression. Columns with a dictionary may take more.
        """
        return Blocks(self._sizes, self._decoded_bytes(), self._stored.sum(axis=1).tolist())

    def keep_blocks(self, count: int) -> None:
        """Keep so many decoded row groups, and no more bytes of them than `cache_bytes`."""
        with self._lock:
            if self.cache_bytes is None:
                self._cache.max_bytes = sys.maxsize
            self._cache.bound(count)

    def fetch(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, in that order; each row group is decoded at most once.

        Raises:
            IndexError: An index is negative or not below the length.
            SourceUnavailable: A row group cannot be read at the moment; `item` is an index in it.
            SourceChanged: A file is not the one that was opened.
            BadItem: A row group was read whole, and cannot be decoded: names file and row group.
        """
        with self._lock:
            return self._items(indices, self._block)

    def heads(
        self, indices: Sequence[int], columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return only some columns of the rows at `indices`; only these are read and decoded.

        Raises:
            IndexError, SourceUnavailable, SourceChanged, BadItem: As `fetch`.
        """
        if columns is None or not self.has_heads(columns):
            return self.fetch(indices)
        chosen = [name for name in self.names if name in columns]
        with self._lock:
            if chosen != self._head_columns:
                self._heads.clear()
                self._head_columns = chosen
            items = self._items(indices, self._head_block)
        return [{name: item[name] for name in chosen} for item in items]

    def has_heads(self, columns: Sequence[str] | None) -> bool:
        """Tell whether these are some of the columns that are read, and not all."""
        return columns is not None and set(columns) < set(self.names)

    def has_column(self, name: str) -> bool:
        """Tell whether every file has this column, whether or not it is read into items."""
        return all(name in footer.schema.columns for footer in self._footers)

    def column(self, name: str, start: int, stop: int) -> Any:
        """Return a column of the rows `[start, stop)` as an Arrow array.

        Raises:
            SourceUnavailable: A row group cannot be read at the moment.
            SourceChanged: A file is not the one that was opened.
            InvalidJob: A column cannot be decoded.
        """
        first = bisect_right(self._starts, start) - 1
        last = bisect_right(self._starts, max(start, stop - 1)) - 1
        tables = [
            table
            for block in range(first, last + 1)
            for table in self._alone([block], [name], lambda table: table)
        ]
        found = require("pyarrow").concat_tables(tables).column(name)
        return found.slice(start - self._starts[first], stop - start)

    def matching(self, where: Condition) -> Kept:
        """Return which rows a condition keeps; each row group is read once, with its columns alone.

        What is found is kept with the files' hashes: the next start, and the workers of a node,
        read nothing.

        Raises:
            InvalidJob, SourceUnavailable, SourceChanged: As `column`.
        """
        fact = f"where {json.dumps(where.to_json(), sort_keys=True)}"
        files = self.file_set.files
        blocks: list[list[int]] = [[] for _ in files]
        for block, (number, _) in enumerate(self._groups):
            blocks[number].append(block)

        def holds(table: Any) -> Any:
            return np.logical_and.reduce([where.holds(c, table.column(c)) for c in where.columns])

        def look(number: int) -> None:
            kept = self._alone(blocks[number], where.columns, holds)
            self.file_set.note(files[number], fact, as_text(np.concatenate(kept)))

        unread = [
            n for n, own in enumerate(blocks) if own and self.file_set.known(files[n], fact) is None
        ]
        with ThreadPoolExecutor(LOOKERS) as pool:
            list(pool.map(look, unread))
        self._read += [files[number] for number in unread]
        found = []
        for number, own in enumerate(blocks):
            rows = sum(self._sizes[block] for block in own)
            if rows:
                found.append(from_text(self.file_set.known(files[number], fact), rows))
        return Kept.of(np.concatenate(found))

    def _alone(
        self, blocks: Sequence[int], columns: Sequence[str], use: Callable[[Any], Any]
    ) -> list[Any]:
        """Return what `use` makes of some columns of row groups of one file, each as a table.

        One table is in memory at a time. For several threads at once.
        """
        number = self._groups[blocks[0]][0]
        file = self.file_set.files[number]

        def look(is_again: bool) -> list[Any]:
            with contextlib.ExitStack() as opened:
                stream: Any = file.path
                if not self.file_set.is_local:
                    stream = opened.enter_context(self.file_set.open(file))
                reader = opened.enter_context(
                    self._pq.ParquetFile(stream, page_checksum_verification=True)
                )
                return [
                    use(
                        reader.read_row_group(
                            self._groups[block][1], columns=list(columns), use_threads=False
                        )
                    )
                    for block in blocks
                ]

        try:
            return self._unchanged(file, look)
        except (InvalidJob, SourceChanged):
            raise
        except Exception as error:
            if isinstance(error, MemoryError) and is_transient(error):
                raise
            if is_transient(error):
                raise unavailable(file, error, file.name) from error
            raise InvalidJob(
                f"{file.path}: {' and '.join(columns)} cannot be read: {error_line(error, 300)}",
                key="source.files",
            ) from error

    def _unchanged(self, file: DataFile, read: Callable[[bool], Read]) -> Read:
        """Return what was read of a file, and is of the version that was found.

        Args:
            file: The file.
            read: Reads it, and is told whether that is once more: the file was touched meanwhile.

        Raises:
            SourceChanged: That version is gone.
            Exception: Whatever `read` raises.
        """
        # Behind a URL every range comes with its version; Arrow reads local files by itself.
        return read_unchanged(
            read, partial(self.file_set.check, file), lambda _: not self.file_set.is_local
        )

    def _items(
        self, indices: Sequence[int], rows_of: Callable[[int, int], ArrowRows]
    ) -> list[dict[str, Any]]:
        """Return the rows at `indices`, from blocks that `rows_of(block, an index)` gives."""
        check_indices(indices, len(self))
        return gathered(indices, self._starts, rows_of)

    def sequence_dtype(self, column: str) -> np.dtype[Any] | None:
        """Return the dtype of the numbers in a column of lists, if it is the same in all files."""
        kinds = {footer.schema.types.get(column, "") for footer in self._footers}
        return dtype_of_lists(kinds.pop()) if len(kinds) == 1 and column in self.names else None

    def waits(self) -> bool:
        """Tell whether files lie at URLs."""
        return not self.file_set.is_local

    def list_rows(self, indices: Sequence[int]) -> Iterator[tuple[ArrowRows, int]]:
        """Yield the decoded row group of each item, and the item's row in it."""
        groups: dict[int, ArrowRows] = {}
        for index in indices:
            block = bisect_right(self._starts, index) - 1
            rows = groups.get(block)
            if rows is None:
                rows = groups[block] = self._block(block, index)
            yield rows, index - self._starts[block]

    def columns_of_items(self) -> dict[str, str]:
        """Return the columns, with their types in the first file."""
        types = self._footers[0].schema.types
        return {name: types[name] for name in self.names}

    def fingerprint(self) -> dict[str, Any]:
        """Return names, sizes, and a hash of each file's footer and of blocks of its content.

        Up to 64 MiB in all every byte counts; above it each file's footer, head and tail, and up to
        16 blocks of it, fewer where there are many files.

        Raises:
            SourceUnavailable: A file cannot be read at the moment.
        """
        footers = {
            file.path: footer.sha256
            for file, footer in zip(self.file_set.files, self._footers, strict=True)
        }
        fingerprint = self.file_set.fingerprint(lambda file: footers[file.path], self._read)
        self._read.clear()
        return fingerprint

    def close(self) -> None:
        """Close all files and release decoded row groups."""
        with self._lock:
            self._cache.clear()
            self._heads.clear()
            while self._open:
                self._close_one()

    def _block(self, block: int, index: int) -> ArrowRows:
        if (kept := self._cache.get(block)) is not None:
            return kept
        number, group = self._groups[block]
        file, footer = self.file_set.files[number], self._footers[number]
        table = None
        # Before reading and not after: else a worker would hold one block more than it may.
        self._cache.make_room()
        try:
            if block in self._damaged:
                self.file_set.check(file)
                raise self._damaged[block]
            table = self._read_group(number, group, self.names)
            if table.num_rows != footer.rows[group]:
                raise ValueError(
                    f"{table.num_rows} rows where the footer says {footer.rows[group]}"
                )
        except (SourceChanged, BadItem):
            raise
        except Exception as error:
            self._close_file(number)  # the retry must not use a broken connection again
            if isinstance(error, MemoryError) and is_transient(error):
                raise
            if is_transient(error):
                raise unavailable(file, error, index) from error
        if table is None:
            # Reading and decoding were one call, with the same errors: now one after the other.
            table = self._decoded(block, self._read_pieces(number, group, index))
        self._count_read(block, self.names)
        rows = ArrowRows(table.select(self.names), partial(self._bad_value, file, group))
        self._cache.put(block, rows, table.nbytes)
        return rows

    def _head_block(self, block: int, index: int) -> ArrowRows:
        """Return a row group with the columns of heads; all columns if these cannot be read."""
        if (kept := self._heads.get(block)) is not None:
            return kept
        number, group = self._groups[block]
        file, rows = self.file_set.files[number], self._sizes[block]
        try:
            table = self._read_group(number, group, self._head_columns)
            if table.num_rows != rows:
                raise ValueError(f"{table.num_rows} rows where the footer says {rows}")
        except Exception as error:
            # What is wrong with it is found and reported where whole rows are read.
            logger.debug(
                "%s: no heads of row group %d: %s", file.path, group, error_line(error, 300)
            )
            return self._block(block, index)
        self._count_read(block, self._head_columns)
        found = ArrowRows(table, partial(self._bad_value, file, group))
        self._heads.put(block, found, table.nbytes)
        return found

    def _count_read(self, block: int, columns: Sequence[str]) -> None:
        stored = zip(self.names, self._stored[block].tolist(), strict=True)
        self.count_read(sum(nbytes for name, nbytes in stored if name in columns))

    def _read_pieces(self, number: int, group: int, index: int) -> Pieces:
        """Return a row group's columns, read whole into memory and not decoded.

        Raises:
            SourceUnavailable: They cannot be read at the moment.
            SourceChanged: The file is not the one that was opened.
        """
        file = self.file_set.files[number]
        try:
            with self.file_set.open(file) as stream:
                read_at = _read_at(stream)
                tail = _read_tail(read_at, file.size)
                metadata = self._pq.read_metadata(require("pyarrow").BufferReader(tail))
                pieces = Pieces(file.size, metadata)
                columns = metadata.row_group(group)
                for leaf, name in enumerate(_leaves(metadata)):
                    if name in self.names:
                        chunk = columns.column(leaf)
                        first = chunk.data_page_offset
                        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                            first = min(first, chunk.dictionary_page_offset)
                        stop = min(file.size, first + chunk.total_compressed_size + _CHUNK_SLACK)
                        # What a footer names beyond the end of its file is missed when decoding.
                        if 0 <= first < stop:
                            pieces.add(first, read_at(first, stop))
        except SourceChanged:
            raise
        except Exception as error:
            if isinstance(error, OSError) or is_transient(error, reading=True):
                raise unavailable(file, error, index) from error
            raise
        return pieces

    def _decoded(self, block: int, pieces: Pieces) -> Any:
        """Return the columns of a row group whose bytes are all here.

        Raises:
            BadItem: They cannot be decoded: the file is damaged.
        """
        number, group = self._groups[block]
        file, rows = self.file_set.files[number], self._sizes[block]

        def decode(columns: list[str]) -> Any:
            reader = self._pq.ParquetFile(
                pieces.reader(), metadata=pieces.metadata, page_checksum_verification=True
            )
            table = reader.read_row_group(group, columns=columns, use_threads=False)
            if table.num_rows != rows:
                raise ValueError(f"{table.num_rows} rows where the footer says {rows}")
            return table

        try:
            return decode(self.names)
        except Exception as error:
            if isinstance(error, MemoryError) and is_transient(error):
                raise
            said, which = error_line(error, 300), ""
            for column in self.names:  # which of them it is
                try:
                    decode([column])
                except Exception as its:
                    said, which = error_line(its), f", column {column!r},"
                    break
            what = f"row group {group}{which}"
            self._damaged[block] = BadItem(
                f"{file.path}: {what} was read whole and cannot be decoded, it is damaged: {said}",
                path=file.path,
                row_group=group,
                reason=f"{file.name}: {what} is damaged: {said}",
            )
            raise self._damaged[block] from error

    def _read_group(self, number: int, group: int, columns: Sequence[str]) -> Any:
        """Return some columns of a row group, decoded."""

        def read(is_again: bool) -> Any:
            if is_again:
                self._close_file(number)  # it may be open on what was there before
            return self._reader(number).read_row_group(group, columns=columns, use_threads=False)

        return self._unchanged(self.file_set.files[number], read)

    def _bad_value(
        self, file: DataFile, group: int, row: int, column: str, error: Exception
    ) -> BadItem:
        """Return the error of a value that has no form in Python, in a row group."""
        what = f"row {row} of row group {group}, column {clean_text(repr(column), 100)},"
        said = clean_text(error_line(error, 300), 200)
        return BadItem(
            f"{file.path}: {what} cannot be decoded ({said}): write it again, or let "
            "on_item_error: quarantine skip it",
            path=file.path,
            row_group=group,
            reason=f"{file.name}: {what} cannot be decoded: {said}",
        )

    def _reader(self, number: int) -> Any:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number][0]
        while len(self._open) >= _OPEN_FILES:
            self._close_one()
        file = self.file_set.files[number]
        if self.file_set.is_local:
            stream = None
            # Where pages carry checksums they are compared: damage may decode to other values.
            # A reader that buffers ahead keeps the row group's bytes for as long as it is open.
            reader = self._pq.ParquetFile(
                file.path, page_checksum_verification=True, pre_buffer=False
            )
        else:
            stream = self.file_set.open(file)
            # pre_buffer joins the reads of a row group's column chunks into few requests.
            reader = self._pq.ParquetFile(stream, pre_buffer=True, page_checksum_verification=True)
        self._open[number] = (reader, stream)
        return reader

    def _close_file(self, number: int) -> None:
        if number in self._open:
            self._open.move_to_end(number, last=False)
            self._close_one()

    def _close_one(self) -> None:
        _, (reader, stream) = self._open.popitem(last=False)
        reader.close()
        if stream is not None:
            stream.close()

    def _check_schemas(self) -> list[str]:
        """Return the columns to read, which all files must have."""
        first, known = self.file_set.files[0], self._footers[0].schema.columns
        chosen = check_columns(self.columns, known, first.name)
        passed: set[int] = set()  # schemas: thousands of files have few
        for file, footer in zip(self.file_set.files, self._footers, strict=True):
            if id(footer.schema) in passed:
                continue
            passed.add(id(footer.schema))
            check_columns(chosen, footer.schema.columns, file.name)
            if self.columns is None:
                refuse_more_columns(file.name, footer.schema.columns, known, first.name)
        return chosen

    def _open_footers(self) -> list[_Footer]:
        """Return every file's footer: as it was noted, else by opening the file."""
        files = self.file_set.files
        self.file_set.map(self._watch, files)
        self._read = [file for file in files if self.file_set.known(file, self._fact) is None]
        with ThreadPoolExecutor(LOOKERS) as pool:
            list(pool.map(self._read_footer, self._read))
        schemas: dict[str, _Schema] = {}
        footers: list[_Footer] = []
        for file in files:
            schema, rows, _, _, digest = self.file_set.known(file, self._fact)
            if schema not in schemas:
                pairs = self.file_set.catalog.shared(schema)
                schemas[schema] = _Schema(tuple(name for name, _ in pairs), dict(pairs))
            footers.append(_Footer(schemas[schema], tuple(rows), digest))
        return footers

    def _read_columns(self, existing: Sequence[str]) -> list[str]:
        """Return which of a file's columns are read, in its order."""
        return [name for name in existing if self.columns is None or name in self.columns]

    def _stored_bytes(self) -> NDArray[np.int64]:
        """Return the compressed bytes of each block's columns: int64 (blocks, columns)."""
        found = np.empty((len(self._groups), len(self.names)), np.int64)
        columns: dict[int, list[int]] = {}  # by schema, where the columns stand in its files
        numbers: list[list[int]] = []
        at = -1
        for block, (number, group) in enumerate(self._groups):
            schema = self._footers[number].schema
            if number != at:
                at, numbers = (
                    number,
                    self.file_set.known(self.file_set.files[number], self._fact)[2],
                )
            if id(schema) not in columns:
                names = self._read_columns(schema.columns)
                columns[id(schema)] = [names.index(name) for name in self.names]
            found[block] = [numbers[group][column] for column in columns[id(schema)]]
        return found

    def _decoded_bytes(self) -> list[int]:
        """Return the bytes of each block before compression, of the columns that are read."""
        known = [self.file_set.known(file, self._fact)[3] for file in self.file_set.files]
        return [known[number][group] for number, group in self._groups]

    def _watch(self, file: DataFile) -> None:
        with refusing(file):
            self.file_set.watch(file)

    def _read_footer(self, file: DataFile) -> None:
        """Note what a file's footer says.

        Raises:
            InvalidJob: It is not a Parquet file, or cannot be opened by us.
            SourceUnavailable: It cannot be read at the moment.
        """
        pa = require("pyarrow")
        with refusing(file), self.file_set.open(file) as stream:
            tail = _read_tail(_read_at(stream), file.size)
            head = _read_at(stream)(0, min(FIRST_BYTES, file.size)) if tail[-4:] != b"PAR1" else b""
        refuse_other_kinds(file, head, "parquet")
        if len(tail) < 12 or tail[-4:] != b"PAR1":
            kind = "encrypted" if tail[-4:] == b"PARE" else "not a Parquet file"
            raise InvalidJob(f"{file.path} is {kind}: it does not end in PAR1", key="source.files")
        try:
            metadata = self._pq.read_metadata(pa.BufferReader(tail))
            check_footer(metadata, file.size)
            said = self._said_by(metadata)
        # The bytes were read: Arrow raises OSError for damaged ones, and Python for names in them.
        except (OSError, ValueError, OverflowError, pa.ArrowException) as error:
            raise InvalidJob(
                f"{file.path} has no readable Parquet footer ({error_line(error, 300)}): it is "
                "damaged; write it again",
                key="source.files",
            ) from None
        self.file_set.note(file, self._fact, [*said, hashlib.sha256(tail).hexdigest()])

    def _said_by(self, metadata: Any) -> list[Any]:
        """Return the columns that a footer names, and of each row group the rows and bytes.

        Raises:
            ValueError: A number in it cannot be.
            OSError, ArrowException: It is damaged.
        """
        schema = [[field.name, str(field.type)] for field in metadata.schema.to_arrow_schema()]
        names = self._read_columns([name for name, _ in schema])
        leaves = [(leaf, name) for leaf, name in enumerate(_leaves(metadata)) if name in names]
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]

        def stored(group: Any) -> list[int]:
            found = dict.fromkeys(names, 0)
            for leaf, name in leaves:
                found[name] += group.column(leaf).total_compressed_size
            return list(found.values())

        def decoded(group: Any) -> int:
            return sum(group.column(leaf).total_uncompressed_size for leaf, _ in leaves)

        rows = [group.num_rows for group in groups]
        of_columns = [stored(group) for group in groups]
        of_groups = [decoded(group) for group in groups]
        if min([0, *rows, *of_groups, *(nbytes for row in of_columns for nbytes in row)]) < 0:
            raise ValueError("a number of rows or bytes in it is below 0")
        return [self.file_set.catalog.share(schema), rows, of_columns, of_groups]


def _leaves(metadata: Any) -> list[str]:
    """Return the top-level column of each leaf column."""
    return [
        metadata.schema.column(leaf).path.partition(".")[0] for leaf in range(metadata.num_columns)
    ]


def _read_at(stream: Any) -> Any:
    def read_at(start: int, stop: int) -> bytes:
        stream.seek(start)
        data: bytes = stream.read(stop - start)
        if len(data) != stop - start:
            raise OSError(f"{len(data)} bytes came where {stop - start} were asked for")
        return data

    return read_at


def _read_tail(read_at: Any, size: int) -> bytes:
    """Return a file's footer with its length and magic, as far as the file has one."""
    tail: bytes = read_at(max(0, size - _TAIL_BYTES), size)
    length = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < length <= size:
        tail = read_at(size - length, size)
    return tail[-length:] if length >= 12 else tail


__all__ = ["CACHE_BYTES", "ParquetSource"]
