"""torch that only notes what is called: for the calls of a driver on machines without CUDA."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

CLASSES = {
    "cuda.Stream": "cuda.Stream",
    "cuda.current_stream": "cuda.Stream",
    "cuda.Stream.record_event": "cuda.Event",
    "empty": "Tensor",
    "from_numpy": "Tensor",
    "Tensor.to": "Tensor",
    "Tensor.untyped_storage": "UntypedStorage",
}
"""What a call returns, by what is called."""

CONTEXTS = frozenset({"cuda.device", "cuda.stream"})


class Recorded:
    """A function, an object or a module below `torch`.

    Args:
        calls: Where calls are noted: what, by place, by name.
        path: What it is, below `torch`.
        nbytes: Of a tensor, its length.
    """

    def __init__(
        self, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]], path: str, nbytes: int = 0
    ) -> None:
        self._calls, self._path, self._nbytes = calls, path, nbytes

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._path}.{name}".lstrip(".")
        if path in ("OutOfMemoryError", "uint8", "int64", "device"):
            return getattr(torch, path)
        if path == "Tensor":  # what is recorded is one, for `isinstance`
            return Recorded
        return Recorded(self._calls, path, self._nbytes)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Note a call, and return what stands for its result."""
        self._calls.append((self._path, args, kwargs))
        if self._path == "Tensor.numpy":
            return np.empty(self._nbytes, np.uint8)
        if self._path == "cuda.Event.query":
            return True
        if self._path in ("cuda.current_device", "cuda.device_count"):
            return 1
        if self._path in CONTEXTS:
            return self
        nbytes = args[0] if self._path == "empty" else 0
        return Recorded(self._calls, CLASSES.get(self._path, "None"), nbytes)

    def __getitem__(self, key: slice) -> Recorded:
        assert self._path == "Tensor"
        return self

    def __enter__(self) -> None:
        assert self._path in CONTEXTS

    def __exit__(self, *args: object) -> None:
        self._calls.append((f"end of {self._path}", (), {}))

    def __repr__(self) -> str:
        return f"<{self._path}>"


__all__ = ["Recorded"]
