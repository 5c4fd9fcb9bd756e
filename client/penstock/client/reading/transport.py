"""The way to one loader node: gRPC with raw bytes, and the targets that other packages bring.

The data path never lets protobuf touch a body: messages leave and enter as bytes, and
`penstock.wire.frame` reads them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import Any
from urllib.parse import unquote

import grpc

from penstock.client.reading.conversation import Conversation
from penstock.wire import MAX_MESSAGE_BYTES, frame
from penstock.wire.errors import (
    ERROR_METADATA_KEY,
    Internal,
    InvalidRequest,
    MissingExtra,
    PenstockError,
    ProtocolMismatch,
    Unreachable,
    decode_error,
)
from penstock.wire.memory import memory_path
from penstock.wire.transport import Endpoint, ReadCall, Transport

ENTRY_POINTS = "penstock.transports"
"""The entry point group in which other packages offer targets: `name:rest`."""

SERVICE_PREFIX = "/penstock.wire.v1."

CHANNEL_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", 16777215),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # else a minute: it overrides the one above
    ("grpc.keepalive_permit_without_calls", 1),
    # The horizon bounds what is under way, so HTTP/2 need not: a wide window instead of probing,
    # which was faster for 8 MB batches wherever both were tried in turn.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 << 20),
    ("grpc.enable_retries", 0),  # penstock resumes at the exact position itself
    ("grpc.use_local_subchannel_pool", 1),  # two Loaders of one process get two connections
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)

_BROKEN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
}


class GrpcTransport:
    """A channel to one node.

    Args:
        target: What gRPC connects to: `host:port`, `dns:///name:port`, `unix:/path`.
        on_close: Called once after the channel is closed, for nodes that were started for us.
    """

    def __init__(self, target: str, on_close: Callable[[], None] | None = None) -> None:
        self.target, self.memory = target, memory_path(target)
        self._on_close = on_close
        self._channel = grpc.insecure_channel(target, options=list(CHANNEL_OPTIONS))

    def unary(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Call one method with serialized messages; see `Transport.unary`."""
        call = self._channel.unary_unary(
            SERVICE_PREFIX + method, request_serializer=None, response_deserializer=None
        )
        try:
            reply: bytes = call(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self.target) from None
        return reply

    def read(self, opening: bytes) -> ReadCall:
        """Open `Feed/Read`; see `Transport.read`."""
        call = Conversation(self._channel, SERVICE_PREFIX + "Feed/Read", opening)
        return GrpcReadCall(call, self.target)

    def close(self) -> None:
        """Close the channel and end what was started for it; idempotent."""
        self._channel.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class GrpcReadCall:
    """One open stream, parsed; its errors are PenstockErrors."""

    def __init__(self, call: Conversation, target: str) -> None:
        self._call, self._target = call, target

    def __iter__(self) -> Iterator[Sequence[frame.Reply]]:
        return self

    def __next__(self) -> Sequence[frame.Reply]:
        try:
            message = next(self._call)
        except grpc.RpcError as error:
            raise error_from_rpc(error, self._target) from None
        return frame.parse_replies(message)

    def send(self, request: bytes) -> None:
        """Send a `ReadRequest`; see `ReadCall.send`."""
        self._call.send(request)

    def cancel(self) -> None:
        """End the call; safe from any thread and after its end."""
        self._call.cancel()


def error_from_rpc(error: Any, target: str) -> PenstockError:
    """Return the PenstockError that a gRPC error carries, or the one that its status amounts to."""
    for key, value in error.trailing_metadata() or ():
        if key == ERROR_METADATA_KEY:
            return decode_error(value)
    code, details = error.code(), error.details() or ""
    if code in _BROKEN or _is_reset(code, details) or _is_busy(code, details):
        reason = _reason(code, details, target)
        return Unreachable(
            f"no answer from {target} ({reason}); check the address and that penstockd runs there",
            target=target,
            timed_out=code is grpc.StatusCode.DEADLINE_EXCEEDED,
        )
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ProtocolMismatch(
            f"{target} answers gRPC but does not speak penstock's protocol ({details}); check the "
            "address, and that client and server are of the same version",
            server=target,
        )
    return Internal(
        f"{target} failed with {code.name}: {details}; the server's output has the cause",
        target=target,
    )


