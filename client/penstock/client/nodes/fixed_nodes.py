"""Nodes that were named once and for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.client.nodes.known_node import KnownNode, NodeLeftOut


@dataclass
class FixedNodes:
    """Nodes of which none comes or goes.

    Attributes:
        usable: They; replaced as a whole.
        left_out: Those that are not read.
        is_one: See `KnownNodes`.
    """

    usable: Sequence[KnownNode]
    left_out: Sequence[NodeLeftOut] = ()
    is_one: bool = False

    def look_again(self, node_id: str = "") -> None:
        """Do nothing: there is nothing to ask."""
