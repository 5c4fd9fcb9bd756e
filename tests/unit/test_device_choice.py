"""Which library brings batches to a device: what is taken, what is refused, and what is logged."""

from __future__ import annotations

import importlib.util
import logging
import sys
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import pytest

from penstock.client import Loader
from penstock.client.testing import SimulatedDevice
from penstock.client.values.arrival import Arrival
from penstock.client.values.decoder_choice import check_values, make_decoder
from penstock.client.values.device_choice import check_device, decoder_for
from penstock.client.values.device_decoder import DeviceDecoder
from penstock.client.values.value_decoder import NumpyDecoder, ValueDecoder
from penstock.wire.errors import CannotPin, InvalidRequest, MissingExtra, NoDevice
from unit.served import ServedNode
from unit.simulated_cupy import Cuda, driver_over


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    """One node for all."""
    with ServedNode(batches=12, lanes=3) as served:
        yield served


def stand_in(name: str, **attributes: Any) -> types.ModuleType:
    """Return a module of a name, as `import` finds it."""
    found = types.ModuleType(name)
    found.__spec__ = ModuleSpec(name, None)
    vars(found).update(attributes)
    return found


def torch_of(*, cuda: str | None = None, is_available: bool = False) -> types.ModuleType:
    """Return what the choice looks at in a build of torch."""
    return stand_in(
        "torch",
        __version__="2.13.0",
        version=types.SimpleNamespace(cuda=cuda, hip=None),
        cuda=types.SimpleNamespace(is_available=lambda: is_available),
    )


Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Make this a machine with other libraries; None = it is not installed."""

    def make(*, torch: types.ModuleType | None, cupy: types.ModuleType | None) -> None:
        given = {"torch": torch, "cupy": cupy}
        real = importlib.util.find_spec

        def find(name: str, package: str | None = None) -> Any:
            if name in given:
                return None if given[name] is None else given[name].__spec__
            return real(name, package)

        monkeypatch.setattr(importlib.util, "find_spec", find)
        for name, module in given.items():
            monkeypatch.setitem(sys.modules, name, module)
        if cupy is not None:
            driver_over(cupy, monkeypatch)

    return make


def refused_by(machine: str) -> types.ModuleType:
    """Return a cupy that finds no device, in CUDA's words."""

    def count() -> int:
        raise RuntimeError(machine)

    runtime = types.SimpleNamespace(getDeviceCount=count)
    return stand_in("cupy", cuda=types.SimpleNamespace(runtime=runtime, Event=None, Stream=None))


DRIVER = "cudaErrorInsufficientDriver: CUDA driver version is insufficient"


