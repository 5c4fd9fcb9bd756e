"""Torch tensors out of a body: views on the host, or one copy to the device and views there.

Imported only where torch is installed. NumPy has no bfloat16, and a device has no arrays: such
tensors are made from the bytes of the body, one uint8 tensor, sliced, viewed as a dtype and a
shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.client.reading.arrival import Arrival
from penstock.client.reading.buffers import Lease, Memory
from penstock.client.reading.device_values import decode_on_device
from penstock.client.reading.stages import Stage
from penstock.client.reading.values import Decoder
from penstock.wire import frame
from penstock.wire.errors import UnsupportedValue
from penstock.wire.values import BFLOAT16, STORAGE

BY_ARRAY = frozenset(STORAGE) - {BFLOAT16, "uint16", "uint32", "uint64"}
"""Dtypes that every torch takes from an array as they are."""


class TorchDecoder:
    """Makes tensors on the host, or copies each body to a device as the loop takes it: a `Decoder`.

    Args:
        device: A `torch.device`; None = the host.
        arrival: What is done with values as they arrive.
    """

    memory: Memory | None = None
    is_ahead = False

    def __init__(self, device: Any, arrival: Arrival) -> None:
        self._device, self._arrival = device, arrival
        self.copying, self.taking = Stage(), Stage()

    def settle(self, pinned_bytes: int | None = None) -> Decoder:
        """Return this decoder: torch finds the device by itself."""
        return self

    def begin(self, entries: frame.Entries, lease: Lease) -> dict[str, Any]:
        """Return the tensors of a batch; those whose place is the device are there on return."""
        on_host = HostViews(lease.array)
        if self._device is None:
            values = frame.decode_entries(entries, lease.array, on_host)
        else:
            with self.copying.going_on():
                body = torch.from_numpy(lease.array).to(self._device)
            values = decode_on_device(entries, lease.array, TensorViews(body), on_host)
        return self._arrival.apply(
            values,
            entries,
            lambda tensor: tensor.to(torch.int64),
            on_device=self._device is not None,
        )

    def finish(self, begun: dict[str, Any]) -> dict[str, Any]:
        """Return the values of a batch."""
        return begun

    def position(self, position: int) -> Any:
        """Return `position` as an int64 tensor of no dimensions, on the host."""
        return torch.tensor(position, dtype=torch.int64)


class HostViews:
    """Makes tensors over a body on the host: a `frame.TensorMaker`.

    By way of an array, in one call of torch that keeps the interpreter: slicing and viewing are
    three, each of which lets another thread have it and then waits to get it back.
    """

    def __init__(self, body: NDArray[np.uint8]) -> None:
        self._body = body

    def __call__(self, dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
        """Return the tensor at `start`."""
        if dtype in BY_ARRAY and nbytes:
            return torch.from_numpy(np.ndarray(shape, STORAGE[dtype], self._body, start))
        return TensorViews(torch.from_numpy(self._body))(dtype, shape, start, nbytes)


class TensorViews:
    """Makes tensors as views of one uint8 tensor: a `frame.TensorMaker`."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __call__(self, dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
        """Return the tensor at `start`; every dtype of the wire has its name in torch."""
        found = getattr(torch, dtype, None)
        if found is None:
            raise _unsupported_dtype(dtype)
        if nbytes == 0:
            return torch.empty(shape, dtype=found, device=self._body.device)
        return self._body[start : start + nbytes].view(found).view(shape)


def _unsupported_dtype(dtype: str) -> UnsupportedValue:
    """Return the error for a dtype that this torch lacks."""
    return UnsupportedValue(
        f"a batch holds a tensor of {dtype}, which this torch has no dtype for: install a newer "
        "torch, pass as_numpy=True, or let the collator give another dtype",
        type=dtype,
    )


__all__ = ["HostViews", "TensorViews", "TorchDecoder"]
