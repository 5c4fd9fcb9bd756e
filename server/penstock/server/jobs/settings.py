"""The keys of a job file: names, types, defaults and meanings.

From these models come validation, the JSON Schema for editors and the tables of
`docs/reference.md`.
"""

from __future__ import annotations

import inspect
import math
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from penstock.common.resources import usable_cpus, usable_memory_bytes
from penstock.server.job.job import MAX_LATER, Job
from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import DEFAULT_LANES, RoleSet
from penstock.server.jobs.docstrings import argument_docs
from penstock.server.media.media_files import (
    AHEAD_BYTES,
    MAX_FILE_BYTES,
    MAX_REQUESTS,
    REQUESTS,
    MediaFiles,
)
from penstock.server.planning.log.job_plan import Plan
from penstock.server.process.allocator import AUTO
from penstock.wire.order import MAX_LANES

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS[f"{_letter}IB"] = 1024**_power
    _UNITS[f"{_letter}B"] = 1000**_power

MIN_READY_BYTES, MAX_READY_BYTES = 64 << 20, 16 << 30
"""Bounds of `ready_bytes: auto`, which is a quarter of the memory between these."""


def parse_bytes(value: Any) -> Any:
    """Return `"1.5 GiB"` as a number of bytes; any other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        return value
    number = float(match[1]) * _UNITS[match[2].upper()]
    return int(number) if number < math.inf else value


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if value.startswith("unix:"):
        if value == "unix:":
            raise ValueError("no path")
    elif not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ValueError("no address")
    return value


def _or_off(value: Any) -> Any:
    return None if value in ("off", "none", "") else value


def _tcp_address(value: str) -> str:
    if value.startswith("unix:"):
        raise ValueError("no TCP address")
    return _address(value)


def _role(value: Any) -> Any:
    """A bare name is a role without parameters: `distributor: map`."""
    if isinstance(value, str):
        return {"type": value}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError("no role")
    if "type" in value and not (isinstance(value["type"], str) and value["type"]):
        raise ValueError("type is not a name")
    return value


def _key(default: Any, meaning: str, expects: str, **limits: Any) -> Any:
    """A key with its default, its meaning for the docs, and what a wrong value's error asks for."""
    return Field(default, description=meaning, json_schema_extra={"expects": expects}, **limits)


_MEANINGS = argument_docs(inspect.getdoc(Job))
_JOINT_MEANINGS = argument_docs(inspect.getdoc(JointJob))
_PLAN_MEANINGS = argument_docs(inspect.getdoc(Plan))
_MEDIA_MEANINGS = argument_docs(inspect.getdoc(MediaFiles))
_SET_MEANINGS = argument_docs(inspect.getdoc(RoleSet))


def _job_key(name: str, default: Any, expects: str) -> Any:
    """A key that is a parameter of `Job`, whose docstring says what it means."""
    return _key(default, _MEANINGS.get(name, ""), expects)


_ROLE_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "object"}]}
_ROLE_EXPECTS = "a role: {type: NAME, its parameters ...}"
RoleSpec = Annotated[dict[str, Any], BeforeValidator(_role), WithJsonSchema(_ROLE_SCHEMA)]
_BYTES_SCHEMA = {"anyOf": [{"const": "auto"}, {"type": "integer"}, {"type": "string"}]}

MAX_WORKERS = 1024
"""Each is a process."""

_COUNT = "a whole number of at least 1"
_MAX_SECONDS = 1e9
Count = Annotated[int, Field(ge=1, lt=2**63)]
Seconds = Annotated[float, Field(ge=0, le=_MAX_SECONDS, allow_inf_nan=False)]


class _Section(BaseModel):
    # Their validators are built when they are first needed: a worker needs those of a job alone.
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False, defer_build=True)


class TlsSettings(_Section):
    """The certificate of a node, and whom it asks for one."""

    cert: Annotated[str, Field(min_length=1)] = _key(
        ...,
        "The file of the node's certificate, in PEM, with the chain up to its authority. It is "
        "read again once it changes: new connections get the new one, open streams go on.",
        "the path of a certificate in PEM",
    )
    key: Annotated[str, Field(min_length=1)] = _key(
        ...,
        "The file of its key, in PEM and without a password. Nobody but the node's user and group "
        "may read it.",
        "the path of a private key in PEM",
    )
    client_ca: Annotated[str, Field(min_length=1)] | None = _key(
        None,
        "The file of the authorities that sign clients' certificates: with it, whoever has none is "
        "refused. Without it anybody who reaches the port connects, and `tokens` says who may "
        "read.",
        "null, or the path of a bundle of certificates in PEM",
    )
    min_version: Literal["1.2", "1.3"] = _key(
        "1.2",
        'The oldest version of TLS that is spoken: `"1.2"` or `"1.3"`, in quotes. penstock\'s own '
        'client speaks 1.3 in any case; `"1.3"` refuses the calls of others.',
        '"1.2" or "1.3", in quotes',
    )


