"""Every error of penstock: its stable code, its gRPC status, its fields.

An error is a *situation* that somebody can act on. Its message says what is, with the values, and
what to do next. The code and the fields travel beside the gRPC status, so a client in any language
can act without parsing sentences, and the Python client raises the same class as the server did.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from google.protobuf.message import DecodeError

from penstock.wire.v1 import error_pb2

ERROR_METADATA_KEY = "penstock-error-bin"

_SENTENCE_BYTES = 1500
_FIELDS_BYTES = 2500
_STATUS_BYTES = 1000
# HTTP/2 peers refuse metadata above 8 KiB, where base64 costs a third, the sentence comes twice,
# and the status writes every byte that is not ASCII as three.


class PenstockError(Exception):
    """The base of every error that penstock raises on purpose.

    Attributes:
        code: Stable, lower case with underscores; scripts may compare it.
        status: The canonical gRPC status name that carries it.
        fields: The values of this situation, JSON-able.
    """

    code: ClassVar[str] = "penstock_error"
    status: ClassVar[str] = "UNKNOWN"

    def __init__(self, message: str, /, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = fields
        frames = fields.get("traceback")
        if isinstance(frames, str) and "\n" in frames:
            # Python shows notes below an uncaught error: a trainer's log has the user's own line.
            self.add_note(frames)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


def _rebuild(cls: type[PenstockError], message: str, fields: dict[str, Any]) -> PenstockError:
    return cls(message, **fields)


# --- a caller's or an operator's mistake --------------------------------------------------------


class InvalidJob(PenstockError):
    """A job file, or a job built in Python, does not hold together. Field `key`: the key path."""

    code, status = "invalid_job", "INVALID_ARGUMENT"


class InvalidRequest(PenstockError):
    """A request, an argument or an environment variable has a value that cannot be."""

    code, status = "invalid_request", "INVALID_ARGUMENT"


class UnknownJob(PenstockError):
    """This node has no job of that name. Fields `job`, `jobs`."""

    code, status = "unknown_job", "NOT_FOUND"


class UnknownGroup(PenstockError):
    """The store knows no such group of the job. Fields `job`, `group`."""

    code, status = "unknown_group", "NOT_FOUND"


class UnknownCheckpoint(PenstockError):
    """The group has no checkpoint of that name. Fields `group`, `name`, `names`."""

    code, status = "unknown_checkpoint", "NOT_FOUND"


class UnknownVerdict(PenstockError):
    """The item is not in quarantine. Fields `job`, `item`."""

    code, status = "unknown_verdict", "NOT_FOUND"


class RankOutOfRange(PenstockError):
    """The rank is not below the world size. Fields `rank`, `world_size`."""

    code, status = "rank_out_of_range", "INVALID_ARGUMENT"


class UnevenStep(PenstockError):
    """The world size does not divide a step's batches. Fields `batches_per_step`, `world_size`."""

    code, status = "uneven_step", "INVALID_ARGUMENT"


class ProtocolMismatch(PenstockError):
    """Client and server speak different versions of the wire. Fields `client`, `server`."""

    code, status = "protocol_mismatch", "FAILED_PRECONDITION"


class PortInUse(PenstockError):
    """Another process listens on the address. Field `address`."""

    code, status = "port_in_use", "FAILED_PRECONDITION"


class MissingExtra(PenstockError):
    """A package that this needs is not installed. Fields `package`, `extra`."""

    code, status = "missing_extra", "FAILED_PRECONDITION"


# --- cursors and generations --------------------------------------------------------------------


class StaleGeneration(PenstockError):
    """A newer attempt has taken over. Fields `job`, `group`, `generation`, `current`, `owner`."""

    code, status = "stale_generation", "FAILED_PRECONDITION"


class GroupInUse(PenstockError):
    """What is asked would end readers of the group. Fields `job`, `group`, `readers`."""

    code, status = "group_in_use", "FAILED_PRECONDITION"


class WorldSizeMismatch(PenstockError):
    """Two world sizes were given in one attempt. Fields `world_size`, `expected`."""

    code, status = "world_size_mismatch", "FAILED_PRECONDITION"


class StepSizeMismatch(PenstockError):
    """The group reads steps of another size. Fields `batches_per_step`, `expected`."""

    code, status = "step_size_mismatch", "FAILED_PRECONDITION"


class JobChanged(PenstockError):
    """The job under a group's cursor is not the one that made it. Field `differences`."""

    code, status = "job_changed", "FAILED_PRECONDITION"


class OtherStore(PenstockError):
    """The state comes from another store than the server's. Fields `expected`, `store`."""

    code, status = "other_store", "FAILED_PRECONDITION"


class CheckpointExists(PenstockError):
    """A checkpoint never changes: this name stands at another step. Fields `name`, `step`."""

    code, status = "checkpoint_exists", "ALREADY_EXISTS"


