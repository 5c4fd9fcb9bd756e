"""One `Feed.Read`: a bidirectional call, read on the thread that iterates it.

gRPC for Python reads a bidirectional call on a thread of its own, which wakes the iterating one for
every message. It has a way without that thread, `ChannelOptions.SingleThreadedUnaryStream`, for
calls of one direction only; `Conversation` is that way for both directions, built of the same
private parts of grpcio. They belong to the versions that are named here: any other gets
`PlainConversation`, which does the same with what is public. Why this is worth it, and what was
measured, is in docs/decisions/0009.
"""

from __future__ import annotations

import importlib
import itertools
import os
import queue
import sys
import threading
from collections.abc import Iterator
from importlib import metadata
from typing import Any, Protocol


def _version() -> tuple[int, ...]:
    """Return the major and minor version of grpcio; nothing where pip does not know it."""
    try:
        text = metadata.version("grpcio")
    except metadata.PackageNotFoundError:
        return ()
    return tuple(map(int, itertools.takewhile(str.isdigit, text.split(".")[:2])))


KNOWN_GRPC = (1, 78), (1, 85)
"""The first and the last version of grpcio whose private parts were tried."""

IS_KNOWN = KNOWN_GRPC[0] <= _version() <= KNOWN_GRPC[1]

POLLING = {
    # Let a thread that waits for a call read its socket itself, not be woken by another that did.
    "GRPC_EXPERIMENTS": "-event_engine_client",
    # Nobody waits for a call between two attempts: see to a new connection more often than after 5
    # seconds.
    "GRPC_CLIENT_CHANNEL_BACKUP_POLL_INTERVAL_MS": "100",
}
"""What grpcio is told as it is imported, where that has not happened and nothing else was said."""

if IS_KNOWN and "grpc" not in sys.modules and not POLLING.keys() & os.environ.keys():
    # Read once, by this import; child processes of the trainer shall not inherit it.
    os.environ.update(POLLING)
    try:
        import grpc
    finally:
        for name in POLLING:
            del os.environ[name]
else:
    import grpc


class Call(Protocol):
    """What both conversations are. One thread iterates, to the end; any thread sends or cancels.

    A call to a server that is away waits until it is back, or until it is cancelled.
    """

    def send(self, message: bytes) -> None:
        """Send a message; one that replaces an unsent one, as horizons do, is all that is sent."""
        ...

    def cancel(self) -> None:
        """End the call; the iteration ends soon after. Idempotent."""
        ...

    def __iter__(self) -> Iterator[bytes]:
        """Return itself."""
        ...

    def __next__(self) -> bytes:
        """Return the next message.

        Raises:
            grpc.RpcError: The call ended with another status than OK.
        """
        ...


def converse(channel: grpc.Channel, method: str, opening: bytes) -> Call:
    """Open a call.

    Args:
        channel: Where to.
        method: `/package.Service/Method`, bidirectional.
        opening: The first message.
    """
    cls = Conversation if IS_KNOWN and not _survives_forks() else PlainConversation
    return cls(channel, method, opening)


def _survives_forks() -> bool:
    """Tell whether gRPC was asked to make forks safe (`GRPC_ENABLE_FORK_SUPPORT`).

    It then closes the channel in the child, and waits there for the end of every call: for ever, if
    it is one whose events only a thread of the parent takes.
    """
    return bool(importlib.import_module("grpc._cython.cygrpc").is_fork_support_enabled())


class Ended(grpc.RpcError):
    """How a call ended, if not with OK; made again for everybody who asks."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        self._code, self._details, self._metadata = code, details, metadata
        super().__init__(details)

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return what the server says of it."""
        return self._details

    def trailing_metadata(self) -> Any:
        """Return the (key, value) pairs that came with it."""
        return self._metadata


_CODES = {code.value[0]: code for code in grpc.StatusCode}


