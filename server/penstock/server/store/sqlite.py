"""The store in a SQLite file: the embedded default for one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from penstock.server.core.refs import Verdict
from penstock.server.store import attempts, deletion, groups, lanes, moves, verdicts
from penstock.server.store.base import (
    BeginRequest,
    Begun,
    CheckpointRecord,
    Committed,
    GroupRecord,
    JobRecord,
    Moved,
    Seen,
    SnapshotRecord,
    Store,
)
from penstock.server.store.database import Database
from penstock.server.store.jobs import register_job
from penstock.server.store.schema import touch
from penstock.wire.errors import OtherStore, PenstockError


class SqliteStore(Store):
    """One file, one writer: WAL, synchronous=FULL, and a lock that other processes meet by name.

    What was answered is on disk. The bodies of the transactions stand in `attempts`, `moves`,
    `deletion`, `groups`, `lanes`, `verdicts` and `jobs`; the thread, the commits and the errors in
    `database`.

    Args:
        path: The file; it and its folder are created where absent.
    """

    def __init__(self, path: Path | str) -> None:
        self._database = Database(Path(path))
        self._snapshots = lanes.Snapshots()

    @property
    def path(self) -> Path:
        """Return the file, resolved."""
        return self._database.path

    @property
    def place(self) -> str:  # noqa: D102 - the contract says it
        return str(self.path)

    @property
    def created(self) -> str:  # noqa: D102 - the contract says it
        return str(self.path) if self._database.created else ""

    @property
    def uuid(self) -> str:
        """Return the identity of this store; empty before `open`."""
        return self._database.uuid

    def watch(self, on_error: Callable[[PenstockError], None]) -> None:  # noqa: D102
        self._database.on_error = on_error

    async def probe(self) -> None:  # noqa: D102
        await self._database.run(touch, told=False)

    async def open(self) -> None:  # noqa: D102 - the contract says it; so for all below
        await self._database.open()

    async def close(self) -> None:  # noqa: D102
        await self._database.close()

    async def register_job(self, job: JobRecord) -> None:  # noqa: D102
        await self._database.run(lambda db: register_job(db, job))

    async def begin(self, request: BeginRequest) -> Begun:  # noqa: D102
        if request.store not in ("", self.uuid):
            raise OtherStore(
                f"the state of this run comes from store {request.store}, and this server has "
                f"store {self.uuid} ({self.path}): point the server at that store, or give start= "
                "to go on from the run's own step here",
                expected=request.store,
                store=self.uuid,
            )
        return await self._database.run(lambda db: attempts.begin(db, request))

    async def check_token(  # noqa: D102
        self, job: str, group: str, token: str, generation: int
    ) -> None:
        await self._database.run(lambda db: attempts.check_token(db, job, group, token, generation))

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
        return await self._database.run(
            lambda db: attempts.commit(
                db, job, group, token, generation, rank, step, all_rows=all_rows
            )
        )

    async def checkpoint(  # noqa: D102
        self, job: str, group: str, name: str, step: int | None
    ) -> CheckpointRecord:
        return await self._database.run(lambda db: moves.checkpoint(db, job, group, name, step))

    async def restore(  # noqa: D102
        self, job: str, group: str, name: str, request_id: str, owner: str
    ) -> Moved:
        return await self._database.run(
            lambda db: moves.restore(db, job, group, name, request_id, owner)
        )

    async def seek(  # noqa: D102
        self, job: str, group: str, step: int, request_id: str, owner: str
    ) -> Moved:
        return await self._database.run(
            lambda db: moves.seek(db, job, group, step, request_id, owner)
        )

    async def batches_per_step(self, job: str, group: str) -> int:  # noqa: D102
        return await self._database.run(
            lambda db: groups.known_group(db, job, group).batches_per_step
        )

    async def groups(  # noqa: D102
        self, job: str, group: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[GroupRecord]:
        return await self._database.run(lambda db: groups.groups(db, job, group, after, limit))

    async def delete_group(  # noqa: D102
        self, job: str, group: str, generation: int | None = None
    ) -> GroupRecord:
        return await self._database.run(
            lambda db: deletion.delete_group(db, self._snapshots, job, group, generation)
        )

    async def put_snapshots(self, snapshots: Sequence[SnapshotRecord]) -> None:  # noqa: D102
        await self._database.run(lambda db: self._snapshots.put(db, snapshots))

    async def nearest_snapshot(  # noqa: D102
        self, log_id: bytes, lane: int, offset: int
    ) -> SnapshotRecord | None:
        return await self._database.run(
            lambda db: self._snapshots.nearest(db, log_id, lane, offset)
        )

    async def drop_snapshot(self, log_id: bytes, lane: int, offset: int) -> None:  # noqa: D102
        await self._database.run(lambda db: lanes.drop(db, log_id, lane, offset))

    async def add_verdict(  # noqa: D102
        self, log_id: bytes, verdict: Verdict, seen: Seen, limit: int | None = None
    ) -> Verdict:
        return await self._database.run(
            lambda db: verdicts.add_verdict(db, log_id, verdict, seen, limit)
        )

    async def release_verdicts(  # noqa: D102
        self, log_id: bytes, source: str, index: int, seen: Seen
    ) -> list[Verdict]:
        return await self._database.run(
            lambda db: verdicts.release_verdicts(db, log_id, source, index, seen)
        )

    async def verdicts(  # noqa: D102
        self, log_id: bytes, after: int = 0, limit: int | None = None
    ) -> list[Verdict]:
        return await self._database.run(lambda db: verdicts.verdicts(db, log_id, after, limit))

    async def add_lane_end(self, log_id: bytes, lane: int, batches: int) -> int:  # noqa: D102
        return await self._database.run(lambda db: lanes.add_lane_end(db, log_id, lane, batches))

    async def note_libraries(  # noqa: D102
        self, log_id: bytes, versions: Mapping[str, str]
    ) -> dict[str, str]:
        return await self._database.run(lambda db: lanes.note_libraries(db, log_id, versions))

    async def lane_ends(self, log_id: bytes) -> dict[int, int]:  # noqa: D102
        return await self._database.run(partial(lanes.lane_ends, log_id=log_id))


__all__ = ["SqliteStore"]
