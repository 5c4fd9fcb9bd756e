"""The counts that a header bears, as the message has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from penstock.wire.errors import UnsupportedValue
from penstock.wire.frame.body_layout import plain_name
from penstock.wire.v1 import feed_pb2


def add_counts(add: Callable[[], feed_pb2.Count], counts: Mapping[str, int]) -> None:
    """Add counts to a message, sorted by name.

    Args:
        add: Adds one.
        counts: By name.

    Raises:
        UnsupportedValue: One does not fit int64.
    """
    for name, value in sorted(counts.items()):
        if not -(1 << 63) <= value < 1 << 63:
            raise UnsupportedValue(
                f"count {name!r} of a batch is {value}, which does not fit int64",
                name=name,
                type="int",
            )
        count = add()
        count.name, count.value = plain_name(name), value


@lru_cache(1024)
def accounting_field(accounting: tuple[tuple[str, int], ...]) -> bytes:
    """Return the accounting of a batch as a part of a serialized header.

    It is made once for batches that it is the same of, as it is of most: some items were drawn.

    Args:
        accounting: Names and numbers.

    Raises:
        UnsupportedValue: One does not fit int64.
    """
    part = feed_pb2.BatchHeader()
    add_counts(part.accounting.add, dict(accounting))
    return part.SerializeToString()
