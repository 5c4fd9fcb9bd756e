"""The global generators, seeded for a moment and put back: foreign code becomes a pure function."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def seeded_globals(key: int) -> Iterator[None]:
    """Seed the global generators of random, numpy and torch from `key`; put them back after.

    Torch's is touched only where somebody has imported torch. A thread that draws from the same
    generators meanwhile would see the seeding: call it where one thread loads data.
    """
    torch = _torch()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.get_rng_state() if torch is not None else None
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    if torch is not None:
        torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)


def drawn_since(key: int) -> bool:
    """Tell, inside of `seeded_globals(key)`, whether somebody has drawn; seeds them again.

    A torch that was imported meanwhile counts as drawn from: it is not known.
    """
    before = _drawn_states()
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    if (torch := _torch()) is not None:
        torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
    return before != _drawn_states()


def _drawn_states() -> tuple[Any, ...]:
    """Return the states of the global generators in a form that can be compared."""
    _, words, place, has_gauss, gauss = np.random.get_state(legacy=True)
    torch = _torch()
    return (
        random.getstate(),
        (np.asarray(words).tobytes(), place, has_gauss, gauss),
        torch.get_rng_state().numpy().tobytes() if torch is not None else b"",
    )


def purpose_key(purpose: str) -> int:
    """Return 64 bits for a purpose that has no item or batch of its own."""
    return int.from_bytes(hashlib.blake2b(purpose.encode(), digest_size=8).digest(), "little")


def _torch() -> Any:
    """Return torch if it is there whole: another thread may be importing it at this moment."""
    torch = sys.modules.get("torch")
    return (
        torch if hasattr(torch, "default_generator") and hasattr(torch, "set_rng_state") else None
    )


__all__ = ["drawn_since", "purpose_key", "seeded_globals"]