class ServerSettings(_Section):
    """Settings of one loader node; none of them decides a byte of any batch."""

    listen: Annotated[str, AfterValidator(_address)] = _key(
        "127.0.0.1:50051",
        "The address that trainers connect to: `host:port`, or `unix:/path`. Port 0 takes a free "
        "one, which the node logs. `0.0.0.0:50051` listens on every interface, which needs "
        "`tls` or `insecure`.",
        "an address: host:port or unix:/path",
    )
    socket_mode: Annotated[str, Field(pattern=r"^0?[0-7]{3}$")] = _key(
        "0600",
        "Who may connect where `listen` is `unix:/path`: the mode of the socket, as octal digits. "
        "`0660` also lets its group read every job and move every cursor.",
        'octal digits in quotes, such as "0660"',
    )
    tls: TlsSettings | None = _key(
        None,
        "The certificate that the node shows: `{cert: FILE, key: FILE}`. It needs one to listen "
        "beyond this machine. A Unix socket has none: its mode says who may connect.",
        "a certificate: {cert: FILE, key: FILE, ...}",
    )
    tokens: Annotated[str, Field(min_length=1)] | None = _key(
        None,
        "The file that says who may do what: hashes of tokens, and names in client certificates. "
        "It is read again once it changes. Without it whoever connects may do anything. Beyond "
        "this machine it needs `tls`; over a Unix socket nobody is asked.",
        "null, or the path of a file of tokens",
    )
    reflection: bool = _key(
        False,
        "`true` serves gRPC's reflection, by which tools such as grpcurl find the methods.",
        "true or false",
    )
    insecure: bool = _key(
        False,
        "`true` lets the node listen beyond this machine without TLS. Whoever reaches the port "
        "can then read every job and move every cursor, and whoever is between can read along: "
        "only for networks that nobody else is in.",
        "true or false",
    )
    metrics: Annotated[
        Annotated[str, AfterValidator(_tcp_address)] | None, BeforeValidator(_or_off)
    ] = _key(
        "127.0.0.1:9090",
        "The address that serves `/metrics`, `/healthz`, `/readyz` and, to browsers on this "
        "machine, the status page over HTTP: `host:port`, or "
        "`off` for none.",
        "an address: host:port, or off",
    )
    remote_page: Annotated[
        Annotated[str, AfterValidator(_tcp_address)] | None, BeforeValidator(_or_off)
    ] = _key(
        None,
        "The address that serves the status page to browsers of other machines, over HTTPS with "
        "the certificate of `tls`, to whoever enters a token of `tokens`: `host:port`, or `off`. "
        "It needs both. The port of the metrics stays as it is.",
        "an address: host:port, or off",
    )
    store: str = _key(
        "sqlite:///penstock.db",
        "The database of cursors, checkpoints, snapshots and verdicts: `sqlite:///path`, relative "
        "to the job file (`sqlite:////path` from the root), for one node: every commit waits until "
        "this disk has written it, so take a local one. Several nodes share "
        "`postgresql://user@host/database` (extra `postgres`); give its password by `PGPASSFILE` "
        "or `PENSTOCK_STORE`, not in a file that others read.",
        "the URL of a store: sqlite:///path or postgresql://user@host/database",
        min_length=1,
    )
    node_id: str = _key(
        "auto",
        "The name that readers and other nodes know this one by: give each node its own, the same "
        "after every start, since it decides which lanes it is asked for. `auto` takes the pod's "
        "name (`POD_NAME`, else `HOSTNAME` where that is a pod's), else host and address.",
        "auto, or a name",
        min_length=1,
        max_length=200,
    )
    hash_cache: str = _key(
        "auto",
        "The folder for the hashes and footers of data files, at most 256 MiB but for "
        "what was written last, so that the next "
        "start opens only files that have changed. `auto` is `penstock/files` in the user's cache "
        "folder (`XDG_CACHE_HOME`, else `~/.cache`); `off` keeps nothing and reads every file at "
        "every start.",
        "auto, off, or a folder",
        min_length=1,
    )
    workers: Literal["auto"] | Annotated[int, Field(ge=1, le=MAX_WORKERS)] = _key(
        "auto",
        "How many processes make batches; `auto` is one per processor that this node may use. "
        "Fewer leave processors to others; more than the processors only compete for them. Each "
        "takes memory: 33 MiB and the packages that its roles import.",
        f"auto, or a whole number from 1 to {MAX_WORKERS}",
    )
    allocator: str = _key(
        AUTO,
        "The library that takes the place of malloc in the processes that make batches: `auto` "
        "takes jemalloc, else mimalloc, where one is installed (Debian's packages `libjemalloc2` "
        "and `libmimalloc2.0`); `jemalloc` or `mimalloc` demands it, a path names any other, and "
        "`off` keeps the system's. Tokenizing takes a third less time with either.",
        "auto, off, jemalloc, mimalloc, or the path of a library",
        min_length=1,
    )
    ready_bytes: Annotated[
        Literal["auto"] | Count,
        BeforeValidator(parse_bytes),
        WithJsonSchema(_BYTES_SCHEMA),
    ] = _key(
        "auto",
        "The most bytes of batches that are made and not yet taken, such as `2 GiB`; `auto` is a "
        "quarter of the memory, 64 MiB to 16 GiB. It is a bound and not a target: only readers "
        "that are slower than the node fill it, and it then takes up to 1.5 times as much memory. "
        "Too small, it lets workers wait while readers have room; the batch that a reader needs "
        "next is always made.",
        "auto, or bytes such as 2 GiB",
    )
    snapshot_seconds: Seconds = _key(
        5.0,
        "Seconds between two writes of snapshots to the store; 0 writes each at once. After a node "
        "is killed, the batches of the last so many seconds are planned again. A smaller value "
        "shortens that, and costs more writes.",
        "seconds of at least 0",
    )
    item_seconds: Annotated[float, Field(ge=1, le=_MAX_SECONDS, allow_inf_nan=False)] = _key(
        150.0,
        "Seconds that a worker may spend on one item before it is killed and replaced; the third "
        "time the item's lane stops, with an error that names it. A smaller value finds items that "
        "hang sooner; raise it for items that take minutes. Keep three times this below the "
        "readers' `deadline_s` (540), else they time out before they hear which item it was.",
        "seconds of at least 1",
    )
    drain_seconds: Seconds = _key(
        20.0,
        "The most seconds from SIGTERM to the exit: batches in flight are finished, snapshots are "
        "written, and what still hangs is killed. Too small, it cuts off batches that take long, "
        "and readers ask for them again. Whatever kills the process from outside "
        "(`terminationGracePeriodSeconds`) should wait a second longer.",
        "seconds of at least 0",
    )
    log_format: Literal["auto", "console", "json"] = _key(
        "auto",
        "How messages are logged: `console` for people, `json`, one object per line, for "
        "collectors; `auto` is `console` on a terminal and else `json`.",
        "auto, console or json",
    )
    log_level: Literal["debug", "info", "warning", "error"] = _key(
        "info",
        "The least severe message that is logged: `debug`, `info`, `warning` or `error`. `debug` "
        "adds a message per commit.",
        "debug, info, warning or error",
    )

    @property
    def worker_count(self) -> int:
        """How many worker processes this is here."""
        return usable_cpus() if self.workers == "auto" else self.workers

    @property
    def ready_limit_bytes(self) -> int:
        """How many bytes may be ready and not taken here."""
        return self.ready_limit_with(usable_memory_bytes())

    def ready_limit_with(self, memory_bytes: int) -> int:
        """Return how many bytes may be ready and not taken on a node of so much memory."""
        if self.ready_bytes != "auto":
            return self.ready_bytes
        return min(max(memory_bytes // 4, MIN_READY_BYTES), MAX_READY_BYTES)


def _plan_key(name: str, default: Any, expects: str) -> Any:
    """A key that is a parameter of `Plan`."""
    return _key(default, _PLAN_MEANINGS.get(name, ""), expects)


class PlanSettings(_Section):
    """How batches are packed from an index of sizes."""

    index: Annotated[str, Field(min_length=1)] = _plan_key(
        "index", ..., "the path or the URL of an index of sizes"
    )
    window: Count | None = _plan_key("window", None, f"null or {_COUNT}")
    group_by_length: bool = _plan_key("group_by_length", False, "true or false")
    balance: str | None = _plan_key("balance", None, "an expression, such as tokens + squares")
    storage_options: dict[str, Any] | None = _plan_key("storage_options", None, "keys and values")


def _media_key(name: str, default: Any, expects: str) -> Any:
    """A key that is a parameter of `MediaFiles`."""
    return _key(default, _MEDIA_MEANINGS.get(name, ""), expects)


_Bytes = Annotated[
    Annotated[int, Field(ge=0, lt=2**63)],
    BeforeValidator(parse_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}]}),
]


