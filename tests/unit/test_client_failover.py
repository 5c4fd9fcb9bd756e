"""When a reader leaves a node, and when it does not: two real nodes in this process."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from links import Link
from penstock.client.bodies.buffers import BufferPool
from penstock.client.calls.control import Control
from penstock.client.calls.grpc_transport import open_transport
from penstock.client.nodes.dealing import LaneUnits
from penstock.client.nodes.fixed_nodes import FixedNodes
from penstock.client.nodes.known_node import KnownNode
from penstock.client.reading.feed import Feed, WantedPositions
from penstock.client.reading.route_set import Prefetch
from penstock.client.session.session import Session
from penstock.wire.errors import (
    BadItem,
    Forbidden,
    PenstockError,
    StaleGeneration,
    StoreUnavailable,
)
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2
from unit.relay import Relay
from unit.served import ServedNode, wait_until

LANES = 6


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what takes seconds take tenths of them, at nodes and at readers."""
    monkeypatch.setattr("penstock.server.rpc.read.WAITING_EVERY_S", 0.1)
    failover = "penstock.client.reading.failover"
    monkeypatch.setattr(f"{failover}.SILENT_S", 3.0)
    monkeypatch.setattr(f"{failover}.TICK_S", 0.05)
    monkeypatch.setattr("penstock.client.reading.silence.DOUBTED_S", 2.0)


@contextlib.contextmanager
def reading(
    addresses: list[str], stop: int | None, share: Share | None = None, **known: Any
) -> Iterator[tuple[Feed, FixedNodes]]:
    """Return a feed over nodes, which may be changed."""
    with contextlib.ExitStack() as stack:
        found = []
        for number, address in enumerate(addresses):
            transport = open_transport(address)
            stack.callback(transport.close)
            found.append(KnownNode(f"node-{number}", 0, address, transport, 1))
        info = Control(found[0].transport, "code", addresses[0], 60.0).describe()
        session = Session(
            target=addresses[0],
            job="code",
            timeline=((0, info.log_id),),
            store="",
            batches=info.batches if info.HasField("batches") else None,
            share=share or Share(1, 0, 1),
            units=LaneUnits(LANES),
            finite=info.finite,
        )
        nodes = FixedNodes(found)
        wanted = WantedPositions(0, stop, Prefetch(6, 1 << 20), 1 << 20)
        feed = Feed(nodes, session, wanted, BufferPool(9))
        try:
            yield feed, nodes
        finally:
            feed.cancel()
            feed.join(20.0)


def take(feed: Feed, positions: range) -> list[int]:
    """Take positions; return which node each came from."""
    found = []
    for position in positions:
        feed.release(position, 0)
        delivery = feed.take(position, 60.0)
        assert delivery is not None
        assert delivery.header.position == position
        found.append(delivery.route)
    return found


def take_until(feed: Feed, start: int, holds: Callable[[list[int]], bool]) -> int:
    """Take positions until something holds of the nodes they came from; return the next one."""
    found: list[int] = []
    for position in itertools.count(start):
        found += take(feed, range(position, position + 1))
        if len(found) >= 3 * LANES and holds(found):
            return position + 1
        threading.Event().wait(0.002)
        assert position < start + 20_000, f"it never came to hold: {found[-50:]}"
    raise AssertionError


@contextlib.contextmanager
def two_nodes(**options: Any) -> Iterator[tuple[list[ServedNode], list[Link]]]:
    """Serve one job from two nodes, each behind a link."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(ServedNode(lanes=LANES, **options)) for _ in range(2)]
        links = [stack.enter_context(Link(node.address)) for node in nodes]
        yield nodes, links


def counted(node: ServedNode) -> dict[str, float]:
    """Return what a node has counted of others that were left, by why."""
    return {
        sample.labels["reason"]: sample.value
        for family in node.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "penstock_failovers_total" and sample.value
    }


def left(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "is left" in r.getMessage()]


@pytest.mark.parametrize("batches", [None, 300])
def test_a_link_that_is_cut_is_left_and_a_node_that_owes_nothing_is_not(
    batches: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """A consumer that pauses hears nothing either, for as long as it likes."""
    with (
        two_nodes(batches=batches) as (served, links),
        reading([link.address for link in links], 200) as (feed, _),
        caplog.at_level(logging.WARNING, "penstock"),
    ):
        assert set(take(feed, range(40))) == {0, 1}
        threading.Event().wait(4.0)  # more than a silence that would be one
        assert left(caplog) == []
        links[1].cut()
        nodes = take(feed, range(40, 120))

        [said] = left(caplog)
        assert links[1].address in said
        assert nodes[-1] == 0
        assert set(take(feed, range(120, 200))) == {0}
        assert feed.failovers == counted(served[0]) == {"silent": 1}


def test_a_node_that_works_long_says_so_and_keeps_its_units(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        two_nodes() as (nodes, links),
        reading([link.address for link in links], 60) as (
            feed,
            _,
        ),
        caplog.at_level(logging.WARNING, "penstock"),
    ):
        for node in nodes:
            node.gate.held.add(30)
        take(feed, range(30))
        wait_until(lambda: any(30 in node.gate.waiting for node in nodes), "an item is at work")
        threading.Event().wait(4.0)
        for node in nodes:
            node.gate.released.set()
        assert set(take(feed, range(30, 60))) == {0, 1}
    assert left(caplog) == []


def test_a_node_that_is_said_to_drain_is_left_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also before it says so itself on its streams."""
    monkeypatch.setattr("penstock.client.reading.failover.AGAIN_S", 60.0)
    with (
        two_nodes() as (_, links),
        reading([link.address for link in links], 200) as (
            feed,
            known,
        ),
        caplog.at_level(logging.WARNING, "penstock"),
    ):
        take(feed, range(20))
        one, other = known.usable
        known.usable = one, replace(other, draining=True)
        wait_until(lambda: left(caplog), "it is left")
        take(feed, range(20, 40))

        assert set(take(feed, range(40, 200))) == {0}


