"""Arrow rows as items: dicts of plain Python values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.server.sources.access import require


class ArrowRows:
    """The rows of a table as items.

    An item is a dict in the order of the columns. Strings, bytes, numbers, booleans, None, structs
    (dicts) and nested lists are Python's own; a list of numbers or booleans without None in it is a
    NumPy array of shape (length,) of the column's dtype and belongs to the caller. Extension types
    give what they are stored as, whichever libraries happen to be imported: an image is a dict of
    `bytes` and `path`, undecoded.

    Args:
        table: A `pyarrow.Table`.
    """

    def __init__(self, table: Any) -> None:
        pa = require("pyarrow")
        self._columns: list[tuple[str, Any, Callable[[Any], Any]]] = []
        for name in table.column_names:
            column = table.column(name)
            if isinstance(column.type, pa.BaseExtensionType):
                column = column.cast(column.type.storage_type)
            numeric = _is_list_of_numbers(pa, column.type)
            self._columns.append((name, column, _arrays(column.type) if numeric else _plain))

    def items(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the items at `rows`, each a dict of its own."""
        return [
            {name: convert(column[row]) for name, column, convert in self._columns} for row in rows
        ]


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

    It reads Arrow's memory itself: `to_numpy` imports pandas where that is installed, which costs
    every worker a quarter of a second and 40 MB.
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


__all__ = ["ArrowRows"]
