"""One `Feed.Read`: a bidirectional call by what grpcio offers to everybody."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import grpc


class Ended(grpc.RpcError):
    """How a call ended, if not with OK; made again for every caller that asks."""

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


class Conversation:
    """An open call. One thread iterates, to the end; any thread sends or cancels.

    A call to a server that is away may wait until it is back, or until it is cancelled.

    After its end nothing of gRPC's call is kept. It is the error that it raises, so a traceback
    would keep it alive in a circle; and it takes a lock as it dies, which the interpreter, at its
    exit, may have left for ever in the hands of gRPC's own thread.

    Args:
        channel: Where to.
        method: `/package.Service/Method`, bidirectional.
        opening: The first message.
        metadata: What the call shows.
        waits: Wait for a server that is away; else the call ends with that.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        method: str,
        opening: bytes,
        *,
        metadata: tuple[tuple[str, str | bytes], ...] = (),
        waits: bool = True,
    ) -> None:
        # Written in C: `put` has happened or has not, wherever a signal handler raises.
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._requests.put(opening)
        start = channel.stream_stream(method, request_serializer=None, response_deserializer=None)
        self._call: Any = start(
            iter(self._requests.get, None), metadata=metadata, wait_for_ready=waits
        )
        self._end: tuple[grpc.StatusCode, str, Any] | None = None

    def send(self, message: bytes) -> None:
        """Send a message; takes no lock."""
        self._requests.put(message)

    def cancel(self) -> None:
        """End the call, and the thread of gRPC that waits for messages to send; idempotent.

        It takes gRPC's locks, so it is not for a thread on which signal handlers run.
        """
        call = self._call
        if call is not None:
            call.cancel()
        # After it: the end of what we send could let the server end the call before that.
        self._requests.put(None)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        """Return the next message.

        Raises:
            grpc.RpcError: The call ended with another status than OK.
        """
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
