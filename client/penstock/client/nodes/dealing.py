"""Which node is asked for which lane: the same for every reader, whatever order it knows them in.

Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998)
with a bound on what one node gets (Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with
bounded loads", 2016): every reader finds the same node for a lane without asking anybody, so that
each batch is made once; and where nodes come and go most lanes stay where they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from penstock.wire.errors import InvalidRequest


def deal(lanes: int, nodes: Sequence[str]) -> list[tuple[int, ...]]:
    """Return the lanes of each node, ascending: each lane once, at most lanes / nodes, rounded up.

    Args:
        lanes: How many lanes the log has.
        nodes: The nodes' ids, all different; the order does not matter.

    Raises:
        InvalidRequest: `nodes` is empty, or names a node twice.
    """
    if not nodes or len(set(nodes)) < len(nodes):
        raise InvalidRequest(
            f"lanes are dealt to nodes with ids of their own, not to {', '.join(nodes) or 'none'}: "
            "name each node once"
        )
    most = -(-lanes // len(nodes))
    found: dict[str, list[int]] = {node: [] for node in nodes}
    for lane in range(lanes):
        free = [node for node in nodes if len(found[node]) < most]
        found[max(free, key=lambda node: (_weight(node, lane), node))].append(lane)
    return [tuple(found[node]) for node in nodes]


def _weight(node: str, lane: int) -> bytes:
    return sha256(f"{lane}\0{node}".encode()).digest()
