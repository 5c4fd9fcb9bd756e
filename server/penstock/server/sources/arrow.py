"""Arrow rows as items: dicts of plain Python values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.server.files.filesystems import require
from penstock.wire.errors import PenstockError

_NO_VALUE = (ValueError, OverflowError, IndexError)
"""A text that is not UTF-8, a time past the year 9999, a value that its dictionary lacks."""


class ArrowRows:
    """The rows of a table as items.

    An item is a dict in the order of the columns. Strings, bytes, numbers, booleans, None, structs
    (dicts) and nested lists are Python's own; a list of numbers or booleans without None in it is a
    NumPy array of shape (length,) of the column's dtype and belongs to the caller. Extension types
    give what they are stored as, whichever libraries happen to be imported: an image is a dict of
    `bytes` and `path`, undecoded.

    Args:
        table: A `pyarrow.Table`.
        bad: Makes the error of a value that has no form in Python, as a text that is not UTF-8, of
            its row, its column and what was raised.
    """

    def __init__(self, table: Any, bad: Callable[[int, str, Exception], PenstockError]) -> None:
        pa = require("pyarrow")
        self._bad = bad
        self.sequences: dict[str, ListColumn] = {}
        self._columns: list[tuple[str, Callable[[int], Any]]] = []
        for name in table.column_names:
            column = table.column(name)
            if isinstance(column.type, pa.BaseExtensionType):
                column = column.cast(column.type.storage_type)
            if dtype_of_lists(str(column.type)) is not None and (found := ListColumn.of(column)):
                self.sequences[name] = found
                self._columns.append((name, found.row))
            else:
                numeric = _is_list_of_numbers(pa, column.type)
                convert = _arrays(column.type) if numeric else _plain
                self._columns.append((name, partial(_converted, column, convert)))

    def items(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items at `rows`, each a dict of its own.

        Raises:
            PenstockError: A value of one of them has no form in Python: see `bad`.
        """
        try:
            return [{name: value(row) for name, value in self._columns} for row in rows]
        except _NO_VALUE:
            for row in rows:
                for name, value in self._columns:
                    try:
                        value(row)
                    except _NO_VALUE as error:
                        raise self._bad(row, name, error) from None
            raise

    def value(self, column: str, row: int) -> Any:
        """Return the value of one column in a row.

        Raises:
            PenstockError: It has no form in Python: see `bad`.
        """
        try:
            return self._values(column)(row)
        except _NO_VALUE as error:
            raise self._bad(row, column, error) from None

    def length(self, column: str, row: int) -> int:
        """Return how many numbers a list has; -1 where it, or one of them, is missing."""
        if (found := self.sequences.get(column)) is not None:
            return found.bounds[row + 1] - found.bounds[row]
        numbers = self._values(column)(row)
        return len(numbers) if isinstance(numbers, np.ndarray) else -1

    def numbers(self, column: str, row: int, start: int, stop: int) -> npt.NDArray[Any]:
        """Return numbers `[start, stop)` of a list that has a length: not to be kept."""
        if (found := self.sequences.get(column)) is not None:
            first = found.bounds[row]
            return found.values[first + start : first + stop]
        numbers: npt.NDArray[Any] = self._values(column)(row)[start:stop]
        return numbers

    def _values(self, column: str) -> Callable[[int], Any]:
        return next(value for name, value in self._columns if name == column)


