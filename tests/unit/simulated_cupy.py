"""cupy over simulated devices: what the driver of cupy calls, as strict as a device and stricter.

Each call is noted with its arguments, so that it can be held against the signatures of a cupy that
is installed. As in CUDA each thread has a current device, the first unless it sets one: memory is
allocated there, kernels run there, events are made there.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.client.testing import Schedule, Simulator
from penstock.wire.errors import OutOfDeviceMemory

DRIVER = "penstock.client.device.cupy_driver"


class CUDARuntimeError(RuntimeError):
    """What cupy raises for a call of CUDA that failed."""


class OutOfMemoryError(MemoryError):
    """What cupy's pool raises."""


class Called(NamedTuple):
    """One call.

    Attributes:
        path: Of what was called, below `cupy`: a function, a class, or a method of a class.
        args: By place, without self.
        kwargs: By name.
    """

    path: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Current(threading.local):
    device = 0
    allocator: Callable[[int], MemoryPointer] | None = None

    def __init__(self) -> None:
        self.streams: dict[int, list[Stream]] = {}


class Cuda:
    """All devices, and the calls that were made.

    Args:
        count: How many devices there are.
        schedule: Of each.
        memory_bytes: Of each.

    Attributes:
        calls: What was called, in order.
        devices: The simulated devices.
        wrong: Calls that found another current device than theirs.
    """

    def __init__(
        self, count: int = 2, schedule: Schedule | None = None, memory_bytes: int = 1 << 40
    ) -> None:
        self.calls: list[Called] = []
        self.devices = [
            Simulator(schedule, index=index, memory_bytes=memory_bytes) for index in range(count)
        ]
        self.current = _Current()
        self.null = [
            Stream(self, index, device.stream("null")) for index, device in enumerate(self.devices)
        ]
        self.streams = {stream.ptr: stream for stream in self.null}
        self.memory: dict[int, weakref.ref[NDArray[np.uint8]]] = {}

    def note(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Note a call; of an object its class alone, since a note must not keep memory."""
        shown = tuple(_shown(given) for given in args)
        self.calls.append(Called(path, shown, {name: _shown(kwargs[name]) for name in kwargs}))

    def at(self, address: int) -> tuple[NDArray[np.uint8], int]:
        """Return the memory of a device that an address lies in, and how far from its start."""
        for start, reference in list(self.memory.items()):
            memory = reference()
            if memory is not None and start <= address < start + max(1, memory.nbytes):
                return memory, address - start
        raise CUDARuntimeError("cudaErrorInvalidValue: no memory of a device")

    def must_be(self, device: int, what: str) -> None:
        """Refuse a call that is made while another device is current."""
        if self.current.device != device:
            raise CUDARuntimeError(
                f"cudaErrorInvalidResourceHandle: {what} of device {device} while device "
                f"{self.current.device} is current"
            )

    def module(self) -> types.ModuleType:
        """Return what `import cupy` gives."""
        cuda = types.SimpleNamespace(
            Device=lambda *args: Device(self, *args),
            Stream=lambda **kwargs: self._new_stream(**kwargs),
            Event=lambda **kwargs: Event(self, **kwargs),
            MemoryPointer=lambda *args: MemoryPointer(self, *args),
            UnownedMemory=lambda *args: UnownedMemory(self, *args),
            alloc=self._alloc,
            get_allocator=self._get_allocator,
            using_allocator=self._using_allocator,
            alloc_pinned_memory=self._alloc_pinned_memory,
            get_current_stream=self._get_current_stream,
            is_available=lambda: True,
            memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            runtime=Runtime(self),
        )
        found = types.ModuleType("cupy")
        found.__spec__ = ModuleSpec("cupy", None)
        found.cuda = cuda  # type: ignore[attr-defined]
        found.ndarray = lambda *args, **kwargs: ndarray(self, *args, **kwargs)  # type: ignore[attr-defined]
        found.uint8, found.int64 = np.uint8, np.int64  # type: ignore[attr-defined]
        return found

    def _new_stream(self, **kwargs: Any) -> Stream:
        """Make a stream: the driver does that on the loop's thread."""
        self.note("cuda.Stream", **kwargs)
        device = self.current.device
        self.devices[device].loops.add(threading.get_ident())
        found = Stream(self, device, self.devices[device].stream("copies"))
        self.streams[found.ptr] = found
        return found

    def _alloc(self, size: int) -> MemoryPointer:
        self.note("cuda.alloc", size)
        return (self.current.allocator or self._pooled)(size)

    def _get_allocator(self) -> Callable[[int], MemoryPointer]:
        self.note("cuda.get_allocator")
        return self.current.allocator or self._pooled

    @contextmanager
    def _using_allocator(self, allocator: Callable[[int], MemoryPointer]) -> Iterator[None]:
        self.note("cuda.using_allocator", allocator)
        before, self.current.allocator = self.current.allocator, allocator
        try:
            yield
        finally:
            self.current.allocator = before

    def _pooled(self, size: int) -> MemoryPointer:
        device = self.current.device
        try:
            memory = self.devices[device].allocate(size, self.stream_of(device).simulated)
        except OutOfDeviceMemory as error:
            raise OutOfMemoryError(str(error)) from error
        address = memory.ctypes.data
        self.memory[address] = weakref.ref(memory)
        return MemoryPointer(self, UnownedMemory(self, address, size, memory, device), 0)

    def _alloc_pinned_memory(self, size: int) -> memoryview:
        self.note("cuda.alloc_pinned_memory", size)
        return self.devices[self.current.device].pin(size).data

    def _get_current_stream(self, device_id: int = -1) -> Stream:
        self.note("cuda.get_current_stream", device_id)
        return self.stream_of(self.current.device if device_id < 0 else device_id)

    def stream_of(self, device: int) -> Stream:
        """Return the calling thread's current stream on a device."""
        entered = self.current.streams.get(device)
        return entered[-1] if entered else self.null[device]


class Runtime:
    """`cupy.cuda.runtime`."""

    memcpyHostToDevice = 1  # noqa: N815 - cupy's name
    CUDARuntimeError = CUDARuntimeError

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def getDeviceCount(self) -> int:  # noqa: N802
        self._cuda.note("cuda.runtime.getDeviceCount")
        return len(self._cuda.devices)

    def getDevice(self) -> int:  # noqa: N802
        self._cuda.note("cuda.runtime.getDevice")
        return self._cuda.current.device

    def runtimeGetVersion(self) -> int:  # noqa: N802
        self._cuda.note("cuda.runtime.runtimeGetVersion")
        return 12090

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        self._cuda.note("cuda.runtime.memGetInfo")
        return 0, 1 << 20

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:  # noqa: N802
        self._cuda.note("cuda.runtime.memcpyAsync", dst, src, size, kind, stream)
        found = self._cuda.streams[stream]
        self._cuda.must_be(found.device, "a stream")
        memory, start = self._cuda.at(dst)
        assert (start, kind) == (0, self.memcpyHostToDevice)
        raw = (ctypes.c_ubyte * size).from_address(src)
        source = np.frombuffer(raw, np.uint8)
        self._cuda.devices[found.device].copy(memory, source, size, found.simulated)

    def hostRegister(self, ptr: int, size: int, flags: int) -> None:  # noqa: N802
        self._cuda.note("cuda.runtime.hostRegister", ptr, size, flags)
        raw = (ctypes.c_ubyte * size).from_address(ptr)
        self._cuda.devices[self._cuda.current.device].register(np.frombuffer(raw, np.uint8))

    def hostUnregister(self, ptr: int) -> None:  # noqa: N802
        self._cuda.note("cuda.runtime.hostUnregister", ptr)
        raw = np.frombuffer((ctypes.c_ubyte * 1).from_address(ptr), np.uint8)
        self._cuda.devices[self._cuda.current.device].unregister(raw)


class Device:
    """`cupy.cuda.Device`: current on this thread within `with`."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        cuda.note("cuda.Device", device)
        self._cuda, self.id = cuda, device
        self._before = threading.local()

    def __enter__(self) -> Device:
        self._before.stack = [*getattr(self._before, "stack", []), self._cuda.current.device]
        self._cuda.current.device = self.id
        return self

    def __exit__(self, *args: object) -> None:
        self._cuda.current.device = self._before.stack.pop()


class Stream:
    """`cupy.cuda.Stream`: current on this thread, for its device, within `with`."""

    _numbers = itertools.count(1 << 20)

    def __init__(self, cuda: Cuda, device: int, simulated: Any) -> None:
        self._cuda, self.device, self.simulated = cuda, device, simulated
        self.ptr = next(self._numbers)

    def __enter__(self) -> Stream:
        self._cuda.must_be(self.device, "a stream")
        self._cuda.current.streams.setdefault(self.device, []).append(self)
        return self

    def __exit__(self, *args: object) -> None:
        self._cuda.current.streams[self.device].pop()

    def record(self, event: Event) -> Event:
        """Record an event."""
        self._cuda.note("cuda.Stream.record", event)
        if event.device != self.device:
            raise CUDARuntimeError("cudaErrorInvalidResourceHandle: an event of another device")
        event.simulated = self._cuda.devices[self.device].record(self.simulated)
        return event

    def wait_event(self, event: Event) -> None:
        """Wait for an event."""
        self._cuda.note("cuda.Stream.wait_event", event)
        self._cuda.devices[self.device].wait(self.simulated, event.simulated)


class Event:
    """`cupy.cuda.Event`: of the device that is current when it is made."""

    simulated: Any = None

    def __init__(self, cuda: Cuda, **kwargs: Any) -> None:
        cuda.note("cuda.Event", **kwargs)
        self._cuda, self.device = cuda, cuda.current.device

    @property
    def done(self) -> bool:
        """Whether it has come to pass."""
        self._cuda.note("cuda.Event.done")
        return self._cuda.devices[self.device].query(self.simulated)

    def synchronize(self) -> None:
        """Wait for it."""
        self._cuda.note("cuda.Event.synchronize")
        self._cuda.devices[self.device].synchronize(self.simulated)


class UnownedMemory:
    """`cupy.cuda.UnownedMemory`: keeps its owner."""

    def __init__(self, cuda: Cuda, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        cuda.note("cuda.UnownedMemory", ptr, size, owner, device_id)
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    """`cupy.cuda.MemoryPointer`: keeps its memory."""

    def __init__(self, cuda: Cuda, mem: UnownedMemory, offset: int) -> None:
        cuda.note("cuda.MemoryPointer", mem, offset)
        self._cuda, self.mem, self.offset = cuda, mem, offset

    @property
    def ptr(self) -> int:
        """The address."""
        return self.mem.ptr + self.offset

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self._cuda, self.mem, self.offset + offset)


class ndarray:  # noqa: N801 - cupy's name
    """`cupy.ndarray`."""

    def __init__(
        self, cuda: Cuda, shape: Sequence[int], dtype: Any, memptr: MemoryPointer | None = None
    ) -> None:
        cuda.note("ndarray", shape, dtype, memptr=memptr)
        assert memptr is not None
        self._cuda, self.shape, self.dtype, self.data = cuda, tuple(shape), np.dtype(dtype), memptr
        self.nbytes = int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def get(self) -> NDArray[Any]:
        """Return the values on the host, read on the current stream of its device."""
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        device = self.data.mem.device_id
        memory, start = self._cuda.at(self.data.ptr)
        read: list[bytes] = []
        simulator = self._cuda.devices[device]
        event = simulator.launch(
            self._cuda.stream_of(device).simulated,
            lambda data: read.append(data[start : start + self.nbytes].tobytes()),
            [memory],
        )
        simulator.finish(event)
        return np.frombuffer(read[0], self.dtype).reshape(self.shape)

    def tolist(self) -> Any:
        """Return the values as lists."""
        return self.get().tolist()

    def astype(self, dtype: Any) -> ndarray:
        """Return a new array, made by a kernel on the current stream of the current device."""
        self._cuda.note("ndarray.astype", dtype)
        device = self.data.mem.device_id
        self._cuda.must_be(device, "an array")
        count = int(np.prod(self.shape, dtype=np.int64))
        pointer = self._cuda._alloc(count * np.dtype(dtype).itemsize)
        found = ndarray(self._cuda, self.shape, dtype, memptr=pointer)
        if count:
            memory, start = self._cuda.at(self.data.ptr)
            result, _ = self._cuda.at(pointer.ptr)
            nbytes, old = self.nbytes, self.dtype

            def kernel(narrow: NDArray[np.uint8], wide: NDArray[np.uint8]) -> None:
                taken = narrow[start : start + nbytes].view(old)
                wide[:] = taken.astype(dtype).view(np.uint8)

            self._cuda.devices[device].launch(
                self._cuda.stream_of(device).simulated, kernel, [memory], [result]
            )
        return found


def driver_over(cupy: types.ModuleType, patch: pytest.MonkeyPatch) -> Any:
    """Return the driver's module as it is over this cupy, which stays until the patch is undone."""
    patch.setitem(sys.modules, "cupy", cupy)
    patch.setitem(sys.modules, DRIVER, None)  # so that what is imported now goes with the patch
    del sys.modules[DRIVER]
    return importlib.import_module(DRIVER)


def _shown(given: Any) -> Any:
    return given if isinstance(given, int | tuple | type | np.dtype) else type(given)


__all__ = ["CUDARuntimeError", "Called", "Cuda", "OutOfMemoryError", "driver_over"]
