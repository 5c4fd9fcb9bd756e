"""Batches that are decoded and copied to a device while the loop works on the one before.

The device is a simulated one, whose copies go on or wait as a test says.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from penstock.client import Batch, Limits, Loader
from penstock.client.bodies.buffers import Lease
from penstock.client.reading.ahead import Ahead
from penstock.client.reading.slots import Delivery, Slots
from penstock.client.testing import Eager, SimulatedDevice
from penstock.client.values.arrival import Arrival
from penstock.client.values.value_decoder import NumpyDecoder
from penstock.wire.errors import DataTimeout, OutOfDeviceMemory, PenstockError
from penstock.wire.frame import Entries
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2
from unit.served import ServedNode, values_of, wait_until


@pytest.fixture(scope="module", params=[False, True], ids=["bodies", "packed rows"])
def node(request: pytest.FixtureRequest) -> Iterator[ServedNode]:
    """One node for all: nobody holds it up. What it sends comes to the same."""
    with ServedNode(batches=300, lanes=3, packed=request.param) as served:
        yield served


class Gates:
    """A schedule that does all at once while `goes` is set, and a device that takes copies.

    Attributes:
        goes: Copies are done while it is set.
        accepts: Copies are queued while it is set: a device that hangs does not return.
        refuses: Numbers of copies that are refused, once each.
    """

    def __init__(self) -> None:
        self.goes, self.accepts = threading.Event(), threading.Event()
        self.goes.set()
        self.accepts.set()
        self.refuses: dict[int, Exception] = {}
        self.device = SimulatedDevice(self, tensors=True)
        self.device.simulator.before = self._before
        self._asked = -1

    def choose(self, count: int, *, must: bool) -> int:
        """Return the first stream."""
        if must:
            assert self.goes.wait(60), "a test holds a copy up for ever"
        return 0 if self.goes.is_set() else -1

    def _before(self, call: str) -> None:
        if call == "allocate":
            assert self.accepts.wait(60), "a test lets a device hang for ever"
            self._asked += 1
            if (error := self.refuses.pop(self._asked, None)) is not None:
                raise error

    @property
    def sent(self) -> int:
        """How many copies were queued, or refused."""
        return self._asked + 1

    @property
    def copied(self) -> int:
        """How many are over."""
        return self.device.simulator.counts["copied"]

    @property
    def received(self) -> int:
        """How many the loop has received."""
        return self.device.simulator.counts["wait"]


@pytest.fixture
def gates() -> Gates:
    """A device of the test's own."""
    return Gates()


def ahead(node: ServedNode, gates: Gates, **options: Any) -> Loader:
    """A Loader of one rank whose batches are copied to a device."""
    given = {"rank": 0, "world_size": 1, "device": gates.device} | options
    return Loader(node.address, "code", **given)


def plain(batch: Batch) -> dict[str, Any]:
    """Return the values of a batch with lists for tensors."""

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(inner) for inner in value]
        return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value

    return {name: shown(value) for name, value in batch.items()}


def test_the_loop_gets_what_it_gets_without(node: ServedNode, gates: Gates) -> None:
    """Every value of every batch, and the same state after each."""
    with (
        ahead(node, gates, meta=True) as there,
        ahead(node, gates, device=None, meta=True) as here,
    ):
        for copied, viewed in zip(there, here, strict=True):
            assert plain(copied) == plain(viewed)
            assert (
                plain(copied)["input_ids"] == values_of(copied.position, 64)["input_ids"].tolist()
            )
            assert copied.info.body is None
            assert there.state_dict() == here.state_dict()
        assert there.stats()["batches"] == 300

    assert gates.received == gates.sent == 300


@pytest.mark.parametrize("most", [1, 2, 5])
def test_as_many_are_copied_ahead_as_was_asked_for(
    node: ServedNode, gates: Gates, most: int
) -> None:
    """And no more, however many have come; the state counts what the loop took."""
    with ahead(node, gates, prefetch=16, limits=Limits(device_batches=most)) as loader:
        batches = iter(loader)
        for taken in range(1, 6):
            next(batches)
            wait_until(lambda: loader.stats()["buffered_batches"] >= 8, "the prefetch")
            wait_until(lambda due=taken + most: gates.sent >= due, "copies ahead")

            assert (gates.sent, gates.received) == (taken + most, taken)
            assert loader.state_dict()["consumed"] + loader.state_dict()["step"] == taken


