"""`Feed` and `Cursors` as the child process of `local:` answers them: in threads, without gRPC.

It is the twin of `read` and `service`, and speaks the same messages.
"""

from __future__ import annotations

import json
import queue
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.server.rpc.cursor_calls import Cursors
from penstock.server.rpc.opening import (
    OpenedRead,
    describe,
    ended,
    open_read,
    opened,
    parse_horizon,
    parse_open,
)
from penstock.wire import frame
from penstock.wire.errors import InvalidRequest
from penstock.wire.parse import parse
from penstock.wire.v1 import cursors_pb2, feed_pb2

if TYPE_CHECKING:
    from penstock.server.transports.local_node import LocalNode


class LocalService:
    """Answers calls, each in the thread of its caller.

    Args:
        node: Computes, and has the store.
    """

    def __init__(self, node: LocalNode) -> None:
        self._node = node

    def unary(self, method: str, request: bytes) -> bytes:
        """Answer `Feed/Describe`, `Feed/Status` or a method of `Cursors`.

        Raises:
            InvalidRequest: The method is unknown.
            PenstockError: The call fails.
        """
        service, _, name = method.partition("/")
        if service == "Cursors" and name in Cursors.METHODS:
            job = parse(getattr(cursors_pb2, f"{name}Request"), request).job
            return self._node.cursors(name, job, request)
        if name == "Describe":
            return self._describe(parse(feed_pb2.DescribeRequest, request))
        if name == "Status":
            return feed_pb2.StatusReply(json=json.dumps(self._node.status())).SerializeToString()
        raise InvalidRequest(f"there is no method {method!r}", field="method", value=method)

    def _describe(self, asked: feed_pb2.DescribeRequest) -> bytes:
        node = self._node
        reply = node.with_jobs(
            asked.job,
            lambda jobs: describe(
                jobs,
                asked,
                node=node.name,
                node_id=f"{socket.gethostname()}/local",
                store=node.store_uuid,
                numbered=node.numbering,
                count=node.count,
            ),
        )
        return reply.SerializeToString()

    def read(self, request: bytes) -> LocalRead:
        """Open `Feed/Read`."""
        return LocalRead(self._node, request)


class LocalRead:
    """One Read: an iterator of serialized `ReadReply` messages.

    Batches are computed one at a time, when asked for, and never beyond the reader's horizon.
    """

    def __init__(self, node: LocalNode, opening: bytes) -> None:
        self._node = node
        # What `send` was given; None = cancelled.
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._horizon = self._next = self._bytes_limit = self._sent_bytes = 0
        self._cancelled = False
        self._messages = self._stream(parse_open(opening))

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._messages)

    def cancel(self) -> None:
        """End the iteration from any thread."""
        self._cancelled = True
        self._requests.put(None)

    def send(self, request: bytes) -> None:
        """Move the horizon."""
        self._requests.put(request)

    def _stream(self, asked: feed_pb2.Open) -> Iterator[bytes]:
        opening = self._open(asked)
        self._move(asked.horizon, asked.next, asked.bytes_limit)
        yield opened(opening, self._node.name).SerializeToString()
        # A reader with a group obeys its store's verdicts, as a server does: else an item that no
        # longer fails, or not here, would move every item after it.
        stored = bool(asked.group) and opening.job.on_item_error == "quarantine"
        loader = self._node.loader(opening, stored=stored)
        for position in opening.share.walk(opening.start):
            if opening.tail is None and not self._wait_for(position):
                return  # it takes work to know what stands there, and whether anything does
            lane = self._node.lane_at(loader, opening, position)
            if lane is None:
                opening.check_start()
                tail = opening.tail
                assert tail is not None
                dropped = self._node.dropped_samples(loader, tail)
                yield ended(tail, dropped).SerializeToString()
                return
            if opening.lanes is not None and lane not in opening.lanes:
                continue
            if not self._wait_for(position):
                return
            computed = self._node.compute(loader, opening, position)
            header = frame.read_header(computed.header)
            if not self._wait_for(position, header.body_bytes):
                return
            self._sent_bytes += header.body_bytes
            yield from frame.batch_messages(
                computed.header, header.lane, header.offset, computed.body
            )

    def _open(self, asked: feed_pb2.Open) -> OpenedRead:
        """Check an opening, and refuse a reader of an older attempt."""
        opening = self._node.with_jobs(
            asked.job, lambda jobs: open_read(jobs, asked, self._node.numbering)
        )
        if asked.group and asked.token:
            self._node.check_token(asked.job, asked.group, asked.token, asked.generation)
        return opening

    def _wait_for(self, position: int, nbytes: int = 0) -> bool:
        """Wait until the reader accepts a position, of so many bytes; tell whether it does.

        Args:
            position: Which.
            nbytes: Its size; 0 = it is not known yet.
        """
        while not self._cancelled and not self._accepts(position, nbytes):
            request = self._requests.get()
            if request is None:
                break
            moved = parse_horizon(request)
            self._move(moved.horizon, moved.next, moved.bytes_limit)
        return not self._cancelled

    def _accepts(self, position: int, nbytes: int) -> bool:
        has_room = (
            not self._bytes_limit
            or position <= self._next
            or self._sent_bytes + nbytes <= self._bytes_limit
        )
        return position < self._horizon and has_room

    def _move(self, horizon: int, position: int, bytes_limit: int) -> None:
        self._horizon = max(self._horizon, horizon)
        self._next = max(self._next, position)
        self._bytes_limit = max(self._bytes_limit, bytes_limit)


__all__ = ["LocalRead", "LocalService"]
