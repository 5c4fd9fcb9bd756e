"""Torch tensors out of a body: views on the host, or one copy to the device and views there."""

from __future__ import annotations

from typing import Any

import torch

from penstock.client.bodies.buffers import BodyMemory, Lease
from penstock.client.bodies.stages import Stage
from penstock.client.device.torch_views import HostViews, TensorViews
from penstock.client.values.arrival import Arrival
from penstock.client.values.device_decoder import decode_on_device
from penstock.client.values.value_decoder import ValueDecoder
from penstock.wire.frame import Entries, decode_entries


class TorchDecoder:
    """Makes tensors on the host, or copies each body to a device as it is taken: a `ValueDecoder`.

    Args:
        device: A `torch.device`; None = the host.
        arrival: What is done with values as they arrive.
    """

    memory: BodyMemory | None = None
    is_ahead = False

    def __init__(self, device: Any, arrival: Arrival) -> None:
        self._device, self._arrival = device, arrival
        self.copying, self.taking = Stage(), Stage()

    def settle(self, pinned_bytes: int | None = None) -> ValueDecoder:
        """Return this decoder: torch finds the device by itself."""
        return self

    def begin(self, entries: Entries, lease: Lease) -> dict[str, Any]:
        """Return the tensors of a batch; those whose place is the device are there on return."""
        on_host = HostViews(lease.array)
        if self._device is None:
            values = decode_entries(entries, lease.array, on_host)
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
