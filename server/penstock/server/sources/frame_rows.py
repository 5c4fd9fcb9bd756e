"""A decoded row group of frames: each feature of a fixed shape as one array over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.server.files.filesystems import require
from penstock.server.sources.arrow import ArrowRows, numbers_of
from penstock.server.sources.lerobot_info import NUMBERS, Feature
from penstock.server.sources.row_groups import RowGroup
from penstock.wire.errors import BadItem

_WIDE = {"f": np.float32, "i": np.int64, "u": np.int64, "b": np.bool_}


def dtype_given(feature: Feature) -> np.dtype[Any]:
    """Return the dtype of the values that items have of a feature of numbers.

    That of torch's `tensor` of Python's numbers, as LeRobot's own reader has it: float32 for
    floats, int64 for ints, bool for booleans.
    """
    return np.dtype(_WIDE[np.dtype(feature.dtype).kind])


class FrameRows:
    """The rows of a row group.

    Args:
        table: The row group, with the columns of the features.
        features: The features that lie in the table.
        group: Which row group it is, for errors.

    Attributes:
        group: Which row group it is.
        nbytes: What it takes in memory.
    """

    def __init__(self, table: Any, features: Sequence[Feature], group: RowGroup) -> None:
        self.group = group
        self._arrays: dict[str, NDArray[Any]] = {}
        self._features = {feature.name: feature for feature in features}
        others = []
        for feature in features:
            column = table.column(feature.name)
            found = _array(column, feature) if feature.kind == NUMBERS else None
            if found is None:
                others.append(feature.name)
            else:
                self._arrays[feature.name] = found
        kept = table.select(others)
        self._others = ArrowRows(kept, group.bad_value)
        self.nbytes = kept.nbytes + sum(array.nbytes for array in self._arrays.values())

    def values(self, name: str, rows: NDArray[np.int64]) -> list[Any] | NDArray[Any]:
        """Return a feature's values in some rows: numbers as an array of their own.

        Raises:
            BadItem: A value is missing, or has another shape than is declared.
        """
        if (array := self._arrays.get(name)) is not None:
            return array[rows]
        items = [self._other(name, int(row)) for row in rows]
        feature = self._features[name]
        return np.stack(items) if feature.kind == NUMBERS else items

    def value(self, name: str, row: int) -> Any:
        """Return a feature's value in a row: numbers of a fixed shape as an array of their own.

        Raises:
            BadItem: As `values`.
        """
        if (array := self._arrays.get(name)) is not None:
            found = array[row]
            return found.copy() if isinstance(found, np.ndarray) else found
        return self._other(name, row)

    def _other(self, name: str, row: int) -> Any:
        value = self._others.value(name, row)
        feature = self._features[name]
        if feature.kind != NUMBERS:
            return value
        try:
            found = np.array(value, dtype=object)  # as a float, None would be not a number
            if any(number is None for number in found.flat):
                raise self._bad(name, row, "has a number missing")
            array = found.astype(dtype_given(feature))
        except (TypeError, ValueError):
            raise self._bad(name, row, "is not of one shape") from None
        shape = _given_shape(feature)
        if array.size != prod(shape):
            raise self._bad(
                name, row, f"has the shape {array.shape}, and {feature.shape} is declared"
            )
        return array.reshape(shape)[()]

    def items(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the values of all features in some rows, a dict for each.

        Raises:
            BadItem: As `values`.
        """
        return [{name: self.value(name, row) for name in self._features} for row in rows]

    def is_other(self, what: str) -> BadItem:
        """Return the error of a row group that holds other rows than was known."""
        return BadItem(
            f"{self.group.file.path}: {what}: the table or meta is of another version of the "
            "folder; copy both",
            path=self.group.file.path,
            row_group=self.group.number,
            reason=f"{self.group.file.name}: {what}",
        )

    def _bad(self, name: str, row: int, what: str) -> BadItem:
        where = f"row {row} of row group {self.group.number}"
        return BadItem(
            f"{self.group.file.path}: {name!r} in {where} {what}: write it again, or let "
            "on_item_error: quarantine skip it",
            path=self.group.file.path,
            row_group=self.group.number,
            reason=f"{self.group.file.name}: {name!r} in {where} {what}",
        )


def _given_shape(feature: Feature) -> tuple[int, ...]:
    return () if feature.shape == (1,) else feature.shape


def _array(column: Any, feature: Feature) -> NDArray[Any] | None:
    """Return a column of numbers as an array (rows, *shape); None where a row has another shape."""
    pa = require("pyarrow")
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.cast(column.type.storage_type)
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):  # of no rows, or of several chunks
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    rows, sides = len(values), []
    while pa.types.is_nested(values.type):
        is_list = hasattr(values, "flatten") and hasattr(values.type, "value_type")
        if not is_list or values.null_count or not _is_regular(pa, values):
            return None
        inner = values.flatten()
        sides.append(len(inner) // max(1, len(values)))
        values = inner
    one, flat = (), (prod(feature.shape),)  # a single number may stand in no list
    if tuple(sides) not in (feature.shape, flat, one if flat == (1,) else flat):
        return None
    if values.null_count or len(values) != rows * prod(feature.shape):
        return None
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.uint8())
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return None
    array = numbers_of(values).astype(dtype_given(feature))
    return array.reshape(rows, *_given_shape(feature))


def _is_regular(pa: Any, lists: Any) -> bool:
    """Tell whether all lists are of one length."""
    if pa.types.is_fixed_size_list(lists.type) or not len(lists):
        return True
    lengths = np.diff(numbers_of(lists.offsets))
    return bool((lengths == lengths[0]).all())
