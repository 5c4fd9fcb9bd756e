"""Nodes that were named once and for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.nodes.known_node import KnownNode, NodeLeftOut
from penstock.wire.transports import Transport


@dataclass
class FixedNodes:
    """Nodes of which none comes or goes.

    Attributes:
        usable: They; replaced as a whole.
        left_out: Those that are not read.
    """

    usable: Sequence[KnownNode]
    left_out: Sequence[NodeLeftOut] = ()

    def look_again(self) -> None:
        """Do nothing: there is nothing to ask."""


def one_node(transport: Transport, target: str) -> FixedNodes:
    """Return the one node of a target."""
    return FixedNodes((KnownNode("", 0, target, transport, 1),))
