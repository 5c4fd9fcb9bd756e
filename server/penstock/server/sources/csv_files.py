"""CSV files: columns whose types are found out once, from all rows of all files."""

from __future__ import annotations

import csv
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import numpy as np

from penstock.common.checks import check_choice
from penstock.common.nearest import listed
from penstock.server.files.filesystems import require
from penstock.server.roles.parameters import declared
from penstock.server.sources.arrow import ArrowRows
from penstock.server.sources.blocked import BlockedFiles, FileBlock, FileIndex, cut
from penstock.server.sources.cache import BlockRows
from penstock.server.sources.file_blocks import RowFiles
from penstock.server.sources.file_source import Files
from penstock.server.sources.first_bytes import FIRST_BYTES, refuse_other_kinds
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import check_columns, invalid_files
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidJob

_HEAD_BYTES = 1 << 20

MAX_COLUMNS = 20_000
"""Arrow takes 5 KiB for each as it finds out its type: 402 MiB for 100,000 columns of 3 rows."""

TYPES = {"text": "string", "int": "int64", "float": "double", "bool": "bool"}
"""The types of columns, with Arrow's names."""


@declared
class CsvSource(RowFiles, BlockedFiles):
    """The rows of CSV files as dicts, read by Arrow.

    The first row of each file names its columns. A column's type is that of all its values in all
    files: whole numbers, numbers, `true` and `false`, else text. An empty value is None in a column
    of another type than text, and an empty text in one of text.
    A row with too many or too few values is refused, with file and line, when the file is opened.

    Args:
        files: Paths, globs, folders or URLs (`s3://...`, `memory://...`); one or a list.
        columns: Which columns to read, in this order; None = all.
        delimiter: What separates values: one character.
        types: The types of columns that are not to be found out, by name: `text`, `int`, `float` or
            `bool`. `text` keeps numbers as they are written, such as `007`.

    Raises:
        InvalidJob: No file matches, columns differ, a row has another number of values, no rows.
        MissingExtra: pyarrow, fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "csv"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv")

    files: Files
    columns: Sequence[str] | None = None
    _: KW_ONLY
    delimiter: str = ","
    types: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise InvalidJob(
                f"delimiter is {self.delimiter!r}: give one character, such as ',' or '\\t'",
                key="source.delimiter",
            )
        asked = self.types or {}
        for name, kind in asked.items():
            check_choice(f"types.{name}", kind, tuple(TYPES), key="source.types")
        self._arrow = require("pyarrow")
        self._csv = require("pyarrow.csv")
        self.open_files(
            self.files, "rows", self.delimiter, self.block_bytes, self._arrow.__version__
        )
        first = list(self.indexes[0].more)
        for file, index in zip(self.shards, self.indexes, strict=True):
            if set(index.more) != set(first):
                raise invalid_files(
                    f"{file.name} has the columns {listed(index.more)}, and "
                    f"{self.shards[0].name} has {listed(first)}: a source reads files with the "
                    "same columns"
                )
        check_columns(list(asked) or None, first, self.shards[0].name)
        self.names = check_columns(self.columns, first, self.shards[0].name)
        self._kinds = {
            name: asked.get(name) or _common({index.more[name] for index in self.indexes})
            for name in first
        }

    def columns_of_items(self) -> dict[str, str]:
        """Return the columns with their types."""
        return {name: TYPES[self._kinds[name]] for name in self.names}

    def index_of(self, file: DataFile) -> FileIndex:
        """Return blocks of whole rows, with the columns and the types of what is in them.

        Raises:
            InvalidJob: It has no header, or a row has another number of values.
        """
        read_at = self.file_set.from_start_to_end(file)
        names, start = self._header(file, read_at(0, min(file.size, _HEAD_BYTES)))
        seen: dict[str, set[str]] = {name: set() for name in names}
        index, line = FileIndex.empty(), 1 + read_at(0, start).count(b"\n")
        for place, data in cut(read_at, start, file.size, self.block_bytes, _last_row_end):
            table = self._table(file, data, line, names, None)
            for name in names:
                seen[name].add(_kind(table.schema.field(name).type))
            if table.num_rows:
                nbytes = table.nbytes
                index.add(place, place + len(data), table.num_rows, nbytes=nbytes, first=line)
            line += data.count(b"\n")
        return index._replace(more={name: _common(kinds) for name, kinds in seen.items()})

    def rows_of(self, block: FileBlock, data: bytes) -> BlockRows:
        """Return the rows of a block, decoded."""
        types = {name: TYPES[kind] for name, kind in self._kinds.items()}
        names = list(block.more)
        table = self._table(block.file, data, block.first, names, types)
        return ArrowRows(table.select(self.names), block.bad_value)

    def _header(self, file: DataFile, head: bytes) -> tuple[list[str], int]:
        """Return the names of the columns, and where the first row starts."""
        refuse_other_kinds(file, head[:FIRST_BYTES])
        mark = len(BOM_UTF8) if head.startswith(BOM_UTF8) else 0
        end = row_ends(head[mark:])
        stop = mark + int(end[0]) + 1 if len(end) else len(head)
        try:
            text = head[mark:stop].decode()
        except UnicodeDecodeError as error:
            raise invalid_files(
                f"{file.path}: the header is not UTF-8 ({error.reason}): convert the file to UTF-8"
            ) from None
        try:
            names = next(csv.reader([text.strip("\r\n")], delimiter=self.delimiter), [])
        except csv.Error as error:
            raise invalid_files(
                f"{file.path}: the first row is not one of CSV ({error_line(error, 300)}): it must "
                "name every column, each name once"
            ) from None
        if not names or len(set(names)) < len(names) or not all(names):
            raise invalid_files(
                f"{file.path}: the first row is {text.strip()[:200]!r}: it must name every column, "
                "each name once"
            )
        if len(names) > MAX_COLUMNS:
            raise invalid_files(
                f"{file.path} has {len(names):,} columns, and of CSV at most {MAX_COLUMNS:,} are "
                "read: write it as Parquet, and name those to read with columns"
            )
        return names, stop

    def _table(
        self,
        file: DataFile,
        data: bytes,
        line: int,
        names: Sequence[str],
        types: Mapping[str, str] | None,
    ) -> Any:
        """Return the rows of some bytes as a table; its columns have types that are found out.

        Args:
            file: The file.
            data: Whole rows of it.
            line: The line that they start at.
            names: The file's columns.
            types: Arrow's types, by column; None = to be found out.
        """
        arrow, module = self._arrow, self._csv
        kinds = {name: arrow.type_for_alias(types[name]) for name in names} if types else None
        try:
            return module.read_csv(
                arrow.BufferReader(data),
                read_options=module.ReadOptions(
                    use_threads=False, block_size=len(data) + 1, column_names=list(names)
                ),
                parse_options=module.ParseOptions(
                    delimiter=self.delimiter, newlines_in_values=True
                ),
                convert_options=module.ConvertOptions(
                    column_types=kinds,
                    null_values=[""],
                    true_values=["true", "True", "TRUE"],
                    false_values=["false", "False", "FALSE"],
                    timestamp_parsers=[],
                    strings_can_be_null=False,
                ),
            )
        except arrow.ArrowInvalid as error:
            raise self._wrong(file, data, line, str(error)) from None

    def _wrong(self, file: DataFile, data: bytes, line: int, said: str) -> InvalidJob:
        row = re.search(r"Row #(\d+)", said)
        if row is not None:
            starts = [0, *(row_ends(data) + 1).tolist()]
            at = min(int(row[1]) - 1, len(starts) - 1)
            line += data.count(b"\n", 0, starts[at])
        counts = re.search(r"Expected (\d+) columns, got (\d+)", said)
        what = f"has {counts[2]} values and the header names {counts[1]}" if counts else f"({said})"
        if self.types and "conversion error" in said:
            asked = ", ".join(f"{name}: {kind}" for name, kind in self.types.items())
            return InvalidJob(
                f"{file.path}: line {line} {what}: correct the value, or give its column another "
                f"type than in types: {{{asked}}}",
                key="source.types",
            )
        return invalid_files(
            f"{file.path}: line {line} {what}: correct the line (a value with {self.delimiter!r}, "
            'a quote or a line end in it is put in "quotes", with its own quotes doubled), or name '
            "another delimiter"
        )


def row_ends(data: bytes) -> Any:
    r"""Return where rows end: int64 (rows,), the places of each `\n` that is not in quotes."""
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array == 10)
    if b'"' in data:
        ends = ends[np.searchsorted(np.flatnonzero(array == 34), ends) % 2 == 0]
    return ends


def _last_row_end(data: bytes, is_last: bool) -> int:
    if is_last:
        return len(data)
    ends = row_ends(data)
    return int(ends[-1]) + 1 if len(ends) else 0


def _kind(arrow_type: Any) -> str:
    """Return our name of the type that Arrow finds in a block; "" = only empty values."""
    name = str(arrow_type)
    if name == "null":
        return ""
    return next((kind for kind, alias in TYPES.items() if alias == name), "text")


def _common(kinds: set[str]) -> str:
    """Return the type of values that have several in different blocks."""
    found = kinds - {""}
    if not found:
        return "text"
    if found == {"int", "float"}:
        return "float"
    return found.pop() if len(found) == 1 else "text"