class ListColumn:
    """A column of lists of numbers, none of them missing, as two arrays.

    Args:
        values: All numbers of all rows, one after another.
        offsets: int64 (rows + 1,): where each row begins in `values`, and the last one ends.
    """

    __slots__ = ("bounds", "values")

    def __init__(self, values: npt.NDArray[Any], offsets: npt.NDArray[np.int64]) -> None:
        self.values = values
        # A view gives Python's integers, three times as fast as an array does.
        self.bounds = memoryview(offsets.data)

    @classmethod
    def of(cls, column: Any) -> ListColumn | None:
        """Return an Arrow column of lists of numbers; None where a row or a number is missing."""
        pa = require("pyarrow")
        rows = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        if rows.null_count or not len(rows):
            return None
        if pa.types.is_fixed_size_list(rows.type):
            size = rows.type.list_size
            offsets = np.arange(rows.offset, rows.offset + len(rows) + 1, dtype=np.int64) * size
        else:
            offsets = numbers_of(rows.offsets).astype(np.int64)
        if rows.values.null_count:
            return None
        return cls(numbers_of(rows.values), offsets)

    def row(self, row: int) -> npt.NDArray[Any]:
        """Return the numbers of a row, in an array of its own.

        A copy: a view would keep the whole block alive, which the cache's bound does not count.
        """
        return self.values[self.bounds[row] : self.bounds[row + 1]].copy()


_LISTS = re.compile(
    r"(?:large_)?list<\w+: (\w+)(?: not null)?>|fixed_size_list<\w+: (\w+)(?: not null)?>\[\d+\]"
)
_NUMBERS = {
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
"""Arrow's names of types, and NumPy's. Booleans are not among them: Arrow packs them into bits."""


def dtype_of_lists(kind: str) -> np.dtype[Any] | None:
    """Return the dtype of the numbers in lists, by Arrow's name of the lists' type.

    None where it is not a type of lists of numbers.
    """
    found = _LISTS.fullmatch(kind)
    name = _NUMBERS.get(found[1] or found[2]) if found else None
    return None if name is None else np.dtype(name)


def numbers_of(array: Any) -> npt.NDArray[Any]:
    """Return an Arrow array of numbers without nulls, as NumPy; it reads Arrow's memory itself.

    `to_numpy` imports pandas where that is installed, which costs every worker a quarter of a
    second and 40 MB.
    """
    dtype = np.dtype(array.type.to_pandas_dtype())
    if not len(array):  # it may have no memory at all
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _converted(column: Any, convert: Callable[[Any], Any], row: int) -> Any:
    return convert(column[row])


def _is_list_of_numbers(pa: Any, kind: Any) -> bool:
    types = pa.types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return False
    inner = kind.value_type
    return bool(types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner))


def _plain(scalar: Any) -> Any:
    return scalar.as_py()


def _arrays(kind: Any) -> Callable[[Any], Any]:
    """Return what makes an array of a list of numbers of this type.

    It reads Arrow's memory itself, as `numbers_of` does.
    """
    dtype = np.dtype(kind.value_type.to_pandas_dtype())

    def array(scalar: Any) -> Any:
        values = scalar.values
        if values is None or values.null_count:
            return scalar.as_py()
        start, count = values.offset, len(values)
        if not count:
            return np.empty(0, dtype)
        data = values.buffers()[1]
        # A copy: a view would keep the whole block alive, which the cache's bound does not count.
        if dtype.kind == "b":
            first = start // 8
            bits = np.frombuffer(data, np.uint8, (start + count + 7) // 8 - first, first)
            bits = np.unpackbits(bits, bitorder="little")[start % 8 :][:count]
            return bits.astype(bool)
        return np.frombuffer(data, dtype, count, start * dtype.itemsize).copy()

    return array


def json_decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Return what turns stored values of an Arrow type into those that `datasets` gives.

    JSON objects that differ in their keys or types, as the turns of a conversation some of which
    call tools, are stored as text of the type `arrow.json`.

    Args:
        kind: The type of a column.

    Returns:
        The decoder; None if the type has no JSON in it.
    """
    pa = require("pyarrow")
    if getattr(kind, "extension_name", "") == "arrow.json":
        return lambda value: json.loads(value) if isinstance(value, str) else value
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = json_decoder(kind.value_type)
        if inner is not None:
            return lambda values: None if values is None else [inner(value) for value in values]
    if pa.types.is_struct(kind):
        fields = {field.name: json_decoder(field.type) for field in kind}
        found = {name: decode for name, decode in fields.items() if decode is not None}
        if found:
            return lambda value: (
                value
                and {
                    name: found[name](inner) if name in found else inner
                    for name, inner in value.items()
                }
            )
    return None
