"""The gRPC server of a loader node: Feed, Cursors, health and reflection, on one port.

Read speaks raw bytes: its messages are made and read by `penstock.wire.frame`, one copy on each
side, and are exactly what the `.proto` describes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from penstock.server.access.caller import CALLER
from penstock.server.access.callers import Access
from penstock.server.access.tls import NodeTls
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.node import Node
from penstock.server.rpc.address import check_free, in_use
from penstock.server.rpc.autoscaling import AutoscalingSignal
from penstock.server.rpc.call import ConsumerCall, HungUp
from penstock.server.rpc.connections import most_connections
from penstock.server.rpc.cursor_calls import Cursors
from penstock.server.rpc.edge import Edge
from penstock.server.rpc.ending import ending
from penstock.server.rpc.following import Following
from penstock.server.rpc.gate import Gate
from penstock.server.rpc.hand_over import HandOver
from penstock.server.rpc.lending import Lending
from penstock.server.rpc.node_id import default_node_id
from penstock.server.rpc.opening import describe
from penstock.server.rpc.reads import Reads
from penstock.server.rpc.status import seen_by, status
from penstock.server.rpc.streams import Streams
from penstock.server.store.contract import Store
from penstock.server.usercode.frames import error_line
from penstock.wire import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES
from penstock.wire.errors import BadFrame, Forbidden, PenstockError, StaleGeneration
from penstock.wire.parse import parse
from penstock.wire.plain import clean_json
from penstock.wire.v1 import cursors_pb2, feed_pb2

logger = structlog.get_logger("penstock.rpc")

MAX_TEXT = 300
"""Characters of any text of Status."""

FEED, CURSORS = "penstock.wire.v1.Feed", "penstock.wire.v1.Cursors"

OPTIONS = [
    # grpc binds with SO_REUSEPORT by default: a second server on the port would silently take half.
    ("grpc.so_reuseport", 0),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
    # Requests are small. A probed window grows with what a client sends: 120 requests of 10 MB,
    # each refused by its length, cost 80 to 370 MB with it and 3 MB without.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.max_frame_size", 16777215),
    ("grpc.http2.write_buffer_size", 8 << 20),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # else a minute: it overrides the one above
    ("grpc.keepalive_permit_without_calls", 1),
    # Else a client's pings every 30 s earn GOAWAY too_many_pings: the default minimum is 5 minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
    # What never finishes its handshake holds memory and a descriptor; 120 s by default.
    ("grpc.server_handshake_timeout_ms", 10_000),
]


class Service:
    """The gRPC side of a node.

    Args:
        node: The node, started.
        store: Its store, open.
        metrics: Where streams and commits are counted.
        access: Who may do what; None = whoever connects may do anything.
        reflects: Serve the reflection service.
        node_id: What other nodes and readers know it by; empty = the pod, else host and address.
    """

    def __init__(
        self,
        node: Node,
        store: Store,
        metrics: Metrics,
        access: Access | None = None,
        *,
        reflects: bool = False,
        node_id: str = "",
    ) -> None:
        self._access, self._reflects = access, reflects
        self.node, self.store, self.metrics = node, store, metrics
        self.streams = Streams(store, metrics)
        self.wanted = AutoscalingSignal(node, self.streams, metrics)
        self.cursors = Cursors(
            node.jobs,
            store,
            self.streams,
            node.release,
            asked=node.asked,
            numbered=node.numbering,
        )
        self.health = HealthServicer()
        self.hand_over = HandOver()
        self.lending = Lending(node.give_back, node.bound_bytes)
        present = self.cursors.present
        self.following = Following(node, store, self.streams, metrics)
        self._follows: asyncio.Task[None] | None = None
        edge = Edge(
            node,
            store,
            self.streams,
            self.following,
            present,
            metrics,
            self.hand_over,
            self.lending,
        )
        self._reads = Reads(edge)
        self._server: grpc.aio.Server | None = None
        self.node_id = node_id

    # --- life ---

    async def start(self, listen: str, socket_mode: int = 0o600, tls: NodeTls | None = None) -> str:
        """Listen, and return the address with the port that was taken.

        Args:
            listen: `host:port` or `unix:/path`.
            socket_mode: The mode of the socket at that path.
            tls: The certificate that is shown; a Unix socket shows none.

        Raises:
            PortInUse: Another process listens there, or this machine does not have the address.
        """
        gates = [] if self._access is None else [Gate(self._access, self.metrics)]
        bound = ("grpc.max_allowed_incoming_connections", most_connections())
        server = grpc.aio.server(interceptors=gates, options=[*OPTIONS, bound])
        server.add_generic_rpc_handlers((self._feed_handlers(), self._cursor_handlers()))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        if self._reflects:
            names = (FEED, CURSORS, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
            reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        check_free(listen)
        # At no moment may others connect: the socket is made with fewer rights than it gets.
        umask = os.umask(0o177) if listen.startswith("unix:") else None
        try:
            if tls is None or listen.startswith("unix:"):
                port = server.add_insecure_port(listen)
            else:
                port = server.add_secure_port(listen, tls.credentials())
        except RuntimeError as error:
            raise in_use(listen) from error
        finally:
            if umask is not None:
                os.umask(umask)
        if umask is not None:
            os.chmod(listen.removeprefix("unix:"), socket_mode)
        if port == 0 and not listen.startswith("unix:"):
            raise in_use(listen)
        self.lending.start(listen, socket_mode)
        address = listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"
        self.node_id = self.node.node_id = self.node_id or default_node_id(address)
        await self.following.begin()
        await server.start()
        self._server = server
        self._follows = asyncio.get_running_loop().create_task(self.following.follow())
        for name in ("", FEED, CURSORS):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return address

    async def drain(self, grace_s: float) -> None:
        """Drain: set the health service, then every stream sends what is ready and ends."""
        await self.health.enter_graceful_shutdown()
        deadline = time.monotonic() + grace_s
        self.hand_over.begin(grace_s)
        self._wake_all()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.hand_over.left_s()):
                await self.node.lines_saved.wait()
        self.hand_over.is_saved = True
        self._wake_all()
        # Once per process, with a deadline; a stream may still open, so an event could lie.
        while self.streams and time.monotonic() < deadline:  # noqa: ASYNC110 - as said above
            await asyncio.sleep(0.02)

    def _wake_all(self) -> None:
        for stream in self.streams:
            stream.wake.set()

    async def stop(self, grace_s: float) -> None:
        """Close the port."""
        self.lending.stop()
        if self._follows is not None:
            self._follows.cancel()
            await asyncio.gather(self._follows, return_exceptions=True)
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
                elif isinstance(error, Forbidden):
                    self.metrics.refused(CALLER.get().name, error.code)
                elif name == "Begin" and isinstance(error, PenstockError):
                    self._turned_away(error, data)
                await self._abort(context, error)
                return b""  # the consumer hung up: there is no one to tell

        return grpc.unary_unary_rpc_method_handler(answer)

    def _turned_away(self, error: PenstockError, data: bytes) -> None:
        if error.status == "UNAVAILABLE":  # it will call again; the cause is reported elsewhere
            return
        with contextlib.suppress(BadFrame):  # what cannot be parsed names no run
            self.streams.turned_away(error, parse(cursors_pb2.BeginRequest, data))

    async def _abort(self, context: Any, error: Exception) -> None:
        """End a call with a status, the sentence, and the code and fields beside it."""
        if isinstance(error, StaleGeneration):
            self.metrics.fenced.inc()
        try:
            await context.abort(*ending(error))
        except grpc.aio.AbortError:
            raise  # so gRPC leaves a handler
        except Exception as failure:
            logger.debug("a consumer hung up", error=error_line(failure))

    async def _describe(self, data: bytes) -> bytes:
        request = parse(feed_pb2.DescribeRequest, data)
        caller = CALLER.get()
        if request.job:
            caller.check(request.job)
        seen = {name: job for name, job in self.node.jobs.items() if caller.sees_job(name)}
        job = seen.get(request.job)
        reply = describe(
            seen,
            request,
            node=self.node.incarnation,
            node_id=self.node_id,
            incarnation=self.following.incarnation,
            store=self.store.uuid,
            max_body_bytes=0 if job is None else self.node.largest_body_bytes(job),
            workers=len(self.node.workers),
            draining=self.hand_over.has_begun,
            unchecked=self.following.is_unchecked,
            numbered=self.node.numbering,
            count=self.node.count,
        )
        return reply.SerializeToString()

    async def _status(self, data: bytes) -> bytes:
        return feed_pb2.StatusReply(
            json=json.dumps(clean_json(seen_by(CALLER.get(), self.status()), MAX_TEXT))
        ).SerializeToString()

    def status(self) -> dict[str, Any]:
        """Return what this node is doing; the keys are in docs/operate.md."""
        return status(
            self.node,
            self.streams,
            self.metrics,
            self.wanted,
            lent_bytes=self.lending.lent_bytes,
            draining=self.hand_over.has_begun,
        )

    async def _read(self, requests: AsyncIterator[bytes], context: Any) -> None:
        try:
            await self._reads.serve(ConsumerCall(context), context.peer())
        except HungUp as gone:
            logger.debug("a reader hung up", error=str(gone))
        except Exception as error:
            if isinstance(error, Forbidden):
                self.metrics.refused(CALLER.get().name, error.code)
            await self._abort(context, error)
