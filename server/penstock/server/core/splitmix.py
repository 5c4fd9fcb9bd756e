"""The arithmetic of SplitMix64, from which all random numbers here are made.

Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014; constants by
Stafford, mix 13. It is part of every log id: it never changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def mix(z: int) -> int:
    """Return the finalizer of a number of 64 bits, itself one."""
    z = ((z ^ (z >> 30)) * MIX_1) & MASK
    z = ((z ^ (z >> 27)) * MIX_2) & MASK
    return z ^ (z >> 31)


def mix_many(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the finalizer of many numbers, in the shape of `z`."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_2)
    return z ^ (z >> np.uint64(31))
