"""Parquet files without conversion, on local disks or at any fsspec URL."""

from __future__ import annotations

import json
import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from penstock.server.files.filesystems import require
from penstock.server.files.ranges import LOOKERS
from penstock.server.roles.condition import Condition
from penstock.server.roles.parameters import declared
from penstock.server.roles.reading import Blocks
from penstock.server.sources.arrow import ArrowRows, dtype_of_lists
from penstock.server.sources.block_columns import BlockColumns
from penstock.server.sources.cache import BlockCache, BlockRows, gathered
from penstock.server.sources.file_blocks import RowFiles
from penstock.server.sources.file_source import Files
from penstock.server.sources.footers import VERSION, Footers
from penstock.server.sources.requirements import (
    check_columns,
    check_indices,
    invalid_files,
    refuse_more_columns,
)
from penstock.server.sources.row_groups import RowGroup, RowGroupReader
from penstock.server.usercode.frames import error_line

logger = logging.getLogger("penstock")

HEAD_BYTES = 64 << 20
"""What a process keeps of the few columns that sizes are known from."""


@declared
class ParquetSource(RowFiles, BlockColumns):
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
    threads_of_conditions: ClassVar[int] = LOOKERS

    files: Files
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self.find_files(self.files)
        arrow = require("pyarrow").__version__  # it names the columns' types
        self.find_blocks(f"row groups {VERSION} {arrow} {json.dumps(self.columns)}")
        self.shards = self.file_set.files
        self._footers = Footers(self.file_set, self._fact, self.columns)
        self.note_all(self._footers.note, LOOKERS)
        self._schemas = self._footers.schemas()  # of each file
        self.names = self._check_schemas()
        self.take_blocks([self._footers.noted(file).rows for file in self.shards])
        if not self.places:
            raise invalid_files(
                f"the {len(self.shards)} files that match {self.files!r} hold zero rows"
            )
        self._groups = [
            RowGroup(self.shards[shard], number, count)
            for (shard, number), count in zip(self.places, self.block_items, strict=True)
        ]
        self._stored = self._footers.stored(self.places, self.names)
        self._reader = RowGroupReader(self.file_set)
        self._heads: BlockCache[ArrowRows] = BlockCache(HEAD_BYTES)
        self._head_columns: list[str] = []

    # --- what footers say ---

    def _check_schemas(self) -> list[str]:
        """Return the columns to read, which all files must have."""
        first, known = self.shards[0], self._schemas[0].columns
        chosen = check_columns(self.columns, known, first.name)
        passed: set[int] = set()  # schemas: thousands of files have few
        for file, schema in zip(self.shards, self._schemas, strict=True):
            if id(schema) not in passed:
                passed.add(id(schema))
                check_columns(chosen, schema.columns, file.name)
                if self.columns is None:
                    refuse_more_columns(file.name, schema.columns, known, first.name)
        return chosen

    def digests(self) -> Mapping[str, str]:
        """Return the hash of each file's footer, by path."""
        return {file.path: self._footers.noted(file).sha256 for file in self.shards}

    def columns_of_items(self) -> dict[str, str]:
        """Return the columns, with their types in the first file."""
        types = self._schemas[0].types
        return {name: types[name] for name in self.names}

    def sequence_dtype(self, column: str) -> np.dtype[Any] | None:
        """Return the dtype of the numbers in a column of lists, if it is the same in all files."""
        kinds = {schema.types.get(column, "") for schema in self._schemas}
        return dtype_of_lists(kinds.pop()) if len(kinds) == 1 and column in self.names else None

    def has_column(self, name: str) -> bool:
        """Tell whether every file has this column, whether or not it is read into items."""
        return all(name in schema.columns for schema in self._schemas)

    def blocks(self) -> Blocks:
        """Return the row groups, in index order; empty ones are left out.

        What a decoded one takes is what its footer says of the columns that are read, before
        compression. Columns with a dictionary may take more.
        """
        known = [self._footers.noted(file).decoded for file in self.shards]
        decoded = [known[shard][number] for shard, number in self.places]
        return Blocks(self.block_items, decoded, self._stored.sum(axis=1).tolist())

    # --- row groups ---

    def load(self, number: int, index: int) -> tuple[BlockRows, int]:
        """Return a row group, decoded, and the bytes that it takes."""
        group = self._groups[number]
        table = self._reader.whole(group, self.names, index)
        self._count_read(number, self.names)
        return ArrowRows(table.select(self.names), group.bad_value), table.nbytes

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
        check_indices(indices, len(self))
        with self._lock:
            if chosen != self._head_columns:
                self._heads.clear()
                self._head_columns = chosen
            items = gathered(indices, self.starts, self._head_rows)
        return [{name: item[name] for name in chosen} for item in items]

    def _head_rows(self, number: int, index: int) -> BlockRows:
        """Return a row group with the columns of heads; all columns if these cannot be read."""
        if (kept := self._heads.get(number)) is not None:
            return kept
        group = self._groups[number]
        try:
            table = self._reader.read(group, self._head_columns)
        except Exception as error:
            # What is wrong with it is found and reported where whole rows are read.
            logger.debug(
                "%s: no heads of row group %d: %s",
                group.file.path,
                group.number,
                error_line(error, 300),
            )
            return self.rows(number, index)
        self._count_read(number, self._head_columns)
        found = ArrowRows(table, group.bad_value)
        self._heads.put(number, found, table.nbytes)
        return found

    def _count_read(self, number: int, columns: Sequence[str]) -> None:
        stored = zip(self.names, self._stored[number].tolist(), strict=True)
        self.count_read(sum(nbytes for name, nbytes in stored if name in columns))

    def column(self, name: str, start: int, stop: int) -> Any:
        """Return a column of the rows `[start, stop)` as an Arrow array.

        Raises:
            SourceUnavailable: A row group cannot be read at the moment.
            SourceChanged: A file is not the one that was opened.
            InvalidJob: A column cannot be decoded.
        """
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, max(start, stop - 1)) - 1
        tables = [
            table
            for _, groups in groupby(self._groups[first : last + 1], lambda group: group.file)
            for table in self._reader.alone(list(groups), [name], lambda table: table)
        ]
        found = require("pyarrow").concat_tables(tables).column(name)
        return found.slice(start - self.starts[first], stop - start)

    @override
    def column_parts(self, column: str, blocks: range) -> Iterator[Any]:
        if blocks:  # read at once: the file is opened for each call
            yield self.column(column, self.starts[blocks.start], self.starts[blocks.stop])

    def kept_of(self, where: Condition, blocks: range) -> list[NDArray[np.bool_]]:
        """Return which rows of the row groups of a file a condition keeps: bool (rows,) each."""

        def holds(table: Any) -> Any:
            return np.logical_and.reduce([where.holds(c, table.column(c)) for c in where.columns])

        groups = [self._groups[number] for number in blocks]
        return self._reader.alone(groups, where.columns, holds) if groups else []

    def close(self) -> None:
        """Close all files and release decoded row groups."""
        super().close()
        with self._lock:
            self._heads.clear()
            self._reader.close()
