"""What a Loader takes for a device: the simulator's port, streams, and arrays with checks."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.client.array_libraries import arrays_in, arrays_like, numpy_dtype
from penstock.client.device.port import Port
from penstock.client.testing.device_arrays import DeviceArray
from penstock.client.testing.schedules import Schedule
from penstock.client.testing.simulator import Simulator
from penstock.client.testing.work_queues import SimulatedStream
from penstock.wire.frame import TensorMaker

T = TypeVar("T")


class SimulatedDevice:
    """A device of the host's memory for `Loader(device=)`: a `Driver`. One may serve many Loaders.

    Args:
        schedule: When it does what is queued; by default at random, the same each time.
        tensors: Values are tensors of torch on the host. Their reads are not checked; what is read
            too early has other bytes, and the loop's stream waits as the host does.
        memory_bytes: How much memory it has.
        index: Its number, for messages.

    Attributes:
        simulator: The device itself.
        port: What Loaders call: the simulator, or what a test puts before it.

    Raises:
        ModuleNotFoundError: `tensors` is set, and torch is not installed.
    """

    def __init__(
        self,
        schedule: Schedule | None = None,
        *,
        tensors: bool = False,
        memory_bytes: int = 1 << 40,
        index: int = 0,
    ) -> None:
        self.simulator = Simulator(schedule, memory_bytes=memory_bytes, index=index)
        self.port: Port = self.simulator
        self._tensors = tensors
        if tensors:
            # A first import of torch takes seconds: they do not count as the first copy's.
            importlib.import_module("penstock.client.device.torch_views")
        self._loops: dict[int, SimulatedStream] = {}
        self._turns: dict[int, SimulatedStream] = {}  # of threads that are in `work_on`

    def __repr__(self) -> str:
        return self.simulator.name

    def open(self) -> SimulatedStream:
        """Return a new stream, and take the calling thread for a loop's from now on."""
        self.simulator.loops.add(threading.get_ident())
        return self.simulator.stream("copies")

    def current(self) -> SimulatedStream:
        """Return the stream of the calling thread: its own, or that of `work_on`."""
        thread = threading.get_ident()
        turn = self._turns.get(thread)
        if turn is not None:
            return turn
        found = self._loops.get(thread)
        if found is None:
            found = self.simulator.stream("loop", is_host=self._tensors)
            found = self._loops.setdefault(thread, found)
        return found

    def work_on(
        self, stream: SimulatedStream, work: Callable[[], T]
    ) -> tuple[T, list[NDArray[np.uint8]]]:
        """Call `work` with a stream as the calling thread's current one.

        With tensors, which the host works on, what the stream has queued is done first.
        """
        if self._tensors:
            self.simulator.finish(self.simulator.record(stream))
            return work(), []
        thread = threading.get_ident()
        self._turns[thread] = stream
        try:
            found = work()
        finally:
            del self._turns[thread]
        arrays = [array for array in arrays_in(found) if isinstance(array, DeviceArray)]
        return found, [array.memory for array in arrays]

    def values(self, memory: NDArray[np.uint8]) -> TensorMaker:
        """Return what makes arrays of the device, or tensors."""
        if self._tensors:
            import torch

            from penstock.client.device.torch_views import TensorViews

            return TensorViews(torch.from_numpy(memory))

        def make(dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> DeviceArray:
            return DeviceArray(self, memory, numpy_dtype(dtype), shape, start)

        return make

    def host_values(self, body: NDArray[np.uint8]) -> TensorMaker | None:
        """Return what makes tensors on the host, or None for arrays of NumPy."""
        if not self._tensors:
            return None
        from penstock.client.device.torch_views import HostViews

        return HostViews(body)

    def to_int64(self, value: Any) -> Any:
        """Return a value as int64, made by a kernel where it lies on the device."""
        found = arrays_like(value)
        assert found is not None, "neither an array nor a tensor"
        return found.astype(value, "int64")

    def position(self, position: int) -> Any:
        """Return `position` as an int64 of no dimensions, on the host."""
        if not self._tensors:
            return np.array(position, np.int64)
        import torch

        return torch.tensor(position, dtype=torch.int64)
