"""From a body to what the training loop gets: NumPy views here, `torch_values` makes tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from penstock.client.reading.buffers import PLAIN, Lease, Memory
from penstock.wire import frame


class Decoder(Protocol):
    """Makes the values of batches, in two parts.

    `begin` is called by one thread: the feed's, ahead of the loop, where `is_ahead`; else the
    loop's. `settle` and `finish` are called by the loop's.

    Attributes:
        memory: The kind of memory that bodies should land in for it; it decodes others, too.
        is_ahead: `begin` starts a copy that goes on by itself: call it before the batch is wanted.
    """

    memory: Memory
    is_ahead: bool

    def settle(self) -> None:
        """Find out what depends on the loop's thread; once, before anything else."""
        ...

    def begin(self, entries: frame.Entries, lease: Lease) -> Any:
        """Return what `finish` takes: values that view the lease, or that a device is copying.

        Where a device still copies from the lease on return, the copy's event is among its events.
        """
        ...

    def finish(self, begun: Any) -> dict[str, Any]:
        """Return the values of one batch, once for each `begin`."""
        ...

    def position(self, position: int) -> Any:
        """Return `position` as an int64 of no dimensions, on the host."""
        ...


class NumpyDecoder:
    """Makes arrays, views of the body but for labels that are widened."""

    memory: Memory = PLAIN
    is_ahead = False

    def settle(self) -> None:
        """Do nothing: arrays know no devices."""

    def begin(self, entries: frame.Entries, lease: Lease) -> dict[str, Any]:
        """Return the values of one batch as they came."""
        return frame.decode_entries(entries, lease.array)

    def finish(self, begun: dict[str, Any]) -> dict[str, Any]:
        """Return the values of one batch."""
        return widen_labels(begun, lambda array: array.astype(np.int64))

    def position(self, position: int) -> Any:
        """Return `position` as an int64 array of no dimensions."""
        return np.array(position, np.int64)


LABELS = "labels"
"""The name under which trainers and losses look for the targets."""

NARROW = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32"})
"""Dtypes whose every value int64 holds too."""


def widen_labels(values: dict[str, Any], widen: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the values of a batch with integer `labels` as int64, whatever travelled.

    Losses take int64 alone, and a job may send int32 to halve its bytes. Tensors of other dtypes,
    and values of other names, are kept.

    Args:
        values: The values by name; changed in place.
        widen: Makes an int64 of an array or a tensor.
    """
    if LABELS in values:
        values[LABELS] = _widened(values[LABELS], widen)
    return values


def _widened(value: Any, widen: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_widened(inner, widen) for inner in value]
    # "int32" of NumPy, "torch.int32" of torch; what is not a tensor has no dtype.
    dtype = str(getattr(value, "dtype", "")).removeprefix("torch.")
    return widen(value) if dtype in NARROW else value


__all__ = ["Decoder", "NumpyDecoder", "widen_labels"]
