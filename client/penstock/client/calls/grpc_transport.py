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

from penstock.client.calls.connection import Connection
from penstock.client.calls.conversation import Conversation
from penstock.client.calls.node_address import Address, address_of
from penstock.client.calls.tls_trouble import trouble
from penstock.wire.errors import (
    Internal,
    InvalidRequest,
    MissingExtra,
    PenstockError,
    ProtocolMismatch,
    TlsFailed,
    Unreachable,
)
from penstock.wire.frame import Reply, parse_replies
from penstock.wire.memory_socket import memory_path
from penstock.wire.sent_errors import ERROR_METADATA_KEY, decode_error
from penstock.wire.transports import Addresses, Endpoint, ReadCall, Transport, TransportOpener

ENTRY_POINTS = "penstock.transports"
"""The entry point group in which other packages offer targets: `name:rest`."""

SERVICE_PREFIX = "/penstock.wire.v1."

_BROKEN = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
}


class GrpcTransport:
    """A channel to one node.

    Args:
        address: The node; its target is what gRPC connects to: `host:port`, `dns:///name:port`,
            `unix:/path`.
        on_close: Called once after the channel is closed, for nodes that were started for us.
        waits: A stream to a node that is away waits until it is back, where it speaks no TLS.

    Raises:
        InvalidRequest: The files of its credentials cannot be used.
    """

    def __init__(
        self,
        address: Address,
        on_close: Callable[[], None] | None = None,
        *,
        waits: bool = True,
    ) -> None:
        self.memory = memory_path(str(address.target))
        # A call that waits keeps its channel, and so certificates that may have been renewed.
        self._waits = waits and address.tls is None
        self._on_close = on_close
        self._connection = Connection(address)
        self._has_answered = False

    def unary(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Call one method with serialized messages; see `Transport.unary`."""
        connection = self._connection
        with connection.channel() as channel:
            call = channel.unary_unary(
                SERVICE_PREFIX + method, request_serializer=None, response_deserializer=None
            )
            try:
                reply: bytes = call(request, timeout=timeout_s, metadata=connection.metadata())
            except grpc.RpcError as error:
                raise self._error(error) from None
        self._has_answered = True
        return reply

    def read(self, opening: bytes) -> ReadCall:
        """Open `Feed/Read`; see `Transport.read`."""
        connection = self._connection
        shown = connection.metadata()
        held = connection.hold()
        try:
            call = Conversation(
                held.channel,
                SERVICE_PREFIX + "Feed/Read",
                opening,
                metadata=shown,
                waits=self._waits,
            )
        except ValueError:  # gRPC's
            connection.release(held)
            target = connection.address.text
            raise Unreachable(
                f"no answer from {target} (the way to it was closed: no node is known to be there)",
                target=target,
            ) from None
        return GrpcReadCall(call, self._error, lambda: connection.release(held))

    def _error(self, error: Any) -> PenstockError:
        """Return what a gRPC error amounts to, with the reason where TLS is in the way."""
        address = self._connection.address
        found = error_from_rpc(error, address.text)
        if type(found) is not Unreachable or not _is_hung_up(error.details() or ""):
            return found
        sentence = trouble(address)
        if sentence is None:
            return found
        return TlsFailed(sentence, target=address.text, is_first=not self._has_answered)

    @property
    def is_idle(self) -> bool:
        """Whether no call is on its way."""
        return self._connection.is_idle

    def close(self) -> None:
        """Close the channel and end what was started for it; idempotent."""
        self._connection.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


class GrpcReadCall:
    """One open stream, parsed; its errors are PenstockErrors."""

    def __init__(
        self,
        call: Conversation,
        error_of: Callable[[Any], PenstockError],
        on_end: Callable[[], None],
    ) -> None:
        self._call, self._error_of, self._on_end = call, error_of, on_end
        self._has_ended = False

    def __iter__(self) -> Iterator[Sequence[Reply]]:
        return self

    def __next__(self) -> Sequence[Reply]:
        try:
            message = next(self._call)
        except grpc.RpcError as error:
            self._end()
            raise self._error_of(error) from None
        except StopIteration:
            self._end()
            raise
        return parse_replies(message)

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._on_end()

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


def _is_hung_up(details: str) -> bool:
    """Tell a connection that the other side closed, or that TLS refused, from one never made."""
    return "failed to connect" in details and not any(
        sign in details for sign in ("Connection refused", "Failed to connect to remote host")
    )


def _is_busy(code: Any, details: str) -> bool:
    """Tell a proxy's rate limit, which passes, from a message that is too large, which does not."""
    return code is grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" not in details


def _is_reset(code: Any, details: str) -> bool:
    """Tell a connection that was torn down from a bug: gRPC gives both as UNKNOWN or INTERNAL."""
    if code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL):
        return False
    text = details.lower()
    return any(sign in text for sign in ("stream removed", "rst_stream", "goaway", "socket closed"))


