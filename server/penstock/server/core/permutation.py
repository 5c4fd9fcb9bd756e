"""The order of items: a permutation of `[0, n)` that is computed, not stored.

Above `TABLE_ITEMS` it is a generalised Feistel network over `Z_a x Z_b` with a*b just above n, and
cycle walking back into `[0, n)` (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002).
Round keys come from BLAKE2b over (seed, epoch, purpose); the round function is the finalizer of
SplitMix64 (Steele, Lea and Flood, 2014; constants by Stafford, mix 13). Memory is O(1), any element
takes a few microseconds, and no library's generator is used, so the order is the same for ever.
Below, where a network of few rounds prefers some orders to others, it is a small table made by
Fisher and Yates's shuffle with the same mix.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import numpy.typing as npt

from penstock.server.core.splitmix import GAMMA, MASK, MIX_1, MIX_2, mix, mix_many

ORDER_VERSION = 1
"""The version of every order made here, part of the log id: a change of arithmetic raises it."""

MAX_ITEMS = 1 << 48
"""The largest n. Beyond it a round's value modulo a would be visibly biased."""

TABLE_ITEMS = 256
"""Up to this n the order is a table, 2 KiB at most: eight rounds on a 3 x 2 domain visibly prefer
some of the 120 orders of five elements; a table gives every order alike."""

ROUNDS = 8
"""Even: as many for either half. FF1 of NIST SP 800-38G has ten, and that is against attackers."""


class Permutation:
    """A permutation of `[0, n)`, keyed by (seed, epoch, purpose).

    Args:
        n: How many numbers, 0 to `MAX_ITEMS`.
        seed: The job's seed, any integer.
        epoch: Every epoch has an order of its own.
        purpose: What is ordered, so that blocks and rows of one job do not share an order.

    Raises:
        ValueError: n is negative or above `MAX_ITEMS`.
    """

    __slots__ = ("_columns", "_keys", "_rows", "_table", "n")

    def __init__(self, n: int, seed: int, epoch: int = 0, purpose: str = "items") -> None:
        if not 0 <= n <= MAX_ITEMS:
            raise ValueError(f"a permutation has 0 to {MAX_ITEMS} elements, not {n}")
        self.n = n
        # a*b exceeds n by less than a, so walking back into [0, n) is rare.
        self._columns = math.isqrt(max(n - 1, 0)) + 1
        self._rows = -(-n // self._columns)
        text = f"penstock order {ORDER_VERSION}\0{seed}\0{epoch}\0{purpose}".encode()
        digest = hashlib.blake2b(text, digest_size=8 * ROUNDS).digest()
        self._keys = tuple(
            int.from_bytes(digest[start : start + 8], "little") for start in range(0, 8 * ROUNDS, 8)
        )
        self._table = _shuffled(n, self._keys[0]) if n <= TABLE_ITEMS else None

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, position: int) -> int:
        """Return the number at `position` of the order.

        Raises:
            IndexError: The position is not in `[0, n)`.
        """
        n = self.n
        if not 0 <= position < n:
            raise IndexError(f"position {position} is not in [0, {n})")
        if self._table is not None:
            return self._table[position]
        columns, rows = self._columns, self._rows
        value = position
        while True:
            high, low = divmod(value, columns)
            for index, key in enumerate(self._keys):
                # The mix is written out: a call per round would double the cost of a draw.
                if index & 1:
                    z = low ^ key
                    z = ((z ^ (z >> 30)) * MIX_1) & MASK
                    z = ((z ^ (z >> 27)) * MIX_2) & MASK
                    high = (high + (z ^ (z >> 31))) % rows
                else:
                    z = high ^ key
                    z = ((z ^ (z >> 30)) * MIX_1) & MASK
                    z = ((z ^ (z >> 27)) * MIX_2) & MASK
                    low = (low + (z ^ (z >> 31))) % columns
            value = high * columns + low
            if value < n:
                return value

    def take(self, positions: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the numbers at many positions, equal to `[self[p] for p in positions]`.

        Args:
            positions: Integers of any shape.

        Returns:
            int64, in the shape of `positions`.

        Raises:
            IndexError: A position is not in `[0, n)`.
        """
        asked = np.asarray(positions, dtype=np.int64)
        if asked.size and not (asked.min() >= 0 and asked.max() < self.n):
            raise IndexError(f"positions {asked.min()} to {asked.max()} are not in [0, {self.n})")
        if self._table is not None:
            return np.asarray(self._table, dtype=np.int64)[asked]
        values = asked.reshape(-1).astype(np.uint64)
        walking = np.arange(values.size)
        while walking.size:
            values[walking] = self._round_trip(values[walking])
            walking = walking[values[walking] >= self.n]
        return values.astype(np.int64).reshape(asked.shape)

    def _round_trip(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        columns, rows = np.uint64(self._columns), np.uint64(self._rows)
        high, low = values // columns, values % columns
        for index, key in enumerate(self._keys):
            if index & 1:
                # Reduced before the sum: Python's integers do not wrap at 64 bits, NumPy's would.
                high = (high + mix_many(low ^ np.uint64(key)) % rows) % rows
            else:
                low = (low + mix_many(high ^ np.uint64(key)) % columns) % columns
        return high * columns + low


def _shuffled(n: int, key: int) -> list[int]:
    """Return `[0, n)` in an order drawn by Fisher and Yates with a SplitMix64 stream from `key`."""
    table = list(range(n))
    state = key
    for last in range(n - 1, 0, -1):
        state = (state + GAMMA) & MASK
        other = mix(state) % (last + 1)
        table[last], table[other] = table[other], table[last]
    return table
