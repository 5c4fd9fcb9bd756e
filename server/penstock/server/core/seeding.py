"""The global generators, seeded for a moment and put back: foreign code becomes a pure function."""

from __future__ import annotations

import hashlib
import importlib.util
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np


@contextmanager
def seeded_globals(key: int) -> Iterator[None]:
    """Seed the global generators of random, numpy and torch from `key`; put them back after.

    Torch's is touched only where somebody has imported torch, or imports it meanwhile. A thread
    that draws from the same generators meanwhile would see the seeding: call it where one thread
    loads data.
    """
    torch = _torch()
    python_state, numpy_state = random.getstate(), np.random.get_state()
    torch_state = torch.get_rng_state() if torch is not None else None
    arrival = _Arrival(key)
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    if torch is not None:
        torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
    else:
        sys.meta_path.insert(0, arrival)
    try:
        yield
    finally:
        with suppress(ValueError):  # it has gone where torch has come
            sys.meta_path.remove(arrival)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if torch is None:
            torch, torch_state = arrival.torch, arrival.state
        if torch is not None:
            torch.set_rng_state(torch_state)


class _Arrival(MetaPathFinder):
    """Seeds torch as soon as code that runs under `seeded_globals` has imported it.

    Code that imports torch where it needs it draws from it at once: unseeded, the first item of
    every process would have other bytes than the same item anywhere else.

    Args:
        key: What to seed it with.

    Attributes:
        torch: The module, once it was imported.
        state: Its generator's state before the seeding.
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self.torch: Any = None
        self.state: Any = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return torch's own spec, whose loader seeds when it is done; None for all else."""
        if name != "torch":
            return None
        sys.meta_path.remove(self)  # the others know where it is
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = spec.loader
        run = loader.exec_module

        def run_and_seed(module: ModuleType) -> None:
            del loader.exec_module
            run(module)
            torch: Any = module
            self.torch, self.state = torch, torch.get_rng_state()
            torch.default_generator.manual_seed(self._key & 0x7FFFFFFFFFFFFFFF)

        loader.exec_module = run_and_seed
        return spec


def drawn_since(key: int) -> bool:
    """Tell, inside of `seeded_globals(key)`, whether somebody has drawn; seeds them again."""
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
