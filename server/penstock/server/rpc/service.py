"""The gRPC server of a loader node: Feed, Cursors, health and reflection, on one port.

Read speaks raw bytes: its messages are made and read by `penstock.wire.frame`, one copy on each
side, and are exactly what the `.proto` describes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from penstock.server.core.frames import error_line
from penstock.server.metrics import Metrics
from penstock.server.node.entry import Entry
from penstock.server.node.node import Node
from penstock.server.rpc.cursors import Cursors
from penstock.server.rpc.opening import (
    VERSION,
    Opening,
    describe,
    ended,
    open_read,
    opened,
    parse_request,
)
from penstock.server.rpc.story import UNCHECKED
from penstock.server.rpc.streams import Stream, Streams
from penstock.server.store.base import Store
from penstock.wire import CHUNK_BYTES, MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES, frame
from penstock.wire.errors import (
    ERROR_METADATA_KEY,
    BadFrame,
    Internal,
    InvalidRequest,
    PenstockError,
    PortInUse,
    StaleGeneration,
    StoreUnavailable,
    clean_json,
    clean_text,
    encode_error,
    status_text,
)
from penstock.wire.v1 import cursors_pb2, feed_pb2

log = structlog.get_logger("penstock.rpc")

WAITING_EVERY_S, CHECK_DEADLINE_S = 5.0, 10.0

SHUTTING_DOWN = "the node shuts down"
"""Why a stream left that was drained."""

GATHER_S = 0.002
"""How long a small batch of a fast stream waits for others to share its message."""

MAX_TEXT = 300
"""Characters of an item's name, of a stage and of any text of Status."""

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs leave it out

FEED, CURSORS = "penstock.wire.v1.Feed", "penstock.wire.v1.Cursors"

