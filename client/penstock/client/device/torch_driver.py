"""CUDA by torch: its allocators, its streams and its tensors. Imported only where torch is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.client.array_libraries import arrays_in
from penstock.client.device.port import Port
from penstock.client.device.torch_views import HostViews, TensorViews
from penstock.client.device.trouble import (
    cannot_pin,
    device_failed,
    does_not_answer,
    no_room_on_arrival,
    no_such_index,
    out_of_memory,
)
from penstock.wire.errors import DeviceFailed
from penstock.wire.frame import TensorMaker

T = TypeVar("T")

PORTABLE, READ_ONLY = 1, 8
"""`cudaHostRegisterPortable` and `cudaHostRegisterReadOnly`: torch has no names for them."""


class TorchPort:
    """One CUDA device: a `Port` whose memory on the device is a uint8 tensor.

    torch's allocator gives a tensor's memory to the stream that it was made on as soon as the last
    view is gone, whatever other streams still do with it; those that were recorded for it hold it
    until they are over.

    Args:
        device: A `torch.device` of type cuda, with an index.
    """

    def __init__(self, device: Any) -> None:
        self._device = device

    def pin(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory that torch pins, which its own allocator keeps by its size."""
        try:
            with torch.cuda.device(self._device):  # else a context is made on the first device
                pinned = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise cannot_pin(nbytes, error) from error
        array: NDArray[np.uint8] = pinned.numpy()
        return array

    def register(self, array: NDArray[np.uint8]) -> None:
        """Pin memory of others where it lies."""
        flags = PORTABLE if array.flags.writeable else PORTABLE | READ_ONLY
        try:
            with torch.cuda.device(self._device):
                cudart = torch.cuda.cudart()
                result = cudart.cudaHostRegister(array.ctypes.data, array.nbytes, flags)
                if int(result):
                    self._forget_error(cudart)
        except RuntimeError as error:
            raise cannot_pin(array.nbytes, error) from error
        if int(result):
            raise cannot_pin(array.nbytes, f"cudaHostRegister returned {result}")

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Unpin what was registered."""
        with self._failing("unregister"), torch.cuda.device(self._device):
            cudart = torch.cuda.cudart()
            result = cudart.cudaHostUnregister(array.ctypes.data)
            if int(result):
                self._forget_error(cudart)
                raise RuntimeError(f"cudaHostUnregister returned {result}")

    def _forget_error(self, cudart: Any) -> None:
        """Have this thread's next kernel not fail for a call that has: CUDA remembers it for that.

        torch looks at it after each kernel. Not every torch has the call that forgets it; there a
        kernel that is of no use fails in place of somebody's.
        """
        forget = getattr(cudart, "cudaGetLastError", None)
        if forget is not None:
            forget()
            return
        with suppress(RuntimeError):
            torch.ones(1, dtype=torch.uint8, device=self._device)

    def allocate(self, nbytes: int, stream: Any) -> Any:
        """Return a uint8 tensor of the stream's."""
        try:
            with torch.cuda.stream(stream):
                return torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self._device)
            raise out_of_memory(str(self._device), nbytes, free, total) from error
        except RuntimeError as error:
            raise self._failed("allocate", error) from error

    def copy(self, memory: Any, source: NDArray[np.uint8], nbytes: int, stream: Any) -> None:
        """Queue a copy."""
        with self._failing("copy"), torch.cuda.stream(stream):
            memory[:nbytes].copy_(torch.from_numpy(source[:nbytes]), non_blocking=True)

    def record(self, stream: Any) -> Any:
        """Return a new `torch.cuda.Event`."""
        with self._failing("record"):
            return stream.record_event()

    def wait(self, stream: Any, event: Any, *memory: Any) -> None:
        """Have a stream wait, and the allocator keep the memory for it."""
        with self._failing("wait"):
            stream.wait_event(event)
            for tensor in memory:
                tensor.record_stream(stream)

    def query(self, event: Any) -> bool:
        """Tell whether an event is complete."""
        with self._failing("query"):
            return bool(event.query())

    def synchronize(self, event: Any) -> None:
        """Wait until an event is complete."""
        with self._failing("synchronize"):
            event.synchronize()

    @contextmanager
    def _failing(self, call: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise self._failed(call, error) from error

    def _failed(self, call: str, reason: object) -> DeviceFailed:
        return device_failed(str(self._device), call, reason)


class TorchDriver:
    """CUDA for training loops of torch: a `Driver`.

    Args:
        device: A `torch.device` of type cuda; without an index it is the loop's current one.

    Raises:
        NoDevice: torch shows no device of that index.
    """

    port: Port

    def __init__(self, device: Any) -> None:
        count = torch.cuda.device_count()
        if device.index is not None and device.index >= count:
            raise no_such_index(str(device), count)
        self._device = device

    def open(self) -> Any:
        """Return a new stream on the device: each thread has a current one of its own."""
        try:
            if self._device.index is None:
                self._device = torch.device("cuda", torch.cuda.current_device())
            self.port = TorchPort(self._device)
            return torch.cuda.Stream(self._device)
        except RuntimeError as error:
            raise does_not_answer(str(self._device), error) from error

    def current(self) -> Any:
        """Return the calling thread's current stream on the device."""
        return torch.cuda.current_stream(self._device)

    def work_on(self, stream: Any, work: Callable[[], T]) -> tuple[T, list[Any]]:
        """Call `work` with a stream as the current one; what it made are its tensors."""
        try:
            with torch.cuda.stream(stream):
                found = work()
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info(self._device)
            raise no_room_on_arrival(str(self._device), free, total) from error
        # Views of one body are many, and have one memory.
        tensors = {
            tensor.untyped_storage().data_ptr(): tensor
            for tensor in arrays_in(found)
            if isinstance(tensor, torch.Tensor) and tensor.is_cuda
        }
        return found, list(tensors.values())

    def values(self, memory: Any) -> TensorMaker:
        """Return what makes tensors on the device."""
        return TensorViews(memory)

    def host_values(self, body: NDArray[np.uint8]) -> TensorMaker:
        """Return what makes tensors on the host."""
        return HostViews(body)

    def to_int64(self, value: Any) -> Any:
        """Return a tensor as int64."""
        return value.to(torch.int64)

    def position(self, position: int) -> Any:
        """Return a tensor of no dimensions, on the host."""
        return torch.tensor(position, dtype=torch.int64)
