"""What can go wrong between a client and a node: a relay that stands on the wire between the two.

It forwards every call to a real server and knows nothing of penstock but the messages in `.proto`.
So it is not a mock of our code: it does what networks, proxies, dying hosts and servers of other
versions do, and what no server does at a test's word. Streams break, end early or carry damaged
bytes; calls are refused; replies say what a server of this version does not say. It unpacks bundles
and cuts bodies into messages of its own size, as any server may, so that a fault can be placed at
one message of one batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc

from penstock.wire import MAX_MESSAGE_BYTES, frame
from penstock.wire.errors import PenstockError
from penstock.wire.sent_errors import ERROR_METADATA_KEY, encode_error
from penstock.wire.v1 import feed_pb2

PREFIX = "/penstock.wire.v1."

OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
]


@dataclass
class Faults:
    """What goes wrong, each entry once.

    Attributes:
        break_after: End the stream with UNAVAILABLE behind so many batches, stream by stream.
        close_after: End the stream quietly behind so many batches, stream by stream.
        drain_after: Say Draining and end behind so many batches, stream by stream.
        end_after: Say End behind so many batches, as if the log held no more, stream by stream.
        refuse: What a stream ends with as soon as it is open, stream by stream.
        deny: What a stream ends with in place of being opened, stream by stream.
        cut_at: Positions of which only the first message is sent before the stream breaks.
        corrupt: Position -> how often its body is sent with a flipped bit.
        misspell: Position -> how often its header is sent with a wrong letter in a text.
        misplace: Positions whose header names another lane.
        unavailable: How many unary calls are refused with UNAVAILABLE.
    """

    break_after: list[int] = field(default_factory=list)
    close_after: list[int] = field(default_factory=list)
    drain_after: list[int] = field(default_factory=list)
    end_after: list[int] = field(default_factory=list)
    refuse: list[PenstockError] = field(default_factory=list)
    deny: list[PenstockError] = field(default_factory=list)
    cut_at: list[int] = field(default_factory=list)
    corrupt: dict[int, int] = field(default_factory=dict)
    misspell: dict[int, int] = field(default_factory=dict)
    misplace: set[int] = field(default_factory=set)
    unavailable: int = 0


class _Broken(Exception):
    """The stream ends here.

    Attributes:
        error: What the client is told; None = nothing, it just ends.
    """

    def __init__(self, error: PenstockError | str | None) -> None:
        self.error = error


class Relay(grpc.GenericRpcHandler):
    """A server on a port of its own that forwards to another; a context manager.

    Args:
        target: The address of the real one.
        chunk_bytes: How much of a body goes into one message.

    Attributes:
        address: Where it listens.
        faults: What goes wrong.
        rewrite: By method, such as `Feed/Status`: what becomes of the real server's reply.
        rewrite_opened: Changes what a stream says first.
        opens: What streams were opened with.
        horizons: What clients said after it.
        sent: The positions of batches that were sent, as they began.
    """

    def __init__(self, target: str, *, chunk_bytes: int = 1 << 20) -> None:
        self._chunk_bytes = chunk_bytes
        self.faults = Faults()
        self.rewrite: dict[str, Callable[[bytes], bytes]] = {}
        self.rewrite_opened: Callable[[feed_pb2.Opened], None] = lambda opened: None
        self.opens: list[feed_pb2.Open] = []
        self.horizons: list[int] = []
        self.sent: list[int] = []
        self._lock = threading.Lock()
        self._channel = grpc.insecure_channel(target, options=OPTIONS)
        self._server = grpc.server(
            futures.ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0), *OPTIONS]
        )
        self._server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> Relay:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
        self._channel.close()

    def service(self, details: Any) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return what answers a call."""
        method = details.method
        if method == PREFIX + "Feed/Read":
            return grpc.stream_stream_rpc_method_handler(self._read)
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._forward(method, request, context)
        )

    # --- unary calls ---

    def _forward(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._lock:
            refused = self.faults.unavailable > 0
            self.faults.unavailable -= refused
        if refused:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the node is starting")
        try:
            reply: bytes = self._channel.unary_unary(method)(request, timeout=60)
            rewrite = self.rewrite.get(method.removeprefix(PREFIX))
            return reply if rewrite is None else rewrite(reply)
        except grpc.RpcError as error:
            _pass_on(error, context)
        except PenstockError as error:
            _abort(context, error)
        raise AssertionError("abort raises")

    # --- streams ---

    def _read(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = next(requests)
        with self._lock:
            self.opens.append(feed_pb2.ReadRequest.FromString(first).open)
            denied = self.faults.deny.pop(0) if self.faults.deny else None
        if denied is not None:
            _abort(context, denied)
        upstream = self._channel.stream_stream(PREFIX + "Feed/Read")(self._heard(first, requests))
        context.add_callback(upstream.cancel)
        try:
            for reply in self._faulty(_replies(upstream)):
                yield reply.SerializeToString()
        except grpc.RpcError as error:
            _pass_on(error, context)
        except _Broken as broken:
            if isinstance(broken.error, str):
                context.abort(grpc.StatusCode.UNAVAILABLE, broken.error)
            if broken.error is not None:
                _abort(context, broken.error)
        finally:
            upstream.cancel()

    def _heard(self, first: bytes, requests: Iterator[bytes]) -> Iterator[bytes]:
        yield first
        try:
            for request in requests:
                with self._lock:
                    self.horizons.append(feed_pb2.ReadRequest.FromString(request).horizon.horizon)
                yield request
        except grpc.RpcError:
            return  # the client went away

    def _faulty(self, replies: Iterator[feed_pb2.ReadReply]) -> Iterator[feed_pb2.ReadReply]:
        faults = self.faults
        ends = {
            kind: limits.pop(0)
            for kind in ("break", "close", "drain", "end")
            if (limits := getattr(faults, f"{kind}_after"))
        }
        count = sent_bytes = 0
        for reply in replies:
            if reply.HasField("opened"):
                self.rewrite_opened(reply.opened)
                yield reply
                if faults.refuse:
                    raise _Broken(faults.refuse.pop(0))
                yield from self._end(ends, count)
                continue
            if not (reply.HasField("header") or reply.HasField("chunk")):
                yield reply
                continue
            yield from self._batch(reply)
            chunk, header = reply.chunk, reply.header
            if reply.HasField("header"):
                sent_bytes = frame.sent_bytes(header)
            if chunk.start + len(chunk.data) == sent_bytes:
                count += 1
                yield from self._end(ends, count)

    def _end(self, ends: dict[str, int], count: int) -> Iterator[feed_pb2.ReadReply]:
        for kind in [kind for kind, limit in ends.items() if limit == count]:
            if kind == "drain":
                yield feed_pb2.ReadReply(draining=feed_pb2.Draining(detail="restarting"))
            if kind == "end":
                yield feed_pb2.ReadReply(end=feed_pb2.End(batches=count, steps=count))
            raise _Broken("the node broke down" if kind == "break" else None)

    def _batch(self, reply: feed_pb2.ReadReply) -> Iterator[feed_pb2.ReadReply]:
        """Yield one message of a batch, damaged as it is to be, in messages of the own size."""
        faults = self.faults
        first, position = feed_pb2.ReadReply(), reply.header.position
        if reply.HasField("header"):
            with self._lock:
                self.sent.append(position)
            if position in faults.misplace:
                reply.header.CopyFrom(_moved(reply.header))
                reply.chunk.lane = reply.header.lane
            if _once(faults.corrupt, position):
                reply.chunk.data = bytes([reply.chunk.data[0] ^ 1]) + reply.chunk.data[1:]
            if _once(faults.misspell, position):
                [name] = (named for named in reply.header.values if named.name == "name")
                name.value.text = name.value.text.replace("batch", "catch")
            first.header.CopyFrom(reply.header)
        data, size = reply.chunk.data, self._chunk_bytes
        for start in range(0, max(1, len(data)), size):
            if reply.HasField("chunk"):
                first.chunk.CopyFrom(reply.chunk)
                first.chunk.data = data[start : start + size]
                first.chunk.start = reply.chunk.start + start
            yield first
            if first.HasField("header") and position in faults.cut_at:
                faults.cut_at.remove(position)
                raise _Broken("the node broke down inside a batch")
            first = feed_pb2.ReadReply()


def _replies(upstream: Any) -> Iterator[feed_pb2.ReadReply]:
    for message in upstream:
        reply = feed_pb2.ReadReply.FromString(message)
        if reply.more:
            yield from reply.more
        else:
            yield reply


def _once(counts: dict[int, int], position: int) -> bool:
    """Tell whether a fault is due at a position, and count it."""
    if not counts.get(position, 0):
        return False
    counts[position] -= 1
    return True


def _moved(header: feed_pb2.BatchHeader) -> feed_pb2.BatchHeader:
    """Return a header that names another lane, sealed as it should be."""
    moved = feed_pb2.BatchHeader()
    moved.CopyFrom(header)
    moved.lane = 0 if header.lane else 1
    for name in ("header_crc32c", "position"):
        moved.ClearField(name)
    sealed = frame.with_position(moved.SerializeToString(), header.position)
    return feed_pb2.BatchHeader.FromString(sealed)


def _abort(context: grpc.ServicerContext, error: PenstockError) -> None:
    context.set_trailing_metadata(((ERROR_METADATA_KEY, encode_error(error)),))
    context.abort(grpc.StatusCode[error.status], error.message[:1024])


def _pass_on(error: Any, context: grpc.ServicerContext) -> None:
    """End a call as the real server has ended it."""
    context.set_trailing_metadata(tuple(error.trailing_metadata() or ()))
    context.abort(error.code(), error.details())


__all__ = ["Faults", "Relay"]
