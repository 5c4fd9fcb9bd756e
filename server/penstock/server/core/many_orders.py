"""Places of many short orders at once: a permutation of `[0, n)` for each of many n.

Each is a generalised Feistel network with cycle walking, as a long `Permutation` is, and its round
keys come from one number. What one window of draws needs are a few places of a thousand orders;
objects for these would cost more than the draws.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.permutation import ROUNDS
from penstock.server.core.splitmix import GAMMA, MASK, mix_many

MANY_ORDERS_VERSION = 1
"""The version of every order made here: roles that use them name it in their identity."""

MAX_LENGTH = 1 << 48
"""The longest order, as of a `Permutation`."""


def keys_of(start: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a key for each number: uint64, in the shape of `numbers`.

    Args:
        start: What the keys are for, a number of 64 bits.
        numbers: At least 0.
    """
    return mix_many(np.uint64(start) + (numbers.astype(np.uint64) + np.uint64(1)) * _GAMMA)


def take_each(
    lengths: NDArray[np.int64], keys: NDArray[np.uint64], places: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return what stands at a place of each order.

    An order of fewer than some ten elements is not quite any of them with the same chance; what
    stands at one place of it is.

    Args:
        lengths: int64 (n,): how long each order is, 1 to `MAX_LENGTH`.
        keys: uint64 (n,): which order of that length it is.
        places: int64 (n,): the place in each, from 0 on and below its length.

    Returns:
        int64 (n,), each in `[0, length)`.

    Raises:
        ValueError: A place is not in its order.
    """
    if len(lengths) and not (
        lengths.max() <= MAX_LENGTH and places.min() >= 0 and (places < lengths).all()
    ):
        raise ValueError(f"a place is not in its order, or an order is longer than {MAX_LENGTH}")
    # As many columns as rows, or one more: a*b exceeds n by less than a, so walking back is rare.
    columns = np.ceil(np.sqrt(lengths)).astype(np.uint64)
    size = lengths.astype(np.uint64)
    columns += columns * columns < size  # the root of a large number may be rounded down
    rows = (size + columns - np.uint64(1)) // columns
    values = places.astype(np.uint64)
    walking = np.arange(len(values))
    while walking.size:
        values[walking] = _round_trip(
            values[walking], columns[walking], rows[walking], keys[walking]
        )
        walking = walking[values[walking] >= size[walking]]
    return values.astype(np.int64)


_GAMMA = np.uint64(GAMMA)
_ROUND_KEYS = [np.uint64((GAMMA * (2 * number + 1)) & MASK) for number in range(ROUNDS)]


def _round_trip(
    values: NDArray[np.uint64],
    columns: NDArray[np.uint64],
    rows: NDArray[np.uint64],
    keys: NDArray[np.uint64],
) -> NDArray[np.uint64]:
    high, low = np.divmod(values, columns)
    for number, key in enumerate(_ROUND_KEYS):
        # Mixed with the key before the half is: else halves of two orders would share rounds.
        if number & 1:
            high = (high + mix_many(mix_many(keys + key) ^ low) % rows) % rows
        else:
            low = (low + mix_many(mix_many(keys + key) ^ high) % columns) % columns
    return high * columns + low
