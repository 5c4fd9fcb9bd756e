"""What is known of the nodes of a target: those that may be read, and why others are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.wire.transports import Transport


@dataclass(frozen=True)
class KnownNode:
    """A node that serves the log that is read, from the store that it is read from.

    Attributes:
        node_id: What units are dealt to: the same after the node has started again.
        incarnation: How many times the store has seen this id begin; of two the higher is later.
        target: Where it is, for messages.
        transport: The way to it.
        workers: How many worker processes it has: its weight where units are dealt.
        draining: It is about to end: nothing begins there.
    """

    node_id: str
    incarnation: int
    target: str
    transport: Transport
    workers: int
    draining: bool = False


@dataclass(frozen=True)
class NodeLeftOut:
    """A node, or an address, that is not read.

    Attributes:
        target: Where it is, for messages.
        why: A sentence for people.
    """

    target: str
    why: str


class KnownNodes(Protocol):
    """The nodes of a target, as they are known now. Looking takes no lock and never waits.

    Attributes:
        is_one: There is one node, for good: nothing of it is ever dealt to another.
    """

    is_one: bool

    @property
    def usable(self) -> Sequence[KnownNode]:
        """Nodes that may be read; replaced as a whole, in the order of their ids."""
        ...

    @property
    def left_out(self) -> Sequence[NodeLeftOut]:
        """Nodes and addresses that are not read."""
        ...

    def look_again(self, node_id: str = "") -> None:
        """Ask for the addresses soon, and what is at them where that may have changed.

        Args:
            node_id: The node whose stream has broken, or that is back: it is asked, and those that
                are not read; empty = all are. Thousands of ranks notice it at once.
        """
        ...
