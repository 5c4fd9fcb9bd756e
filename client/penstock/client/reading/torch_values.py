"""Torch tensors out of a body: views on the host, or one copy to the device and views there.

Imported only where torch is installed. NumPy has no bfloat16, and a device has no arrays: such
tensors are made from the bytes of the body, one uint8 tensor, sliced, viewed as a dtype and a
shape.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from penstock.client.reading.buffers import PLAIN, Lease
from penstock.client.reading.torch_device import QUEUES, Copier, Copy
from penstock.client.reading.values import widen_labels
from penstock.wire import frame
from penstock.wire.errors import InvalidRequest, UnsupportedValue
from penstock.wire.values import BFLOAT16, STORAGE

BY_ARRAY = frozenset(STORAGE) - {BFLOAT16, "uint16", "uint32", "uint64"}
"""Dtypes that every torch takes from an array as they are."""


class Begun(NamedTuple):
    """A batch whose body may still be on its way to the device.

    Attributes:
        values: Its values by name.
        copy: What their tensors on the device view; None = nothing is on its way.
    """

    values: dict[str, Any]
    copy: Copy | None


class TorchDecoder:
    """Makes the tensors of batches: a `Decoder`.

    Args:
        device: A name or a `torch.device`; None = the host.

    Raises:
        InvalidRequest: torch knows no such device.
    """

    def __init__(self, device: Any) -> None:
        try:
            self._device = None if device is None else torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise InvalidRequest(f"device={device!r} is not a device of torch: {error}") from error
        wanted = "" if self._device is None else self._device.type
        if wanted == "cuda" and not torch.cuda.is_available():
            raise InvalidRequest(
                f"device={str(self._device)!r}: torch finds no CUDA device here; leave device= "
                "out, or look at torch.cuda.is_available()"
            )
        self._copier = Copier(QUEUES[wanted](self._device)) if wanted in QUEUES else None
        self.is_ahead = self._copier is not None
        self.memory = PLAIN if self._copier is None else self._copier.memory

    def settle(self) -> None:
        """Find out which device is meant, where the name leaves it to the loop's thread."""
        if self._copier is not None:
            self._copier.settle()

    def begin(self, entries: frame.Entries, lease: Lease) -> Begun:
        """Return the tensors of a batch; those whose place is the device are on their way there.

        Where the device has no queue of copies they are there on return.
        """
        if self._copier is not None:
            copy = self._copier.copy(lease)
            return Begun(_decoded(entries, lease, copy.body), copy)
        if self._device is None:
            return Begun(_decoded(entries, lease, None), None)
        return Begun(_decoded(entries, lease, torch.from_numpy(lease.array).to(self._device)), None)

    def finish(self, begun: Begun) -> dict[str, Any]:
        """Return the values of a batch; kernels that are launched from now on see them."""
        if self._copier is not None and begun.copy is not None:
            self._copier.receive(begun.copy)
        return widen_labels(begun.values, lambda tensor: tensor.to(torch.int64))

    def position(self, position: int) -> Any:
        """Return `position` as an int64 tensor of no dimensions, on the host."""
        return torch.tensor(position, dtype=torch.int64)


def _decoded(entries: frame.Entries, lease: Lease, body: Any) -> dict[str, Any]:
    """Return the values of a batch whose body is on a device, too; None = on the host alone."""
    views = HostViews(lease.array)
    if body is None:
        return frame.decode_entries(entries, lease.array, views)
    on_device = TensorViews(body)
    host = {
        place.start for entry in entries if entry.is_host for place in entry.tensors if place.nbytes
    }
    if not host:
        return frame.decode_entries(entries, lease.array, on_device)

    def place(dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
        return (views if nbytes and start in host else on_device)(dtype, shape, start, nbytes)

    return frame.decode_entries(entries, lease.array, place)


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


__all__ = ["Begun", "HostViews", "TensorViews", "TorchDecoder"]
