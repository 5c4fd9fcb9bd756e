"""The driver of torch, where no CUDA is: errors. Its calls are in `test_device_calls`."""

from __future__ import annotations

import contextlib
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from penstock.client.device import torch_driver  # noqa: E402 - it needs torch
from penstock.client.device.torch_driver import TorchDriver, TorchPort  # noqa: E402
from penstock.client.values.arrival import Arrival  # noqa: E402
from penstock.client.values.device_choice import decoder_for  # noqa: E402
from penstock.client.values.torch_decoder import TorchDecoder  # noqa: E402
from penstock.wire.errors import CannotPin, DeviceFailed, NoDevice, OutOfDeviceMemory  # noqa: E402

CUDA = torch.device("cuda:1")


@contextlib.contextmanager
def current(_: object) -> Iterator[None]:
    """Stand in for a device or a stream that is current for a while."""
    yield


def refuse(error: Exception) -> Callable[..., Any]:
    """Return a call that fails."""

    def call(*args: Any, **kwargs: Any) -> None:
        raise error

    return call


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """What the driver finds below `torch.cuda`, to be filled by a test."""
    found = types.SimpleNamespace(device=current, stream=current, device_count=lambda: 2)
    given = types.SimpleNamespace(
        cuda=found,
        uint8=torch.uint8,
        device=torch.device,
        empty=torch.empty,
        from_numpy=torch.from_numpy,
        OutOfMemoryError=torch.OutOfMemoryError,
    )
    monkeypatch.setattr(torch_driver, "torch", given)
    found.torch = given
    return found


def test_an_index_that_is_not_there_is_refused(cuda: types.SimpleNamespace) -> None:
    with pytest.raises(NoDevice, match="'cuda:2': this process sees cuda:0 to cuda:1"):
        TorchDriver(torch.device("cuda:2"))
    cuda.device_count = lambda: 1
    with pytest.raises(NoDevice, match="'cuda:1': this process sees cuda:0; pass one"):
        TorchDriver(CUDA)


def test_without_an_index_it_is_the_loops_current_device(cuda: types.SimpleNamespace) -> None:
    """And from then on it is that, on any thread."""
    cuda.current_device = lambda: 1
    cuda.Stream = cuda.current_stream = lambda device: device
    driver = TorchDriver(torch.device("cuda"))

    assert driver.open() == CUDA
    cuda.current_device = refuse(RuntimeError("asked twice"))
    assert driver.current() == CUDA


def test_after_a_fork_the_error_says_what_to_do(cuda: types.SimpleNamespace) -> None:
    cuda.Stream = refuse(
        RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with ...")
    )
    with pytest.raises(NoDevice, match="by spawn, not by fork") as caught:
        TorchDriver(CUDA).open()
    assert caught.value.code == "no_device"


def test_a_full_device_says_what_is_free(cuda: types.SimpleNamespace) -> None:
    cuda.torch.empty = refuse(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"))
    cuda.mem_get_info = lambda device: (1000, 80_000)

    with pytest.raises(OutOfDeviceMemory, match=r"5,000 bytes of cuda:1, .* 1,000 of 80,000"):
        TorchPort(CUDA).allocate(5000, None)


def test_memory_that_cannot_be_pinned_names_the_limit(cuda: types.SimpleNamespace) -> None:
    cuda.torch.empty = refuse(RuntimeError("CUDA error: OS call failed\nCUDA kernel errors ..."))

    with pytest.raises(CannotPin, match=r"\(CUDA error: OS call failed\); this process may lock"):
        TorchPort(CUDA).pin(1 << 20)
    cuda.device = refuse(RuntimeError("CUDA error: initialization error"))
    with pytest.raises(CannotPin, match=r"4,096 bytes .*\(CUDA error: initialization error\)"):
        TorchPort(CUDA).register(np.empty(4096, np.uint8))


@pytest.mark.parametrize("call", ["register", "unregister"])
@pytest.mark.parametrize("has_forgetting", [True, False])
def test_what_cannot_be_registered_fails_no_kernel_after_it(
    cuda: types.SimpleNamespace, call: str, has_forgetting: bool
) -> None:
    """CUDA keeps the error for whoever asks next on this thread, and torch asks after kernels."""
    kept = []

    def register(*_: int) -> int:
        kept.append(801)
        return 801

    def ones(*_: Any, **__: Any) -> None:
        if kept:
            raise RuntimeError(f"CUDA error: {kept.pop()}")

    runtime = types.SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=register)
    if has_forgetting:
        runtime.cudaGetLastError = kept.clear
    cuda.cudart, cuda.torch.ones = lambda: runtime, ones
    error = CannotPin if call == "register" else DeviceFailed
    with pytest.raises(error, match=r"cudaHost(Unr|R)egister returned 801"):
        getattr(TorchPort(CUDA), call)(np.empty(4096, np.uint8))
    cuda.torch.ones(1)
    assert not kept


@pytest.mark.parametrize("call", ["copy", "record", "wait", "query", "synchronize"])
def test_a_device_that_was_reset_names_the_call(cuda: types.SimpleNamespace, call: str) -> None:
    """The first line of what torch says: the others are advice for kernels."""
    failing = refuse(RuntimeError("CUDA error: unspecified launch failure\nadvice"))
    handle = types.SimpleNamespace(
        record_event=failing, wait_event=failing, query=failing, synchronize=failing
    )
    cuda.torch.from_numpy = failing
    port = TorchPort(CUDA)
    given = {
        "copy": (torch.empty(64, dtype=torch.uint8), np.empty(64, np.uint8), 64, handle),
        "record": (handle,),
        "wait": (handle, handle),
        "query": (handle,),
        "synchronize": (handle,),
    }

    with pytest.raises(DeviceFailed, match=f"asked to {call}: .* launch failure; it was") as caught:
        getattr(port, call)(*given[call])
    assert (caught.value.call, caught.value.device) == (call, "cuda:1")


@pytest.fixture
def host_without_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that finds a device, and whose `pin_memory=True` fails as it does without one."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device, for which memory can be pinned")
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "Stream": lambda device: device,
        "device": current,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)


def test_where_torch_can_pin_nothing_auto_takes_plain_memory(
    host_without_locked_memory: None, caplog: pytest.LogCaptureFixture
) -> None:
    """And one line of the log says so, with the reason that torch gives."""
    with pytest.raises(RuntimeError) as said:
        torch.empty(1, dtype=torch.uint8, pin_memory=True)
    with caplog.at_level(logging.INFO, "penstock"):
        assert isinstance(decoder_for("cuda", None, "auto", Arrival()).settle(), TorchDecoder)

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "batches land in plain memory" in record.getMessage()
    assert str(said.value).splitlines()[0].rstrip(".") in record.getMessage()


def test_where_torch_can_pin_nothing_and_was_asked_to_it_is_an_error(
    host_without_locked_memory: None, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(CannotPin, match="4,096 bytes"):
        decoder_for("cuda", None, "torch", Arrival()).settle()

    with caplog.at_level(logging.INFO, "penstock"):
        assert isinstance(decoder_for("cuda", None, "plain", Arrival()).settle(), TorchDecoder)
    [record] = caplog.records
    assert record.getMessage().endswith('as the loop takes them: memory="plain"')
