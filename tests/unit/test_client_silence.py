"""Since when a node owes something: since it was told so, not since somebody looked."""

from __future__ import annotations

from typing import Any

from penstock.client.bodies.buffers import BufferPool
from penstock.client.nodes.dealing import LaneUnits
from penstock.client.reading.route import FeedNode, Route
from penstock.client.reading.silence import Silence
from penstock.client.reading.slots import Slots
from penstock.client.reading.stream import FeedContext, Opening, OpenStream
from penstock.client.session.session import Session
from penstock.wire.order import Order, Share

LANES, LATER_S = 4, 7.0


class Said:
    """The reader's end of a call on which nothing comes."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        """Keep a message."""
        self.sent.append(message)

    def cancel(self) -> None:
        """Nothing is open."""

    def __iter__(self) -> Any:
        return iter(())


def test_a_node_that_was_told_of_more_owes_it_from_then_on() -> None:
    """Whenever that is looked at; a look before it, when it owed nothing, changes nothing."""
    share, log_id = Share(1, 0, 1), bytes(32)
    session = Session("node", "job", ((0, log_id),), "", None, share, LaneUnits(LANES))
    slots = Slots("job", share, 0, None, 8)
    context = FeedContext(session, slots, BufferPool(2), 1 << 20)
    route = Route(0, FeedNode(Any, "node", (1, 3), "node-1"), context, Any)  # type: ignore[arg-type]
    stream = route.stream = OpenStream(Said(), "node", 0, context, Opening(0, 0, 1 << 20))
    stream.order, stream.has_opened = Order(LANES), True
    silence = Silence(route)
    begun_s = stream.heard_s

    assert silence.look(begun_s + LATER_S, slots, share) == 0.0
    stream.send(8, 0, 0, 1 << 20, 0.0)
    told_s = stream.told_s

    assert told_s > begun_s
    assert silence.look(told_s + LATER_S, slots, share) == LATER_S
    assert silence.look(told_s + 2 * LATER_S, slots, share) == 2 * LATER_S
