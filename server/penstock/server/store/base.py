"""The store's contract: where cursors, checkpoints, snapshots and verdicts outlive every process.

What a method has acknowledged survives `kill -9` and power loss (except for snapshots: they only
save time). Every method is one transaction. Methods are coroutines: SQLite runs in a thread of its
own, and a server database over the network fits the same contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from penstock.server.core.verdict import Verdict
from penstock.wire.errors import PenstockError
from penstock.wire.order import Order


@dataclass(frozen=True)
class JobRecord:
    """A job as the store knows it.

    Attributes:
        name: Its name in the job file.
        log_id: 32 bytes.
        plan: The canonical plan, JSON-able: what the log id is the hash of.
        definition: What it is built from, see `penstock.server.jobs.definition`; empty = not known.
    """

    name: str
    log_id: bytes
    plan: Any
    definition: bytes = b""


@dataclass(frozen=True)
class BeginRequest:
    """A rank that starts or joins an attempt.

    Attributes:
        job: The job as it is now: its log id must be the one under the group's cursor.
        group: The group's name.
        token: The attempt; all its ranks present the same.
        rank: Below `world_size`.
        world_size: W.
        batches_per_step: The caller's; None = the group's.
        default_batches_per_step: The job file's; None = none.
        start_step: None = the cursor.
        owner: Host and process, for people.
        store: The UUID of the store that the caller's state came from; empty = any.
        uneven: The world size need not divide the step: fillers make up for it.
    """

    job: JobRecord
    group: str
    token: str
    rank: int
    world_size: int
    batches_per_step: int | None = None
    default_batches_per_step: int | None = None
    start_step: int | None = None
    owner: str = ""
    store: str = ""
    uneven: bool = False


@dataclass(frozen=True)
class Begun:
    """The answer to `begin`.

    Attributes:
        generation: The number that this attempt has.
        batches_per_step: G of the group.
        batches_per_step_from: `request`, `job` or `world_size`: what decided it when the group was
            made; `group`: the group existed.
        start_step: This rank's row: the first step that it has not finished in this generation.
        joined: The token was already the latest.
        committed_at: The store's time of the group's last commit, ISO 8601 UTC, for people;
            "" = never.
        committed_by: The generation of that commit; 0 = none.
        token: What the attempt is called now.
        timeline: The logs that the group reads, by the first step of each.
    """

    generation: int
    batches_per_step: int
    batches_per_step_from: str
    start_step: int
    joined: bool
    committed_at: str
    committed_by: int
    token: str
    timeline: tuple[tuple[int, bytes], ...] = ()


class Committed(NamedTuple):
    """The answer to `commit`: the group's cursor after it, and this rank's row."""

    cursor: int
    row: int


class Moved(NamedTuple):
    """The answer to `seek` and `restore`: the new generation and where it starts."""

    generation: int
    step: int


@dataclass(frozen=True)
class CheckpointRecord:
    """A named, immutable step of a group."""

    name: str
    step: int
    log_id: bytes
    made_at: str


@dataclass(frozen=True)
class GroupRecord:
    """Everything about one group.

    Attributes:
        rows: Per rank of the current generation the first step that it has not finished; empty
            after a seek or restore, until the next attempt begins.
        cursor: The lowest of `rows`, or `start_step` if there are none.
        committed_at: The store's time of the last commit, ISO 8601 UTC, for people; "" = never.
        committed_by: The generation of that commit; 0 = none.
        committed_owner: Who began that generation, for people; "" = it is no longer known.
    """

    job: str
    name: str
    log_id: bytes
    batches_per_step: int
    generation: int
    token: str
    owner: str
    world_size: int
    start_step: int
    rows: tuple[int, ...]
    cursor: int
    committed_at: str
    committed_by: int
    committed_owner: str
    checkpoints: tuple[CheckpointRecord, ...]


class SnapshotRecord(NamedTuple):
    """A snapshot of one lane: its line restarts at `offset` from `data`."""

    log_id: bytes
    lane: int
    offset: int
    data: bytes


class Seen(NamedTuple):
    """What the calling process has done of a log, beside what the store knows about it.

    Attributes:
        order: How the log's positions lie on its lanes.
        planned: Offsets of the verdict's lane below this were planned here; at the stages `exit`
            and `size`, which are about one batch, only if that one was made here.
        asked: Offsets of any lane below this were planned here, or are being planned.
    """

    order: Order
    planned: int = 0
    asked: int = 0


class Halt(NamedTuple):
    """A lane of a log that stopped for good at a node, until that is started again.

    Attributes:
        lane: The lane.
        offset: The batch that it stopped at.
        code: The error's, as of `penstock.wire.errors`.
        message: Its sentence.
        fields: Its fields, JSON-able.
        node: The node, for people.
        change: The number of the log's change; 0 = it is not recorded.
        made_at: The store's time, ISO 8601 UTC, for people.
    """

    lane: int
    offset: int
    code: str
    message: str
    fields: dict[str, Any]
    node: str
    change: int = 0
    made_at: str = ""


class LogNews(NamedTuple):
    """What has changed in a log.

    Attributes:
        change: The number of its last change: the next call asks for what comes after it.
        verdicts: Those that were made or released, as they are now, by number.
        halts: By number; the last 256 changes' at most.
    """

    change: int
    verdicts: list[Verdict]
    halts: list[Halt]


class Latest(NamedTuple):
    """The latest generation of a group.

    Attributes:
        generation: Its number.
        owner: Who began it or moved the group, for people.
        made_by: `begin`, `state` (a begin from a state), `seek` or `restore`.
        start_step: Where it began.
    """

    generation: int
    owner: str
    made_by: str
    start_step: int


class Store(ABC):
    """Durable state of one installation.

    The coroutines may be called concurrently, from one event loop.
    """

    @property
    @abstractmethod
    def uuid(self) -> str:
        """Return the identity of this store, so that another store is never mistaken for it."""

    @property
    @abstractmethod
    def where(self) -> str:
        """Return where it is, for people: an absolute path, or an address without passwords."""

    @property
    def created(self) -> str:
        """Return where `open` created an empty store; empty = the store existed."""
        return ""

    async def discard(self) -> None:
        """Close it, and remove what `open` has created: for a node that nobody could read from.

        A store that existed stays as it is. By default, all stay.
        """
        await self.close()

    @abstractmethod
    def watch(self, on_error: Callable[[PenstockError], None]) -> None:
        """Call back with every error that a call ends with, from now on, in the event loop."""

    @abstractmethod
    async def probe(self) -> None:
        """Write something meaningless, durably: find out whether commits would work.

        Its errors are not reported to `watch`.

        Raises:
            StoreUnavailable, StoreCorrupt: As any other call would.
        """

    @abstractmethod
    async def open(self) -> None:
        """Open or create.

        Raises:
            StoreLocked: Another process has it open.
            StoreCorrupt: It is damaged, or not a store, or of a newer format.
            StoreUnavailable: It cannot be reached, or its folder cannot be written.
        """

    @abstractmethod
    async def close(self) -> None:
        """Finish running calls and close; idempotent."""

    # --- jobs and groups ---

    @abstractmethod
    async def register_job(self, job: JobRecord) -> None:
        """Remember a job's plan under (name, log id); a name may have had other logs before.

        Its definition, where there is one, is kept under the log id, in place of an older one: the
        same log may be read from another path.
        """

    @abstractmethod
    async def definition(self, log_id: bytes) -> bytes | None:
        """Return what the job of a log is built from; None = it is not known."""

    @abstractmethod
    async def begin(self, request: BeginRequest) -> Begun:
        """Start or join an attempt, in one transaction.

        A new token gets the group's highest generation + 1, with rows for all W ranks at
        `start_step`, or at the group's cursor. The latest token joins: the world size must be the
        same, and a `start_step` must be the generation's. An older token is fenced; the tokens of
        at least 1,024 generations are remembered. A new group begins at generation 1, or above the
        highest generation of all groups that were deleted.

        Raises:
            RankOutOfRange, UnevenStep: The rank or the world size is invalid.
            InvalidRequest: A name, a token or a step cannot be, or ranks of one attempt disagree on
                its start.
            StaleGeneration: The token belongs to an older attempt; names the current owner.
            WorldSizeMismatch: Another world size in the same attempt.
            StepSizeMismatch: `batches_per_step` is not the group's.
            JobChanged: The group's log is another: fields say what differs, readable.
            OtherStore: `store` is given and is not this store.
        """

    @abstractmethod
    async def check_token(self, job: str, group: str, token: str, generation: int) -> None:
        """Refuse a reader of an older attempt.

        Raises:
            StaleGeneration: The token is not the latest.
            UnknownGroup: There is no such group: it was deleted, or it is in another store.
        """

    @abstractmethod
    async def commit(
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
        """Move this rank's row, or all rows, forward to `step`.

        A max-write: a lower step leaves a row as it is, so a retry is harmless.

        Raises:
            StaleGeneration: The token is not the latest: nothing was written.
            UnknownGroup, RankOutOfRange: No such group or row.
            CommitOutOfRange: The step is negative or does not fit 63 bits.
        """

    @abstractmethod
    async def checkpoint(
        self, job: str, group: str, name: str, step: int | None
    ) -> CheckpointRecord:
        """Give a step a permanent name; None = the cursor. Repeating it is a success.

        Raises:
            CheckpointExists: The name belongs to another step.
            UnknownGroup: There is no such group.
        """

    @abstractmethod
    async def restore(self, job: str, group: str, name: str, request_id: str, owner: str) -> Moved:
        """Go to a checkpoint: a new generation, in the same transaction.

        It has no rows, and a token that no rank can present: all readers so far are fenced. A
        repeated `request_id` gets the first answer and moves nothing; an empty one always moves.

        Raises:
            UnknownGroup, UnknownCheckpoint: No such group or name; the latter lists the names.
        """

    @abstractmethod
    async def seek(self, job: str, group: str, step: int, request_id: str, owner: str) -> Moved:
        """Go to a step: a new generation, in the same transaction, as `restore` does.

        Raises:
            UnknownGroup: There is no such group.
        """

    @abstractmethod
    async def batches_per_step(self, job: str, group: str) -> int:
        """Return G of a group: all that a commit needs to know about it.

        Raises:
            UnknownGroup: There is no such group; lists the existing ones.
        """

    @abstractmethod
    async def groups(
        self, job: str, group: str | None = None, *, after: str = "", limit: int | None = None
    ) -> list[GroupRecord]:
        """Return one group, or the groups of a job by name.

        Args:
            job: The job's name.
            group: This one alone; `after` and `limit` are then ignored.
            after: Only groups whose names come later than this one.
            limit: At most so many; None = all.

        Raises:
            UnknownGroup: `group` is given and there is none; lists the existing ones.
        """

    @abstractmethod
    async def delete_group(
        self, job: str, group: str, generation: int | None = None
    ) -> GroupRecord:
        """Delete a group: its cursor, its generations and its checkpoints; return what it was.

        Snapshots that were kept for it alone are collected. Everything about the log stays:
        verdicts, ends of lanes, the archive of snapshots. A reader that began before gets
        `UnknownGroup` from `commit` and `check_token`, and the name is free: a `begin` starts a new
        group under it, at a higher generation than any group had that was deleted, so such a reader
        stays fenced.

        Args:
            job: The job's name.
            group: The group's name.
            generation: The latest one that the caller knows of; None = whatever it is.

        Raises:
            UnknownGroup: There is no such group; lists the existing ones.
            StaleGeneration: The group has a newer generation; nothing was deleted.
        """

    # --- snapshots ---

    @abstractmethod
    async def put_snapshots(self, snapshots: Sequence[SnapshotRecord]) -> None:
        """Insert if absent, all in one transaction, then thin out what is no longer worth keeping.

        Kept per lane: the last 4 at or below each cursor and the last at or below each checkpoint
        of a group that reads this log, the newest 4, and an archive of at most 256 whose spacing
        doubles when it is full. Thinning may lag: a lane holds at most 512, or twice what is kept.

        Raises:
            LogDiverged: There is another content at the same lane and offset.
        """

    @abstractmethod
    async def nearest_snapshot(
        self, log_id: bytes, lane: int, offset: int
    ) -> SnapshotRecord | None:
        """Return the intact snapshot with the highest offset that is at most `offset`, or None.

        One whose bytes are not those that were put is dropped, and a warning is logged.
        """

    @abstractmethod
    async def drop_snapshot(self, log_id: bytes, lane: int, offset: int) -> None:
        """Remove an unusable snapshot, so that a good one can replace it."""

    # --- verdicts and ends ---

    @abstractmethod
    async def add_verdict(
        self, log_id: bytes, verdict: Verdict, seen: Seen, limit: int | None = None
    ) -> Verdict:
        """Insert a verdict if none holds for its item at its stage; return the one that does.

        In one transaction with reading what groups were given: rows above the start of their
        generation, checkpoints of groups that have committed, snapshots of the verdict's lane.

        Args:
            log_id: The log.
            verdict: What to insert; its number and `above` are decided here.
            seen: What was planned and given in the caller's process.
            limit: `max_quarantined`: how many (stage, item) may be left out at once.

        Raises:
            LogDiverged: It would move what readers were given, or what a snapshot holds; at stages
                `exit` and `size`, it would change the very batch that a rank has committed.
            BadItem: As many items as may be are left out already.
        """

    @abstractmethod
    async def release_verdicts(
        self, log_id: bytes, source: str, index: int, seen: Seen
    ) -> list[Verdict]:
        """Release the verdicts about an item, above all that was given, planned or asked for.

        Returns:
            Every verdict about it, those that were released before too; empty = there is none.

        Raises:
            LogDiverged: The log holds no batch above, or is finite and was counted without it.
        """

    @abstractmethod
    async def verdicts(
        self, log_id: bytes, after: int = 0, limit: int | None = None
    ) -> list[Verdict]:
        """Return the verdicts of a log, released ones too, by number.

        Args:
            log_id: The log.
            after: Only those with a higher number.
            limit: At most so many; None = all.
        """

    @abstractmethod
    async def add_lane_ends(self, log_id: bytes, ends: Mapping[int, int]) -> None:
        """Record how many batches some lanes hold, of each lane if absent: all of them, or none.

        Raises:
            LogDiverged: Another end was recorded of one; its `lane` says which.
        """

    @abstractmethod
    async def lane_ends(self, log_id: bytes) -> dict[int, int]:
        """Return the recorded ends by lane."""

    # --- what others have done ---

    @property
    def shared(self) -> bool:
        """Tell whether other processes, or other nodes of this one, may write to it, too."""
        return False

    @abstractmethod
    async def add_halt(self, log_id: bytes, halt: Halt) -> Halt:
        """Record that a lane has stopped at a node; return it with its number.

        It stops no lane elsewhere by itself: nodes that read the same log can be told, see `news`.
        """

    @abstractmethod
    async def news(self, log_id: bytes, after: int | None) -> LogNews:
        """Return what has changed in a log: cheap where nothing has.

        Args:
            log_id: The log.
            after: The number of the last change that the caller knows; 0 = all, None = return no
                changes, only the number of the last one.
        """

    @abstractmethod
    async def latest(self, groups: Sequence[tuple[str, str]]) -> list[Latest | None]:
        """Return the latest generation of groups, each named by job and name; None = it is gone."""

    # --- libraries ---

    @abstractmethod
    async def note_libraries(self, log_id: bytes, versions: Mapping[str, str]) -> dict[str, str]:
        """Record what computes a log, each name if it is absent, and return all that is recorded.

        Args:
            log_id: 32 bytes.
            versions: Versions by name, as `penstock.server.usercode.libraries` gives them.

        Raises:
            InvalidRequest: A name or a version cannot be.
        """


__all__ = [
    "BeginRequest",
    "Begun",
    "CheckpointRecord",
    "Committed",
    "GroupRecord",
    "Halt",
    "JobRecord",
    "Latest",
    "LogNews",
    "Moved",
    "Seen",
    "SnapshotRecord",
    "Store",
]
