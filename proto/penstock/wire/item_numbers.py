"""The number of an item: its index in a source, or shard and row if the source is a stream.

Both are one unsigned integer below 2**53, on the wire, in stores and in JSON, where every reader
has it exactly. An index is below 2**48; a row has bit 52 set, then 20 bits of the shard's number
and 32 of the row's, so that a number says which of the two it is.
"""

from __future__ import annotations

import re

ROW_BIT = 1 << 52
MAX_SHARDS, MAX_ROWS = 1 << 20, 1 << 32

_NUMBER = re.compile(r"(\d+)(?::(\d+))?")


def row_index(shard: int, row: int) -> int:
    """Return the number of a row of a shard.

    Raises:
        ValueError: There are more shards or rows than a number can name.
    """
    if not (0 <= shard < MAX_SHARDS and 0 <= row < MAX_ROWS):
        raise ValueError(
            f"row {row} of shard {shard} has no number: a stream has at most {MAX_SHARDS:,} shards "
            f"of {MAX_ROWS:,} rows"
        )
    return ROW_BIT | shard << 32 | row


def shard_row(index: int) -> tuple[int, int]:
    """Return shard and row of a number that `row_index` gave.

    Raises:
        ValueError: It is the index of an item.
    """
    if not ROW_BIT <= index < 2 * ROW_BIT:
        raise ValueError(f"{index} is not the number of a row")
    return index >> 32 & MAX_SHARDS - 1, index & MAX_ROWS - 1


def number_text(index: int) -> str:
    """Return a number as people write it: `17`, or `SHARD:ROW`."""
    if index < ROW_BIT:
        return str(index)
    shard, row = shard_row(index)
    return f"{shard}:{row}"


def parse_number(text: str) -> int:
    """Return the number that `number_text` wrote.

    Raises:
        ValueError: It is not such a text.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not the number of an item: write 17, or SHARD:ROW")
    return int(found[1]) if found[2] is None else row_index(int(found[1]), int(found[2]))
