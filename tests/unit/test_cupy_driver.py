"""The driver of cupy, over cupy's calls on simulated devices: their order, threads and errors."""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from penstock.client import Loader
from penstock.client.bodies.buffers import BufferPool
from penstock.client.device.copier import Copier
from penstock.client.device.pinned import PinnedMemory
from penstock.client.testing import Lazy, Schedule
from penstock.wire.errors import (
    CannotPin,
    DeviceFailed,
    InvalidRequest,
    NoDevice,
    OutOfDeviceMemory,
)
from unit.device_model import Device, Parts, search
from unit.devices import on_host
from unit.served import ServedNode, values_of
from unit.simulated_cupy import Cuda, CUDARuntimeError, driver_over

Install = Callable[..., tuple[Cuda, Any]]


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    """One node for all."""
    with ServedNode(batches=40, lanes=3) as served:
        yield served


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put simulated devices where `import cupy` looks; return them, and the driver's module.

    They are for CUDA 12: a torch that is in use here counts as built without CUDA, whichever it is.
    """

    def put(**options: Any) -> tuple[Cuda, Any]:
        cuda = Cuda(**options)
        if (torch := sys.modules.get("torch")) is not None:
            monkeypatch.setattr(torch.version, "cuda", None)
        return cuda, driver_over(cuda.module(), monkeypatch)

    return put


def read(node: ServedNode, device: Any, **options: Any) -> list[dict[str, Any]]:
    """Return every value of a job's batches, read through a device."""
    with Loader(
        node.address, "code", rank=0, world_size=1, device=device, memory="cupy", **options
    ) as loader:
        return [
            {name: on_host(v) if hasattr(v, "dtype") else v for name, v in batch.items()}
            for batch in loader
        ]


@pytest.mark.parametrize("device", ["cuda", "cuda:0", "cuda:1"])
def test_a_loader_gives_arrays_of_cupy(node: ServedNode, install: Install, device: str) -> None:
    """Every value of every batch; no thread of it sets a current device."""
    cuda, _ = install()

    for position, values in enumerate(read(node, device)):
        for name, expected in values_of(position, 64).items():
            if isinstance(expected, np.ndarray):
                assert np.array_equal(values[name], expected), name
                assert values[name].dtype == expected.dtype
    used = [simulator.counts["copy"] for simulator in cuda.devices]
    assert used == ([0, 40] if device == "cuda:1" else [40, 0])
    assert cuda.current.device == 0


def test_without_an_index_it_is_the_loops_current_device(
    node: ServedNode, install: Install
) -> None:
    cuda, _ = install()
    cuda.current.device = 1

    assert len(read(node, "cuda")) == 40
    assert [simulator.counts["copy"] for simulator in cuda.devices] == [0, 40]


def test_two_ranks_in_threads_read_to_two_devices(node: ServedNode, install: Install) -> None:
    cuda, _ = install()
    found: dict[int, int] = {}

    def rank(number: int) -> None:
        found[number] = len(read(node, f"cuda:{number}"))

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert found == {0: 40, 1: 40}
    assert [simulator.counts["copy"] for simulator in cuda.devices] == [40, 40]


def test_all_is_released_when_a_loader_is_gone(node: ServedNode, install: Install) -> None:
    """What its last batches left is released by whoever allocates next."""
    cuda, module = install()
    read(node, "cuda")
    gc.collect()
    simulator = cuda.devices[0]
    simulator.drain()

    module.RETIRED[0].release()
    simulator.drain()
    module.RETIRED[0].release()
    module.RETIRED.clear()
    gc.collect()
    simulator.close()


def over_cupy(module: Any, patch: pytest.MonkeyPatch) -> Callable[..., Device]:
    """Return what makes a device whose port is the driver's."""

    def make(schedule: Schedule, goes_on_at: frozenset[str] | None) -> Device:
        cuda = Cuda(1, schedule)
        patch.setattr(module, "cupy", cuda.module())
        module.RETIRED.clear()
        driver, simulator = module.CupyDriver(0), cuda.devices[0]
        copies = driver.open()
        simulator.loops.clear()

        def launch(kernel: Callable[..., None], memory: Any) -> object:
            handle, _ = cuda.at(memory.array.data.ptr)
            return simulator.launch(cuda.null[0].simulated, kernel, [handle])

        retired = module.RETIRED[0]
        return Device(simulator, driver.port, copies, cuda.null[0], launch, retired.release)

    return make


def test_whatever_is_done_each_batch_has_its_own_bytes(install: Install) -> None:
    """As for the simulated device itself; calls of CUDA fail before they are made, or after."""
    _, module = install()
    with pytest.MonkeyPatch.context() as patch:
        search(100, Parts(device=over_cupy(module, patch)))


class NoStreams(list[Any]):
    """Forgets which streams have waited for memory."""

    def append(self, stream: Any) -> None:
        """Do nothing."""


