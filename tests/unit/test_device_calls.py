"""What drivers call, without a device: in a kept order, and as installed libraries take it."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import re
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.client.bodies.buffers import BufferPool
from penstock.client.device.copier import Copier
from penstock.client.device.driver import Driver
from penstock.client.device.pinned import PinnedMemory
from penstock.client.testing import Eager, RecordingPort, SimulatedDevice
from penstock.wire.value_types import STORAGE
from unit.simulated_cupy import Cuda, driver_over

KEPT = Path(__file__).parents[1] / "data" / "device_calls"
"""The calls of `epoch`; `WRITE_DEVICE_CALLS=1 pytest tests/unit/test_device_calls.py` writes them,
for a change that is meant, to be read before it is committed."""

Call = tuple[str, tuple[Any, ...], dict[str, Any]]


def epoch(driver: Driver, port: Any = None) -> None:
    """Read four batches, pinned and staged: two are copied ahead, each is dropped after its use."""
    stream = driver.open()
    port = port or driver.port
    memory = PinnedMemory(port, 1 << 20)
    pinned, plain = BufferPool(1, memory=memory), BufferPool(1)
    copier = Copier(port, stream, memory)
    begun = []
    for number in range(4):
        lease = (plain if number % 2 else pinned).lease(5000)
        lease.array[:] = number
        begun.append(copier.copy(lease))
        del lease
        if number:
            copier.receive(begun.pop(0), driver.current())
    copier.receive(begun.pop(), driver.current())
    lent = BufferPool(1).lease(8192)
    port.register(lent.array)
    port.unregister(lent.array)


def compare(name: str, lines: list[str]) -> None:
    """Hold calls against those that were kept."""
    file = KEPT / f"{name}.txt"
    if os.environ.get("WRITE_DEVICE_CALLS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n")
    assert lines == file.read_text().splitlines(), f"what {name} calls has changed: see KEPT"


def cupy_calls() -> list[Call]:
    """Return what the driver of cupy calls."""
    cuda = Cuda(1, Eager())
    with pytest.MonkeyPatch.context() as patch:
        driver = driver_over(cuda.module(), patch).CupyDriver(None)
        driver.open()
        cuda.devices[0].loops.clear()
        cuda.calls.clear()
        cuda._new_stream = lambda real=cuda._new_stream, **kwargs: (
            real(**kwargs),
            cuda.devices[0].loops.clear(),
        )[0]
        epoch(driver)
        memory = driver.port.allocate(64, cuda.null[0])
        value = driver.values(memory)("int32", (0,), 0, 0)
        driver.work_on(cuda.null[0], lambda: driver.to_int64(value))
        driver.port.synchronize(driver.port.record(cuda.null[0]))
    return [tuple(call) for call in cuda.calls]


def torch_calls() -> list[Call]:
    """Return what the driver of torch calls."""
    import torch

    from penstock.client.device import torch_driver
    from unit.recorded_torch import Recorded

    calls: list[Call] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_driver, "torch", Recorded(calls, ""))
        driver = torch_driver.TorchDriver(torch.device("cuda"))
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(torch_driver, "int", lambda _: 0, raising=False)  # cudaSuccess
            epoch(driver)
        stream = driver.open()
        memory = driver.port.allocate(64, stream)
        _, made = driver.work_on(stream, lambda: {"x": driver.to_int64(memory), "y": [memory, 3]})
        assert len(made) == 2
        event = driver.port.record(stream)
        driver.port.wait(driver.current(), event, *made)
        driver.port.synchronize(event)
    return calls


def shown(call: Call) -> str:
    """Return a call as text, with classes and sizes, and no addresses."""

    def text(value: Any) -> str:
        if isinstance(value, np.ndarray):
            return f"uint8[{value.nbytes}]"
        if isinstance(value, int) and value >= 1 << 20:
            return "address"
        return re.sub(r"^<class '(?:.*\.)?(\w+)'>$", r"\1", str(value))

    path, args, kwargs = call
    given = [*map(text, args), *(f"{name}={text(value)}" for name, value in kwargs.items())]
    return f"{path}({', '.join(given)})"


def test_the_calls_of_the_port_are_those_that_were_kept() -> None:
    """A change of the order is a change of a file that is read."""
    driver = SimulatedDevice(Eager())
    port = RecordingPort(driver.port)
    driver.simulator.loops = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "open", lambda: driver.simulator.stream("copies"))
        epoch(driver, port)

    compare("port", port.lines)


def test_the_calls_of_cupy_are_those_that_were_kept() -> None:
    compare("cupy", [shown(call) for call in cupy_calls()])


@pytest.mark.torch
def test_the_calls_of_torch_are_those_that_were_kept() -> None:
    pytest.importorskip("torch")

    compare("torch", [shown(call) for call in torch_calls()])


# --- as the libraries that are installed take them ---


def signature(function: Any) -> inspect.Signature:
    """Return what a function takes; a compiled one says so in the first line of its docstring."""
    with contextlib.suppress(ValueError):
        return inspect.signature(function)
    first = (function.__doc__ or "").strip().splitlines()[0]
    found = re.fullmatch(r"[\w.]+\((.*)\)(?: -> .*)?", first)
    assert found, f"{function!r} does not say what it takes: {first!r}"
    parameters = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for part in filter(None, (text.strip() for text in found[1].split(","))):
        if part == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
            continue
        name, _, default = part.partition("=")
        parameters.append(
            inspect.Parameter(
                name.split()[-1],
                kind,
                default=default if default else inspect.Parameter.empty,
            )
        )
    return inspect.Signature(parameters)


def check(library: Any, calls: list[Call], *, unanswered: frozenset[str] = frozenset()) -> int:
    """Bind each call to what is installed; return how many functions that were."""
    seen = set()
    for path, args, kwargs in calls:
        if path.startswith("end of") or path in unanswered:
            continue
        owner, found = None, library
        for name in path.split("."):
            owner, found = found, inspect.getattr_static(found, name, None) or getattr(found, name)
        seen.add(path)
        if isinstance(found, property) or (not callable(found) and not args):
            continue
        found = getattr(owner, path.rpartition(".")[2])
        if inspect.isclass(found) or not inspect.isclass(owner):
            takes = signature(found)
        else:
            takes, args = signature(found), (None, *args)
        takes.bind(*args, **kwargs)
    return len(seen)


def test_cupy_takes_what_the_driver_calls() -> None:
    """By its signatures; where it has no driver it says so, in the words that we look for."""
    calls = cupy_calls()
    cupy = pytest.importorskip("cupy", reason="cupy is not installed (extras cuda12 and cuda13)")
    runtime = cupy.cuda.runtime

    assert check(cupy, calls) >= 17
    assert runtime.memcpyHostToDevice == 1
    assert issubclass(runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)
    assert hasattr(cupy.ndarray, "__dlpack__")
    assert hasattr(cupy.ndarray, "__dlpack_device__")


def test_an_array_of_cupy_keeps_the_owner_of_its_memory() -> None:
    """Until the last view is gone, whichever that is: the driver is told by that."""
    cupy = pytest.importorskip("cupy", reason="cupy is not installed (extras cuda12 and cuda13)")

    class Owner:
        pass

    owner = Owner()
    reference = weakref.ref(owner)
    memory = cupy.cuda.UnownedMemory(4096, 64, owner, 0)  # nobody reads it: there is no device
    whole = cupy.ndarray((64,), cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    part = cupy.ndarray((2, 2), np.dtype("<i4"), memptr=whole.data + 16)
    view = part[1:]
    del owner, memory, whole, part
    gc.collect()
    assert (reference() is not None, view.data.ptr) == (True, 4096 + 16 + 8)

    del view
    gc.collect()
    assert reference() is None


def test_cupy_views_every_dtype_of_the_wire() -> None:
    """As an array of that dtype and shape, where it lies; bfloat16 by ml_dtypes."""
    cupy = pytest.importorskip("cupy", reason="cupy is not installed (extras cuda12 and cuda13)")
    pytest.importorskip("ml_dtypes")
    from penstock.client.device.cupy_driver import CupyDriver, CupyMemory

    memory = cupy.cuda.UnownedMemory(4096, 64, None, 0)
    whole = cupy.ndarray((64,), cupy.uint8, memptr=cupy.cuda.MemoryPointer(memory, 0))
    make = CupyDriver(0).values(CupyMemory(whole, None))  # type: ignore[arg-type]

    for name, storage in STORAGE.items():
        view = make(name, (1, 2), 16, 2 * storage.itemsize)
        assert (view.dtype.name, view.shape, view.data.ptr) == (name, (1, 2), 4096 + 16)
        assert make(name, (0, 3), 64, 0).shape == (0, 3)


def test_cupy_without_a_driver_says_so() -> None:
    """In the words that the errors quote."""
    cupy = pytest.importorskip("cupy", reason="cupy is not installed (extras cuda12 and cuda13)")
    if cupy.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    from penstock.client.device.cupy_driver import CupyDriver
    from penstock.wire.errors import NoDevice

    with pytest.raises(NoDevice, match="cudaErrorInsufficientDriver"):
        CupyDriver(0).open()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="cudaErrorInsufficientDriver"):
        cupy.cuda.alloc_pinned_memory(4096)


@pytest.mark.torch
def test_torch_takes_what_the_driver_calls() -> None:
    """By its signatures; what `cudart()` has, only a build with CUDA knows."""
    torch = pytest.importorskip("torch")
    unanswered = frozenset(
        {
            "cuda.cudart",
            "None.cudaHostRegister",
            "None.cudaHostUnregister",
            # Compiled, without a signature: that they are there is checked below.
            "empty",
            "from_numpy",
            "Tensor.copy_",
            "Tensor.numpy",
            "Tensor.record_stream",
            "Tensor.to",
            "Tensor.untyped_storage",
            "UntypedStorage.data_ptr",
        }
    )
    methods = ("copy_", "is_cuda", "numpy", "record_stream", "to", "untyped_storage")

    assert check(torch, torch_calls(), unanswered=unanswered) >= 8
    assert all(hasattr(torch.Tensor, name) for name in methods)
    assert hasattr(torch.UntypedStorage, "data_ptr")
    assert issubclass(torch.OutOfMemoryError, RuntimeError)
    if not torch.cuda.is_available():
        # In words of its own: a build without CUDA has others than one that finds no driver.
        with pytest.raises(RuntimeError):
            torch.empty(4096, dtype=torch.uint8, pin_memory=True)
