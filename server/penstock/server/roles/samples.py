"""What goes from role to role: raw items and samples."""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.server.core.refs import ItemRef, SampleRef

RawItem = Any
"""What a source gives: a dict of columns, bytes, or whatever its data is."""

Sample = dict[str, Any]
"""What a processor gives: the named values of an example."""


MAX_SIZE = 2**63 - 1
"""The largest size of a sample, and the largest count: what an index can hold."""


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
