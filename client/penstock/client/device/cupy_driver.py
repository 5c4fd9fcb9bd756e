"""CUDA by cupy: pinned memory, streams and arrays where there is no torch for it.

Imported only where cupy is installed. Every array has DLPack, by which JAX and others take it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import cupy
import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.lifetimes import Lifetimes
from penstock.client.device.port import Port
from penstock.client.device.trouble import (
    cannot_pin,
    device_failed,
    does_not_answer,
    no_such_index,
    out_of_memory,
)
from penstock.wire.errors import DeviceFailed
from penstock.wire.frame import TensorMaker, bfloat16_dtype
from penstock.wire.value_types import BFLOAT16, STORAGE

T = TypeVar("T")

PORTABLE, READ_ONLY = 1, 8
"""`cudaHostRegisterPortable` and `cudaHostRegisterReadOnly`: cupy has no names for them."""


class _UsedMemory(NamedTuple):
    """Memory of cupy's pool, and what may use it.

    Attributes:
        pointer: cupy's own, which gives it back to the pool when it goes.
        streams: Those that have waited for it, beside the one that it was allocated for.
    """

    pointer: Any
    streams: list[Any]


class Retired:
    """Memory of one device whose views are gone, until what other streams do with it is over.

    cupy's pool gives memory to the stream that it was allocated for as soon as nobody holds it. So
    each array has an owner that is watched, and when that is gone an event is recorded on each
    stream that has waited for the array: it comes after all that they had queued by then.

    Args:
        device: cupy's device.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._lock = threading.Lock()  # no signal handler breaks the threads off that take it
        self._used: Lifetimes[_UsedMemory] = Lifetimes()
        self._ended: list[_UsedMemory] = []
        self._awaited: list[tuple[_UsedMemory, list[Any]]] = []

    def watch(self, owner: Any, used: _UsedMemory) -> None:
        """Keep memory until its owner is gone, and longer where a stream still uses it."""
        self._used.watch(owner, used)

    def release(self, *, waits: bool = False) -> None:
        """Give what is not used any more back to cupy's pool.

        Args:
            waits: Wait until nothing is used any more; never on the loop's thread.
        """
        with self._lock:
            self._ended.extend(self._used.take_ended())
            while self._ended:
                used = self._ended[-1]
                with self._device:
                    events = [stream.record(_event()) for stream in used.streams]
                self._awaited.append((used, events))
                self._ended.pop()
            if waits:
                for _, events in self._awaited:
                    for event in events:
                        event.synchronize()
            self._awaited = [kept for kept in self._awaited if not all(e.done for e in kept[1])]


RETIRED: dict[int, Retired] = {}
"""By the index of a device. It outlives Loaders: their last arrays may be used when they are gone,
and the next Loader there gives back what they left."""


def _event() -> Any:
    return cupy.cuda.Event(disable_timing=True)


class CupyMemory(NamedTuple):
    """Memory of the device.

    Attributes:
        array: uint8 (n,), whose memory has an owner of its own.
        used: What is known of it.
    """

    array: Any
    used: _UsedMemory


class CupyResult(NamedTuple):
    """Memory of the device that arrays view which `work_on` has made.

    Attributes:
        used: What is known of it.
    """

    used: _UsedMemory


class _Owner:
    """What cupy's arrays hold as long as there is one."""