def test_without_torch_cupy_is_taken_and_the_log_says_why(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine(torch=None, cupy=Cuda(1).module())

    with caplog.at_level(logging.INFO, "penstock"):
        assert isinstance(decoder_for("cuda", None, "auto", Arrival()).settle(), DeviceDecoder)

    assert [record.getMessage() for record in caplog.records] == [
        "device='cuda': batches land in memory that cupy pins, and cupy copies them: torch is not "
        "installed"
    ]


def test_beside_a_torch_without_cuda_cupy_is_taken(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine(torch=torch_of(), cupy=Cuda(1).module())

    with caplog.at_level(logging.INFO, "penstock"):
        assert isinstance(decoder_for("cuda:0", None, "auto", Arrival()).settle(), DeviceDecoder)

    [record] = caplog.records
    assert record.getMessage().endswith("torch 2.13.0 is built without CUDA")


@pytest.mark.parametrize(
    ("torch", "cupy", "memory", "reason"),
    [
        (torch_of(), None, "auto", "built without CUDA; cupy is not installed"),
        (torch_of(cuda="13.0"), None, "auto", "torch finds no CUDA device here"),
        (torch_of(cuda="13.0"), refused_by(DRIVER), "auto", f"here \\({DRIVER}\\)"),
        (None, refused_by(DRIVER), "auto", "torch is not installed; cupy finds no CUDA device"),
        (None, refused_by(DRIVER), "cupy", DRIVER),
        (torch_of(), Cuda(1).module(), "torch", "torch 2.13.0 is built without CUDA"),
        (torch_of(), Cuda(1).module(), "plain", "torch 2.13.0 is built without CUDA"),
        (torch_of(), Cuda(0).module(), "auto", "cupy finds no CUDA device here"),
        (torch_of(cuda="13.0"), Cuda(1).module(), "auto", "cupy is for CUDA 12, and torch"),
    ],
)
def test_a_device_that_does_not_answer_is_refused_with_every_reason(
    machine: Machine,
    torch: types.ModuleType | None,
    cupy: types.ModuleType | None,
    memory: str,
    reason: str,
) -> None:
    machine(torch=torch, cupy=cupy)

    with pytest.raises(NoDevice, match=reason) as caught:
        decoder_for("cuda", None, memory, Arrival())
    assert (caught.value.code, caught.value.device) == ("no_device", "cuda")


@pytest.mark.parametrize("torch", [torch_of(), None])
def test_a_cupy_that_finds_nothing_after_a_fork_says_so(
    machine: Machine, torch: types.ModuleType | None
) -> None:
    """It says so as its devices are counted, before any is opened."""
    machine(torch=torch, cupy=refused_by("cudaErrorInitializationError: initialization error"))

    with pytest.raises(NoDevice, match="by spawn, not by fork"):
        decoder_for("cuda", None, "auto", Arrival())


def test_what_is_no_device_of_torch_is_said_in_a_line() -> None:
    pytest.importorskip("torch")
    with pytest.raises(InvalidRequest, match=r"device=3.5 is not a device of torch: .*") as caught:
        decoder_for(3.5, None, "auto", Arrival())
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("memory", "package"), [("auto", "torch"), ("torch", "torch"), ("cupy", "cupy")]
)
def test_what_is_not_installed_is_named(machine: Machine, memory: str, package: str) -> None:
    """Before the node is called, and with the extra that brings it."""
    machine(torch=None, cupy=None)

    with pytest.raises(MissingExtra, match="not installed") as caught:
        check_values("cuda", None, memory)
    assert caught.value.package == package
    assert caught.value.extra == ("cuda12" if package == "cupy" else "")


@pytest.mark.parametrize(
    ("device", "as_numpy", "memory", "sentence"),
    [
        (None, None, "cupy", "pass device= too"),
        (None, None, "torch", "pass device= too"),
        ("cpu", None, "cupy", "is for devices of CUDA, and device='cpu' is none"),
        ("mps", None, "torch", "is for devices of CUDA"),
        ("cuda", True, "auto", "as_numpy=True asks for arrays"),
        ("cuda", False, "cupy", "gives arrays of cupy"),
        (SimulatedDevice(), None, "cupy", "the driver that device= was given decides that"),
        (SimulatedDevice, None, "auto", r"pass a device, such as SimulatedDevice\(\)"),
        (True, None, "auto", 'device=True: pass a device, such as "cuda"'),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    device: Any, as_numpy: bool | None, memory: str, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        check_values(device, as_numpy, memory)


def test_a_word_that_names_no_memory_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="memory='pinned': use 'auto' or 'torch'"):
        Loader("127.0.0.1:1", "code", memory="pinned")  # type: ignore[arg-type]


def test_on_the_host_plain_is_what_it_is_anyway(node: ServedNode) -> None:
    for memory in ("auto", "plain"):
        with Loader(
            node.address, "code", rank=0, world_size=1, as_numpy=True, memory=memory
        ) as loader:
            assert isinstance(next(iter(loader))["input_ids"], np.ndarray)
    assert isinstance(make_decoder(None, True, "plain", Arrival()), NumpyDecoder)


def test_where_nothing_can_be_pinned_another_decoder_is_taken(node: ServedNode) -> None:
    """With auto; who asked for pinned memory gets the error, and the bytes that were asked for."""

    def before(call: str) -> None:
        if call == "pin":
            raise CannotPin("locked memory is used up", nbytes=4096)

    device, reasons = SimulatedDevice(), []
    device.simulator.before = before

    def instead(error: CannotPin) -> ValueDecoder:
        reasons.append(str(error))
        return NumpyDecoder(Arrival())

    assert isinstance(DeviceDecoder(device, Arrival(), instead=instead).settle(), NumpyDecoder)
    assert reasons == ["locked memory is used up"]
    with (
        Loader(node.address, "code", rank=0, world_size=1, device=device) as loader,
        pytest.raises(CannotPin, match="locked memory is used up"),
    ):
        next(iter(loader))


def test_memory_that_runs_out_later_stops_the_run_with_its_name(node: ServedNode) -> None:
    """Nothing can be pinned for the bodies that come: what came before is given."""
    device, given = SimulatedDevice(), []
    pins = iter([None])  # the trial as the device is opened

    def before(call: str) -> None:
        if call == "pin" and next(pins, "full") == "full":
            raise CannotPin("locked memory is used up", nbytes=4096)

    device.simulator.before = before
    with Loader(node.address, "code", rank=0, world_size=1, device=device) as loader:
        batches = iter(loader)
        with pytest.raises(CannotPin, match="locked memory is used up"):
            given.extend(batches)
    assert [batch.position for batch in given] == [*range(len(given))]


def test_a_device_of_the_simulator_needs_no_library(machine: Machine, node: ServedNode) -> None:
    machine(torch=None, cupy=None)
    check_device(SimulatedDevice(), None, "auto")

    with Loader(
        node.address, "code", rank=0, world_size=1, device=SimulatedDevice(), meta=True
    ) as loader:
        positions = [int(batch["penstock_position"]) for batch in loader]
    assert positions == [*range(12)]