class CommitOutOfRange(PenstockError):
    """A commit names a step that cannot be: negative, or past the end. Fields `step`, `steps`."""

    code, status = "commit_out_of_range", "OUT_OF_RANGE"


# --- positions ----------------------------------------------------------------------------------


class PastEnd(PenstockError):
    """The position or step lies past the end of a finite log. Fields `position`, `batches`."""

    code, status = "past_end", "OUT_OF_RANGE"


class PositionFar(PenstockError):
    """Too many batches would have to be replayed. Fields `offset`, `nearest`, `max_replay`."""

    code, status = "position_far", "OUT_OF_RANGE"


# --- data ---------------------------------------------------------------------------------------


class Counting(PenstockError):
    """A finite job's batches are being counted. Fields `job`, `items_done`, `items`."""

    code, status = "counting", "UNAVAILABLE"


class SourceUnavailable(PenstockError):
    """What may be gone in a moment; retried, never quarantined. Fields `item`, `role`."""

    code, status = "source_unavailable", "UNAVAILABLE"


class SourceChanged(PenstockError):
    """A data file changed under an open source: data files are immutable. Field `path`."""

    code, status = "source_changed", "DATA_LOSS"


class BadItem(PenstockError):
    """The same bytes fail alike on every node. Fields `item`, `stage`, `reason`, `traceback`."""

    code, status = "bad_item", "DATA_LOSS"


class BadBatch(PenstockError):
    """A batch cannot be made: a collator failed. Fields `lane`, `offset`, `traceback`."""

    code, status = "bad_batch", "DATA_LOSS"


class LaneStarved(PenstockError):
    """A lane gives no sample, or nothing but padding. Fields `lane`, `drawn`, `reasons`."""

    code, status = "lane_starved", "DATA_LOSS"


class WorkerCrashed(PenstockError):
    """An item ended its worker three times. Fields `lane`, `offset`, `item`, `deaths`, `how`."""

    code, status = "worker_crashed", "DATA_LOSS"


class LogDiverged(PenstockError):
    """One address has two contents: something is impure. Fields `what`, `ours`, `theirs`."""

    code, status = "log_diverged", "DATA_LOSS"


class ChecksumMismatch(PenstockError):
    """Bytes arrived that are not the bytes that were sent. Fields `position`, `expected`, `got`."""

    code, status = "checksum_mismatch", "DATA_LOSS"


class BadFrame(PenstockError):
    """A message is not a frame: truncated, out of bounds or inconsistent."""

    code, status = "bad_frame", "DATA_LOSS"


class UnsupportedValue(PenstockError):
    """A batch holds a value that has no form on the wire. Fields `name`, `type`."""

    code, status = "unsupported_value", "INVALID_ARGUMENT"


# --- the store ----------------------------------------------------------------------------------


class StoreUnavailable(PenstockError):
    """The store did not answer before the deadline. Nothing was replayed."""

    code, status = "store_unavailable", "UNAVAILABLE"


class StoreLocked(PenstockError):
    """Another process holds this store. Field `path`."""

    code, status = "store_locked", "FAILED_PRECONDITION"


class StoreCorrupt(PenstockError):
    """The store's file is not a store, or is damaged. Field `path`."""

    code, status = "store_corrupt", "DATA_LOSS"


class BadSnapshot(PenstockError):
    """A snapshot is damaged, of another version or of another log. Fields `lane`, `offset`."""

    code, status = "bad_snapshot", "DATA_LOSS"


# --- the client ---------------------------------------------------------------------------------


class Unreachable(PenstockError):
    """No server answered before the deadline. Fields `target`, `waited_s`."""

    code, status = "unreachable", "UNAVAILABLE"


class DataTimeout(PenstockError):
    """The next batch did not come before the deadline. Fields `position`, `waited_s`, `reason`."""

    code, status = "data_timeout", "DEADLINE_EXCEEDED"


class ForkedLoader(PenstockError):
    """A Loader was used in another process than the one that opened it."""

    code, status = "forked_loader", "FAILED_PRECONDITION"


class BadState(PenstockError):
    """A state_dict cannot be loaded here. Fields say what differs."""

    code, status = "bad_state", "FAILED_PRECONDITION"


class NotStarted(PenstockError):
    """start="state" waits for load_state_dict or seek before the first batch."""

    code, status = "not_started", "FAILED_PRECONDITION"


class NoGroup(PenstockError):
    """An ephemeral reader has no cursor: commit, checkpoint and seek need a group."""

    code, status = "no_group", "FAILED_PRECONDITION"


class Internal(PenstockError):
    """A bug on the other side; its log has the traceback."""

    code, status = "internal", "INTERNAL"


def _every(cls: type[PenstockError]) -> list[type[PenstockError]]:
    return [cls, *(deep for sub in cls.__subclasses__() for deep in _every(sub))]


