"""From a body to what the training loop gets: NumPy views here, `torch_values` makes tensors."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from penstock.client.bodies.buffers import BodyMemory, Lease
from penstock.client.bodies.stages import Stage
from penstock.client.values.arrival import Arrival
from penstock.wire.frame import Entries, decode_entries


class ValueDecoder(Protocol):
    """Makes the values of batches, in two parts.

    `begin` is called by one thread: the feed's, ahead of the loop, where `is_ahead`; else the
    loop's. `settle` and `finish` are called by the loop's.

    Attributes:
        memory: What bodies should land in for it, None = plain memory; it decodes others, too.
        is_ahead: `begin` starts a copy that goes on by itself: call it before the batch is wanted.
        copying: Bodies are staged, and copies queued.
        taking: The part of that in which memory to stage a body in is pinned, or waited for.
    """

    memory: BodyMemory | None
    is_ahead: bool
    copying: Stage
    taking: Stage

    def settle(self, pinned_bytes: int | None = None) -> ValueDecoder:
        """Find out what depends on the loop's thread, and return the decoder to use.

        Called before anything else; the decoder is this one, or another in its place.

        Args:
            pinned_bytes: `Limits.pinned_bytes`.
        """
        ...

    def begin(self, entries: Entries, lease: Lease) -> Any:
        """Return what `finish` takes: values that view the lease, or that a device is copying.

        What is to be done on arrival is done, or queued on the device.

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
    """Makes arrays, views of the body but for what is done on arrival.

    Args:
        arrival: What that is.
    """

    memory: BodyMemory | None = None
    is_ahead = False

    def __init__(self, arrival: Arrival) -> None:
        self._arrival, self.copying, self.taking = arrival, Stage(), Stage()

    def settle(self, pinned_bytes: int | None = None) -> ValueDecoder:
        """Return this decoder: arrays know no devices."""
        return self

    def begin(self, entries: Entries, lease: Lease) -> dict[str, Any]:
        """Return the values of one batch."""
        values = decode_entries(entries, lease.array)
        return self._arrival.apply(
            values, entries, lambda array: array.astype(np.int64), on_device=False
        )

    def finish(self, begun: dict[str, Any]) -> dict[str, Any]:
        """Return the values of one batch."""
        return begun

    def position(self, position: int) -> Any:
        """Return `position` as an int64 array of no dimensions."""
        return np.array(position, np.int64)
