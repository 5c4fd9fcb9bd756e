"""The store: where cursors, checkpoints, snapshots and verdicts outlive every process.

What an operation has acknowledged survives `kill -9` and power loss (except for snapshots: they
only save time). Each is one transaction and a coroutine: SQLite runs in a thread of its own, and a
server database over the network fits the same operations.
"""

from __future__ import annotations

from penstock.server.store.group_operations import GroupOperations
from penstock.server.store.log_operations import LogOperations
from penstock.server.store.node_operations import NodeOperations


class Store(GroupOperations, LogOperations, NodeOperations):
    """Durable state of one installation.

    All operations are here. A kind of store adds only what `Transacting` asks for, over its own
    `Tables`.

    Glossary:
        store: Where cursors, checkpoints, snapshots and verdicts live.
    """