ERRORS: dict[str, type[PenstockError]] = {cls.code: cls for cls in _every(PenstockError)}
"""The one table: code -> class; each class knows its gRPC status."""


def clean_text(text: str, limit: int) -> str:
    r"""Return a text that any wire, log and store can hold: whole Unicode, of bounded length.

    Half surrogate pairs (a file's name that is not UTF-8 has them) become `\udcff`, as Python
    writes them. What is longer than the limit keeps its beginning and says how much is missing.

    Args:
        text: Somebody's text, of any length: no copy of the whole of it is made.
        limit: Characters that the result has at most, with the note of what was cut; 64 or more.
    """
    length = len(text)
    kept = str.__getitem__(text, slice(limit)).encode("utf-8", "backslashreplace").decode("utf-8")
    if length <= limit and len(kept) <= limit:
        return kept
    room = limit - len(f"... ({length} more characters)")
    # A character may be escaped as six or more: those before the cut are found again in the text.
    begin = str.__getitem__(text, slice(room))
    kept = begin.encode("utf-8", "backslashreplace").decode("utf-8")
    while len(kept) > room:
        begin = begin[: -max(1, (len(kept) - room) // 6)]
        kept = begin.encode("utf-8", "backslashreplace").decode("utf-8")
    return f"{kept}... ({length - len(begin)} more characters)"


def clean_json(value: Any, limit: int) -> Any:
    """Return a JSON-able value whose every text is clean, as `clean_text` does it.

    Args:
        value: Made of dict, list, tuple, str, numbers, bool and None; anything else becomes text.
        limit: Characters that each text has at most; 64 or more.
    """
    if isinstance(value, str):
        return clean_text(value, limit)
    if isinstance(value, dict):
        return {clean_text(str(key), limit): clean_json(one, limit) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(one, limit) for one in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return clean_text(str(value), limit)


def status_text(error: PenstockError) -> str:
    """Return the sentence that the gRPC status itself carries: whole Unicode, and short enough."""
    limit = _STATUS_BYTES
    # 64 characters of 12 bytes fit, so this ends.
    while _percent_bytes(text := clean_text(error.message, limit)) > _STATUS_BYTES:
        limit = max(64, limit * 3 // 4)
    return text


def _percent_bytes(text: str) -> int:
    """Return how long a text is in a gRPC status: bytes outside of ASCII are written as `%E2`."""
    return sum(1 if 32 <= byte < 127 and byte != ord("%") else 3 for byte in text.encode())


def encode_error(error: PenstockError) -> bytes:
    """Return the bytes that travel in the trailing metadata `ERROR_METADATA_KEY`."""
    sentence = clean_text(error.message, _SENTENCE_BYTES).encode()[:_SENTENCE_BYTES]
    return error_pb2.Error(
        code=error.code, message=sentence.decode("utf-8", "ignore"), fields=_fields_json(error)
    ).SerializeToString()


def _fields_json(error: PenstockError) -> str:
    """The fields as JSON, cut as little as fits: a traceback must not cost code and sentence."""
    fields = {name: _clean_field(name, value) for name, value in error.fields.items()}
    text = json.dumps(fields, sort_keys=True)
    for limit in (1000, 300, 100, 30):
        if len(text) <= _FIELDS_BYTES:
            return text
        cut = {name: _cut(name, value, limit) for name, value in fields.items()}
        text = json.dumps(cut, sort_keys=True)
    return text if len(text) <= _FIELDS_BYTES else "{}"


def _clean_field(name: str, value: Any) -> Any:
    if name == "traceback" and isinstance(value, str):
        value = value[-_FIELDS_BYTES:]  # its end is what says most
    return clean_json(value, _FIELDS_BYTES)


def _cut(name: str, value: Any, limit: int) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
    if len(text) <= limit:
        return value if isinstance(value, str) else json.loads(text)
    # The last lines of a traceback say what was raised and where.
    return "..." + text[-limit:] if name == "traceback" else text[:limit] + "..."


def decode_error(data: bytes) -> PenstockError:
    """Return the error that `encode_error` wrote.

    An unknown code gives the base class; bytes that are no such error give a `BadFrame`.
    """
    try:
        message = error_pb2.Error.FromString(data)
        fields = json.loads(message.fields or "{}")
    except (DecodeError, ValueError, RecursionError) as error:
        return BadFrame(f"the other side's error cannot be read ({error}): look into its log")
    cls = ERRORS.get(message.code, PenstockError)
    return cls(message.message, **fields) if isinstance(fields, dict) else cls(message.message)


__all__ = [
    "ERRORS",
    "ERROR_METADATA_KEY",
    "clean_json",
    "clean_text",
    "decode_error",
    "encode_error",
    "status_text",
]
__all__ += sorted(cls.__name__ for cls in ERRORS.values())
