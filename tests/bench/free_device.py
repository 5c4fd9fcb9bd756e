"""Devices that cost the host nothing, so that what a Loader does for one can be measured.

A simulated device looks at every byte of a source at every call, in Python, beside the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.wire.frame import TensorMaker, numpy_maker

T = TypeVar("T")


class Free:
    """A device that does nothing, and is a driver and a port in one.

    Args:
        nbytes: Of the largest body.
    """

    def __init__(self, nbytes: int) -> None:
        self.port: Any = self
        self._nothing = np.zeros(nbytes, np.uint8)

    def open(self) -> str:
        """Return the stream of copies."""
        return "copies"

    def current(self) -> str:
        """Return the loop's stream."""
        return "loop"

    def pin(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory."""
        return np.zeros(nbytes, np.uint8)

    def register(self, array: NDArray[np.uint8]) -> None:
        """Do nothing."""

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Do nothing."""

    def allocate(self, nbytes: int, stream: str) -> int:
        """Return a number for memory."""
        return nbytes

    def copy(self, memory: int, source: NDArray[np.uint8], nbytes: int, stream: str) -> None:
        """Do nothing."""

    def record(self, stream: str) -> str:
        """Return an event that has come to pass."""
        return "event"

    def wait(self, stream: str, event: str, *memory: int) -> None:
        """Do nothing."""

    def query(self, event: str) -> bool:
        """Say that it has come to pass."""
        return True

    def synchronize(self, event: str) -> None:
        """Do nothing."""

    def values(self, memory: int) -> TensorMaker:
        """Return what makes arrays of memory of our own."""
        return numpy_maker(self._nothing)

    def host_values(self, body: NDArray[np.uint8]) -> None:
        """Return None: arrays."""

    def to_int64(self, value: Any) -> Any:
        """Return an array as int64."""
        return value.astype(np.int64)

    def position(self, position: int) -> Any:
        """Return it as an array."""
        return np.array(position, np.int64)


class Paced(Free):
    """A device that takes its time for each copy, from when it is queued or the one before ends.

    Its memory is the host's, and the loop's stream the host itself: it waits for what it is told to
    wait for.

    Args:
        copy_s: How long a copy takes.
    """

    def __init__(self, copy_s: float) -> None:
        super().__init__(0)
        self._copy_s, self._end = copy_s, 0.0

    def allocate(self, nbytes: int, stream: str) -> Any:
        """Return memory."""
        return np.empty(nbytes, np.uint8)

    def copy(self, memory: Any, source: NDArray[np.uint8], nbytes: int, stream: str) -> None:
        """Copy, and take the time."""
        memory[:nbytes] = source[:nbytes]
        self._end = max(self._end, time.monotonic()) + self._copy_s

    def record(self, stream: str) -> Any:
        """Return when all is done that was queued."""
        return self._end

    def wait(self, stream: str, event: Any, *memory: Any) -> None:
        """Wait until then."""
        self.synchronize(event)

    def query(self, event: Any) -> bool:
        """Tell whether it is then."""
        return time.monotonic() >= event

    def synchronize(self, event: Any) -> None:
        """Wait until then."""
        time.sleep(max(0.0, event - time.monotonic()))

    def work_on(self, stream: str, work: Callable[[], T]) -> tuple[T, list[Any]]:
        """Do it once the copies are done."""
        self.synchronize(self._end)
        return work(), []

    def values(self, memory: Any) -> TensorMaker:
        """Return what makes arrays of the memory."""
        return numpy_maker(memory)
