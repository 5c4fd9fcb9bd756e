"""The global generators, seeded for a moment and put back: foreign code becomes a pure function."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def seeded_globals(purpose: str) -> Iterator[None]:
    """Seed the global generators of random, numpy and torch from `purpose`; put them back after.

    Torch's is touched only where somebody has imported torch. A thread that draws from the same
    generators meanwhile would see the seeding: call it where one thread loads data.
    """
    digest = hashlib.blake2b(purpose.encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    torch = sys.modules.get("torch")
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.get_rng_state() if torch is not None else None
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    if torch is not None:
        torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)


__all__ = ["seeded_globals"]
