"""Batches that are decoded and copied to a device while the loop works on the one before.

The device is the host's memory with a queue of copies, as a GPU has one; see `HostQueue`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from penstock.client import Batch, Limits, Loader
from penstock.client.reading.ahead import Ahead
from penstock.client.reading.buffers import Lease
from penstock.client.reading.slots import Delivery, Slots
from penstock.client.reading.torch_device import QUEUES
from penstock.client.reading.values import NumpyDecoder
from penstock.wire.errors import DataTimeout, PenstockError
from penstock.wire.frame import Entries
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2
from unit.host_queue import HostQueue
from unit.served import ServedNode, values_of, wait_until
from unit.test_client_interrupts import COUNT, interrupted


@pytest.fixture(scope="module")
def node() -> Iterator[ServedNode]:
    """One node for all: nobody holds it up."""
    with ServedNode(batches=300, lanes=3) as served:
        yield served


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> list[HostQueue]:
    """The queues of copies to the host's memory that Loaders have made."""
    made: list[HostQueue] = []

    def make(device: Any) -> HostQueue:
        made.append(HostQueue(device))
        return made[-1]

    monkeypatch.setitem(QUEUES, "cpu", make)
    return made


def ahead(node: ServedNode, **options: Any) -> Loader:
    """A Loader of one rank whose batches are copied to a device."""
    return Loader(node.address, "code", **{"rank": 0, "world_size": 1, "device": "cpu"} | options)


def plain(batch: Batch) -> dict[str, Any]:
    """Return the values of a batch with lists for tensors."""

    def shown(value: Any) -> Any:
        if isinstance(value, list):
            return [shown(inner) for inner in value]
        return value.tolist() if isinstance(value, (torch.Tensor, np.ndarray)) else value

    return {name: shown(value) for name, value in batch.items()}


def test_the_loop_gets_what_it_gets_without(node: ServedNode, queues: list[HostQueue]) -> None:
    """Every value of every batch, and the same state after each."""
    with (
        ahead(node, meta=True) as there,
        ahead(node, device=None, meta=True) as here,
    ):
        for copied, viewed in zip(there, here, strict=True):
            assert plain(copied) == plain(viewed)
            assert (
                plain(copied)["input_ids"] == values_of(copied.position, 64)["input_ids"].tolist()
            )
            assert copied.info.body is None
            assert there.state_dict() == here.state_dict()
        assert there.stats()["batches"] == 300

    assert queues[0].received == queues[0].sent == 300


@pytest.mark.parametrize("most", [1, 2, 5])
def test_as_many_are_copied_ahead_as_was_asked_for(
    node: ServedNode, queues: list[HostQueue], most: int
) -> None:
    """And no more, however many have come; the state counts what the loop took."""
    with ahead(node, prefetch=16, limits=Limits(device_batches=most)) as loader:
        batches = iter(loader)
        for taken in range(1, 6):
            next(batches)
            wait_until(lambda: loader.stats()["buffered_batches"] >= 8, "the prefetch")
            wait_until(lambda due=taken + most: queues[0].sent >= due, "copies ahead")

            assert (queues[0].sent, queues[0].received) == (taken + most, taken)
            assert loader.state_dict()["consumed"] + loader.state_dict()["step"] == taken


def test_the_loop_works_while_its_next_batch_is_copied(
    node: ServedNode, queues: list[HostQueue]
) -> None:
    """Nothing but the copy of the very batch that is wanted holds the loop up."""
    with ahead(node) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: queues[0].copied == 3, "copies ahead")
        queues[0].goes.clear()
        next(batches)  # its copy was over
        next(batches)
        assert queues[0].received == 3
        wait_until(lambda: queues[0].sent == 5, "copies that wait for the device")

        queues[0].goes.set()
        assert plain(next(batches)) == values_as_lists(3)


def values_as_lists(position: int) -> dict[str, Any]:
    """Return the values of the batch at a position as `plain` shows them."""
    return plain(Batch(values_of(position, 64))) | {"cut": position}


def test_a_batch_that_cannot_be_copied_fails_at_its_own_position(
    node: ServedNode, queues: list[HostQueue]
) -> None:
    """Those before it are given, the state stays before it, and asking again copies it again."""
    with ahead(node) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: queues[0].sent == 3, "copies ahead")
        queues[0].refuses = {3, 5}
        given = [next(batches).position for _ in range(2)]
        with pytest.raises(torch.OutOfMemoryError, match="no room on the device"):
            next(batches)
        assert given == [1, 2]
        assert loader.state_dict()["step"] == 3

        found: list[int] = []
        while len(found) < 3:
            try:
                found.append(next(batches).position)
            except torch.OutOfMemoryError:
                assert loader.state_dict()["step"] == 3 + len(found)

    assert found == [3, 4, 5]


def test_a_device_that_hangs_is_told_of_after_the_deadline(
    node: ServedNode, queues: list[HostQueue]
) -> None:
    with ahead(node, deadline_s=0.3) as loader:
        batches = iter(loader)
        next(batches)
        wait_until(lambda: queues[0].sent == 3, "copies ahead")
        queues[0].accepts.clear()
        assert [next(batches).position for _ in range(2)] == [1, 2]
        with pytest.raises(DataTimeout, match="position 3 has come, and its copy") as caught:
            next(batches)
        assert caught.value.position == 3

        queues[0].accepts.set()
        assert next(batches).position == 3


def test_a_move_forgets_what_was_copied_ahead(node: ServedNode, queues: list[HostQueue]) -> None:
    """Steps whose rest is left out, a seek, a state, and a second pass."""
    with ahead(node, batches_per_step=4) as loader:
        steps = loader.steps()
        assert [next(iter(next(steps))).position for _ in range(3)] == [0, 4, 8]
        state = loader.state_dict()
        loader.seek(50)
        assert next(iter(loader))["name"] == "batch 200"
        loader.load_state_dict(state)
        assert [next(iter(loader)).position for _ in range(3)] == [9, 10, 11]
    with ahead(node, mode="eval", max_steps=3) as loader:
        assert [[batch.position for batch in loader] for _ in range(2)] == [[0, 1, 2]] * 2


def test_closing_takes_no_time_whatever_is_on_its_way(
    node: ServedNode, queues: list[HostQueue]
) -> None:
    """Copies that are queued, and batches that nobody takes."""
    loader = ahead(node)
    batches = iter(loader)
    next(batches)
    wait_until(lambda: queues[0].sent == 3, "copies ahead")
    queues[0].goes.clear()
    began = time.monotonic()
    loader.close()

    assert time.monotonic() - began < 4
    queues[0].goes.set()
    with pytest.raises(PenstockError, match="closed"):
        next(batches)


@pytest.mark.parametrize("how", ["signals", "bytecodes"])
def test_a_loop_that_is_interrupted_reads_on_at_the_same_position(how: str) -> None:
    with ServedNode() as served:
        found = interrupted(served.address, how, COUNT // 5, "--ahead", "--stride", 15)

    assert found["wrong"] is None, found
    assert found["interrupts"] >= COUNT // 5
    assert found["close_s"] < 5


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