class CupyPort:
    """One CUDA device: a `Port`.

    Args:
        index: Of the device.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._device = cupy.cuda.Device(index)
        self._retired = RETIRED.setdefault(index, Retired(self._device))

    def pin(self, nbytes: int) -> NDArray[np.uint8]:
        """Return memory that cupy pins, which its own pool keeps by its size."""
        try:
            with self._device:
                pinned = cupy.cuda.alloc_pinned_memory(nbytes)
        except (RuntimeError, MemoryError) as error:
            raise cannot_pin(nbytes, error) from error
        return np.frombuffer(pinned, np.uint8, count=nbytes)

    def register(self, array: NDArray[np.uint8]) -> None:
        """Pin memory of others where it lies."""
        flags = PORTABLE if array.flags.writeable else PORTABLE | READ_ONLY
        try:
            with self._device:
                cupy.cuda.runtime.hostRegister(array.ctypes.data, array.nbytes, flags)
        except RuntimeError as error:
            raise cannot_pin(array.nbytes, error) from error

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Unpin what was registered."""
        with self._failing("unregister"):
            cupy.cuda.runtime.hostUnregister(array.ctypes.data)

    def allocate(self, nbytes: int, stream: Any) -> CupyMemory:
        """Return memory of cupy's pool, for the stream."""
        found, used, _ = self._allocate(nbytes, stream, cupy.cuda.alloc)
        return CupyMemory(cupy.ndarray((nbytes,), cupy.uint8, memptr=found), used)

    def work_on(self, stream: Any, work: Callable[[], T]) -> tuple[T, list[CupyResult]]:
        """Call `work`; all that cupy allocates for it on this thread comes as by `allocate`."""
        made: list[tuple[_UsedMemory, weakref.ref[_Owner]]] = []
        allocator = cupy.cuda.get_allocator()

        def allocate(nbytes: int) -> Any:
            found, used, owner = self._allocate(nbytes, stream, allocator)
            made.append((used, owner))
            return found

        with self._device, stream, cupy.cuda.using_allocator(allocate):
            found = work()
        return found, [CupyResult(used) for used, owner in made if owner() is not None]

    def _allocate(
        self, nbytes: int, stream: Any, allocator: Callable[[int], Any]
    ) -> tuple[Any, _UsedMemory, weakref.ref[_Owner]]:
        """Return a pointer to memory with an owner of its own, what is known of it, and the owner.

        Args:
            nbytes: How much.
            stream: Which may use it.
            allocator: cupy's; while another one of ours is in its place, it would call that.
        """
        try:
            self._retired.release()
            pointer = self._pooled(nbytes, stream, allocator)
        except cupy.cuda.memory.OutOfMemoryError:
            self._retired.release(waits=True)
            try:
                pointer = self._pooled(nbytes, stream, allocator)
            except cupy.cuda.memory.OutOfMemoryError as error:
                with self._device:
                    free, total = cupy.cuda.runtime.memGetInfo()
                raise out_of_memory(f"cuda:{self._index}", nbytes, free, total) from error
        except RuntimeError as error:
            raise self._failed("allocate", error) from error
        owner, used = _Owner(), _UsedMemory(pointer, [])
        memory = cupy.cuda.UnownedMemory(pointer.ptr, nbytes, owner, self._index)
        self._retired.watch(owner, used)
        return cupy.cuda.MemoryPointer(memory, 0), used, weakref.ref(owner)

    def _pooled(self, nbytes: int, stream: Any, allocator: Callable[[int], Any]) -> Any:
        with self._device, stream:  # the pool gives memory to the current stream
            return allocator(nbytes)

    def copy(self, memory: CupyMemory, source: NDArray[np.uint8], nbytes: int, stream: Any) -> None:
        """Queue a copy."""
        runtime = cupy.cuda.runtime
        with self._failing("copy"):
            runtime.memcpyAsync(
                memory.array.data.ptr,
                source.ctypes.data,
                nbytes,
                runtime.memcpyHostToDevice,
                stream.ptr,
            )

    def record(self, stream: Any) -> Any:
        """Return a new event of cupy, without times."""
        with self._failing("record"):
            return stream.record(_event())

    def wait(self, stream: Any, event: Any, *memory: CupyMemory | CupyResult) -> None:
        """Have a stream wait, and keep the memory for it."""
        with self._failing("wait"):
            for kept in memory:
                if stream not in kept.used.streams:
                    kept.used.streams.append(stream)
            stream.wait_event(event)

    def query(self, event: Any) -> bool:
        """Tell whether an event is complete."""
        with self._failing("query"):
            return bool(event.done)

    def synchronize(self, event: Any) -> None:
        """Wait until an event is complete."""
        with self._failing("synchronize"):
            event.synchronize()

    @contextmanager
    def _failing(self, call: str) -> Iterator[None]:
        try:
            with self._device:  # threads and ranks may have another current one, or none
                yield
        except RuntimeError as error:
            raise self._failed(call, error) from error

    def _failed(self, call: str, reason: object) -> DeviceFailed:
        return device_failed(f"cuda:{self._index}", call, reason)


class CupyDriver:
    """CUDA for training loops without torch: a `Driver`.

    Args:
        index: Of the device; None = the one that is current on the loop's thread.
    """

    port: Port

    def __init__(self, index: int | None) -> None:
        self._index = index

    def open(self) -> Any:
        """Return a new stream on the device."""
        name = "cuda" if self._index is None else f"cuda:{self._index}"
        try:
            count = cupy.cuda.runtime.getDeviceCount()
            if self._index is not None and self._index >= count:
                raise no_such_index(name, count)
            if self._index is None:
                self._index = cupy.cuda.runtime.getDevice()
            self.port = self._cupy_port = CupyPort(self._index)
            with cupy.cuda.Device(self._index):
                return cupy.cuda.Stream(non_blocking=True)
        except RuntimeError as error:
            raise does_not_answer(name, error) from error

    def current(self) -> Any:
        """Return the calling thread's current stream on the device."""
        return cupy.cuda.get_current_stream(self._index)

    def work_on(self, stream: Any, work: Callable[[], T]) -> tuple[T, list[CupyResult]]:
        """Call `work` with the device and a stream as the current ones."""
        return self._cupy_port.work_on(stream, work)

    def values(self, memory: CupyMemory) -> TensorMaker:
        """Return what makes cupy arrays, for bfloat16 with the dtype of ml_dtypes."""
        start_of = memory.array.data

        def make(dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
            found = bfloat16_dtype() if dtype == BFLOAT16 else STORAGE[dtype]
            return cupy.ndarray(shape, found, memptr=start_of + (start if nbytes else 0))

        return make

    def host_values(self, body: NDArray[np.uint8]) -> None:
        """Return None: what stays on the host is an array of NumPy."""
        return None

    def to_int64(self, value: Any) -> Any:
        """Return an array as int64, where it lies."""
        if isinstance(value, np.ndarray):
            return value.astype(np.int64)
        with cupy.cuda.Device(self._index):  # kernels run on the current one alone
            return value.astype(cupy.int64)

    def position(self, position: int) -> Any:
        """Return an array of NumPy of no dimensions."""
        return np.array(position, np.int64)
