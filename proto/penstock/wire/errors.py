"""Every error of penstock: its stable code, its gRPC status, its fields.

An error is a *situation* that the caller can act on. Its message says what is, with the values, and
what to do next. The code and the fields travel beside the gRPC status, so a client in any language
can act without parsing sentences, and the Python client raises the same class as the server did.

```
PenstockError
  a caller's or an operator's mistake
    InvalidJob, InvalidRequest, UnknownJob, UnknownGroup, UnknownCheckpoint, UnknownVerdict,
    RankOutOfRange, UnevenStep, ProtocolMismatch, PortInUse, MissingExtra
  cursors and generations
    StaleGeneration, GroupInUse, WorldSizeMismatch, StepSizeMismatch, JobChanged,
    OtherStore, CheckpointExists, CommitOutOfRange
  positions
    PastEnd, PositionFar
  data
    Counting, SourceUnavailable, SourceChanged, BadItem, BadBatch, LaneStarved,
    SourceExhausted, WorkerCrashed, LogDiverged, ChecksumMismatch, BadFrame,
    UnsupportedValue
  the store
    StoreUnavailable, StoreLocked, StoreCorrupt, BadSnapshot
  the client
    Unreachable, NoUsableNode, Unauthenticated, Forbidden, TlsFailed (an Unreachable), DataTimeout,
    ForkedLoader, BadState, NotStarted, NoGroup, NoDevice (an InvalidRequest),
    OutOfDeviceMemory, CannotPin, DeviceFailed, Internal
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self, TypeAlias, dataclass_transform

from penstock.wire.credentials import value_without_credentials, without_credentials
from penstock.wire.plain import plain_lines

ItemField: TypeAlias = "Sequence[str | int] | str | int"
"""An item as errors name it: `[source, index, epoch]`, or its source's own name for it."""

_OWN = ("message", "more")


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
class _Fielded:
    """Turns the annotations of each subclass into keywords of its constructor."""

    def __init_subclass__(cls) -> None:
        dataclass(kw_only=True, eq=False, repr=False)(cls)


