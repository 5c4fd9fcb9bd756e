"""The way to a node that may be at another address when it is back."""

from __future__ import annotations

from penstock.client.nodes.known_node import KnownNode, KnownNodes
from penstock.wire.transports import ReadCall, Transport


class FollowingTransport:
    """Opens streams to a node wherever it is known to be: a Pod has another address every time.

    Args:
        nodes: The nodes of the target; they close what leads to them.
        node: The node.
        is_alone: It makes all lanes: where it is gone, any other node that is there has its place.

    Attributes:
        memory: See `Transport`.
    """

    def __init__(self, nodes: KnownNodes, node: KnownNode, *, is_alone: bool) -> None:
        self._nodes, self._node, self._is_alone = nodes, node, is_alone
        self._has_read = False
        self.memory = node.transport.memory

    def unary(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Call one method; see `Transport.unary`."""
        return self._now().unary(method, request, timeout_s)

    def read(self, opening: bytes) -> ReadCall:
        """Open `Feed/Read`; see `Transport.read`."""
        if self._has_read:
            self._nodes.look_again()  # the stream before has broken
        self._has_read = True
        return self._now().read(opening)

    def close(self) -> None:
        """Do nothing: its target closes what leads to it."""

    def _now(self) -> Transport:
        usable = self._nodes.usable
        same = [node for node in usable if node.node_id == self._node.node_id]
        if found := same or (usable if self._is_alone else ()):
            self._node = found[0]
            self.memory = self._node.transport.memory
        return self._node.transport
