"""How long a node has said nothing, though it owed something.

A node that owes a batch says every few seconds what it waits for. So silence means that it hangs,
or that nothing comes through; while it owes nothing, silence means nothing.
"""

from __future__ import annotations

from penstock.client.reading.route import Route
from penstock.client.reading.slots import Slots
from penstock.client.reading.stream import OpenStream
from penstock.wire.order import Share

SILENT_S = 15.0
"""A node that owes something and says nothing for so long is left: it is to say something every 5
seconds."""

DOUBTED_S = 10.0
"""Where it is not known whether a node owes anything, it is asked after so long a silence."""


class Silence:
    """How long one route has heard nothing. One thread looks, and takes no lock.

    Args:
        route: The route.

    Attributes:
        is_certain: It is known whether the node owes something.
    """

    def __init__(self, route: Route) -> None:
        self._route = route
        self._lanes = frozenset(route.node.lanes)
        self._stream: OpenStream | None = None
        self._quiet_s: float | None = None  # since when it owes something, or has answered
        self.is_certain = True

    def look(self, now_s: float, slots: Slots, share: Share) -> float:
        """Return for how long it has said nothing, and owed something, or may have."""
        stream = self._route.stream
        if stream is not self._stream:
            self._stream, self._quiet_s = stream, None
        owes = stream is not None and self._owes(stream, slots, share)
        if stream is None or not owes:
            self._quiet_s = None
            return 0.0
        if self._quiet_s is None:
            # Since the last look, by what it was told then; to count from now would add the time
            # between two looks to what every rank waits.
            self._quiet_s = min(now_s, stream.told_s)
        return max(0.0, now_s - max(self._quiet_s, stream.heard_s))

    def is_suspect(self, silent_s: float, open_s: float) -> bool:
        """Tell whether its node is to be asked whether it is there.

        Args:
            silent_s: What `look` returned.
            open_s: How long a node may take to accept a stream, before it is asked.
        """
        stream = self._stream
        if stream is not None and not stream.has_opened:
            return silent_s >= open_s
        return silent_s >= DOUBTED_S and not self.is_certain

    def note_answer(self, now_s: float) -> None:
        """Note that its node is there, though it is not known whether it owes anything."""
        if not self.is_certain and self._quiet_s is not None:
            self._quiet_s = now_s

    def _owes(self, stream: OpenStream, slots: Slots, share: Share) -> bool:
        """Tell whether a node owes something, or may."""
        self.is_certain = True
        if not stream.has_opened:
            return True
        if stream.has_ended:
            return False
        arrivals = slots.arrivals
        position, sent = arrivals.missing, stream.sent
        while position < sent:
            if not arrivals.has(position) and self._may_have(position, stream):
                # What finds no room is not owed, but for what the consumer takes next.
                return stream.has_room or position <= stream.reported
            position = share.nth_after(position, 1)
        return False

    def _may_have(self, position: int, stream: OpenStream) -> bool:
        if not self._lanes:
            return True
        if stream.order is None:  # lanes that have ended are passed over, and which is not known
            self.is_certain = False
            return True
        return stream.order.lane_offset(position).lane in self._lanes