def test_the_loop_works_while_its_next_batch_is_copied(node: ServedNode, gates: Gates) -> None:
    """Nothing but the copy of the very batch that is wanted holds the loop up."""
    with ahead(node, gates) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: gates.copied == 3, "copies ahead")
        gates.goes.clear()
        next(batches)  # its copy was over
        next(batches)
        assert gates.received == 3
        wait_until(lambda: gates.sent == 5, "copies that wait for the device")

        gates.goes.set()
        assert plain(next(batches)) == values_as_lists(3)


def values_as_lists(position: int) -> dict[str, Any]:
    """Return the values of the batch at a position as `plain` shows them."""
    return plain(Batch(values_of(position, 64))) | {"cut": position}


def test_a_batch_that_cannot_be_copied_fails_at_its_own_position(
    node: ServedNode, gates: Gates
) -> None:
    """Those before it are given, the state stays before it, and asking again copies it again."""
    with ahead(node, gates) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: gates.sent == 3, "copies ahead")
        gates.refuses = {3: OSError("the device is gone"), 5: OSError("the device is gone")}
        given = [next(batches).position for _ in range(2)]
        with pytest.raises(OSError, match="the device is gone"):
            next(batches)
        assert given == [1, 2]
        assert loader.state_dict()["step"] == 3

        found: list[int] = []
        while len(found) < 3:
            try:
                found.append(next(batches).position)
            except OSError:
                assert loader.state_dict()["step"] == 3 + len(found)

    assert found == [3, 4, 5]


def test_a_batch_that_had_no_room_is_copied_once_more_when_the_loop_asks_for_it(
    node: ServedNode, gates: Gates
) -> None:
    """The views of those before are gone by then; nothing is copied between."""
    full = OutOfDeviceMemory("no room on the device", nbytes=64)
    with ahead(node, gates) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: gates.sent == 3, "copies ahead")
        gates.refuses = {3: full}
        assert [next(batches).position for _ in range(2)] == [1, 2]
        wait_until(lambda: gates.sent == 4, "a copy that has no room")
        assert [next(batches).position for _ in range(3)] == [3, 4, 5]

        wait_until(lambda: gates.sent == 9, "copies ahead")
        gates.refuses = {9: full, 10: full}
        assert [next(batches).position for _ in range(2)] == [6, 7]
        with pytest.raises(OutOfDeviceMemory, match="no room on the device"):
            next(batches)
        assert loader.state_dict()["step"] == 8
        assert next(batches).position == 8


def test_a_loop_that_keeps_its_batches_fills_the_device(node: ServedNode) -> None:
    """The error has the sizes; what the loop releases then makes room."""
    device = SimulatedDevice(memory_bytes=1000)
    with Loader(node.address, "code", rank=0, world_size=1, device=device) as loader:
        kept: list[Batch] = []
        batches = iter(loader)
        with pytest.raises(OutOfDeviceMemory, match="of 1,000 bytes free") as caught:
            kept.extend(batches)
        error = caught.value
        assert error.nbytes == kept[0].nbytes
        assert error.free_bytes < error.nbytes
        assert error.total_bytes == 1000

        at = kept[-1].position
        kept.clear()
        assert [next(batches).position for _ in range(20)] == [*range(at + 1, at + 21)]


def through_temporaries(values: dict[str, Any]) -> dict[str, Any]:
    """Make little of much, by way of twice as much again."""
    ids = values["input_ids"]
    more = ids + 1
    most = more + 1
    return {"ids": ids, "first": most[:, 0]}