_CONNECT = re.compile(
    r"failed to connect to all addresses; last error: [A-Z_]+: (?P<where>\S+): "
    r"(?:Failed to connect to remote host: |connect failed: addr: \S+ error: )?(?P<why>.+)",
    re.DOTALL,
)
_RESOLVE = re.compile(r"errors resolving \S+: \[.*: (?P<why>[^:]+)\]", re.DOTALL)


def _reason(code: Any, details: str, target: str) -> str:
    """Return why there was no answer, without what gRPC says twice: status, target and address."""
    if found := _CONNECT.fullmatch(details):
        where = unquote(found["where"]).removeprefix("ipv4:").removeprefix("ipv6:")
        return found["why"] + ("" if where == target else f" at {where}")
    if found := _RESOLVE.fullmatch(details):
        return found["why"]
    return f"{code.name}: {details}"


def _is_busy(code: Any, details: str) -> bool:
    """Tell a proxy's rate limit, which passes, from a message that is too large, which does not."""
    return code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" not in details


def _is_reset(code: Any, details: str) -> bool:
    """Tell a connection that was torn down from a bug: gRPC gives both as UNKNOWN or INTERNAL."""
    if code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
        return False
    text = details.lower()
    return any(sign in text for sign in ("stream removed", "rst_stream", "goaway", "socket closed"))


def open_transport(target: str | Sequence[str] | Transport) -> Transport:
    """Return a transport to what `target` names.

    Args:
        target: `host:port`, `dns:///name:port`, `unix:/path`, `local:FILE`, `spawn:FILE`, or an
            open transport, which is used as it is.

    Raises:
        InvalidRequest: The target names several nodes, no port, or a kind that nobody offers.
        MissingExtra: The kind needs the server half, which is not installed.
    """
    if isinstance(target, str):
        return _open_address(target.strip())
    if isinstance(target, Sequence) and not isinstance(target, bytes):
        if len(target) == 1:
            return _open_address(str(target[0]).strip())
        raise _several(", ".join(map(str, target)))
    if not hasattr(target, "unary"):
        raise _no_address(f"target={target!r}", target)
    return target


def _open_address(target: str) -> Transport:
    if "," in target:
        raise _several(target)
    scheme, colon, rest = target.partition(":")
    if colon and scheme in ("unix", "dns", "ipv4", "ipv6", "unix-abstract"):
        return GrpcTransport(target)
    if colon and (opener := _find_opener(scheme)) is not None:
        opened = opener(rest)
        if isinstance(opened, Endpoint):
            return GrpcTransport(opened.target, on_close=opened.close)
        return opened  # type: ignore[no-any-return]
    if scheme in ("local", "spawn"):
        raise _missing_server(target, "no installed package offers it")
    port = target.rpartition(":")[2]
    if not colon or not port.isdigit() or not 0 < int(port) < 65536 or "/" in target:
        raise _no_address(f"{target!r} is not the address of a loader node", target)
    return GrpcTransport(target)


def _no_address(what: str, target: object) -> InvalidRequest:
    return InvalidRequest(
        f"{what}: write host:port (for example 127.0.0.1:50051), dns:///name:port, unix:/path, "
        "local:FILE or spawn:FILE",
        field="target",
        value=str(target),
    )


def _find_opener(scheme: str) -> Callable[[str], Any] | None:
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=scheme):
        try:
            opener: Callable[[str], Any] = entry.load()
        except ImportError as error:
            raise _missing_server(f"{scheme}:", str(error)) from error
        return opener
    return None


def _missing_server(target: str, reason: str) -> MissingExtra:
    return MissingExtra(
        f"target {target!r} needs the server half of penstock ({reason}): "
        "pip install 'penstock[server]'",
        package="penstock",
        extra="server",
    )


def _several(target: str) -> InvalidRequest:
    return InvalidRequest(
        f"target {target!r} names several nodes, and this version reads from one: pass one address",
        field="target",
        value=target,
    )


def pretty(target: object) -> str:
    """Return a target for messages."""
    return target if isinstance(target, str) else type(target).__name__


__all__ = [
    "CHANNEL_OPTIONS",
    "ENTRY_POINTS",
    "GrpcReadCall",
    "GrpcTransport",
    "error_from_rpc",
    "open_transport",
    "pretty",
]
