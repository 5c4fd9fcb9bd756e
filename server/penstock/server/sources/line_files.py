"""Files of lines: JSON Lines, and plain text."""

from __future__ import annotations

from abc import abstractmethod
from codecs import BOM_UTF8
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.roles.parameters import OneOf, declared
from penstock.server.roles.reading import Blocks
from penstock.server.sources.blocked import BlockedFiles, FileBlock, FileIndex, cut
from penstock.server.sources.cache import BlockRows, EachRow
from penstock.server.sources.file_source import Files
from penstock.server.sources.first_bytes import FIRST_BYTES, refuse_other_kinds
from penstock.server.sources.json_values import JsonFiles, json_value
from penstock.server.sources.patterns import DataFile
from penstock.wire.errors import InvalidJob

_BLANK = frozenset(b" \t\r\v\f")


class LineBounds(NamedTuple):
    """Where the lines of some bytes are: int64 (lines,) each, without the ends of lines."""

    starts: NDArray[np.int64]
    stops: NDArray[np.int64]

    def text(self, data: bytes, first: int, last: int) -> bytes:
        """Return lines `first` to `last`, that one included, as one."""
        return data[self.starts[first] : self.stops[last]]


def lines_of(data: bytes) -> LineBounds:
    r"""Return where the lines are; they end with `\n` or `\r\n`, the last one also with neither."""
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array == 10)
    starts = np.concatenate([[0], ends + 1])
    stops = np.concatenate([ends, [len(data)]])
    if starts[-1] == len(data):
        starts, stops = starts[:-1], stops[:-1]
    if len(stops) and b"\r" in data:
        stops = stops - ((stops > starts) & (array[stops - 1] == 13))
    return LineBounds(starts, stops)


def blank_lines(data: bytes, lines: LineBounds) -> NDArray[np.bool_]:
    """Return which lines hold nothing but white space: bool (lines,)."""
    blank = lines.starts >= lines.stops
    array = np.frombuffer(data, np.uint8)
    first = array[np.minimum(lines.starts, max(0, len(data) - 1))] if len(data) else array
    for number in np.flatnonzero(~blank & np.isin(first, list(_BLANK))):
        blank[number] = not data[lines.starts[number] : lines.stops[number]].strip()
    return blank


def last_line_end(data: bytes, is_last: bool) -> int:
    """Return where the last whole line ends, its line end included; 0 = there is none."""
    return len(data) if is_last else data.rfind(b"\n") + 1


class LineFiles(BlockedFiles):
    """Files of lines, cut into blocks at the ends of lines."""

    def index_of(self, file: DataFile) -> FileIndex:
        """Return blocks of whole lines."""
        read_at = self.file_set.from_start_to_end(file)
        refuse_other_kinds(file, read_at(0, min(FIRST_BYTES, file.size)))
        index, line = FileIndex.empty(), 1
        for start, data in cut(read_at, 0, file.size, self.block_bytes, self.end_of):
            items = self.count(data.removeprefix(BOM_UTF8) if start == 0 else data)
            if items:
                index.add(start, start + len(data), items, first=line)
            line += data.count(b"\n")
        return index

    def end_of(self, data: bytes, is_last: bool) -> int:
        """Return where the last whole record ends."""
        return last_line_end(data, is_last)

    @abstractmethod
    def count(self, data: bytes) -> int:
        """Return how many items a block holds."""


def without_mark(block: FileBlock, data: bytes) -> bytes:
    """Return a block without the mark of UTF-8 that some programs write at the start of a file."""
    return data[len(BOM_UTF8) :] if block.start == 0 and data.startswith(BOM_UTF8) else data


