"""The devices of this machine: simulated ones, and CUDA by each library that finds it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock.client.device.copier import Copy
from penstock.client.device.driver import Driver
from penstock.client.testing import Eager, Lazy, Random, SimulatedDevice
from penstock.client.values.device_choice import cupy_lacks, torch_lacks

DRIVERS: dict[str, Callable[[], Driver]] = {
    "simulated": SimulatedDevice,
    "simulated, at once": lambda: SimulatedDevice(Eager()),
    "simulated, at last": lambda: SimulatedDevice(Lazy()),
    "simulated, another order": lambda: SimulatedDevice(Random(1)),
}


def _torch() -> Driver:
    import torch

    from penstock.client.device.torch_driver import TorchDriver

    return TorchDriver(torch.device("cuda"))


def _cupy() -> Driver:
    from penstock.client.device.cupy_driver import CupyDriver

    return CupyDriver(None)


LACKS = {"torch": torch_lacks(), "cupy": cupy_lacks()}
"""By library: why it reaches no device of CUDA here; "" = it does."""

ANSWERING = {name: make for name, make in (("torch", _torch), ("cupy", _cupy)) if not LACKS[name]}
"""The drivers of CUDA that find a device here."""

if importlib.util.find_spec("torch") is not None:
    DRIVERS["simulated, tensors"] = lambda: SimulatedDevice(tensors=True)
DRIVERS |= ANSWERING

EACH = [
    pytest.param(name, marks=pytest.mark.gpu) if name in ANSWERING else name for name in DRIVERS
]
"""Their names, for a test that takes each: `pytest -m gpu` runs what needs a device."""


def on_host(value: Any) -> NDArray[Any]:
    """Return an array or a tensor of a device as an array of NumPy; the stream's turn is kept."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "get"):
        return np.asarray(value.get())
    return np.asarray(value.cpu())


def bytes_of(driver: Driver, copy: Copy, nbytes: int) -> NDArray[np.uint8]:
    """Return what a received copy has brought to the device."""
    return on_host(driver.values(copy.memory)("uint8", (nbytes,), 0, nbytes))


__all__ = ["ANSWERING", "DRIVERS", "EACH", "LACKS", "bytes_of", "on_host"]
