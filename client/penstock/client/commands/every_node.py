"""What all nodes of a target do now: for commands that show each of them, or all together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from penstock.client.calls.control import Control, Way
from penstock.client.calls.node_address import Address
from penstock.client.nodes.dealing import LaneUnits
from penstock.client.nodes.known_node import KnownNode, NodeLeftOut
from penstock.client.nodes.target_nodes import OneNode, TargetNodes, open_nodes
from penstock.wire.errors import PenstockError

ADDED = (
    *("ready_batches", "ready_bytes", "produced", "recomputed"),
    *("sent_batches", "sent_bytes", "sent_tokens"),
)
"""Counters of a job, and of a reader, that nodes have a part of each."""


class NodeNow(NamedTuple):
    """A node, with what it does now.

    Attributes:
        node: The node.
        store: The UUID of its store; empty = it was not asked.
        status: Its status.
    """

    node: KnownNode
    store: str
    status: Mapping[str, Any]

    @property
    def version(self) -> str:
        """Return the version of its penstock."""
        return str(self.status.get("version", "?"))


class EveryNode:
    """The nodes of a target, each of which is asked.

    Args:
        nodes: The nodes.
        text: The target, for messages.
        timeout_s: How long each has to answer.
    """

    def __init__(self, nodes: OneNode | TargetNodes, text: str, timeout_s: float) -> None:
        self._nodes, self._text, self.timeout_s = nodes, text, timeout_s
        self._left_out: list[NodeLeftOut] = []

    @property
    def left_out(self) -> Sequence[NodeLeftOut]:
        """Return nodes that cannot be read, or have not answered just now."""
        return sorted({*self._nodes.left_out, *self._left_out}, key=lambda node: node.target)

    def now(self) -> list[NodeNow]:
        """Return what each node does.

        Raises:
            PenstockError: None has answered.
        """
        nodes, found, failed = self._nodes, [], {}
        if isinstance(nodes, TargetNodes):
            nodes.wait_asked(self.timeout_s)
            if not nodes.usable:
                nodes.wait_usable(self.timeout_s)
        for node in nodes.usable or [_not_described(*nodes.ways())]:
            try:
                status = Control(node.transport, "", node.target, self.timeout_s).status()
                found.append(NodeNow(node, nodes.store(node), status))
            except PenstockError as error:
                failed[node.target] = error
        self._left_out = [NodeLeftOut(target, error.message) for target, error in failed.items()]
        if not found:
            raise failed.popitem()[1]
        return found

    def describe(self) -> None:
        """Have a node alone say its id and its store, which several are asked for anyway.

        Raises:
            PenstockError: It does not answer.
        """
        if isinstance(self._nodes, OneNode):
            self._nodes.describe(Control(self._nodes.ways, "", self._text, self.timeout_s))

    def units(self, found: Sequence[NodeNow]) -> Counter[str]:
        """Return how many units of all jobs are dealt to each node, by its id.

        Raises:
            PenstockError: The nodes do not answer.
        """
        weights = {now.node.node_id: now.node.workers for now in found if not now.node.draining}
        weights = weights or {now.node.node_id: now.node.workers for now in found}
        counted: Counter[str] = Counter()
        for job in {job["name"] for now in found for job in now.status.get("jobs", [])}:
            info = Control(self._nodes.ways, job, self._text, self.timeout_s).describe()
            units = LaneUnits(info.lanes, tuple(info.units), info.log_id)
            counted.update(units.dealt(weights))
        return counted


def _not_described(way: Way) -> KnownNode:
    return KnownNode(way.target, 0, way.target, way.transport, 1)


@contextmanager
def every_node(address: Address, timeout_s: float) -> Iterator[EveryNode]:
    """Give the nodes of a target, and close the ways to them after."""
    nodes = open_nodes(address, "", grouped=False, says=False)
    try:
        yield EveryNode(nodes, address.text, timeout_s)
    finally:
        nodes.close()


def merged(found: Sequence[NodeNow]) -> dict[str, Any]:
    """Return one status of all nodes: a rank that reads from several is one reader of it.

    Its counters are added up; it stands where it stands at the node that is furthest back. Readers
    without a group are known by nothing that nodes share: they are shown as each node tells them.
    """
    jobs: dict[str, dict[str, Any]] = {}
    for now in found:
        for told in now.status.get("jobs", []):
            job = jobs.get(told["name"])
            if job is None:
                jobs[told["name"]] = job = {**told, "groups": {}, "cursors": {}}
            else:
                _add(job, told)
            for group, step in told.get("cursors", {}).items():
                job["cursors"][group] = max(step, job["cursors"].get(group, 0))
            for reader in told.get("groups", []):
                _add_reader(job["groups"], reader, now.node.node_id)
    return {
        "version": ", ".join(sorted({now.version for now in found})),
        "node": " ".join(sorted(str(now.status.get("node", "")) for now in found)),
        "uptime_s": min(now.status.get("uptime_s", 0) for now in found),
        "workers": [worker for now in found for worker in now.status.get("workers", [])],
        "jobs": [{**job, "groups": [*job["groups"].values()]} for job in jobs.values()],
    }


def _add(total: dict[str, Any], told: Mapping[str, Any]) -> None:
    for name in ADDED:
        if name in told:
            total[name] = total.get(name, 0) + told[name]


def _add_reader(
    readers: dict[tuple[Any, ...], dict[str, Any]], reader: Mapping[str, Any], node_id: str
) -> None:
    rank = (reader.get("group", ""), reader.get("rank", 0), reader.get("world_size", 1))
    key = rank if reader.get("group") else (*rank, node_id, reader.get("id", 0))
    known = readers.get(key)
    if known is None:
        readers[key] = {**reader, "id": node_id if len(key) > len(rank) else 0}
        return
    _add(known, reader)
    known["waiting_s"] = max(known.get("waiting_s", 0), reader.get("waiting_s", 0))
    for name in ("next", "horizon"):
        known[name] = min(known.get(name, 0), reader.get(name, 0))