OPTIONS = [
    # grpc binds with SO_REUSEPORT by default: a second server on the port would silently take half.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    ("grpc.http2.max_frame_size", 16777215),
    ("grpc.http2.write_buffer_size", 8 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # else a minute: it overrides the one above
    ("grpc.keepalive_permit_without_calls", 1),
    # Else a client's pings every 30 s earn GOAWAY too_many_pings: the default minimum is 5 minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
]


class _HungUp(Exception):
    """The consumer is gone, or its connection is."""


class _Call:
    """A gRPC call as a handler uses it: what fails in it is the consumer's end, and no bug.

    gRPC says it with several errors, and may not know yet that the call is done.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> Any:
        """Return the consumer's next message, or EOF.

        Raises:
            _HungUp: The connection broke.
        """
        try:
            return await self._context.read()
        except Exception as error:
            raise _HungUp(error_line(error)) from error

    async def write(self, data: bytes) -> None:
        """Send a message.

        Raises:
            _HungUp: The connection broke.
        """
        try:
            await self._context.write(data)
        except Exception as error:
            raise _HungUp(error_line(error)) from error


class Service:
    """The gRPC side of a node.

    Args:
        node: The node, started.
        store: Its store, open.
        metrics: Where streams and commits are counted.
    """

    def __init__(self, node: Node, store: Store, metrics: Metrics) -> None:
        self.node, self.store, self.metrics = node, store, metrics
        self.streams = Streams(store, metrics)
        self.cursors = Cursors(
            node.jobs, store, self.streams, node.release, computes_here=False, asked=node.asked
        )
        self.health = HealthServicer()
        self.draining = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    # --- life ---

    async def start(self, listen: str, socket_mode: int = 0o600) -> str:
        """Listen, and return the address with the port that was taken.

        Args:
            listen: `host:port` or `unix:/path`.
            socket_mode: The mode of the socket at that path.

        Raises:
            PortInUse: Another process listens there, or the address is not this machine's.
        """
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((self._feed_handlers(), self._cursor_handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        names = (FEED, CURSORS, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        _check_free(listen)
        # At no moment may others connect: the socket is made with fewer rights than it gets.
        umask = os.umask(0o177) if listen.startswith("unix:") else None
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise _in_use(listen) from error
        finally:
            if umask is not None:
                os.umask(umask)
        if umask is not None:
            os.chmod(listen.removeprefix("unix:"), socket_mode)
        if port == 0 and not listen.startswith("unix:"):
            raise _in_use(listen)
        await server.start()
        self._server = server
        for name in ("", FEED, CURSORS):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"

    async def drain(self, grace_s: float) -> None:
        """Tell everybody to go: health, then every stream, which sends what is ready and ends."""
        await self.health.enter_graceful_shutdown()
        self.draining.set()
        for stream in self.streams:
            stream.wake.set()
        deadline = time.monotonic() + grace_s
        # Once in a life, and to a deadline; a stream may still open, so an event could lie.
        while self.streams and time.monotonic() < deadline:  # noqa: ASYNC110 - as said above
            await asyncio.sleep(0.02)

    async def stop(self, grace_s: float) -> None:
        """Close the port."""
        if self._server is not None:
            await self._server.stop(grace_s)
        self.streams.close()

    # --- handlers ---

    def _feed_handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        return grpc.method_handlers_generic_handler(
            FEED,
            {
                "Describe": self._unary("Describe", self._describe),
                "Status": self._unary("Status", self._status),
                "Read": grpc.stream_stream_rpc_method_handler(self._read),
            },
        )

    def _cursor_handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        def method(name: str) -> grpc.RpcMethodHandler[bytes, bytes]:
            async def handle(data: bytes) -> bytes:
                with self.metrics.cursor_call(name):
                    return await self.cursors.call(name, data)

            return self._unary(name, handle)

        return grpc.method_handlers_generic_handler(
            CURSORS, {name: method(name) for name in self.cursors.METHODS}
        )

    def _unary(
        self, name: str, handle: Callable[[bytes], Awaitable[bytes]]
    ) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def answer(data: bytes, context: Any) -> bytes:
            try:
                return await handle(data)
            except Exception as error:
                if isinstance(error, StaleGeneration):
                    self.streams.refused(error, name)
                elif name == "Begin" and isinstance(error, PenstockError):
                    self._turned_away(error, data)
                await self._abort(context, error)
                return b""  # the consumer hung up: nobody is left to tell

        return grpc.unary_unary_rpc_method_handler(answer)

    def _turned_away(self, error: PenstockError, data: bytes) -> None:
        if error.status == "UNAVAILABLE":  # it will call again; what is away is told elsewhere
            return
        with contextlib.suppress(DecodeError):  # what cannot be parsed names no run
            self.streams.turned_away(error, cursors_pb2.BeginRequest.FromString(data))

    async def _abort(self, context: Any, error: Exception) -> None:
        """End a call with a status, the sentence, and the code and fields beside it."""
        if isinstance(error, StaleGeneration):
            self.metrics.fenced.inc()
        try:
            await context.abort(*_ending(error))
        except grpc.aio.AbortError:
            raise  # so gRPC leaves a handler
        except Exception as failure:
            log.debug("a consumer hung up", error=error_line(failure))

    async def _describe(self, data: bytes) -> bytes:
        request = _parse(feed_pb2.DescribeRequest, data)
        one = self.node.logs.get(request.job)
        reply = describe(
            self.node.jobs,
            request,
            node=self.node.incarnation,
            store=self.store.uuid,
            max_body_bytes=one.largest_body_bytes if one is not None else 0,
        )
        return reply.SerializeToString()

    async def _status(self, data: bytes) -> bytes:
        return feed_pb2.StatusReply(
            json=json.dumps(clean_json(self.status(), MAX_TEXT))
        ).SerializeToString()

    async def _read(self, requests: AsyncIterator[bytes], context: Any) -> None:
        call = _Call(context)
        try:
            await self._stream(call, context.peer())
        except _HungUp as gone:
            log.debug("a reader hung up", error=str(gone))
        except Exception as error:
            await self._abort(context, error)

    async def _stream(self, call: _Call, peer: str) -> None:
        first = await call.read()
        if first is EOF:
            return
        message = parse_request(first)
        if message.WhichOneof("kind") != "open":
            raise BadFrame("the first message of a Read must be `open`")
        request = message.open
        opening = open_read(self.node.jobs, request)
        if self.draining.is_set():
            # Whoever was sent away comes back at once: taken in, they would keep this node alive.
            await call.write(_draining().SerializeToString())
            return
        await self._check_token(request)
        if not request.token and opening.given_from is None:
            await self.cursors.present.check(opening.job)  # it begins: nothing was given yet
        wake = asyncio.Event()
        self.node.note_given(request.job, opening.given())
        reader = self.node.open(
            request.job, opening.share, opening.tail, opening.start, opening.lanes, wake.set
        )
        stream = Stream(request, reader, wake, peer)
        number = self.streams.add(stream)
        listening = asyncio.ensure_future(self._listen(stream, call))
        listening.add_done_callback(lambda _: wake.set())
        try:
            self.streams.joined(stream)
            await call.write(opened(opening, self.node.incarnation).SerializeToString())
            self.node.extend(reader, request.horizon, request.next, request.bytes_limit)
            stream.ending = await self._send(stream, opening, call, listening)
        except asyncio.CancelledError:
            if self.draining.is_set():
                stream.ending = SHUTTING_DOWN
            raise
        except Exception as error:
            stream.ending = _why(error)
            raise
        finally:
            # First what may not fail: a reader that stays would want its batches for ever.
            self.node.leave(reader)
            listening.cancel()
            self.streams.remove(number)
            await asyncio.gather(listening, return_exceptions=True)

    async def _check_token(self, request: feed_pb2.Open) -> None:
        if not request.group or not request.token:
            return
        try:
            async with asyncio.timeout(CHECK_DEADLINE_S):
                await self.store.check_token(
                    request.job, request.group, request.token, request.generation
                )
        except StaleGeneration as error:
            self.streams.refused(error, "Read")
            raise
        except (StoreUnavailable, TimeoutError) as error:
            # Reading goes on without the store; commits will tell whether this attempt was fenced.
            self.streams.story.tell(
                UNCHECKED,
                level="warning",
                job=request.job,
                group=request.group,
                rank=request.rank,
                error=str(error) or f"the store did not answer within {CHECK_DEADLINE_S:.0f} s",
            )

    async def _listen(self, stream: Stream, call: _Call) -> None:
        """Take the consumer's horizons until it hangs up."""
        while True:
            data = await call.read()
            if data is EOF:
                return
            message = parse_request(data)
            if message.WhichOneof("kind") != "horizon":
                raise BadFrame("after `open` a consumer sends only `horizon`")
            moved = message.horizon
            stream.note_finished(moved.finished_step)
            self.node.extend(stream.reader, moved.horizon, moved.next, moved.bytes_limit)
            stream.wake.set()

    async def _send(
        self, stream: Stream, opening: Opening, call: _Call, listening: asyncio.Future[None]
    ) -> str:
        """Send what the consumer accepts, until one of the ends; return why it ended."""
        reader, wake = stream.reader, stream.wake
        job, loop = opening.job.name, asyncio.get_running_loop()
        while True:
            wake.clear()
            if stream.error is not None:
                raise stream.error
            if listening.done() and not listening.cancelled() and listening.exception():
                raise listening.exception()  # type: ignore[misc]
            if self.draining.is_set():
                await call.write(_draining().SerializeToString())
                return SHUTTING_DOWN
            entry = self.node.take(reader)
            if entry is not None:
                length = stream.waits(False)
                if length is not None:
                    self.metrics.waited(job, length)
                await self._write(stream, entry, call)
                continue
            if reader.finished:
                assert opening.tail is not None
                await call.write(ended(opening.tail).SerializeToString())
                return "the log's end"
            if listening.done() and (not reader.pending or reader.is_full):
                return "hung up"  # and it has all that it accepted
            waits = bool(reader.pending) and not reader.is_full
            stream.waits(waits)
            if wake.is_set():
                # There is more to look through, and everybody else shall have a turn before it.
                await asyncio.sleep(0)
                continue
            # Not wait_for: it makes a task for every batch.
            timer = loop.call_later(WAITING_EVERY_S, wake.set)
            await wake.wait()
            timer.cancel()
            if waits and loop.time() >= timer.when():
                await call.write(self._waiting(stream).SerializeToString())

    async def _write(self, stream: Stream, entry: Entry, call: _Call) -> None:
        """Send a batch, and with a small one those after it that fit one message."""
        reader, entries = stream.reader, [entry]
        try:
            if stream.request.bundles and entry.nbytes < CHUNK_BYTES:
                await self._gather(stream, entries)
            batches = [
                (
                    frame.with_position(one.header, one.key.position),
                    one.key.lane,
                    one.key.offset,
                    one.body if one.body is not None else b"",
                )
                for one in entries
            ]
            if len(batches) > 1:
                await call.write(frame.bundle(batches))
            else:
                for message in frame.batch_messages(*batches[0]):
                    await call.write(message)
                    del message  # the next one then lies where the cache is warm
        finally:
            for one in entries:
                self.node.sent(reader, one)
        stream.wrote_at = time.monotonic()
        for one in entries:
            self.metrics.sent(reader.log.job.name, one.nbytes)

    async def _gather(self, stream: Stream, entries: list[Entry]) -> None:
        """Add what is ready to a bundle; where batches come fast, also what soon will be.

        A message costs as much as several small batches, on both sides. Where batches come one by
        one, each would have a message of its own, though the next is a fraction of a millisecond
        away. Where they come slowly nothing waits: there is no load to take off.
        """
        reader, wake = stream.reader, stream.wake
        room = CHUNK_BYTES - entries[0].nbytes
        now = time.monotonic()
        until = now + GATHER_S if now < stream.wrote_at + 2 * GATHER_S else now
        while room > 0:
            more = self.node.take(reader, room)
            if more is not None:
                entries.append(more)
                room -= more.nbytes
                continue
            left = until - time.monotonic()
            # What comes next is about as large as what is here.
            if left <= 0 or not reader.pending or room < entries[0].nbytes:
                return
            wake.clear()
            timer = asyncio.get_running_loop().call_later(left, wake.set)
            await wake.wait()
            timer.cancel()

    def _waiting(self, stream: Stream) -> feed_pb2.ReadReply:
        lane, offset, stage, item = self.node.waiting_for(stream.reader)
        since = time.monotonic() - (stream.waiting_since or time.monotonic())
        return feed_pb2.ReadReply(
            waiting=feed_pb2.Waiting(
                lane=lane,
                offset=offset,
                stage=clean_text(stage, MAX_TEXT),
                item=clean_text(item, MAX_TEXT),
                since_s=since,
            )
        )

    # --- what operators see ---

    def status(self) -> dict[str, Any]:
        """Return what this node is doing, for `penstock top`; the keys are in docs/operate.md."""
        jobs = []
        for name, one in sorted(self.node.logs.items()):
            jobs.append(
                {
                    "name": name,
                    "log_id": one.job.log_id.hex(),
                    "lanes": one.job.lanes,
                    "ready_batches": sum(1 for e in one.entries.values() if e.body is not None),
                    "ready_bytes": one.ready_bytes,
                    "kept_bytes": one.kept_bytes,
                    "produced": one.produced,
                    "recomputed": one.recomputed,
                    "cache_hits": one.cache_hits,
                    **self.streams.status(name),
                }
            )
        return {
            "version": VERSION,
            "node": self.node.incarnation,
            "uptime_s": round(time.monotonic() - self.node.started_at, 1),
            "draining": self.draining.is_set(),
            "bound_bytes": self.node.bound_bytes,
            "workers": [
                {
                    "pid": worker.pid,
                    "ready": worker.ready,
                    "busy": bool(worker.tickets),
                    "stage": worker.current().stage,
                }
                for worker in self.node.workers
            ],
            "jobs": jobs,
        }


def _why(error: Exception) -> str:
    """Return in a word or two why a stream ends with an error."""
    if isinstance(error, StaleGeneration):
        return "fenced"
    if isinstance(error, _HungUp):
        return "hung up"
    return error.code if isinstance(error, PenstockError) else Internal.code


def _ending(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return status, sentence and metadata for `context.abort`: such that it cannot refuse them.

    gRPC notes that the status was sent before it encodes it, so a call whose abort fails would
    never end. Everything that can fail is therefore done here, and has a plain answer behind it.
    """
    if not isinstance(error, PenstockError):
        log.exception("a bug", exc_info=error)
        error = Internal(f"a bug in the server: {error_line(error)}; its log has more")
    try:
        metadata = ((ERROR_METADATA_KEY, encode_error(error)),)
        return grpc.StatusCode[error.status], status_text(error), metadata
    except Exception as failure:
        log.error("an error cannot be told", code=error.code, error=error_line(failure))
        plain = Internal(
            f"an error of the code {error.code} that cannot be told: the server's log has it"
        )
        return grpc.StatusCode.INTERNAL, plain.message, ((ERROR_METADATA_KEY, encode_error(plain)),)


def _draining() -> feed_pb2.ReadReply:
    text = "this node is shutting down; read on from another, or from this one when it is back"
    return feed_pb2.ReadReply(draining=feed_pb2.Draining(detail=text))


def _parse(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except Exception as error:
        raise BadFrame(f"{len(data)} bytes are no {message.DESCRIPTOR.name}: {error}") from error


def _in_use(listen: str, error: OSError | None = None) -> PortInUse:
    if error is None or error.errno == errno.EADDRINUSE:
        sentence = "the port is in use; stop the process that listens there, or give another"
    else:
        sentence = f"{error.strerror or error}; give an address of this machine as"
    return PortInUse(f"cannot listen on {listen}: {sentence} --listen", address=listen)


def _check_free(listen: str) -> None:
    """Refuse an address that cannot be bound, with the system's reason, which gRPC only logs.

    Raises:
        PortInUse: Another process listens there, or the address is not this machine's.
        InvalidRequest: No socket can be made at that path.
    """
    if listen.startswith("unix:"):
        _check_path(listen, listen.removeprefix("unix:"))
        return
    host, _, port = listen.rpartition(":")
    refused: OSError | None = None
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except OSError as error:
        raise _in_use(listen, error) from error
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(address)
            except OSError as error:
                refused = error
            else:
                return  # one of a name's addresses is enough for gRPC, too
    raise _in_use(listen, refused) from refused


def _check_path(listen: str, path: str) -> None:
    """Refuse a Unix socket that somebody listens on; remove one that a killed server left."""
    if len(path.encode()) > 100:
        raise InvalidRequest(
            f"the socket path {path!r} is longer than the 100 bytes that the system allows",
            address=listen,
        )
    folder = os.path.dirname(path) or "."
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InvalidRequest(
            f"cannot listen on {listen}: {folder} is not a folder that this process may write to; "
            "make it, or give another --listen",
            address=listen,
        )
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise InvalidRequest(
            f"cannot listen on {listen}: a file that is not a socket lies there, and it is left "
            "alone; give another --listen",
            address=listen,
        )
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as error:
            raise _in_use(listen, error) from error
    raise _in_use(listen)


__all__ = ["OPTIONS", "Service"]
