# ruff: noqa: D102 - the methods of the services are documented in their .proto
"""A small loader node for the client's tests: a real gRPC server on a real socket.

It serves synthetic batches, obeys the horizon, and keeps cursors in memory by the rules of the
store's contract. What a test wants to go wrong it says with `Faults`; each fault happens once.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from penstock.wire import PROTOCOL, frame
from penstock.wire.attempts import moves_between
from penstock.wire.errors import (
    ERROR_METADATA_KEY,
    CheckpointExists,
    JobChanged,
    PastEnd,
    PenstockError,
    StaleGeneration,
    StepSizeMismatch,
    UnknownGroup,
    UnknownJob,
    WorldSizeMismatch,
    encode_error,
)
from penstock.wire.order import Order, Share, Tail
from penstock.wire.v1 import (
    cursors_pb2,
    cursors_pb2_grpc,
    feed_pb2,
    feed_pb2_grpc,
)

LOG_ID = bytes(range(32))
STORE = "11111111-2222-3333-4444-555555555555"


@dataclass
class Faults:
    """What goes wrong, each entry once.

    Attributes:
        break_after: End the stream with UNAVAILABLE behind so many batches, stream by stream.
        close_after: End the stream quietly behind so many batches, stream by stream.
        drain_after: Say Draining and end behind so many batches, stream by stream.
        cut_at: Positions of which only the first message is sent before the stream breaks.
        corrupt: Position -> how often its body is sent with a flipped bit.
        misspell: Position -> how often its header is sent with a wrong letter in a text.
        misplace: Positions whose header names another lane.
        errors: Position -> what the stream ends with instead of it.
        unavailable: How many unary calls are refused with UNAVAILABLE.
        hold: Positions at which the node sends Waiting until `released` is set.
    """

    break_after: list[int] = field(default_factory=list)
    close_after: list[int] = field(default_factory=list)
    drain_after: list[int] = field(default_factory=list)
    cut_at: list[int] = field(default_factory=list)
    corrupt: dict[int, int] = field(default_factory=dict)
    misspell: dict[int, int] = field(default_factory=dict)
    misplace: set[int] = field(default_factory=set)
    errors: dict[int, PenstockError] = field(default_factory=dict)
    unavailable: int = 0
    hold: set[int] = field(default_factory=set)
    released: threading.Event = field(default_factory=threading.Event)


def values_of(position: int, nbytes: int) -> dict[str, Any]:
    """The values of one synthetic batch: a function of its position alone."""
    count = nbytes // 8
    return {
        "input_ids": np.arange(position, position + count, dtype=np.int64).reshape(1, count),
        "mask": np.array([position % 2 == 0, True]),
        "cut": np.int64(position),
        "grid": np.array([[position, 2]], np.int32),
        "name": f"batch {position}",
        "extra": {"position": position},
        "parts": [np.array([position], np.float32), None, 3],
    }


@dataclass
class _Group:
    batches_per_step: int
    generation: int = 0
    token: str = ""
    tokens: dict[str, int] = field(default_factory=dict)
    world_size: int = 0
    start_step: int = 0
    rows: list[int] = field(default_factory=list)
    committed_by: int = 0
    checkpoints: dict[str, int] = field(default_factory=dict)

    @property
    def cursor(self) -> int:
        return min(self.rows, default=self.start_step)


class FakeNode(feed_pb2_grpc.FeedServicer, cursors_pb2_grpc.CursorsServicer):
    """One node with one job, `code`.

    Args:
        batches: T; None = endless.
        lanes: How many lanes the job has.
        batches_per_step: The job file's default; 0 = none.
        nbytes: About the size of one body.
    """

    def __init__(
        self,
        *,
        batches: int | None = None,
        lanes: int = 3,
        batches_per_step: int = 0,
        nbytes: int = 64,
        chunk_bytes: int = 1 << 20,
    ) -> None:
        self.batches, self.lanes, self.batches_per_step = batches, lanes, batches_per_step
        self.nbytes, self.chunk_bytes = nbytes, chunk_bytes
        self.log_id, self.store, self.protocol = LOG_ID, STORE, PROTOCOL
        ends = None
        if batches is not None:
            ends = tuple((batches - lane + lanes - 1) // lanes for lane in range(lanes))
        self.order = Order(lanes, ends)
        self.faults = Faults()
        self.host: tuple[str, ...] = ("grid",)
        self.dtype_values: Mapping[str, Any] = {}
        self.groups: dict[str, _Group] = {}
        # What tests look at.
        self.opens: list[feed_pb2.Open] = []
        self.horizons: list[int] = []
        self.sent: list[int] = []
        self.begins: list[cursors_pb2.BeginRequest] = []
        self.port = 0
        self._server: grpc.Server | None = None
        self._lock = threading.Lock()

    # --- life ---

    def start(self) -> str:
        """Listen, on the port of last time if there was one; return the address."""
        server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=16), options=[("grpc.so_reuseport", 0)]
        )
        feed_pb2_grpc.add_FeedServicer_to_server(self, server)
        cursors_pb2_grpc.add_CursorsServicer_to_server(self, server)
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        server.start()
        self._server = server
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Cut every stream and close the port."""
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def __enter__(self) -> FakeNode:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.faults.released.set()
        self.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # --- the feed ---

    def Describe(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._maybe_unavailable(context)
        if request.job != "code":
            _abort(context, UnknownJob(f"no job {request.job!r}: this node has code"))
        return feed_pb2.DescribeReply(
            protocol=self.protocol,
            server_version="0.0.test",
            node="fake",
            store=self.store,
            job="code",
            log_id=self.log_id,
            lanes=self.lanes,
            batches_per_step=self.batches_per_step,
            batches=self.batches,
            jobs=["code"],
        )

    def Status(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._maybe_unavailable(context)
        status = {
            "version": "0.0.test",
            "node": "fake",
            "uptime_s": 12.5,
            "draining": False,
            "workers": [{"pid": 1, "busy": True, "stage": "process"}],
            "jobs": [
                {
                    "name": "code",
                    "log_id": self.log_id.hex(),
                    "lanes": self.lanes,
                    "ready_batches": 3,
                    "ready_bytes": 4096,
                    "produced": len(self.sent),
                    "recomputed": 0,
                    "groups": [
                        {
                            "group": "run",
                            "rank": 0,
                            "world_size": 1,
                            "next": 7,
                            "horizon": 11,
                            "sent_batches": 7,
                            "sent_bytes": 7 * 64,
                            "waiting_s": 0.5,
                        }
                    ],
                }
            ],
        }
        return feed_pb2.StatusReply(json=json.dumps(status))

    def Read(self, requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:  # noqa: N802
        first = next(requests).open
        with self._lock:
            self.opens.append(first)
        share = Share(first.batches_per_step, first.rank, first.world_size)
        if first.token and self.groups[first.group].token != first.token:
            _abort(context, StaleGeneration("a newer attempt has taken over"))
        state = _Horizon(first.horizon)
        threading.Thread(target=self._listen, args=(requests, state), daemon=True).start()
        context.add_callback(state.close)
        yield feed_pb2.ReadReply(
            opened=feed_pb2.Opened(
                log_id=self.log_id,
                lanes=self.lanes,
                batches_per_step=first.batches_per_step,
                batches=self.batches,
                node="fake",
            )
        )
        yield from self._batches(first, share, state, context)

    def _listen(self, requests: Any, state: _Horizon) -> None:
        try:
            for request in requests:
                with self._lock:
                    self.horizons.append(request.horizon.horizon)
                state.raise_to(request.horizon.horizon)
        except grpc.RpcError:
            state.close()  # the client went away

    def _batches(
        self, first: Any, share: Share, state: _Horizon, context: grpc.ServicerContext
    ) -> Iterator[Any]:
        tail = None
        if self.batches is not None:
            pad = first.tail == feed_pb2.TAIL_PAD
            tail = Tail(self.batches, share.batches_per_step, pad)
        endings = [
            (limits.pop(0), kind)
            for limits, kind in (
                (self.faults.break_after, "break"),
                (self.faults.close_after, "close"),
                (self.faults.drain_after, "drain"),
            )
            if limits
        ]
        for count, position in enumerate(share.walk(first.start)):
            for limit, kind in endings:
                if count == limit:
                    if kind == "drain":
                        yield feed_pb2.ReadReply(draining=feed_pb2.Draining(detail="restarting"))
                    if kind == "break":
                        context.abort(grpc.StatusCode.UNAVAILABLE, "the node broke down")
                    return
            if tail is not None and position >= tail.end:
                yield feed_pb2.ReadReply(
                    end=feed_pb2.End(
                        batches=self.batches, steps=tail.steps, dropped_batches=tail.dropped
                    )
                )
                return
            yield from self._hold(position, context)
            if not state.wait_above(position):
                return
            if (error := self.faults.errors.pop(position, None)) is not None:
                _abort(context, error)
            with self._lock:
                self.sent.append(position)
            messages = self.messages(position, tail)
            if position in self.faults.cut_at:
                self.faults.cut_at.remove(position)
                yield messages[0]
                context.abort(grpc.StatusCode.UNAVAILABLE, "the node broke down inside a batch")
            yield from messages

    def _hold(self, position: int, context: grpc.ServicerContext) -> Iterator[Any]:
        while position in self.faults.hold and not self.faults.released.wait(0.02):
            if not context.is_active():
                return
            yield feed_pb2.ReadReply(
                waiting=feed_pb2.Waiting(
                    lane=1, offset=2, stage="producing", item="corpus[17]", since_s=3.0
                )
            )

    def messages(self, position: int, tail: Tail | None) -> list[Any]:
        """The messages of one batch, made by the wire's own maker."""
        source = position
        if tail is not None and (blanked := tail.blanked(position)) is not None:
            source = blanked
        padding = source != position
        address = self.order.address(source)
        if position in self.faults.misplace:
            address = address._replace(lane=(address.lane + 1) % self.lanes)
        values = self.dtype_values or values_of(source, self.nbytes)
        layout = frame.Layout(values, host=self.host)
        body = bytearray(layout.nbytes)
        crc = frame.write_body(layout, memoryview(body))
        counts = {"tokens": 0 if padding else 10 + source, "samples": 0 if padding else 2}
        samples = [(0, "corpus", source, 0, 0, None)]
        header = frame.write_header(
            layout, self.log_id, address.lane, address.offset, crc, counts, samples, padding
        )
        header = frame.with_position(header, position)
        if self.faults.corrupt.get(position, 0):
            self.faults.corrupt[position] -= 1
            body[0] ^= 1
        raw = frame.batch_messages(
            header, address.lane, address.offset, memoryview(body), chunk_bytes=self.chunk_bytes
        )
        replies = [feed_pb2.ReadReply.FromString(message) for message in raw]
        if self.faults.misspell.get(position, 0):
            self.faults.misspell[position] -= 1
            (name,) = (named for named in replies[0].header.values if named.name == "name")
            name.value.text = name.value.text.replace("batch", "catch")
        return replies

    # --- cursors ---

    def Begin(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._maybe_unavailable(context)
        with self._lock:
            self.begins.append(request)
            group = self.groups.get(request.group)
            if group is None:
                size = request.batches_per_step or self.batches_per_step or request.world_size
                group = self.groups[request.group] = _Group(size)
            if request.batches_per_step not in (0, group.batches_per_step):
                _abort(context, StepSizeMismatch(f"the group reads {group.batches_per_step}"))
            if (
                self.batches is not None
                and request.start_step * group.batches_per_step > self.batches
            ):
                _abort(context, PastEnd(f"step {request.start_step} lies past the end"))
            joined = moves_between(request.token, group.token) is not None
            if joined and group.world_size != request.world_size:
                _abort(context, WorldSizeMismatch("two world sizes in one attempt"))
            if not joined:
                if request.token in group.tokens:
                    _abort(context, StaleGeneration("a newer attempt has taken over"))
                start = group.cursor
                if request.HasField("start_step"):
                    start = request.start_step
                group.generation += 1
                group.token, group.world_size = request.token, request.world_size
                group.tokens[request.token] = group.generation
                group.start_step, group.rows = start, [start] * request.world_size
            return cursors_pb2.BeginReply(
                generation=group.generation,
                batches_per_step=group.batches_per_step,
                start_step=group.rows[request.rank],
                log_id=self.log_id,
                store=self.store,
                joined=joined,
                committed_at="2031-05-04T14:03:11Z" if group.committed_by else "",
                committed_by=group.committed_by,
                batches_per_step_from="group",
                token=group.token,
            )

    def Commit(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._maybe_unavailable(context)
        with self._lock:
            group = self._group(request, context)
            if group.token != request.token:
                _abort(context, StaleGeneration("a newer attempt has taken over"))
            ranks = range(len(group.rows)) if request.all_rows else [request.rank]
            for rank in ranks:
                group.rows[rank] = max(group.rows[rank], request.step)
            group.committed_by = group.generation
            return cursors_pb2.CommitReply(cursor=group.cursor, row=group.rows[request.rank])

    def Checkpoint(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._lock:
            group = self._group(request, context)
            step = request.step if request.HasField("step") else group.cursor
            if group.checkpoints.setdefault(request.name, step) != step:
                _abort(context, CheckpointExists(f"{request.name} stands at another step"))
            return cursors_pb2.CheckpointReply(name=request.name, step=step, log_id=self.log_id)

    def Restore(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._lock:
            group = self._group(request, context)
            return self._move(group, group.checkpoints[request.name])

    def Seek(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._lock:
            return self._move(self._group(request, context), request.step)

    def List(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        with self._lock:
            if request.group:
                self._group(request, context)
            return cursors_pb2.ListReply(
                groups=[
                    cursors_pb2.Group(
                        job="code",
                        name=name,
                        log_id=self.log_id,
                        batches_per_step=group.batches_per_step,
                        generation=group.generation,
                        owner="host:1",
                        world_size=group.world_size,
                        start_step=group.start_step,
                        cursor=group.cursor,
                        rows=group.rows,
                        checkpoints=[
                            cursors_pb2.NamedStep(name=key, step=step, log_id=self.log_id)
                            for key, step in group.checkpoints.items()
                        ],
                    )
                    for name, group in sorted(self.groups.items())
                    if request.group in ("", name)
                ],
                store=self.store,
            )

    def _move(self, group: _Group, step: int) -> Any:
        group.generation += 1
        group.token, group.start_step, group.rows = "", step, []
        return cursors_pb2.MoveReply(generation=group.generation, step=step)

    def _group(self, request: Any, context: grpc.ServicerContext) -> _Group:
        if request.group not in self.groups:
            _abort(context, UnknownGroup(f"no group {request.group!r}", group=request.group))
        return self.groups[request.group]

    def _maybe_unavailable(self, context: grpc.ServicerContext) -> None:
        if self.faults.unavailable:
            self.faults.unavailable -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the node is starting")

    def change_job(self) -> None:
        """Serve another log under the same name from now on."""
        self.log_id = bytes(32)


class _Horizon:
    """How far one stream may go."""

    def __init__(self, horizon: int) -> None:
        self._horizon, self._closed = horizon, False
        self._changed = threading.Condition()

    def raise_to(self, horizon: int) -> None:
        with self._changed:
            assert horizon >= self._horizon, "a horizon is monotone"
            self._horizon = horizon
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_above(self, position: int) -> bool:
        with self._changed:
            while self._horizon <= position and not self._closed:
                self._changed.wait()
            return not self._closed


def _abort(context: grpc.ServicerContext, error: PenstockError) -> None:
    context.set_trailing_metadata(((ERROR_METADATA_KEY, encode_error(error)),))
    context.abort(grpc.StatusCode[error.status], error.message[:1024])


def wait_until(condition: Any, what: str, deadline_s: float = 10.0) -> None:
    """Wait for something that another thread is about to do."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {deadline_s} s"
        threading.Event().wait(0.005)


__all__ = ["LOG_ID", "STORE", "FakeNode", "Faults", "JobChanged", "values_of", "wait_until"]
