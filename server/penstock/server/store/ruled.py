"""The contract over transactions: a kind of store adds only access to its rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from penstock.server.core.verdict import Verdict
from penstock.server.store import transactions
from penstock.server.store.base import (
    BeginRequest,
    Begun,
    CheckpointRecord,
    Committed,
    GroupRecord,
    Halt,
    JobRecord,
    Latest,
    LogNews,
    Moved,
    Seen,
    SnapshotRecord,
    Store,
)
from penstock.server.store.tables import Tables
from penstock.wire.errors import OtherStore

T = TypeVar("T")

Transaction = Callable[[Tables], Coroutine[Any, Any, T]]
"""What runs within one transaction."""


class RuledStore(Store):
    """A store that decides nothing itself: every method is one of `transactions`."""

    def __init__(self) -> None:
        self._crowded = transactions.Crowded()

    @abstractmethod
    async def transact(self, transaction: Transaction[T]) -> T:
        """Return what a transaction returns: all of its changes are written durably, or none.

        Raises:
            PenstockError: What it raised; `StoreUnavailable` if the store is not open.
        """

    async def register_job(self, job: JobRecord) -> None:  # noqa: D102 - the contract says it
        await self.transact(lambda tables: transactions.register_job(tables, job))

    async def definition(self, log_id: bytes) -> bytes | None:  # noqa: D102
        return await self.transact(lambda tables: transactions.definition(tables, log_id))

    async def begin(self, request: BeginRequest) -> Begun:  # noqa: D102 - so for all below
        if request.store not in ("", self.uuid):
            raise OtherStore(
                f"the state of this run comes from store {request.store}, and this server has "
                f"store {self.uuid} ({self.where}): point the server at that store, or give start= "
                "to go on from the run's own step here",
                expected=request.store,
                store=self.uuid,
            )
        return await self.transact(lambda tables: transactions.begin(tables, request))

    async def check_token(  # noqa: D102
        self, job: str, group: str, token: str, generation: int
    ) -> None:
        await self.transact(
            lambda tables: transactions.check_token(tables, job, group, token, generation)
        )

    async def commit(  # noqa: D102
        self,
        job: str,
        group: str,
        token: str,
        generation: int,
        rank: int,
        step: int,
        *,
        all_rows: bool = False,
    ) -> Committed:
        return await self.transact(
            lambda tables: transactions.commit(
                tables, job, group, token, generation, rank, step, all_rows=all_rows
            )
        )

    async def checkpoint(  # noqa: D102
        self, job: str, group: str, name: str, step: int | None
    ) -> CheckpointRecord:
        return await self.transact(
            lambda tables: transactions.checkpoint(tables, job, group, name, step)
        )

    async def restore(  # noqa: D102
        self, job: str, group: str, name: str, request_id: str, owner: str
    ) -> Moved:
        return await self.transact(
            lambda tables: transactions.restore(tables, job, group, name, request_id, owner)
        )

    async def seek(  # noqa: D102
        self, job: str, group: str, step: int, request_id: str, owner: str
    ) -> Moved:
        return await self.transact(
            lambda tables: transactions.seek(tables, job, group, step, request_id, owner)
        )

    async def batches_per_step(self, job: str, group: str) -> int:  # noqa: D102
        return await self.transact(lambda tables: transactions.batches_per_step(tables, job, group))

    async def groups(  # noqa: D102
        self, job: str, group: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[GroupRecord]:
        return await self.transact(
            lambda tables: transactions.list_groups(tables, job, group, after, limit)
        )

    async def delete_group(  # noqa: D102
        self, job: str, group: str, generation: int | None = None
    ) -> GroupRecord:
        return await self.transact(
            lambda tables: transactions.delete_group(tables, self._crowded, job, group, generation)
        )

    async def put_snapshots(self, snapshots: Sequence[SnapshotRecord]) -> None:  # noqa: D102
        await self.transact(lambda tables: self._crowded.put(tables, snapshots))

    async def nearest_snapshot(  # noqa: D102
        self, log_id: bytes, lane: int, offset: int
    ) -> SnapshotRecord | None:
        return await self.transact(
            lambda tables: transactions.nearest_snapshot(tables, log_id, lane, offset)
        )

    async def drop_snapshot(self, log_id: bytes, lane: int, offset: int) -> None:  # noqa: D102
        await self.transact(lambda tables: transactions.drop_snapshot(tables, log_id, lane, offset))

    async def add_verdict(  # noqa: D102
        self, log_id: bytes, verdict: Verdict, seen: Seen, limit: int | None = None
    ) -> Verdict:
        return await self.transact(
            lambda tables: transactions.add_verdict(tables, log_id, verdict, seen, limit)
        )

    async def release_verdicts(  # noqa: D102
        self, log_id: bytes, source: str, index: int, seen: Seen
    ) -> list[Verdict]:
        return await self.transact(
            lambda tables: transactions.release_verdicts(tables, log_id, source, index, seen)
        )

    async def verdicts(  # noqa: D102
        self, log_id: bytes, after: int = 0, limit: int | None = None
    ) -> list[Verdict]:
        return await self.transact(
            lambda tables: transactions.list_verdicts(tables, log_id, after, limit)
        )

    async def add_lane_ends(self, log_id: bytes, ends: Mapping[int, int]) -> None:  # noqa: D102
        await self.transact(lambda tables: transactions.add_lane_ends(tables, log_id, ends))

    async def lane_ends(self, log_id: bytes) -> dict[int, int]:  # noqa: D102
        return await self.transact(lambda tables: transactions.lane_ends(tables, log_id))

    async def add_halt(self, log_id: bytes, halt: Halt) -> Halt:  # noqa: D102
        return await self.transact(lambda tables: transactions.add_halt(tables, log_id, halt))

    async def news(self, log_id: bytes, after: int | None) -> LogNews:  # noqa: D102
        return await self.transact(lambda tables: transactions.news(tables, log_id, after))

    async def latest(  # noqa: D102
        self, groups: Sequence[tuple[str, str]]
    ) -> list[Latest | None]:
        return await self.transact(lambda tables: transactions.latest(tables, groups))

    async def note_libraries(  # noqa: D102
        self, log_id: bytes, versions: Mapping[str, str]
    ) -> dict[str, str]:
        return await self.transact(
            lambda tables: transactions.note_libraries(tables, log_id, versions)
        )


__all__ = ["RuledStore", "Transaction"]
