"""What a kind of device gives beside its port: streams, and values over its memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.client.device.port import DeviceMemory, Port, Stream
from penstock.wire.frame import TensorMaker

T = TypeVar("T")


class Driver(Protocol):
    """One device, and the library by which the training loop uses it.

    Attributes:
        port: Its calls.
    """

    port: Port

    def open(self) -> Stream:
        """Return a new stream for copies; the loop's thread calls it, once for each Loader.

        It finds out which device is meant, where the name leaves that to the loop's thread, and
        that it answers; before this the port is not used.

        Raises:
            NoDevice: It does not answer.
        """
        ...

    def current(self) -> Stream:
        """Return the stream on which the calling thread queues its work."""
        ...

    def work_on(self, stream: Stream, work: Callable[[], T]) -> tuple[T, list[DeviceMemory]]:
        """Call `work`, whose calls of the library are queued on a stream of this device.

        A thread that is not the loop's calls it.

        Returns:
            What `work` returns; and the memory of the device that this holds and that was made
            meanwhile, which `stream` may use, and others after `Port.wait`.

        Raises:
            OutOfDeviceMemory: The device has no room.
            Exception: What `work` raises.
        """
        ...

    def values(self, memory: DeviceMemory) -> TensorMaker:
        """Return what makes values over a body on the device, as views."""
        ...

    def host_values(self, body: NDArray[np.uint8]) -> TensorMaker | None:
        """Return what makes values over a body on the host, as views; None = of NumPy."""
        ...

    def to_int64(self, value: Any) -> Any:
        """Return a value of the device or of the host as int64."""
        ...

    def position(self, position: int) -> Any:
        """Return `position` as an int64 of no dimensions, on the host."""
        ...
