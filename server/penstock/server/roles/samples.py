"""What goes from role to role: raw items and samples."""

from __future__ import annotations

from typing import Any, NamedTuple

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
