"""Values on a device whose copies go on by themselves, begun before the loop asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.buffers import BodyMemory, Lease
from penstock.client.bodies.stages import Stage
from penstock.client.device.copier import Copier, Copy
from penstock.client.device.driver import Driver
from penstock.client.device.pinned import LEAST_BYTES, PinnedMemory
from penstock.client.values.arrival import Arrival
from penstock.client.values.value_decoder import ValueDecoder
from penstock.wire.errors import CannotPin
from penstock.wire.frame import Entries, TensorMaker, decode_entries, numpy_maker

TRIED_BYTES = 4096
"""What is pinned to find out whether anything can be."""


class BegunBatch(NamedTuple):
    """A batch whose body may still be on its way to the device.

    Attributes:
        values: Its values by name.
        copy: What brings those on the device there, and what is done with them then.
    """

    values: dict[str, Any]
    copy: Copy


class DeviceDecoder:
    """Makes the values of batches on a device, in the arrays of its driver: a `ValueDecoder`.

    Args:
        driver: Of the device.
        arrival: What is done with values as they arrive, on the stream of copies.
        note: Called when it is settled that this decoder is used: it logs why.
        instead: Makes the decoder to use where nothing can be pinned, of the reason; None = that is
            an error.

    Attributes:
        pinned: What is pinned, with counts; None = nothing is yet.
    """

    is_ahead = True

    def __init__(
        self,
        driver: Driver,
        arrival: Arrival,
        note: Callable[[], None] | None = None,
        instead: Callable[[CannotPin], ValueDecoder] | None = None,
    ) -> None:
        self._driver, self._arrival = driver, arrival
        self._note, self._instead = note, instead
        self.memory: BodyMemory | None = None
        self.pinned: PinnedMemory | None = None
        self.copying, self.taking = Stage(), Stage()
        self._copier: Copier | None = None

    def settle(self, pinned_bytes: int | None = None) -> ValueDecoder:
        """Open the device, and return this decoder, or another where nothing can be pinned.

        Raises:
            NoDevice: It does not answer.
            CannotPin: Nothing can be pinned, and nothing else was asked for.
        """
        stream = self._driver.open()
        try:
            self._driver.port.pin(TRIED_BYTES)
        except CannotPin as error:
            if self._instead is None:
                raise
            return self._instead(error)
        self.memory = self.pinned = PinnedMemory(self._driver.port, pinned_bytes, LEAST_BYTES)
        self.taking = self.pinned.taking
        self._copier = Copier(self._driver.port, stream, self.pinned)
        if self._note is not None:
            self._note()
        return self

    def begin(self, entries: Entries, lease: Lease) -> BegunBatch:
        """Return the values of a batch; those whose place is the device are on their way there."""
        assert self._copier is not None, "not settled"
        with self.copying.going_on():
            copy = self._copier.copy(lease)
        driver, arrival = self._driver, self._arrival
        on_device, on_host = driver.values(copy.memory), self._on_host(lease)
        values = decode_on_device(entries, lease.array, on_device, on_host)
        if not arrival.is_due(values):
            return BegunBatch(values, copy)

        def arrive() -> dict[str, Any]:
            return arrival.apply(values, entries, driver.to_int64, on_device=True)

        return BegunBatch(*self._copier.follow(copy, driver, arrive))

    def _on_host(self, lease: Lease) -> TensorMaker | None:
        """Return what makes values on the host: the loop may write to them.

        Where the device reads the body itself they are copies: it may not have read it yet. They
        are few and small as a rule, and the body's memory is free as soon as that is over.
        """
        driver, body = self._driver, lease.array
        if not lease.is_pinned:
            return driver.host_values(body)

        def apart(dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
            own = body[start : start + nbytes].copy()
            return (driver.host_values(own) or numpy_maker(own))(dtype, shape, 0, nbytes)

        return apart

    def finish(self, begun: BegunBatch) -> dict[str, Any]:
        """Return the values of a batch; what the loop's thread queues from now on sees them."""
        assert self._copier is not None, "not settled"
        self._copier.receive(begun.copy, self._driver.current())
        return begun.values

    def position(self, position: int) -> Any:
        """Return `position` as an int64 of no dimensions, on the host."""
        return self._driver.position(position)


def decode_on_device(
    entries: Entries,
    body: NDArray[np.uint8],
    on_device: TensorMaker,
    on_host: TensorMaker | None,
) -> dict[str, Any]:
    """Return the values of a batch whose body is on a device, too.

    Args:
        entries: What its header says of its values, and which of them stay on the host.
        body: uint8 (nbytes,), on the host.
        on_device: Makes values over the body there.
        on_host: Makes values over the body here; None = arrays.
    """
    host = {
        place.start for entry in entries if entry.is_host for place in entry.tensors if place.nbytes
    }
    if not host:
        return decode_entries(entries, body, on_device)
    here = on_host or numpy_maker(body)

    def place(dtype: str, shape: tuple[int, ...], start: int, nbytes: int) -> Any:
        return (here if nbytes and start in host else on_device)(dtype, shape, start, nbytes)

    return decode_entries(entries, body, place)