class _Lost:
    """The status of a call whose events cannot be taken any more, as cygrpc words a status."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def code(self) -> int:
        return int(grpc.StatusCode.UNKNOWN.value[0])

    def details(self) -> str:
        return f"reading was broken off by {self._error!r}"

    def trailing_metadata(self) -> None:
        return None


class Conversation:
    """A call that no other thread reads; see `Call`.

    Every batch of operations that gRPC takes is answered by one event, and all events are taken by
    the thread that iterates. `_due` counts them: behind the last one the call's queue is gone, and
    asking it for another would end the process.
    """

    def __init__(self, channel: grpc.Channel, method: str, opening: bytes) -> None:
        self._grpc = cygrpc = importlib.import_module("grpc._cython.cygrpc")
        self._lock = threading.Lock()  # guards all below, but for `cancel`
        self._due = 3
        self._sending = True
        self._unsent: bytes | None = None
        self._status: Any = None
        flags = cygrpc.InitialMetadataFlags
        patient = flags.wait_for_ready | flags.wait_for_ready_explicitly_set
        begin = (
            (
                cygrpc.SendInitialMetadataOperation((), patient),
                cygrpc.SendMessageOperation(opening, 0),
            ),
            (cygrpc.ReceiveStatusOnClientOperation(0),),
            (cygrpc.ReceiveInitialMetadataOperation(0),),
        )
        core: Any = channel._channel  # type: ignore[attr-defined]  # its C half
        self._call = core.segregated_call(
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            method.encode(),
            None,  # host
            None,  # deadline
            (),  # metadata
            None,  # credentials
            tuple((operations, None) for operations in begin),
            None,  # context
        )

    def send(self, message: bytes) -> None:
        """Send a message, or put it in the place of one that could not be sent yet."""
        with self._lock:
            self._unsent = message
            self._send_unsent()

    def cancel(self) -> None:
        """End the call; idempotent."""
        # Without our lock: the collector may end a Loader in the middle of what its own feed's
        # thread does here. gRPC's own lock may be taken twice, and behind the end it does nothing.
        self._call.cancel(self._grpc.StatusCode.cancelled, "not wanted any more")

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._lock:
            self._operate(self._grpc.ReceiveMessageOperation(0))
        while True:
            with self._lock:
                if not self._due:
                    break
            try:
                event = self._call.next_event()  # lets go of the interpreter, and reads the socket
            except BaseException as error:  # no memory for the message; a signal in the main thread
                with self._lock:
                    self._due = 0  # gRPC has destroyed the queue
                    self._status = self._status or _Lost(error)
                raise
            with self._lock:
                self._due -= 1
                message = self._take(event.batch_operations)
            if message is not None:
                return message
        status = self._status
        if status.code() == self._grpc.StatusCode.ok:
            raise StopIteration
        code = _CODES.get(status.code(), grpc.StatusCode.UNKNOWN)
        raise Ended(code, status.details(), status.trailing_metadata() or ())

    def _take(self, operations: Any) -> bytes | None:
        """See to what has been done; return the message that came with it."""
        types = self._grpc.OperationType
        message: bytes | None = None
        for operation in operations:
            kind = operation.type()
            if kind == types.receive_message:
                message = operation.message()
            elif kind == types.send_message:
                self._sending = False
                self._send_unsent()
            elif kind == types.receive_status_on_client:
                self._status = operation
        return message

    def _send_unsent(self) -> None:
        # gRPC takes one message at a time.
        if self._unsent is not None and not self._sending:
            message, self._unsent = self._unsent, None
            self._sending = self._operate(self._grpc.SendMessageOperation(message, 0))

    def _operate(self, operation: Any) -> bool:
        """Have gRPC do something, if the call is not over."""
        if self._status is not None or not self._call.operate((operation,), None):
            return False
        self._due += 1
        return True


class PlainConversation:
    """A call by what grpcio offers to everybody; see `Call`.

    Behind its end nothing of gRPC's call is kept. It is the error that it raises, so a traceback
    would keep it alive in a circle; and it takes a lock as it dies, which the interpreter, at its
    exit, may have left for ever in the hands of gRPC's own thread.
    """

    def __init__(self, channel: grpc.Channel, method: str, opening: bytes) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._requests.put(opening)
        start = channel.stream_stream(method, request_serializer=None, response_deserializer=None)
        self._call: Any = start(iter(self._requests.get, None), wait_for_ready=True)
        self._end: tuple[grpc.StatusCode, str, Any] | None = None

    def send(self, message: bytes) -> None:
        """Send a message."""
        self._requests.put(message)

    def cancel(self) -> None:
        """End the call, and the thread of gRPC that waits for messages to send."""
        call = self._call
        if call is not None:
            call.cancel()
        # Behind it: the end of what we send could let the server end the call before that.
        self._requests.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._call is not None:
            try:
                message: bytes = next(self._call)
            except StopIteration:
                self._call = None
            except grpc.RpcError as call:
                self._end = call.code(), call.details() or "", call.trailing_metadata() or ()
                call.__traceback__ = self._call = None
            else:
                return message
        if self._end is None:
            raise StopIteration
        raise Ended(*self._end)


__all__ = ["IS_KNOWN", "KNOWN_GRPC", "Call", "Conversation", "PlainConversation", "converse"]