def test_memory_that_is_given_back_too_early_is_found(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 100 runs, where the driver forgets who uses it."""
    _, module = install()
    used = module._UsedMemory
    monkeypatch.setattr(module, "_UsedMemory", lambda pointer, streams: used(pointer, NoStreams()))

    with pytest.raises(AssertionError), pytest.MonkeyPatch.context() as patch:
        search(100, Parts(device=over_cupy(module, patch)))


def test_memory_outlives_the_kernels_that_read_it(install: Install) -> None:
    """On a device that does nothing before somebody waits, others are copied meanwhile."""
    cuda, module = install(schedule=Lazy())
    driver = module.CupyDriver(1)
    stream, simulator = driver.open(), cuda.devices[1]
    simulator.loops.clear()
    pinned = PinnedMemory(driver.port)
    copier, pool = Copier(driver.port, stream, pinned), BufferPool(1, memory=pinned)
    sums = []
    for n in range(8):
        lease = pool.lease(5000)
        lease.array[:] = n
        copy = copier.copy(lease)
        copier.receive(copy, driver.current())
        view = driver.values(copy.memory)("uint8", (5000,), 0, 5000)
        sums.append(driver.to_int64(view))
        del lease, copy, view

    assert simulator.counts["copied"] == 0
    assert [found.get()[[0, -1]].tolist() for found in sums] == [[n, n] for n in range(8)]


def test_what_is_made_on_arrival_outlives_the_kernels_that_read_it(install: Install) -> None:
    """Its memory comes as that of bodies does, and is kept for the loop's stream."""
    cuda, module = install(schedule=Lazy())
    driver = module.CupyDriver(1)
    stream, simulator = driver.open(), cuda.devices[1]
    simulator.loops.clear()
    pinned = PinnedMemory(driver.port)
    copier, pool = Copier(driver.port, stream, pinned), BufferPool(1, memory=pinned)
    sums = []
    for n in range(8):
        lease = pool.lease(5000)
        lease.array[:] = n
        copy = copier.copy(lease)
        view = driver.values(copy.memory)("uint8", (5000,), 0, 5000)
        wide, followed = copier.follow(copy, driver, functools.partial(driver.to_int64, view))
        assert len(followed.results) == 1
        copier.receive(followed, driver.current())
        with cuda.module().cuda.Device(1):
            sums.append(wide.astype(np.uint16))
        del lease, copy, followed, view, wide

    assert simulator.counts["copied"] == 0
    assert [found.get()[[0, -1]].tolist() for found in sums] == [[n, n] for n in range(8)]


def test_a_full_device_is_asked_again_when_what_was_dropped_is_over(install: Install) -> None:
    """Else the error has the sizes."""
    cuda, module = install(schedule=Lazy(), memory_bytes=20_000)
    driver = module.CupyDriver(0)
    stream = driver.open()
    cuda.devices[0].loops.clear()
    pinned = PinnedMemory(driver.port)
    copier, pool = Copier(driver.port, stream, pinned), BufferPool(1, memory=pinned)

    def copy() -> Any:
        return copier.copy(pool.lease(8000))

    for _ in range(5):
        copier.receive(copy(), driver.current())
    kept = [copy(), copy()]
    with pytest.raises(OutOfDeviceMemory, match="takes 8,000 bytes of cuda:0") as caught:
        copy()
    assert (caught.value.code, len(kept)) == ("out_of_device_memory", 2)


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("cuda:2", "this process sees cuda:0 to cuda:1"),
        ("cuda:x", "write cuda, or cuda:0"),
        ("cuda:²", "write cuda"),
    ],
)
def test_an_index_that_is_not_there_is_refused(
    node: ServedNode, install: Install, device: str, sentence: str
) -> None:
    install()

    with pytest.raises(InvalidRequest, match=sentence) as caught:
        read(node, device)
    assert caught.value.code in ("no_device", "invalid_request")


def test_a_cupy_for_another_cuda_than_torchs_is_refused(
    node: ServedNode, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    install()
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    with pytest.raises(
        NoDevice, match=r"for CUDA 12, and torch, .* for 13\.0: install cupy-cuda13x"
    ) as caught:
        read(node, "cuda")
    assert caught.value.code == "no_device"


def test_what_does_not_answer_after_a_fork_says_so(
    node: ServedNode, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, _ = install()

    def refuse(**options: Any) -> None:
        raise CUDARuntimeError("cudaErrorInitializationError: initialization error")

    monkeypatch.setattr(cuda, "_new_stream", refuse)
    with pytest.raises(NoDevice, match="by spawn, not by fork"):
        read(node, "cuda")


def test_memory_that_cannot_be_pinned_is_refused(
    node: ServedNode, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, _ = install()

    def refuse(nbytes: int) -> None:
        raise CUDARuntimeError("cudaErrorMemoryAllocation: out of memory")

    monkeypatch.setattr(cuda.devices[0], "pin", refuse)
    with pytest.raises(CannotPin, match=r"4,096 bytes .* cannot be pinned .*ulimit -l") as caught:
        read(node, "cuda")
    assert (caught.value.code, caught.value.nbytes) == ("cannot_pin", 4096)


def test_a_device_that_was_reset_is_named_at_the_batch(
    node: ServedNode, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, _ = install()
    copies = iter([None, None])

    def before(call: str) -> None:
        if call == "copy" and next(copies, "reset") == "reset":
            raise CUDARuntimeError("cudaErrorDeviceUninitialized: device was reset")

    cuda.devices[0].before = before
    with pytest.raises(DeviceFailed, match=r"cuda:0 failed as it was asked to copy: .* reset"):
        read(node, "cuda")


def test_arrays_of_the_host_stay_there_and_tensors_are_refused(
    node: ServedNode, install: Install
) -> None:
    install()

    with pytest.raises(InvalidRequest, match="gives arrays of cupy") as caught:
        read(node, "cuda", as_numpy=False)
    assert caught.value.code == "invalid_request"
    with pytest.raises(InvalidRequest, match="is for devices of CUDA") as caught:
        read(node, "cpu")
    assert caught.value.code == "invalid_request"
