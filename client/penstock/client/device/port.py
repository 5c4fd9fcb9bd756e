"""The calls that bring bytes to a device: the one thing that copiers and pools know of it."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Stream: TypeAlias = Any
"""A queue of work on a device, done in order; a driver's own object."""

Event: TypeAlias = Any
"""A point in a stream that is reached; a driver's own object."""

DeviceMemory: TypeAlias = Any
"""Memory of a device; a driver's own object. It lasts as long as it or a view of it."""


class Port(Protocol):
    """One device. `tests/contract/test_copiers.py` is what it must hold to.

    Any thread may call anything but `synchronize`, which the loop's thread never does: whichever
    device is current there, the port means its own. A call that raises has done nothing, but for
    `copy` and `record`, of which nobody knows what they have queued.
    """

    def pin(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory of the host that the device copies from while the host goes on.

        It is pinned as long as the array, or a view of it, is there.

        Returns:
            uint8 (nbytes,) of any content, aligned to 64 bytes at least.

        Raises:
            CannotPin: The host gives no more of it.
        """
        ...

    def register(self, array: NDArray[np.uint8]) -> None:
        """Pin memory of others where it lies, until `unregister`; read-only where the array is.

        Args:
            array: uint8 (n,), whole pages, which are mapped until then.

        Raises:
            CannotPin: The device cannot, or the host does not allow it.
        """
        ...

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Unpin what was registered, once every copy from it is over."""
        ...

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Return memory of the device that `stream` may use from now on, and others after `wait`.

        Raises:
            OutOfDeviceMemory: The device has no room.
        """
        ...

    def copy(
        self, memory: DeviceMemory, source: NDArray[np.uint8], nbytes: int, stream: Stream
    ) -> None:
        """Queue a copy; the source is read at any time until what `stream` records next is over.

        Args:
            memory: Where to; allocated for `stream`.
            source: uint8 (n,), pinned or registered; nobody writes to it before then.
            nbytes: How many bytes, from the beginning of both; at least 1.
            stream: Whose turn it takes.

        Raises:
            DeviceFailed: The device does not take it.
        """
        ...

    def record(self, stream: Stream) -> Event:
        """Return an event that completes when all is done that was queued on `stream` so far.

        Raises:
            DeviceFailed: The device does not take it.
        """
        ...

    def wait(self, stream: Stream, event: Event, *memory: DeviceMemory) -> None:
        """Have what is queued on `stream` from now on come after an event; the host goes on.

        Args:
            stream: Whose work waits.
            event: Of any stream of this device.
            memory: What that work may use: it is used for nothing else before all is done that
                `stream` had queued when the last view of it went. None of it = this is about order
                alone.
        """
        ...

    def query(self, event: Event) -> bool:
        """Tell whether an event is complete; never waits."""
        ...

    def synchronize(self, event: Event) -> None:
        """Wait until an event is complete."""
        ...


class End:
    """The end of a copy, as what it reads knows it: a `Passing`.

    It is there before the copy is queued, so that no copy goes on without it. Of a copy that failed
    nobody knows what was queued: its end is that of all that is queued when it is first asked for.

    Args:
        port: Of the device.
        stream: Where the copy is queued.

    Attributes:
        event: What was recorded after it; None = nothing was.
        is_doubtful: It failed.
    """

    def __init__(self, port: Port, stream: Stream) -> None:
        self._port, self._stream = port, stream
        self.event: Event | None = None
        self.is_doubtful = False

    def query(self) -> bool:
        """Tell whether it is complete; never waits."""
        event = self._found()
        return event is not None and self._port.query(event)

    def synchronize(self) -> None:
        """Wait for it, where its copy has been queued or has failed."""
        event = self._found()
        if event is not None:
            self._port.synchronize(event)

    def _found(self) -> Event | None:
        if self.event is None and self.is_doubtful:
            self.event = self._port.record(self._stream)
        return self.event
