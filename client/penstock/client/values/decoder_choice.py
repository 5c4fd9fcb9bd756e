"""Whether batches become arrays or tensors, and where.

torch and cupy are imported when the first batch is made, never before, and only where they are
installed.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from penstock.client.values.arrival import Arrival
from penstock.client.values.value_decoder import NumpyDecoder, ValueDecoder
from penstock.wire.errors import InvalidRequest, MissingExtra


def check_values(device: Any, as_numpy: bool | None, memory: str) -> None:
    """Refuse what cannot be; no library is imported to find out.

    Args:
        device: Where tensors go: a name, a `torch.device`, or a driver; None = the host.
        as_numpy: True = arrays, False = tensors, None = tensors where torch is installed.
        memory: Which library pins memory for the device, and copies from there.

    Raises:
        InvalidRequest: Arguments that do not go together.
        MissingExtra: What is asked for needs a package that is not installed.
    """
    if device is not None:
        from penstock.client.values.device_choice import check_device

        check_device(device, as_numpy, memory)
        return
    if memory in ("torch", "cupy"):
        raise InvalidRequest(
            f"memory={memory!r} is for batches that go to a device: pass device= too, or leave it "
            "out"
        )
    if as_numpy is False and not _has_torch():
        raise MissingExtra(
            "as_numpy=False needs torch, which is not installed: install torch, or leave it out "
            "and get NumPy arrays",
            package="torch",
            extra="",
        )


def make_decoder(device: Any, as_numpy: bool | None, memory: str, arrival: Arrival) -> ValueDecoder:
    """Return what makes the values of batches; it may import torch or cupy.

    Args:
        device: As `check_values`.
        as_numpy: As `check_values`.
        memory: As `check_values`.
        arrival: What is done with values as they arrive.

    Raises:
        InvalidRequest, MissingExtra: As `check_values`.
        NoDevice: The device does not answer.
    """
    check_values(device, as_numpy, memory)
    if device is not None:
        from penstock.client.values.device_choice import decoder_for

        return decoder_for(device, as_numpy, memory, arrival)
    if as_numpy or not _has_torch():
        return NumpyDecoder(arrival)
    from penstock.client.values.torch_decoder import TorchDecoder

    return TorchDecoder(None, arrival)


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None