def test_a_node_that_has_drained_and_is_back_is_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though it is known as one that drains, until it is asked again."""
    monkeypatch.setattr("penstock.client.nodes.placement.HEALTHY_S", 0.2)
    monkeypatch.setattr("penstock.client.reading.failover.AGAIN_S", 0.1)
    with (
        two_nodes() as (_, links),
        reading([link.address for link in links], 4000) as (feed, known),
        caplog.at_level(logging.WARNING, "penstock"),
    ):
        one, other = known.usable
        take(feed, range(20))
        links[1].cut()  # so that it is not back before that is seen
        known.usable = one, replace(other, draining=True)
        wait_until(lambda: left(caplog), "it is left")

        take_until(feed, 20, lambda found: {0} == set(found[-3 * LANES :]))
        links[1].mend()
        take_until(feed, feed._slots.next, lambda found: 1 in found)
        assert len(left(caplog)) == 1


def test_nodes_that_join_and_go_are_read_from_a_boundary_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.client.nodes.placement.HEALTHY_S", 0.2)
    with (
        two_nodes() as (_, links),
        reading([link.address for link in links], None) as (feed, known),
    ):
        one, other = known.usable
        take(feed, range(20))
        known.usable = (one,)
        gone = take_until(feed, 20, lambda found: set(found[-3 * LANES :]) == {0})
        known.usable = one, other
        back = take_until(feed, gone, lambda found: 1 in found)

        assert back > gone


@pytest.mark.parametrize(
    ("error", "is_the_nodes"),
    [
        (Forbidden("not for you", name="me"), True),
        (StaleGeneration("moved on", generation=1, current=2), False),
        (BadItem("broken"), False),
    ],
)
def test_what_a_node_refuses_is_its_own_or_the_jobs(
    error: PenstockError, is_the_nodes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A node's own refusal is no reason to stop, as long as another serves; what a job says is."""
    with (
        two_nodes() as (nodes, _),
        Relay(nodes[1].address) as relay,
        reading([nodes[0].address, relay.address], 60) as (feed, _),
        caplog.at_level(logging.WARNING, "penstock"),
    ):
        relay.faults.refuse.append(error)
        if is_the_nodes:
            take(feed, range(60))
            assert relay.address in left(caplog)[0]
            assert feed.failovers == counted(nodes[0]) == {"refuses": 1}
        else:
            with pytest.raises(type(error)):
                take(feed, range(60))


def test_a_node_that_was_left_is_counted_once_where_it_is_read_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Though the first streams after it are not accepted, and others break later."""
    monkeypatch.setattr("penstock.client.reading.failover.AGAIN_S", 60.0)
    with (
        two_nodes() as (nodes, links),
        Relay(nodes[0].address) as relay,
        reading([relay.address, links[1].address], 300) as (feed, known),
        caplog.at_level(logging.WARNING, "penstock"),
    ):
        take(feed, range(20))
        relay.faults.deny += [StoreUnavailable("not now"), StoreUnavailable("nor now")]
        before = len(relay.opens)
        one, other = known.usable
        known.usable = one, replace(other, draining=True)
        wait_until(lambda: left(caplog), "it is left")
        take(feed, range(20, 100))
        relay.faults.break_after.append(1)
        wait_until(lambda: len(relay.opens) >= before + 3, "it is opened three times")
        take(feed, range(100, 300))

        told = [list(opening.left) for opening in relay.opens[before:]]
        assert told[:3] == [[feed_pb2.LEFT_DRAINS]] * 3
        assert not any(told[3:])
        assert feed.failovers == counted(nodes[0]) == {"drains": 1}


def test_a_rank_opens_no_stream_to_a_node_that_makes_none_of_its_lanes() -> None:
    """Six ranks of six lanes: each reads one lane, of one node."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(ServedNode(lanes=LANES)) for _ in range(2)]
        relays = [stack.enter_context(Relay(node.address)) for node in nodes]
        addresses = [relay.address for relay in relays]
        for rank in range(6):
            share = Share(6, rank, 6)
            with reading(addresses, 60, share) as (feed, _):
                for position in range(rank, 60, 6):
                    assert feed.take(position, 60.0) is not None
        opened = [tuple(opening.lanes) for relay in relays for opening in relay.opens]

    assert sorted(opened) == [(lane,) for lane in range(6)]
