"""What nodes hear of each other: the store has it, and they ask. They never talk to each other."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.store.records import Followed
from penstock.server.store.rows import FollowedRow
from penstock.server.store.rules import follow_keys as followed
from penstock.server.store.tables import Tables
from penstock.server.store.transacting import Transacting, transaction


class NodeOperations(Transacting):
    """The operations of a store on nodes."""

    @transaction
    async def begin_node(self, tables: Tables, node_id: str) -> Followed:
        """Count a node that begins; return the numbers of its id, its own incarnation among them.

        Of two nodes that run under one id the later one is meant, since it has the higher number.
        """
        key = followed.node_key(node_id)
        before, outlived = await tables.some(FollowedRow, [key, followed.outlived_key(node_id)])
        incarnation = 1 if before is None else before.number + 1
        await tables.write(followed.now_at(key, incarnation))
        return Followed({}, {}, incarnation, 0 if outlived is None else outlived.number)

    @transaction
    async def outlive(self, tables: Tables, node_id: str, incarnation: int) -> None:
        """Say that a node runs on, although a later one of its id has begun."""
        key = followed.outlived_key(node_id)
        row = await tables.get(FollowedRow, *key)
        if row is None or row.number < incarnation:
            await tables.write(followed.now_at(key, incarnation))

    @transaction
    async def followed(
        self,
        tables: Tables,
        logs: Sequence[bytes],
        groups: Sequence[tuple[str, str]],
        node_id: str = "",
    ) -> Followed:
        """Return the numbers of logs, of groups by job and name, and of a node's id: one look.

        A node asks every second. What has another number than it knows has changed: then `changes`
        and `latest` say what.
        """
        keys = [followed.log_key(log_id) for log_id in logs]
        keys += [followed.group_key(*group) for group in groups]
        keys += [followed.node_key(node_id), followed.outlived_key(node_id)] if node_id else []
        rows = await tables.some(FollowedRow, keys)
        numbers = [None if row is None else row.number for row in rows]
        of_logs, of_groups = numbers[: len(logs)], numbers[len(logs) : len(logs) + len(groups)]
        incarnation, outlived = numbers[-2:] if node_id else (0, 0)
        return Followed(
            {log_id: number or 0 for log_id, number in zip(logs, of_logs, strict=True)},
            dict(zip(groups, of_groups, strict=True)),
            incarnation or 0,
            outlived or 0,
        )
