"""What goes from role to role: raw items and samples."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NamedTuple, SupportsIndex

from penstock.server.core.refs import ItemRef, SampleRef

RawItem = Any
"""What a source gives: a dict of columns, bytes, or whatever its data is."""

Sample = dict[str, Any]
"""What a processor gives: the named values of an example."""


MAX_SIZE = 2**63 - 1
"""The largest size of a sample, and the largest count: what an index can hold."""


TOKENS = "tokens"
"""The measure that is cut with a sample; all others stay with it as a whole."""


def media_places(measures: Sequence[str], number: int) -> list[int]:
    """Return which of so many counts are of more than tokens; those without a name all are."""
    return [place for place in range(number) if [*measures[place : place + 1]] != [TOKENS]]


class SampleSizes(NamedTuple):
    """How large one sample is, known without processing its item.

    Attributes:
        size: By what it is packed: tokens, most often.
        counts: What else it counts, in the order of the processor's `measures`.
    """

    size: int
    counts: tuple[int, ...] = ()


def ref_of(item: ItemRef, size: int | SampleSizes, part: int = 0) -> SampleRef:
    """Return a whole sample of an item, of the size that was told of it."""
    if isinstance(size, SampleSizes):
        return SampleRef(item, part, size.size, None, size.counts)
    return SampleRef(item, part, size)


def wrong_counts(counts: Sequence[Any], measures: Sequence[str]) -> str | None:
    """Return what is wrong with counts that a role gave; None = nothing.

    Args:
        counts: What it gave.
        measures: What is to be counted, in order.
    """
    try:
        given = len(counts)
    except TypeError:  # None, a number, an array without an axis
        given = -1
    if given != len(measures):
        what = f"its measures are {', '.join(measures)}" if measures else "it has no measures"
        return f"{what}, so give {len(measures)} counts, as SampleSizes(size, counts)"
    for name, count in zip(measures, counts, strict=True):
        if not isinstance(count, SupportsIndex) or isinstance(count, bool):
            return f"{name} is {count!r}: give a whole number"
        if not 0 <= index(count) <= MAX_SIZE:
            return f"{name} is {count}: give a number from 0 to 2^63 - 1"
    return None