@pytest.mark.parametrize("is_early", [True, False])
def test_what_had_no_room_takes_none_when_it_is_tried_again(is_early: bool) -> None:
    """Nothing holds what the first try had made, whatever the garbage collector does."""
    # A body takes 8,132 bytes, and 16,008 more while it arrives.
    device = SimulatedDevice(Eager(), memory_bytes=30_000)
    options = {"rank": 0, "world_size": 1, "device": device, "arrive": through_temporaries}
    with (
        ServedNode(batches=10, nbytes=8000) as served,
        Loader(served.address, "code", limits=Limits(device_batches=1), **options) as loader,
    ):
        batches, counts = iter(loader), device.simulator.counts
        gc.collect()
        gc.disable()
        try:
            held = [next(batches)]
            wait_until(lambda: counts["allocate"] == 7, "the next batch, which has no room")
            if not is_early:
                with contextlib.suppress(OutOfDeviceMemory):
                    held.append(next(batches))
                assert len(held) == 1
            held.clear()
            assert next(batches)["first"].tolist() == [3]
        finally:
            gc.enable()


def test_a_device_that_hangs_is_told_of_after_the_deadline(node: ServedNode, gates: Gates) -> None:
    with ahead(node, gates, deadline_s=0.3) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: gates.sent == 3, "copies ahead")
        gates.accepts.clear()
        assert [next(batches).position for _ in range(2)] == [1, 2]
        with pytest.raises(DataTimeout, match="position 3 has come, and its copy") as caught:
            next(batches)
        assert caught.value.position == 3

        gates.accepts.set()
        assert next(batches).position == 3


def test_a_move_forgets_what_was_copied_ahead(node: ServedNode, gates: Gates) -> None:
    """Steps whose rest is left out, a seek, a state, and a second pass."""
    with ahead(node, gates, batches_per_step=4) as loader:
        steps = loader.steps()
        assert [next(iter(next(steps))).position for _ in range(3)] == [0, 4, 8]
        state = loader.state_dict()
        loader.seek(50)
        assert next(iter(loader))["name"] == "batch 200"
        loader.load_state_dict(state)
        assert [next(iter(loader)).position for _ in range(3)] == [9, 10, 11]
    with ahead(node, gates, mode="eval", max_steps=3) as loader:
        assert [[batch.position for batch in loader] for _ in range(2)] == [[0, 1, 2]] * 2


def test_closing_takes_no_time_whatever_is_on_its_way(node: ServedNode, gates: Gates) -> None:
    """Copies that are queued, and batches that nobody takes."""
    loader = ahead(node, gates)
    batches = iter(loader)
    next(batches)
    wait_until(lambda: gates.sent == 3, "copies ahead")
    gates.goes.clear()
    began = time.monotonic()
    loader.close()

    assert time.monotonic() - began < 4
    gates.goes.set()
    with pytest.raises(PenstockError, match="closed"):
        next(batches)


class SlowShare(Share):
    """The loop is broken off by another thread whenever it looks for its next position."""

    def nth_after(self, position: int, count: int) -> int:
        """Return the position, after a while on the main thread."""
        if threading.current_thread() is threading.main_thread():
            threading.Event().wait(0.005)
        return super().nth_after(position, count)


class Begun(NumpyDecoder):
    """Notes what it has begun."""

    def __init__(self) -> None:
        super().__init__(Arrival())
        self.positions: list[int] = []

    def begin(self, entries: Entries, lease: Lease) -> dict[str, Any]:
        """Decode a batch."""
        self.positions.append(int(lease.array[0]))
        return super().begin(entries, lease)


def test_no_batch_is_copied_twice_whenever_threads_take_turns() -> None:
    share, decoder = SlowShare(1, 0, 1), Begun()
    slots = Slots("code", share, 0, None, 8)
    ahead = Ahead(slots, share, decoder, 2)
    deliveries = [
        Delivery(feed_pb2.BatchHeader(position=at), (), Lease(np.full(8, at, np.uint8), []))
        for at in range(8)
    ]
    for delivery in deliveries:
        slots.put(delivery)
    for delivery in deliveries:
        ahead.take(delivery, 10)
        slots.wake()
    slots.close()
    ahead.join(10)

    assert decoder.positions == list(range(8))