class MediaSettings(_Section):
    """Where the pictures and sounds lie that items name."""

    dir: Annotated[str, Field(min_length=1)] | None = _media_key(
        "dir", None, "null, or a path or the URL of a directory"
    )
    allow: list[str] = _media_key("allow", [], "a list of paths and URLs")
    endings: list[str] | None = _media_key("endings", None, "a list, such as [.jpg, .png]")
    ahead_bytes: _Bytes = _media_key("ahead_bytes", AHEAD_BYTES, "bytes, such as 64 MiB")
    requests: Annotated[int, Field(ge=1, le=MAX_REQUESTS)] = _media_key(
        "requests", REQUESTS, f"a whole number from 1 to {MAX_REQUESTS}"
    )
    max_file_bytes: _Bytes = _media_key("max_file_bytes", MAX_FILE_BYTES, "bytes, such as 256 MiB")
    storage_options: dict[str, Any] | None = _media_key("storage_options", None, "keys and values")


class RolesSettings(_Section):
    """A source and its roles: those of a job, or of one of the sets of a joint job."""

    source: RoleSpec | None = _key(
        None,
        "Where raw items come from. This, `sources` or `joint` is required.",
        "a source: {type: NAME, its parameters ...}",
    )
    sources: Annotated[dict[str, RoleSpec], Field(min_length=1)] | None = _key(
        None,
        "Several sources by name, in place of `source`: what the distributor `map` draws from as "
        "one, in this order. Names have letters, digits and underscores; they are part of the "
        "items' names in `penstock cat --json`, verdicts and errors.",
        "sources by name: {NAME: {type: ..., its parameters ...}, ...}",
    )
    distributor: RoleSpec | None = _key(
        None, "Decides which item a lane draws next; default `{type: map}`.", _ROLE_EXPECTS
    )
    processor: RoleSpec | None = _key(
        None, "Turns a raw item into samples; default `{type: identity}`.", _ROLE_EXPECTS
    )
    function: str | None = _key(
        None,
        "`./data.py:to_sample` or `package.module:name`: a function in place of a processor.",
        "a function as ./file.py:name or package.module:name",
    )
    batcher: RoleSpec | None = _key(
        None, "Puts samples into rows and batches. This or `batch_size` is required.", _ROLE_EXPECTS
    )
    collator: RoleSpec | None = _key(
        None,
        "Turns rows into named values; default `{type: default}`, which stacks samples.",
        _ROLE_EXPECTS,
    )
    batch_size: Count | None = _job_key("batch_size", None, _COUNT)
    plan: PlanSettings | None = _job_key("plan", None, "a plan: {index: PATH, window: ..., ...}")
    media: MediaSettings | None = _job_key("media", None, "where media lie: {dir: PATH, ...}")