class JsonlSource(LineFiles, JsonFiles):
    """The lines of JSON Lines files, each a JSON value; blank lines are skipped.

    Files follow one another by their logical names. Only lines that are wanted are parsed, and a
    line that is not JSON is a bad item of its own, named with its number. Values are what Python's
    `json` makes of them; a list of numbers is a list.

    Raises:
        InvalidJob: No file matches, a file is compressed, no lines.
        MissingExtra: fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "jsonl"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson", ".json")
    values_are: ClassVar[str] = "lines"

    def index_of(self, file: DataFile) -> FileIndex:
        """Return blocks of whole lines.

        Raises:
            InvalidJob: It is a JSON array, or not UTF-8.
        """
        head = self.file_set.read(file, 0, min(max(self.block_bytes, FIRST_BYTES), file.size))
        refuse_other_kinds(file, head[:FIRST_BYTES])
        if _is_array(head, file.size):
            raise InvalidJob(
                f"{file.path} holds a JSON array and not a value per line: use type: json",
                key="source.type",
            )
        return super().index_of(file)

    def count(self, data: bytes) -> int:
        """Return how many lines are not blank."""
        lines = lines_of(data)
        return len(lines.starts) - int(blank_lines(data, lines).sum())

    def rows_of(self, block: FileBlock, data: bytes) -> BlockRows:
        """Return the lines of a block; they are parsed when they are asked for."""
        data = without_mark(block, data)
        lines = lines_of(data)
        rows = np.flatnonzero(~blank_lines(data, lines))

        names = self.names  # what is kept in memory does not keep its source alive

        def item(row: int) -> Any:
            line = int(rows[row])
            text = lines.text(data, line, line)
            return json_value(block, f"line {block.first + line}", text, names)

        return EachRow(item)


def _is_array(head: bytes, size: int) -> bool:
    """Tell whether a file is one JSON array: its first line opens one, and is not a value alone."""
    text = head.removeprefix(BOM_UTF8).lstrip()
    if not text.startswith(b"["):
        return False
    line, _, rest = text.partition(b"\n")
    if len(head) < size and not rest:
        return False  # a long first line
    return not line.rstrip().endswith(b"]") or (len(head) == size and not rest.strip())


SAMPLE_BY = ("line", "paragraph", "document")


@declared
class TextSource(LineFiles):
    """Text files in UTF-8: each line, paragraph or file is an item `{"text": ...}`.

    Args:
        files: Paths, globs, folders or URLs (`s3://...`, `memory://...`); one or a list.
        sample_by: What an item is: a `line`, empty ones too; a `paragraph`, the lines up to a blank
            one; or a `document`, a whole file.

    Raises:
        InvalidJob: No file matches, a file is compressed, no text.
        MissingExtra: fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "text"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".txt", ".text", ".md")

    files: Files
    sample_by: Annotated[str, OneOf(SAMPLE_BY)] = "line"

    def __post_init__(self) -> None:
        self.open_files(self.files, "text", self.sample_by, self.block_bytes)

    def columns_of_items(self) -> dict[str, str]:
        """Return the only key of the items."""
        return {"text": "string"}

    def blocks(self) -> Blocks | None:
        """Return the blocks; None for documents, each of which is read alone."""
        return None if self.sample_by == "document" else super().blocks()

    def index_of(self, file: DataFile) -> FileIndex:
        """Return blocks of whole lines, or of whole paragraphs, or the whole file."""
        if self.sample_by != "document":
            return super().index_of(file)
        refuse_other_kinds(file, self.file_set.read(file, 0, min(FIRST_BYTES, file.size)))
        index = FileIndex.empty()
        index.add(0, file.size, 1, first=1)
        return index

    def end_of(self, data: bytes, is_last: bool) -> int:
        """Return where the last whole line, or paragraph, ends."""
        end = last_line_end(data, is_last)
        if is_last or self.sample_by == "line":
            return end
        lines = lines_of(data[:end])
        blank = np.flatnonzero(blank_lines(data[:end], lines))
        # The last blank line may be followed by others, so that only a line after it ends it.
        return int(lines.starts[blank[-1]]) if len(blank) else 0

    def count(self, data: bytes) -> int:
        """Return how many lines or paragraphs there are."""
        return len(self._spans(data)[0])

    def rows_of(self, block: FileBlock, data: bytes) -> BlockRows:
        """Return the texts of a block; they are decoded when they are asked for."""
        data = without_mark(block, data)
        starts, stops = self._spans(data)

        def item(row: int) -> dict[str, str]:
            start, stop = int(starts[row]), int(stops[row])
            try:
                return {"text": data[start:stop].decode()}
            except UnicodeDecodeError as error:
                at = start + error.start
                line = block.first + data.count(b"\n", 0, at)
                raise block.bad(
                    f"line {line}",
                    f"is not UTF-8 ({error.reason} at byte {block.start + at})",
                    "convert the file to UTF-8, or let on_item_error: quarantine skip it",
                ) from None

        return EachRow(item)

    def _spans(self, data: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where the texts start and stop: int64 (texts,) each."""
        if self.sample_by == "document":
            return np.array([0]), np.array([len(data)])
        lines = lines_of(data)
        if self.sample_by == "line":
            return lines
        full = ~blank_lines(data, lines)
        before = np.concatenate([[False], full[:-1]])
        after = np.concatenate([full[1:], [False]])
        return lines.starts[full & ~before], lines.stops[full & ~after]
