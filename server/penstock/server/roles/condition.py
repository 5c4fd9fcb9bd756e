"""Conditions on columns: which items of a source a job draws.

```
{language: en}                                  equal
{language: [en, de]}                            one of
{score: {min: 0.5}, length: {below: 8192}}      both hold; min and max include their limit
{source: {not: [books, forum]}, url: {not: null}}
```

Glossary:
    condition: What `where` asks of columns: only items for which it holds are drawn.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.common.nearest import hint
from penstock.wire.errors import InvalidJob

Scalar = str | int | float | bool | None

_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "min": ("greater_equal", lambda value, limit: value >= limit),
    "max": ("less_equal", lambda value, limit: value <= limit),
    "above": ("greater", lambda value, limit: value > limit),
    "below": ("less", lambda value, limit: value < limit),
}
_TESTS = (*_LIMITS, "not")

_ONES = np.array([byte.bit_count() for byte in range(256)], dtype=np.uint8)


class Condition:
    """A condition on the columns of items: all of its tests hold.

    A value that is missing, null, is a value like any other for equality and `not`, and never
    within a limit. Text is compared by its code points.

    Args:
        where: By column, what its value must be: a value, a list of values, or tests: `min`, `max`,
            `above`, `below` with a limit, `not` with a value or a list.
        key: Its place in a job file, for messages.

    Attributes:
        columns: The columns that it looks at, sorted.

    Raises:
        InvalidJob: It is not such a mapping.
    """

    def __init__(self, where: Mapping[str, Any], key: str = "distributor.where") -> None:
        if not isinstance(where, Mapping) or not where:
            raise InvalidJob(
                f"where is {where!r}: give columns with what their values must be, for example "
                "{language: en}",
                key=key,
            )
        self._tests: dict[str, list[tuple[str, Any]]] = {}
        for column, asked in sorted(where.items(), key=lambda pair: str(pair[0])):
            if not isinstance(column, str):
                raise InvalidJob(f"where names a column {column!r}: give text", key=key)
            self._tests[column] = _tests(asked, f"where.{column}", key)
        self.columns = tuple(self._tests)

    def to_json(self) -> Any:
        """Return the same value for every way of writing the condition."""
        return {column: [list(test) for test in tests] for column, tests in self._tests.items()}

    def holds(self, column: str, values: Any) -> NDArray[np.bool_]:
        """Tell for each value of a column whether its tests hold.

        Args:
            column: One of `columns`.
            values: An Arrow array or a sequence.

        Returns:
            bool of shape (values,).

        Raises:
            InvalidJob: The values cannot be compared with what is asked for.
        """
        tests = self._tests[column]
        try:
            if hasattr(values, "null_count"):
                return _of_arrow(values, tests)
            return np.array([all(_is(v, *test) for test in tests) for v in values], dtype=bool)
        except (TypeError, ValueError, NotImplementedError) as error:
            # Arrow's own errors are subclasses of these.
            asked = ", ".join(repr(value) for _, value in tests)
            raise InvalidJob(
                f"where.{column} cannot be compared with the values of this column, which are "
                f"{_kind(values)}: ask for such a value in place of {asked}",
                key="distributor.where",
            ) from error


def _kind(values: Any) -> str:
    """Return what the values of a column are, for a message."""
    if hasattr(values, "null_count"):
        return str(values.type)
    return " or ".join(sorted({type(value).__name__ for value in values if value is not None}))


def _tests(asked: Any, where: str, key: str) -> list[tuple[str, Any]]:
    if not isinstance(asked, Mapping):
        return [("in", _values(asked, where, key))]
    found: list[tuple[str, Any]] = []
    for test, value in sorted(asked.items(), key=lambda pair: str(pair[0])):
        if test == "not":
            found.append(("not", _values(value, f"{where}.not", key)))
        elif test in _LIMITS:
            if isinstance(value, bool) or not isinstance(value, str | int | float):
                raise InvalidJob(
                    f"{where}.{test} is {value!r}: give a number or text to compare with", key=key
                )
            found.append((test, value))
        else:
            raise InvalidJob(f"{where}.{test} is not a test: {hint(str(test), _TESTS)}", key=key)
    if not found:
        raise InvalidJob(f"{where} is empty: give a value, or {', '.join(_TESTS)}", key=key)
    return found


def _values(asked: Any, where: str, key: str) -> list[Scalar]:
    values = list(asked) if isinstance(asked, list | tuple) else [asked]
    for value in values:
        if not (value is None or isinstance(value, str | int | float)):
            raise InvalidJob(
                f"{where} is {value!r}: give text, a number, true, false or null, or a list of "
                "these",
                key=key,
            )
    if not values:
        raise InvalidJob(f"{where} is an empty list: no item would be left", key=key)
    return sorted(values, key=lambda value: (str(type(value)), str(value)))


def _is(value: Any, test: str, asked: Any) -> bool:
    if test in _LIMITS:
        return value is not None and _LIMITS[test][1](value, asked)
    found = any(_equal(value, each) for each in asked)
    return found == (test == "in")


def _equal(value: Any, asked: Scalar) -> bool:
    """Tell whether a value is the one asked for: true is not 1, and text is not a number."""
    if value is None or asked is None:
        return value is asked
    if isinstance(value, bool | np.bool_) != isinstance(asked, bool):
        return False
    return bool(value == asked)


def _of_arrow(values: Any, tests: Sequence[tuple[str, Any]]) -> NDArray[np.bool_]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kept = np.ones(len(values), dtype=bool)
    for test, asked in tests:
        if test in _LIMITS:
            found = pc.call_function(_LIMITS[test][0], [values, pa.scalar(asked)])
            kept &= _bools(found.fill_null(False))
            continue
        found_any = np.zeros(len(values), dtype=bool)
        for each in asked:
            if each is None:
                found_any |= _bools(values.is_null())
            elif pa.types.is_boolean(values.type) == isinstance(each, bool):
                found_any |= _bools(pc.equal(values, pa.scalar(each)).fill_null(False))
        kept &= found_any == (test == "in")
    return kept


def _bools(array: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = array.to_numpy(zero_copy_only=False).astype(bool)
    return found


class Kept:
    """Which items of a source are kept, a bit each, and where the n-th kept one is.

    Args:
        bits: uint8 (ceil(length / 8),): the bit of item i is bit i mod 8, from the lowest, of byte
            i div 8; bits beyond the length are 0.
        length: How many items the source has.
    """

    STEP = 4096
    """Items between two counts that are kept: a byte or so for 512 of them."""

    TOGETHER = 256
    """Steps whose bits are spread out at a time: some 10 MiB."""

    def __init__(self, bits: NDArray[np.uint8], length: int) -> None:
        self.bits, self.length = bits, length
        starts = np.arange(0, len(bits), self.STEP // 8)
        sums = np.add.reduceat(_ONES[bits], starts, dtype=np.int64) if len(bits) else starts
        self._before = np.concatenate([[0], np.cumsum(sums)])

    @classmethod
    def of(cls, kept: NDArray[np.bool_]) -> Kept:
        """Return it for one bool per item."""
        return cls(np.packbits(kept, bitorder="little"), len(kept))

    def __len__(self) -> int:
        return int(self._before[-1])

    def __getitem__(self, number: int) -> int:
        """Return the item that `number` kept ones precede."""
        part = int(np.searchsorted(self._before, number, side="right")) - 1
        places = np.flatnonzero(np.unpackbits(self._bits_of(part), bitorder="little"))
        return part * self.STEP + int(places[number - int(self._before[part])])

    def take(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the items at many numbers, equal to `[self[number] for number in numbers]`.

        Fast where the numbers lie close together: every step of items with one of them is looked
        through once.

        Args:
            numbers: int64 (n,), in any order, also several times the same.

        Returns:
            int64 (n,).

        Raises:
            IndexError: A number is not in `[0, len(self))`.
        """
        if not len(numbers):
            return np.empty(0, np.int64)
        order = np.argsort(numbers, kind="stable")
        rising = numbers[order]
        if rising[0] < 0 or rising[-1] >= len(self):
            raise IndexError(f"numbers {rising[0]} to {rising[-1]} are not in [0, {len(self)})")
        part = np.searchsorted(self._before, rising, side="right") - 1
        starts = np.flatnonzero(np.diff(part, prepend=-1))
        ends = np.append(starts[1:], len(part))
        items = np.empty(len(numbers), np.int64)
        for first in range(0, len(starts), self.TOGETHER):
            among = slice(first, first + self.TOGETHER)
            parts = part[starts[among]]
            here = slice(int(starts[among][0]), int(ends[among][-1]))
            # All parts but a source's last have STEP items, and that one is the last here.
            bits = np.concatenate([self._bits_of(number) for number in parts.tolist()])
            places = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            before = self._before[parts]
            counts = self._before[parts + 1] - before
            shifts = np.cumsum(counts) - counts - before
            found = places[rising[here] + np.repeat(shifts, ends[among] - starts[among])]
            items[order[here]] = parts[found // self.STEP] * self.STEP + found % self.STEP
        return items

    def _bits_of(self, part: int) -> NDArray[np.uint8]:
        first = part * self.STEP
        return self.bits[first // 8 : (first + self.STEP) // 8]

    def run(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return kept items one after another: those that `start` to `stop - 1` kept ones precede.

        Returns:
            int64 (stop - start,), ascending.
        """
        if start >= stop:
            return np.empty(0, np.int64)
        first, last = self[start] // 8, self[stop - 1] // 8 + 1
        places = np.flatnonzero(np.unpackbits(self.bits[first:last], bitorder="little"))
        skipped = start - self.before(8 * first)
        return places[skipped : skipped + stop - start] + 8 * first

    def mask(self) -> NDArray[np.bool_]:
        """Return one bool per item: bool (length,)."""
        return np.unpackbits(self.bits, bitorder="little")[: self.length].astype(bool)

    def before(self, item: int) -> int:
        """Return how many items before `item` are kept."""
        part, rest = divmod(item, self.STEP)
        first = part * self.STEP // 8
        bits = np.unpackbits(self.bits[first : first + -(-rest // 8)], bitorder="little")
        return int(self._before[part]) + int(bits[:rest].sum())

    def meets(self, other: Kept) -> int | None:
        """Return the first item that both keep; None = there is none."""
        both = self.bits & other.bits
        if not both.any():
            return None
        place = int(np.flatnonzero(both)[0])
        bit = int(both[place])
        return place * 8 + (bit & -bit).bit_length() - 1


def as_text(kept: NDArray[np.bool_]) -> str:
    """Return one bool per item as text, for JSON: `from_text` gives them back."""
    bits = np.packbits(kept, bitorder="little").tobytes()
    return base64.b64encode(zlib.compress(bits)).decode()


def from_text(text: str, length: int) -> NDArray[np.bool_]:
    """Return what `as_text` was given, with so many items: bool (length,)."""
    bits = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    return np.unpackbits(bits, bitorder="little")[:length].astype(bool)
