"""Whether batches become arrays or tensors.

torch is imported when the first batch is made, never before, and only where it is installed.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from penstock.client.reading.values import Decoder, NumpyDecoder
from penstock.wire.errors import InvalidRequest, MissingExtra


def needs_torch(device: Any, as_numpy: bool | None) -> bool:
    """Tell whether the values of batches are tensors; nothing is imported to find out.

    Args:
        device: Where tensors go: a name or a `torch.device`; None = the host.
        as_numpy: True = arrays, False = tensors, None = tensors where torch is installed.

    Raises:
        InvalidRequest: Arrays are asked for on a device.
        MissingExtra: Tensors are asked for and torch is not installed.
    """
    if as_numpy and device is not None:
        raise InvalidRequest(
            f"device={device!r} moves tensors, and as_numpy=True asks for arrays: pass one of them"
        )
    has_torch = importlib.util.find_spec("torch") is not None
    if as_numpy or (as_numpy is None and device is None and not has_torch):
        return False
    if not has_torch:
        raise MissingExtra(
            f"{'as_numpy=False' if device is None else f'device={device!r}'} needs torch, which is "
            "not installed: install torch, or leave it out and get NumPy arrays",
            package="torch",
            extra="",
        )
    return True


def make_decoder(device: Any, as_numpy: bool | None) -> Decoder:
    """Return what makes the values of batches; it may import torch.

    Args:
        device: As `needs_torch`.
        as_numpy: As `needs_torch`.

    Raises:
        InvalidRequest, MissingExtra: As `needs_torch`.
    """
    if not needs_torch(device, as_numpy):
        return NumpyDecoder()
    from penstock.client.reading.torch_values import TorchDecoder

    return TorchDecoder(device)


__all__ = ["make_decoder", "needs_torch"]
