"""What all reads of a node share, at the edge between its port and its loop."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.node import Node
from penstock.server.rpc.following import Following
from penstock.server.rpc.hand_over import HandOver
from penstock.server.rpc.lending import Lending
from penstock.server.rpc.present import Present
from penstock.server.rpc.streams import Streams
from penstock.server.store.contract import Store


@dataclass(frozen=True)
class Edge:
    """The parts of a node that a read works with.

    Attributes:
        node: The node, started.
        store: Its store, open.
        streams: The open reads.
        following: Hears of other nodes.
        present: Looks for a job's files before a run begins.
        metrics: Where batches and waits are counted.
        hand_over: How streams end as the node shuts down.
        lending: Knows the processes on this host that bodies are lent to.
    """

    node: Node
    store: Store
    streams: Streams
    following: Following
    present: Present
    metrics: Metrics
    hand_over: HandOver
    lending: Lending