def open_transport(
    address: Address | str | Sequence[str] | Transport, job: str = "", *, grouped: bool = True
) -> Transport:
    """Return a transport to a node.

    Args:
        address: The node; its target is `host:port`, `dns:///name:port`, `unix:/path`,
            `local:FILE`, `spawn:FILE`, or an open transport, which is used as it is. A target alone
            has the credentials of the environment.
        job: The job that is asked for; a node that is started for this serves no other. Empty = all
            of its file.
        grouped: Cursors are used, or verdicts: such a node opens the file's store.

    Raises:
        InvalidRequest: The target names several nodes, no port, or a kind that nobody offers; or
            its credentials cannot be used.
        MissingExtra: The kind needs the server half, which is not installed.
    """
    if not isinstance(address, Address):
        address = address_of(address)
    found = open_target(address, job, grouped=grouped)
    if isinstance(found, Addresses):
        found.close()
        raise _several(address.text)
    return found


def open_target(address: Address, job: str = "", *, grouped: bool = True) -> Transport | Addresses:
    """Return a transport to a node; or, for the target of an engine, where its nodes are.

    Args:
        address: As for `open_transport`.
        job: The same.
        grouped: The same.

    Raises:
        InvalidRequest, MissingExtra: As `open_transport`.
    """
    target = address.target
    if isinstance(target, str):
        return _open_address(address, target, job, grouped=grouped)
    if len(address.targets) > 1:
        raise _several(address.text)
    if isinstance(target, Sequence) or not hasattr(target, "unary"):
        raise _no_address(f"target={target or ''!r}", target)
    return target


def _open_address(
    address: Address, target: str, job: str, *, grouped: bool
) -> Transport | Addresses:
    scheme, colon, rest = target.partition(":")
    if colon and scheme in ("unix", "dns", "ipv4", "ipv6", "unix-abstract"):
        return GrpcTransport(address)
    if colon and (opener := _find_opener(scheme)) is not None:
        opened = opener(rest, job=job, grouped=grouped)
        if isinstance(opened, Endpoint):
            return GrpcTransport(address.at(opened.target), on_close=opened.close)
        return opened
    if scheme in ("local", "spawn"):
        raise _missing_server(target, "no installed package offers it")
    check_host_and_port(target)
    return GrpcTransport(address)


def check_host_and_port(target: str, place: str = "") -> None:
    """Refuse what is not `host:port`.

    Args:
        target: What should be.
        place: Where it is written, as the sentence begins; empty = it is the target itself.

    Raises:
        InvalidRequest: Says what to write.
    """
    host, _, port = target.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536 or "/" in target:
        raise _no_address(
            f"{place}{target!r} is not the address of a loader node{_meant(target)}", target
        )


def _meant(target: str) -> str:
    """Return what somebody who writes this may mean, as a part of a sentence; or nothing."""
    if target.endswith((".yaml", ".yml", ".py")):
        return f" (spawn:{target} and local:{target} are)"
    if target.startswith("/"):
        return f" (unix:{target} is)"
    if "://" in target:
        return " (an address has no scheme and no path)"
    return "" if ":" in target else " (it has no port)"


def _no_address(what: str, target: object) -> InvalidRequest:
    return InvalidRequest(
        f"{what}: write host:port (for example 127.0.0.1:50051), dns:///name:port, unix:/path, "
        "local:FILE or spawn:FILE; or several nodes: a list of them, or file:FILE",
        field="target",
        value=str(target),
    )


def _find_opener(scheme: str) -> TransportOpener | None:
    for entry in metadata.entry_points(group=ENTRY_POINTS, name=scheme):
        try:
            opener: TransportOpener = entry.load()
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
        f"target {target!r} names several nodes, and this takes one: pass one address",
        field="target",
        value=target,
    )
