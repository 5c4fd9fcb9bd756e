"""Small batches wait for each other, so that they share a message; and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from harness import StubReader, open_channel
from penstock.client import Limits, Loader
from penstock.server.node.demand.wanted import Key, WantedBatch
from penstock.server.rpc import gathering
from penstock.server.rpc.gathering import GATHER_S, GATHER_SHARE, Parcel, gathers_until
from penstock.wire import CHUNK_BYTES
from penstock.wire.errors import BadItem, DataTimeout, StaleGeneration
from penstock.wire.v1 import feed_pb2
from unit.relay import Relay
from unit.served import ServedNode, wait_until

LONG_AGO, NOW = 0.0, 1000.0


@pytest.fixture
def for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches wait for each other for longer than any test runs: what comes was flushed."""
    monkeypatch.setattr(gathering, "GATHER_S", 3600.0)
    monkeypatch.setattr(gathering, "GATHER_SHARE", float("inf"))


@contextmanager
def reading(node: ServedNode, **fields: Any) -> Iterator[StubReader]:
    with open_channel(node.address) as channel:
        reader = StubReader(channel, job="code", bundles=True, **fields)
        try:
            yield reader
        finally:
            reader.cancel()


def positions(reader: StubReader, count: int) -> list[int]:
    return sorted(one.header.position for one in reader.take(count))


@pytest.mark.parametrize("accepted", range(1, 20))
def test_batches_wait_until_half_of_what_is_accepted_is_here(accepted: int) -> None:
    """Up to there the last message's age decides; from there on nothing waits."""
    for gathered in range(1, accepted + 1):
        until = gathers_until(LONG_AGO, NOW, gathered, accepted - gathered)

        assert until == (NOW + GATHER_S if 2 * gathered < accepted else NOW)


def test_nothing_waits_after_a_pause() -> None:
    assert gathers_until(LONG_AGO, NOW - GATHER_S, 1, 100) <= NOW
    assert gathers_until(LONG_AGO, -float("inf"), 1, 100) <= NOW


@pytest.mark.parametrize("age_s", [0.0, 0.01, 0.5])
def test_a_young_stream_waits_for_a_share_of_its_age(age_s: float) -> None:
    """At a run's start the first batches come as soon as they are made."""
    assert gathers_until(NOW - age_s, NOW, 1, 100) == pytest.approx(NOW + GATHER_SHARE * age_s)


def entry(body_bytes: int) -> WantedBatch:
    return WantedBatch(Key(0, 0, 0, False), header=b"h" * 100, nbytes=100 + body_bytes)


def test_lent_batches_share_a_message_whatever_their_size() -> None:
    """Only their headers are in it; what is sent beside them has the rest."""
    parcel = Parcel(entry(8 << 20), CHUNK_BYTES, lambda _: feed_pb2.Lent(loan=1))

    assert all(parcel.add(entry(8 << 20)) for _ in range(99))
    assert parcel.sent_bytes == 100 * 100
    assert len(parcel.content) == 100


def test_what_is_sent_shares_a_message_while_there_is_room() -> None:
    """One that is not lent after all, for it would be too much, waits for the next message."""
    lends = True
    parcel = Parcel(entry(1000), 2500, lambda _: feed_pb2.Lent() if lends else None)
    lends = False

    assert [parcel.add(entry(1000)) for _ in range(3)] == [True, True, False]
    assert parcel.sent_bytes == 100 + 2 * 1100


def test_what_fills_messages_by_itself_goes_alone() -> None:
    parcel = Parcel(entry(CHUNK_BYTES), 4 * CHUNK_BYTES, lambda _: None)

    assert parcel.room_bytes == 0


@pytest.mark.usefixtures("for_ever")
def test_batches_that_come_one_by_one_share_messages() -> None:
    """The first comes at once and alone; of the other seven half or more are in the next one."""
    with ServedNode(lanes=1) as node:
        node.gate.held = {1}
        with reading(node, horizon=8) as reader:
            assert positions(reader, 1) == [0]
            assert not reader.bundles

            node.gate.released.set()

            assert positions(reader, 7) == list(range(1, 8))
            assert reader.bundles[0] >= 4


@pytest.mark.usefixtures("for_ever")
def test_a_consumer_that_hangs_up_is_sent_what_waits() -> None:
    with ServedNode(lanes=1) as node:
        node.gate.held = {3}
        with reading(node, horizon=8) as reader:
            wait_until(lambda: node.gate.waiting, "the worker is held up")
            reader.hang_up()

            assert positions(reader, 3) == [0, 1, 2]


@pytest.mark.usefixtures("for_ever")
def test_what_waits_comes_before_an_error() -> None:
    """The batches before one that cannot be made are not held back by it."""
    with ServedNode(lanes=1, bad=[3]) as node, reading(node, horizon=8) as reader:
        assert positions(reader, 3) == [0, 1, 2]
        with pytest.raises(BadItem):
            reader.take(1)


@pytest.mark.usefixtures("for_ever")
def test_the_end_of_the_log_comes_at_once() -> None:
    with ServedNode(lanes=1, batches=5) as node, reading(node, horizon=100) as reader:
        assert sorted(one.header.position for one in reader) == [0, 1, 2, 3, 4]
        assert reader.end is not None


@pytest.mark.usefixtures("for_ever")
def test_a_fenced_reader_is_told_at_once() -> None:
    """An attempt that begins ends the stream of the older one, whatever waits there."""
    options: dict[str, Any] = {"group": "run", "rank": 0, "world_size": 1, "as_numpy": True}
    with (
        ServedNode(lanes=1) as node,
        Loader(node.address, "code", attempt="a", prefetch=8, deadline_s=30, **options) as old,
        Loader(node.address, "code", attempt="b", **options) as new,
    ):
        node.gate.held = {3}
        batches = iter(old)
        next(batches)
        wait_until(lambda: node.gate.waiting, "the worker is held up")

        assert new.batches_per_step == 1

        with pytest.raises(StaleGeneration):
            list(batches)


@pytest.mark.parametrize(("limits", "tells"), [(Limits(), False), (Limits(prefetch_bytes=1), True)])
def test_a_waiting_consumer_speaks_up_only_where_the_node_may_lack_room(
    limits: Limits, tells: bool
) -> None:
    """Where it knows of room it is at work already: a message would cost both sides."""
    with ServedNode(lanes=1) as node, Relay(node.address) as relay:
        node.gate.held = {1}
        options: dict[str, Any] = {"rank": 0, "world_size": 1, "as_numpy": True, "prefetch": 4}
        with Loader(relay.address, "code", deadline_s=0.4, limits=limits, **options) as loader:
            batches = iter(loader)
            next(batches)
            with pytest.raises(DataTimeout):
                next(batches)

            assert bool(relay.horizons) is tells