class SetSettings(RolesSettings):
    """One set of roles of a joint job."""

    ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = _key(
        1.0, _SET_MEANINGS.get("ratio", ""), "a number above 0"
    )
    exhausted: Literal["stop", "repeat"] = _key(
        "stop", _SET_MEANINGS.get("exhausted", ""), "stop or repeat"
    )


class JobSettings(RolesSettings):
    """One job: what decides its bytes, and a few policies that decide none."""

    joint: Annotated[dict[str, SetSettings], Field(min_length=1)] | None = _key(
        None,
        "Several sets of roles by name, in place of `source` and the roles: each batch comes from "
        "one of them, and names it in the value `dataset_name`.",
        "sets of roles by name: {NAME: {ratio: ..., source: ..., ...}, ...}",
    )
    choice: Literal["step", "batch", "lane"] = _key(
        "step", _JOINT_MEANINGS.get("choice", ""), "step, batch or lane"
    )
    seed: int = _job_key("seed", 0, "a whole number")
    lanes: Annotated[int, Field(ge=1, le=MAX_LANES)] = _job_key(
        "lanes", DEFAULT_LANES, f"a whole number from 1 to {MAX_LANES:,}"
    )
    epochs: Count | None = _job_key("epochs", None, f"null or {_COUNT}")
    batches_per_step: Count | None = _job_key("batches_per_step", None, f"null or {_COUNT}")
    on_item_error: Literal["stop", "quarantine"] = _job_key(
        "on_item_error", "stop", "stop or quarantine"
    )
    max_quarantined: Annotated[int, Field(ge=0)] = _job_key(
        "max_quarantined", 1000, "a whole number of at least 0"
    )
    max_replay: Count = _job_key("max_replay", 100_000, _COUNT)
    snapshot_every: Count = _job_key("snapshot_every", 16, _COUNT)
    later_within: Annotated[int, Field(ge=0, le=MAX_LATER)] = _job_key(
        "later_within", 0, f"a whole number from 0 to {MAX_LATER:,}"
    )


class JobFile(_Section):
    """A job file: settings of the node, and the jobs that it serves."""

    server: ServerSettings = Field(
        default_factory=ServerSettings,
        description="Settings of the node; every key has a default.",
        json_schema_extra={"expects": "keys and values: listen, store, workers ..."},
    )
    jobs: Annotated[dict[str, JobSettings], Field(min_length=1)] = Field(
        description="The jobs by name.",
        json_schema_extra={"expects": "at least one job: NAME: {source: ..., ...}"},
    )
