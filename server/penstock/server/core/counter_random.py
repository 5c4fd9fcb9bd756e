"""Random numbers that are computed from their number: none depends on how many were drawn before.

Number n of a sequence is the n-th output of a SplitMix64 generator (Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014; constants by Stafford, mix 13), whose start comes
from BLAKE2b over (seed, purpose). No library's generator is used, so they are the same for ever.
"""

from __future__ import annotations

import hashlib

from penstock.server.core.splitmix import GAMMA, MASK, mix

RANDOM_VERSION = 1
"""The version of every number made here: roles that use them name it in their identity."""


class CounterRandom:
    """A sequence of random numbers of 64 bits, keyed by (seed, purpose).

    Args:
        seed: The job's seed, any integer.
        purpose: What they are for, so that no two uses of one seed share a sequence.
    """

    __slots__ = ("_start",)

    def __init__(self, seed: int, purpose: str) -> None:
        text = f"penstock random {RANDOM_VERSION}\0{seed}\0{purpose}".encode()
        self._start = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")

    def __getitem__(self, number: int) -> int:
        """Return a number of the sequence, in `[0, 2**64)`."""
        return mix((self._start + (number + 1) * GAMMA) & MASK)