class PenstockError(_Fielded, Exception):
    """The base of every error that penstock raises on purpose.

    A subclass declares its fields as annotations: keywords of its constructor and attributes of the
    error, JSON-able; None = this error has no such value, and none is sent.

    Attributes:
        code: Stable, lower case with underscores; scripts may compare it.
        status: The canonical gRPC status name that carries it.
        message: The sentence.
        traceback: Where a user's code failed: its own frames and its error, as Python prints them.
        more: Fields that the class does not declare: those of a newer version on the other side.
    """

    code: ClassVar[str] = "penstock_error"
    status: ClassVar[str] = "UNKNOWN"

    message: str = field(kw_only=False)
    traceback: str | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # It may quote a file, or come from another machine: a terminal is not to obey it.
        if isinstance(self.message, str):  # a user's role may raise one with anything
            self.message = without_credentials(plain_lines(self.message))
        if isinstance(self.traceback, str):
            self.traceback = without_credentials(plain_lines(self.traceback))
        if isinstance(self.traceback, str) and "\n" in self.traceback:
            # Python shows notes below an uncaught error: a trainer prints the user's own line.
            self.add_note(self.traceback)

    @classmethod
    def with_fields(cls, message: str, given: Mapping[str, Any]) -> Self:
        """Return the error for a sentence and fields by name, such as received ones.

        Args:
            message: The sentence.
            given: The fields; what the class does not declare is kept in `more`.
        """
        names = {declared.name for declared in fields(cls)}.difference(_OWN)
        known = {name: value for name, value in given.items() if name in names}
        more = {name: value for name, value in given.items() if name not in names}
        return cls(message, more=more, **known)

    def reworded(self, message: str) -> Self:
        """Return a fresh error about the same situation, in another sentence."""
        return self.with_fields(message, self.fields)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields by name, JSON-able, as they are sent."""
        names = [declared.name for declared in fields(self) if declared.name not in _OWN]
        held = {name: value_without_credentials(getattr(self, name)) for name in names}
        return {**{name: held[name] for name in held if held[name] is not None}, **self.more}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(cls: type[PenstockError], message: str, given: dict[str, Any]) -> PenstockError:
    return cls.with_fields(message, given)


# --- a caller's or an operator's mistake --------------------------------------------------------


class InvalidJob(PenstockError):
    """A job file, or a job built in Python, does not hold together.

    Attributes:
        key: The key path in the job file, or the parameter.
        file: The job file.
        line: Its line, counted from 1.
        spec: The code, as the job file names it.
        attribute: The wrong attribute of a class.
        columns: The existing columns.
        pattern: The pattern that matches no file.
    """

    code, status = "invalid_job", "INVALID_ARGUMENT"

    key: str | None = None
    file: str | None = None
    line: int | None = None
    spec: str | None = None
    attribute: str | None = None
    columns: Sequence[str] | None = None
    pattern: str | None = None


class InvalidRequest(PenstockError):
    """A request, an argument or an environment variable has an invalid value.

    Attributes:
        field: What has the value: a field, an argument, an option or a variable.
        value: The value.
    """

    code, status = "invalid_request", "INVALID_ARGUMENT"

    field: str | None = None
    value: Any = None


class UnknownJob(PenstockError):
    """This node has no job of that name.

    Attributes:
        job: The name that was given.
        jobs: The existing names.
    """

    code, status = "unknown_job", "NOT_FOUND"

    job: str | None = None
    jobs: Sequence[str] | None = None


class UnknownGroup(PenstockError):
    """The store knows no such group of the job.

    Attributes:
        job: The job.
        group: The name that was given.
        groups: The first of the existing names.
        generation: Of the attempt that had begun it; None = it never existed.
    """

    code, status = "unknown_group", "NOT_FOUND"

    job: str | None = None
    group: str | None = None
    groups: Sequence[str] | None = None
    generation: int | None = None


class UnknownCheckpoint(PenstockError):
    """The group has no checkpoint of that name.

    Attributes:
        group: The group.
        name: The name that was given.
        names: The first of the existing names.
    """

    code, status = "unknown_checkpoint", "NOT_FOUND"

    group: str | None = None
    name: str | None = None
    names: Sequence[str] | None = None


class UnknownVerdict(PenstockError):
    """The item is not in quarantine.

    Attributes:
        job: The job.
        item: The source and the index.
    """

    code, status = "unknown_verdict", "NOT_FOUND"

    job: str | None = None
    item: ItemField | None = None


class RankOutOfRange(PenstockError):
    """The rank is not below the world size.

    Attributes:
        rank: The rank.
        world_size: How many ranks there are.
    """

    code, status = "rank_out_of_range", "INVALID_ARGUMENT"

    rank: int | None = None
    world_size: int | None = None


class UnevenStep(PenstockError):
    """The world size does not divide a step's batches.

    Attributes:
        batches_per_step: The batches of a step.
        world_size: How many ranks there are.
    """

    code, status = "uneven_step", "INVALID_ARGUMENT"

    batches_per_step: int | None = None
    world_size: int | None = None


class ProtocolMismatch(PenstockError):
    """Client and server speak different versions of the wire.

    Attributes:
        client: The version that the client speaks.
        server: The version that the server speaks, or what answers in its place.
    """

    code, status = "protocol_mismatch", "FAILED_PRECONDITION"

    client: int | None = None
    server: int | str | None = None


class PortInUse(PenstockError):
    """Another process listens on the address.

    Attributes:
        address: The address.
    """

    code, status = "port_in_use", "FAILED_PRECONDITION"

    address: str | None = None


class MissingExtra(PenstockError):
    """A package that is needed is not installed, or cannot be imported.

    Attributes:
        package: The package.
        extra: The extra of penstock that brings it.
    """

    code, status = "missing_extra", "FAILED_PRECONDITION"

    package: str | None = None
    extra: str | None = None


# --- cursors and generations --------------------------------------------------------------------


class StaleGeneration(PenstockError):
    """A newer attempt has taken over.

    Attributes:
        job: The job.
        group: The group.
        generation: The generation of the caller.
        current: The latest generation that the store knows.
        owner: Who began that generation.
    """

    code, status = "stale_generation", "FAILED_PRECONDITION"

    job: str | None = None
    group: str | None = None
    generation: int | None = None
    current: int | None = None
    owner: str | None = None


class GroupInUse(PenstockError):
    """The call would end readers of the group.

    Attributes:
        job: The job.
        group: The group.
        readers: How many read it at this node.
        generation: The latest generation.
        owner: Who began it.
    """

    code, status = "group_in_use", "FAILED_PRECONDITION"

    job: str | None = None
    group: str | None = None
    readers: int | None = None
    generation: int | None = None
    owner: str | None = None


class WorldSizeMismatch(PenstockError):
    """Two world sizes were given in one attempt.

    Attributes:
        world_size: The one that was given now.
        expected: The world size that the attempt began with.
    """

    code, status = "world_size_mismatch", "FAILED_PRECONDITION"

    world_size: int | None = None
    expected: int | None = None


class StepSizeMismatch(PenstockError):
    """The group reads steps of another size.

    Attributes:
        batches_per_step: The one that was given now.
        expected: The group's.
    """

    code, status = "step_size_mismatch", "FAILED_PRECONDITION"

    batches_per_step: int | None = None
    expected: int | None = None


class JobChanged(PenstockError):
    """The job under a group's cursor is not the one that made it.

    Attributes:
        job: The job.
        group: The group.
        differences: What differs, a line each.
        log_id: The log that the job is now, in hex.
        expected: The log that was expected, in hex.
    """

    code, status = "job_changed", "FAILED_PRECONDITION"

    job: str | None = None
    group: str | None = None
    differences: Sequence[str] | None = None
    log_id: str | None = None
    expected: str | None = None


class OtherStore(PenstockError):
    """The state comes from another store than the server's.

    Attributes:
        expected: The store of the state.
        store: The store of the server.
    """

    code, status = "other_store", "FAILED_PRECONDITION"

    expected: str | None = None
    store: str | None = None


class CheckpointExists(PenstockError):
    """A checkpoint never changes: this name belongs to another step.

    Attributes:
        name: Its name.
        step: The step that it names.
    """

    code, status = "checkpoint_exists", "ALREADY_EXISTS"

    name: str | None = None
    step: int | None = None


class CommitOutOfRange(PenstockError):
    """A commit names an invalid step: negative, or past the end.

    Attributes:
        step: The step.
        steps: The number of steps.
    """

    code, status = "commit_out_of_range", "OUT_OF_RANGE"

    step: int | None = None
    steps: int | None = None


# --- positions ----------------------------------------------------------------------------------


class PastEnd(PenstockError):
    """The position or step lies past the end of a finite log.

    Attributes:
        position: The position, if one was asked for.
        step: The step, if one was asked for.
        lane: The lane, if an offset was asked for.
        offset: The offset.
        batches: How many batches the log, or the lane, holds.
        steps: How many steps the log holds.
    """

    code, status = "past_end", "OUT_OF_RANGE"

    position: int | None = None
    step: int | None = None
    lane: int | None = None
    offset: int | None = None
    batches: int | None = None
    steps: int | None = None


class PositionFar(PenstockError):
    """Too many batches would have to be replayed.

    Attributes:
        lane: The lane.
        offset: The requested offset.
        nearest: The nearest offset with a snapshot.
        max_replay: How many batches are planned again at most.
    """

    code, status = "position_far", "OUT_OF_RANGE"

    lane: int | None = None
    offset: int | None = None
    nearest: int | None = None
    max_replay: int | None = None


# --- data ---------------------------------------------------------------------------------------


class Counting(PenstockError):
    """A finite job's batches are being counted.

    Attributes:
        job: The job.
        items_done: How many items were looked at.
        items: How many there are.
    """

    code, status = "counting", "UNAVAILABLE"

    job: str | None = None
    items_done: int | None = None
    items: int | None = None


class SourceUnavailable(PenstockError):
    """A temporary error about data; retried, never quarantined.

    Attributes:
        item: The item, or whatever could not be read.
        role: The code that failed; None = it was the storage.
        lane: The lane, if a batch was being made.
        offset: Its offset.
    """

    code, status = "source_unavailable", "UNAVAILABLE"

    item: ItemField | None = None
    role: str | None = None
    lane: int | None = None
    offset: int | None = None


class SourceChanged(PenstockError):
    """A data file changed under an open source: data files are immutable.

    Attributes:
        path: The file.
    """

    code, status = "source_changed", "DATA_LOSS"

    path: str | None = None


class BadItem(PenstockError):
    """The same bytes fail in the same way on every node.

    Attributes:
        item: The item.
        stage: Where it failed: `draw`, `exit` or `size`.
        reason: What failed, in a line.
        lane: The lane of a verdict.
        offset: The offset of a verdict.
        path: The file that is damaged.
        row_group: Its row group.
    """

    code, status = "bad_item", "DATA_LOSS"

    item: ItemField | None = None
    stage: str | None = None
    reason: str | None = None
    lane: int | None = None
    offset: int | None = None
    path: str | None = None
    row_group: int | None = None


class BadBatch(PenstockError):
    """A batch cannot be made: a collator failed.

    Attributes:
        lane: The lane.
        offset: The offset.
    """

    code, status = "bad_batch", "DATA_LOSS"

    lane: int | None = None
    offset: int | None = None


class LaneStarved(PenstockError):
    """A lane gives no sample, or nothing but padding.

    Attributes:
        lane: The lane.
        offset: The offset.
        drawn: How many items, or batches, gave nothing.
        reasons: How many by reason.
    """

    code, status = "lane_starved", "DATA_LOSS"

    lane: int | None = None
    offset: int | None = None
    drawn: int | None = None
    reasons: Mapping[str, int] | None = None


class SourceExhausted(PenstockError):
    """A part of a mixture has no more items, and the job says that this is an error.

    Attributes:
        part: The part.
        epochs: How often its items were drawn.
        drawn: How many items of it the lane has drawn.
    """

    code, status = "source_exhausted", "DATA_LOSS"

    part: str | None = None
    epochs: int | None = None
    drawn: int | None = None


class WorkerCrashed(PenstockError):
    """An item ended its worker three times.

    Attributes:
        lane: The lane.
        offset: The offset.
        item: What the worker was doing.
        deaths: How many workers have died because of it.
        how: How the last one ended.
        exit_status: Its exit status.
    """

    code, status = "worker_crashed", "DATA_LOSS"

    lane: int | None = None
    offset: int | None = None
    item: ItemField | None = None
    deaths: int | None = None
    how: str | None = None
    exit_status: int | None = None


class LogDiverged(PenstockError):
    """The same batch or snapshot has two contents: something is impure.

    Attributes:
        what: The thing that has two contents.
        ours: The content here.
        theirs: The content there.
        role: The role that gives another value.
        lane: The lane.
        offset: The offset.
        position: The position.
        item: The item.
    """

    code, status = "log_diverged", "DATA_LOSS"

    what: str | None = None
    ours: Any = None
    theirs: Any = None
    role: str | None = None
    lane: int | None = None
    offset: int | None = None
    position: int | None = None
    item: ItemField | None = None


class ChecksumMismatch(PenstockError):
    """Bytes arrived that are not the bytes that were sent.

    Attributes:
        position: The position; None = a header is damaged.
        expected: The crc32c that was sent.
        got: The crc32c of what arrived.
    """

    code, status = "checksum_mismatch", "DATA_LOSS"

    position: int | None = None
    expected: int | None = None
    got: int | None = None


class BadFrame(PenstockError):
    """A message is not a frame: truncated, out of bounds or inconsistent.

    Attributes:
        position: The position.
        body_bytes: The announced length of a body.
        max_body_bytes: The longest body that is accepted.
    """

    code, status = "bad_frame", "DATA_LOSS"

    position: int | None = None
    body_bytes: int | None = None
    max_body_bytes: int | None = None


class UnsupportedValue(PenstockError):
    """A batch holds a value that cannot be sent.

    Attributes:
        name: The name of the value.
        type: Its type.
        dtype: Its dtype.
    """

    code, status = "unsupported_value", "INVALID_ARGUMENT"

    name: str | None = None
    type: str | None = None
    dtype: str | None = None


# --- the store ----------------------------------------------------------------------------------


class StoreUnavailable(PenstockError):
    """The store did not answer before the deadline. Nothing was replayed.

    Attributes:
        path: The file of the store.
    """

    code, status = "store_unavailable", "UNAVAILABLE"

    path: str | None = None


class StoreLocked(PenstockError):
    """Another process has this store open.

    Attributes:
        path: The file of the store.
        pid: That process.
    """

    code, status = "store_locked", "FAILED_PRECONDITION"

    path: str | None = None
    pid: int | None = None


class StoreCorrupt(PenstockError):
    """The store's file is not a store, or is damaged.

    Attributes:
        path: The file of the store.
    """

    code, status = "store_corrupt", "DATA_LOSS"

    path: str | None = None


class BadSnapshot(PenstockError):
    """A snapshot is damaged, of another version or of another log.

    Attributes:
        lane: The lane.
        offset: The offset.
    """

    code, status = "bad_snapshot", "DATA_LOSS"

    lane: int | None = None
    offset: int | None = None


# --- the client ---------------------------------------------------------------------------------


class Unreachable(PenstockError):
    """No server answered before the deadline.

    Attributes:
        target: The address that was called.
        waited_s: For how many seconds.
        timed_out: It answered earlier, but not in time this time.
    """

    code, status = "unreachable", "UNAVAILABLE"

    target: str | None = None
    waited_s: float | None = None
    timed_out: bool | None = None


class NoUsableNode(PenstockError):
    """Nodes answer, and none of them can be read: each for a reason of its own.

    Attributes:
        nodes: Why each of them is left out, by its address.
    """

    code, status = "no_usable_node", "FAILED_PRECONDITION"

    nodes: dict[str, str] | None = None


class Unauthenticated(PenstockError):
    """The call has no valid token: none was sent, or it is unknown or has expired.

    Attributes:
        name: Whose token it was.
    """

    code, status = "unauthenticated", "UNAUTHENTICATED"

    name: str | None = None


class Forbidden(PenstockError):
    """The node knows who calls, and it may not do that.

    Attributes:
        name: Who calls, by the name in the node's file of tokens.
        scope: The scope that is missing.
        job: The job that it is not for.
        group: The group that it is not for.
        bound: What it has too much of: streams or lanes.
        limit: How many it may have.
    """

    code, status = "forbidden", "PERMISSION_DENIED"

    name: str | None = None
    scope: str | None = None
    job: str | None = None
    group: str | None = None
    bound: str | None = None
    limit: int | None = None


class TlsFailed(Unreachable):
    """The node is there, and TLS keeps client and node apart.

    Attributes:
        is_first: It never answered this client: waiting would not mend it.
    """

    code, status = "tls_failed", "UNAVAILABLE"

    is_first: bool | None = None


class DataTimeout(PenstockError):
    """The next batch did not come before the deadline.

    Attributes:
        position: The position that did not come.
        waited_s: For how many seconds.
        reason: What was waited for.
    """

    code, status = "data_timeout", "DEADLINE_EXCEEDED"

    position: int | None = None
    waited_s: float | None = None
    reason: str | None = None


class ForkedLoader(PenstockError):
    """A Loader was used in another process than the one that opened it.

    Attributes:
        opened: The process that opened it.
        used: The process that used it.
    """

    code, status = "forked_loader", "FAILED_PRECONDITION"

    opened: int | None = None
    used: int | None = None


class BadState(PenstockError):
    """A state_dict cannot be loaded here.

    Attributes:
        field: The key that is missing or has the wrong type.
        format: The format of the state.
        job: The job of the state.
        batches_per_step: The batches of a step.
        step: The step.
        consumed: How many batches of the step were taken.
        world_size: How many ranks there were.
    """

    code, status = "bad_state", "FAILED_PRECONDITION"

    field: str | None = None
    format: int | None = None
    job: str | None = None
    batches_per_step: int | None = None
    step: int | None = None
    consumed: int | None = None
    world_size: int | None = None


class NotStarted(PenstockError):
    """start="state" waits for load_state_dict or seek before the first batch."""

    code, status = "not_started", "FAILED_PRECONDITION"


class NoGroup(PenstockError):
    """An ephemeral reader has no cursor: commit, checkpoint and seek need a group."""

    code, status = "no_group", "FAILED_PRECONDITION"


class NoDevice(InvalidRequest):
    """The device that batches should go to does not answer, or no driver for it is there.

    Attributes:
        device: The device, as it was asked for.
        reason: Why, as torch, cupy or CUDA says it.
    """

    code, status = "no_device", "FAILED_PRECONDITION"

    device: str | None = None
    reason: str | None = None


class OutOfDeviceMemory(PenstockError):
    """A batch does not fit into what is free of a device's memory.

    Attributes:
        device: The device.
        nbytes: What the batch takes.
        free_bytes: What was free.
        total_bytes: What the device has.
    """

    code, status = "out_of_device_memory", "RESOURCE_EXHAUSTED"

    device: str | None = None
    nbytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None


class CannotPin(PenstockError):
    """Memory of the host could not be pinned for a device.

    Attributes:
        nbytes: How many bytes were asked for.
        limit_bytes: How many this process may lock (`ulimit -l`); None = any number.
        reason: Why, as torch, cupy or CUDA says it.
    """

    code, status = "cannot_pin", "RESOURCE_EXHAUSTED"

    nbytes: int | None = None
    limit_bytes: int | None = None
    reason: str | None = None


class DeviceFailed(PenstockError):
    """A call of a device failed: it was reset, or something that ran there failed before.

    Attributes:
        device: The device.
        call: What was asked of it.
        reason: Why, as torch, cupy or CUDA says it.
    """

    code, status = "device_failed", "INTERNAL"

    device: str | None = None
    call: str | None = None
    reason: str | None = None


class Internal(PenstockError):
    """A bug on the other side; its output has the traceback.

    Attributes:
        target: The address that answered.
    """

    code, status = "internal", "INTERNAL"

    target: str | None = None


def _every(cls: type[PenstockError]) -> list[type[PenstockError]]:
    return [cls, *(deep for sub in cls.__subclasses__() for deep in _every(sub))]


ERRORS: dict[str, type[PenstockError]] = {cls.code: cls for cls in _every(PenstockError)}
"""The one table: code -> class; each class knows its gRPC status."""

__all__ = ["ERRORS"]
__all__ += sorted(cls.__name__ for cls in ERRORS.values())
