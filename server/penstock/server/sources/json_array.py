"""Files that are one JSON array: its elements are found by the commas between them."""

from __future__ import annotations

from codecs import BOM_UTF8
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.sources.blocked import FileBlock, FileIndex, cut
from penstock.server.sources.cache import BlockRows, EachRow
from penstock.server.sources.first_bytes import FIRST_BYTES, refuse_other_kinds
from penstock.server.sources.json_values import JsonFiles, json_value
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import invalid_files
from penstock.wire.errors import InvalidJob

_OPEN, _CLOSE, _COMMA, _QUOTE, _BACKSLASH = 1, 2, 3, 4, ord("\\")
_KIND_OF = {"[": _OPEN, "{": _OPEN, "]": _CLOSE, "}": _CLOSE, ",": _COMMA, '"': _QUOTE}
_KINDS = bytes(_KIND_OF.get(chr(byte), 0) for byte in range(256))
"""What each byte is; 0 = nothing that separates."""


class TopLevel(NamedTuple):
    """What separates the elements of an array.

    Attributes:
        commas: Where the commas between elements are: int64 (commas,).
        end: Where the bracket is that closes the array; None = not in these bytes.
    """

    commas: NDArray[np.int64]
    end: int | None


def top_level(data: bytes) -> TopLevel:
    """Return the commas between the elements of an array, and where it ends.

    Only brackets, commas and quotes are looked at: in UTF-8 no other character has their bytes.

    Args:
        data: JSON from the start of an element on.
    """
    kinds = np.frombuffer(data.translate(_KINDS), np.uint8)
    at = np.flatnonzero(kinds)
    kind = kinds[at]
    is_quote = kind == _QUOTE
    quotes = _unescaped(data, at[is_quote])
    at, kind = at[~is_quote], kind[~is_quote]
    # An even number of quotes before it: it is not in a string.
    outside = np.searchsorted(quotes, at) % 2 == 0
    at, kind = at[outside], kind[outside]
    depth = np.cumsum((kind == _OPEN).astype(np.int32) - (kind == _CLOSE))
    ends = np.flatnonzero(depth < 0)
    end = None
    if len(ends):
        end = int(at[ends[0]])
        at, kind, depth = at[: ends[0]], kind[: ends[0]], depth[: ends[0]]
    return TopLevel(at[(kind == _COMMA) & (depth == 0)], end)


def _unescaped(data: bytes, quotes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return those quotes that do not follow an odd number of backslashes."""
    array = np.frombuffer(data, np.uint8)
    follows = (quotes > 0) & (array[quotes - 1] == _BACKSLASH)
    if not follows.any():
        return quotes
    slashes = np.flatnonzero(array == _BACKSLASH)
    begins = np.concatenate([[True], np.diff(slashes) > 1])
    first = np.maximum.accumulate(np.where(begins, np.arange(len(slashes)), 0))  # of each run
    last = np.searchsorted(slashes, quotes[follows] - 1)
    is_escaped = follows.copy()
    is_escaped[follows] = (last - first[last]) % 2 == 0
    found: NDArray[np.int64] = quotes[~is_escaped]
    return found


class JsonSource(JsonFiles):
    """The elements of JSON files, each of which is one array.

    Files follow one another by their logical names. Only elements that are wanted are parsed, and
    one that is not JSON is a bad item of its own, named with its number. Values are what Python's
    `json` makes of them; a list of numbers is a list.

    Raises:
        InvalidJob: No file matches, a file is not an array, no elements.
        MissingExtra: fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "json"
    version: ClassVar[int | str | None] = 1
    suffixes: ClassVar[tuple[str, ...]] = (".json",)
    values_are: ClassVar[str] = "elements"

    def index_of(self, file: DataFile) -> FileIndex:
        """Return blocks of whole elements.

        Raises:
            InvalidJob: It is not one JSON array.
        """
        read_at = self.file_set.from_start_to_end(file)
        start = _first_element(file, read_at(0, min(file.size, 1 << 16)))
        index, element, seen = FileIndex.empty(), 0, TopLevel(np.empty(0, np.int64), None)

        def end_of(data: bytes, is_last: bool) -> int:
            nonlocal seen
            commas, closing = seen = top_level(data)
            if closing is not None:
                return closing + 1
            return int(commas[-1]) + 1 if len(commas) and not is_last else 0

        for place, data in cut(read_at, start, file.size, self.block_bytes, end_of):
            if seen.end is None and place + len(data) == file.size:
                raise invalid_files(
                    f"{file.path} ends within its array, in element "
                    f"{element + len(seen.commas)}: it was not written whole; write it "
                    "again"
                )
            items = _count(data, seen)
            if items:
                index.add(place, place + len(data), items, first=element)
            element += items
            if seen.end is not None:
                _refuse_rest(file, read_at, place + len(data))
                break
        return index

    def rows_of(self, block: FileBlock, data: bytes) -> BlockRows:
        """Return the elements of a block; they are parsed when they are asked for."""
        commas, end = top_level(data)
        stops = commas if end is None else np.append(commas, end)
        starts = np.concatenate([[0], stops[:-1] + 1])
        names = self.names  # what is kept in memory does not keep its source alive

        def item(row: int) -> Any:
            start, stop = int(starts[row]), int(stops[row])
            what = f"element {block.first + row}, at byte {block.start + start},"
            return json_value(block, what, data[start:stop], names)

        return EachRow(item)


def _count(data: bytes, seen: TopLevel) -> int:
    """Return how many elements a block holds: each ends with a comma, or with the array."""
    commas, end = seen
    if end is None:
        return len(commas)
    last = int(commas[-1]) + 1 if len(commas) else 0
    # Nothing between the brackets is an empty array; nothing after a comma is a mistake.
    return len(commas) + (1 if len(commas) or data[last:end].strip() else 0)


def _first_element(file: DataFile, head: bytes) -> int:
    """Return where the first element of an array starts."""
    refuse_other_kinds(file, head[:FIRST_BYTES])
    text = head.removeprefix(BOM_UTF8)
    inner = text.lstrip()
    if not inner.startswith(b"["):
        what = "holds an object" if inner.startswith(b"{") else "does not begin with ["
        raise InvalidJob(
            f"{file.path} {what}: a JSON file must be an array of items; for an object in every "
            "line use type: jsonl",
            key="source.type",
        )
    return len(head) - len(inner) + 1


def _refuse_rest(file: DataFile, read_at: Any, start: int) -> None:
    rest = read_at(start, min(file.size, start + 64)).strip()
    if rest:
        raise invalid_files(
            f"{file.path} goes on after its array, at byte {start}: a JSON file is one array; for "
            "an array in every line use type: jsonl"
        )
