"""Which library brings batches to a device, and what their values are: decided once, and logged."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import logging
import sys
from typing import Any

from penstock.client.calls.background_thread import log_in_background
from penstock.client.device.trouble import remedy
from penstock.client.values.arrival import Arrival
from penstock.client.values.device_decoder import DeviceDecoder
from penstock.client.values.value_decoder import ValueDecoder
from penstock.wire.errors import CannotPin, InvalidRequest, MissingExtra, NoDevice

logger = logging.getLogger("penstock")

LANDS = "device=%r: batches land in %s: %s"

PLAINLY = "plain memory, from which torch copies them as the loop takes them"


def is_driver(device: Any) -> bool:
    """Tell whether a device is given as a `Driver`, and not by its name."""
    return hasattr(device, "open") and hasattr(device, "current")


def is_cuda(device: Any) -> bool:
    """Tell whether a name, or a `torch.device`, means a device of CUDA; nothing is imported."""
    return _name(device).partition(":")[0] == "cuda"


def _name(device: Any) -> str:
    """Return the name of a device: torch takes a bare index as one of CUDA."""
    return f"cuda:{device}" if isinstance(device, int) else str(device)


def check_device(device: Any, as_numpy: bool | None, memory: str) -> None:
    """Refuse what cannot be, before the node is called; nothing is imported to find out.

    Raises:
        InvalidRequest: Arguments that do not go together.
        MissingExtra: A package is needed and not installed.
    """
    if isinstance(device, (bool, type)):
        made = f"{device.__name__}()" if isinstance(device, type) else '"cuda"'
        raise InvalidRequest(f"device={device!r}: pass a device, such as {made}")
    if as_numpy:
        raise InvalidRequest(
            f"device={device!r} moves tensors, and as_numpy=True asks for arrays: pass one of them"
        )
    if is_driver(device):
        if memory != "auto":
            raise InvalidRequest(
                f"memory={memory!r}: the driver that device= was given decides that; leave it out"
            )
        return
    if memory in ("torch", "cupy") and not is_cuda(device):
        raise InvalidRequest(
            f"memory={memory!r} is for devices of CUDA, and device={_name(device)!r} is none: "
            "leave memory= out"
        )
    if memory == "cupy" and as_numpy is False:
        raise InvalidRequest(
            'memory="cupy" gives arrays of cupy, and as_numpy=False asks for tensors: leave one out'
        )
    has = {name: importlib.util.find_spec(name) is not None for name in ("torch", "cupy")}
    needs_cupy = memory == "cupy"
    if needs_cupy and not has["cupy"]:
        extra = _cupy_extra()
        raise MissingExtra(
            f'memory="cupy" needs cupy, which is not installed: pip install "penstock[{extra}]"',
            package="cupy",
            extra=extra,
        )
    takes_cupy = needs_cupy or (memory == "auto" and as_numpy is None and is_cuda(device))
    if not has["torch"] and not (takes_cupy and has["cupy"]):
        other = ", or cupy (extras cuda12 and cuda13)" if takes_cupy else ""
        raise MissingExtra(
            f"device={_name(device)!r} needs torch{other}, which is not installed: install it, or "
            "leave device= out",
            package="torch",
            extra="",
        )


def decoder_for(device: Any, as_numpy: bool | None, memory: str, arrival: Arrival) -> ValueDecoder:
    """Return what makes the values of batches on a device; it may import torch or cupy.

    Args:
        device: A name, a `torch.device` or a `Driver`.
        as_numpy: False = tensors; None = tensors where torch reaches the device.
        memory: `Loader(memory=)`.
        arrival: What is done with values as they arrive.

    Raises:
        InvalidRequest, MissingExtra: As `check_device`; or torch knows no such device.
        NoDevice: It does not answer.
    """
    check_device(device, as_numpy, memory)
    if is_driver(device):
        return DeviceDecoder(device, arrival)
    if not is_cuda(device):
        return _plain(_torch_device(device), arrival)
    if memory == "cupy":
        missing = cupy_lacks()
        if missing:
            raise _no_device(device, [missing])
        return _by_cupy(device, 'memory="cupy"', arrival)
    missing = torch_lacks()
    if not missing:
        return _by_torch(_torch_device(device), memory, arrival)
    reasons = [missing]
    if memory == "auto" and as_numpy is None:
        lacks = cupy_lacks()
        if not lacks:
            return _by_cupy(device, missing, arrival)
        reasons.append(lacks)
    raise _no_device(device, reasons)


def _by_torch(device: Any, memory: str, arrival: Arrival) -> ValueDecoder:
    from penstock.client.device.torch_driver import TorchDriver

    driver, plain = TorchDriver(device), _plain(device, arrival)
    if memory == "plain":
        _note(device, PLAINLY, 'memory="plain"')
        return plain
    import torch

    cuda = torch.version.cuda or torch.version.hip

    def note() -> None:
        _note(device, "memory that torch pins, and torch copies them", f"torch has CUDA {cuda}")

    def instead(error: CannotPin) -> ValueDecoder:
        log_in_background(logger.warning, LANDS, _name(device), PLAINLY, error)
        return plain

    return DeviceDecoder(driver, arrival, note, instead if memory == "auto" else None)


def _by_cupy(device: Any, why: str, arrival: Arrival) -> ValueDecoder:
    cupy = importlib.import_module("cupy")
    mine = cupy.cuda.runtime.runtimeGetVersion() // 1000
    torch = sys.modules.get("torch")
    other = getattr(getattr(torch, "version", None), "cuda", None)
    if other is not None and (theirs := int(other.partition(".")[0])) != mine:
        raise _no_device(
            device,
            [f"cupy is for CUDA {mine}, and torch, which is in use here, for {other}"],
            f"install cupy-cuda{theirs}x in its place, or a torch for CUDA {mine}",
        )
    from penstock.client.device.cupy_driver import CupyDriver

    index = _name(device).partition(":")[2]
    if index and not (index.isascii() and index.isdigit()):
        raise InvalidRequest(f"device={_name(device)!r}: write cuda, or cuda:0 and so on")

    def note() -> None:
        _note(device, "memory that cupy pins, and cupy copies them", why)

    return DeviceDecoder(CupyDriver(int(index) if index else None), arrival, note)


def torch_lacks() -> str:
    """Return why torch reaches no CUDA device; "" = it does."""
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} is built without CUDA"
    return "torch finds no CUDA device here (torch.cuda.is_available() is False)"


def cupy_lacks() -> str:
    """Return why cupy reaches no CUDA device; "" = it does."""
    if importlib.util.find_spec("cupy") is None:
        return "cupy is not installed (extras cuda12 and cuda13)"
    try:
        runtime = importlib.import_module("cupy").cuda.runtime
        count = runtime.getDeviceCount()
    except (ImportError, RuntimeError) as error:  # libraries that are missing, or no driver
        return f"cupy finds no CUDA device here ({str(error).splitlines()[0]})"
    return "" if count else "cupy finds no CUDA device here"


def _cupy_extra() -> str:
    """Return the extra with the cupy for this host's driver; without a driver, any."""
    extra = "cuda12"
    version = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):  # no driver
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    if version.value >= 13_000:
        extra = "cuda13"
    return extra


def _no_device(
    device: Any,
    reasons: list[str],
    otherwise: str = "install what is missing, look at nvidia-smi, or leave device= out",
) -> NoDevice:
    reason = "; ".join(reasons)
    return NoDevice(
        f"device={_name(device)!r}: {reason}: {remedy(reason, otherwise)}",
        field="device",
        device=_name(device),
        reason=reason,
    )


def _torch_device(device: Any) -> Any:
    import torch

    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        said = str(error).splitlines()[0]
        raise InvalidRequest(f"device={device!r} is not a device of torch: {said}") from error


def _plain(device: Any, arrival: Arrival) -> ValueDecoder:
    from penstock.client.values.torch_decoder import TorchDecoder

    return TorchDecoder(device, arrival)


def _note(device: Any, memory: str, why: str) -> None:
    log_in_background(logger.info, LANDS, _name(device), memory, why)
