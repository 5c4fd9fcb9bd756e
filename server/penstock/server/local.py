"""`local:FILE`: a job in this very process, by the same messages as a server sends.

For a notebook, for tests, and to check what a server sent: the bytes are the same. The store
is opened only where a group is used, so a running server keeps its own to itself.
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import uuid
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

from penstock.server.config import Config, load
from penstock.server.core.refs import Verdict
from penstock.server.job import Job
from penstock.server.pipeline.count import ensure_counted
from penstock.server.pipeline.items import Items, VerdictBook
from penstock.server.pipeline.line import Computed, Line, compute
from penstock.server.pipeline.made import MadeOffsets
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
from penstock.server.store import open_store
from penstock.server.store.base import Seen, Store
from penstock.wire import frame
from penstock.wire.errors import BadFrame, InvalidRequest
from penstock.wire.v1 import feed_pb2

T = TypeVar("T")


class Marks:
    """How far the readers of one log, in this process, have had it planned.

    Attributes:
        planned: By lane, the offset below which batches were made.
        asked: Offsets of any lane below this were made, or are being made.
        made: The batches themselves.
    """

    def __init__(self) -> None:
        self.planned: dict[int, int] = {}
        self.asked = 0
        self.made = MadeOffsets()

    def seen(self, job: Job, verdict: Verdict) -> Seen:
        """Return what a store must know of before it takes a verdict."""
        planned = self.planned.get(verdict.lane, 0)
        if verdict.stage != "draw":
            planned = verdict.offset + 1 if (verdict.lane, verdict.offset) in self.made else 0
        return Seen(job.order, planned, self.asked)


class LocalLoader:
    """Computes batches of one job in this process.

    Args:
        job: The job.
        verdicts: The verdicts that hold; None = none, and new ones stay in this process.
        marks: Where to note what was planned.
    """

    def __init__(
        self, job: Job, verdicts: VerdictBook | None = None, marks: Marks | None = None
    ) -> None:
        self.job = job
        self._items = Items(job, verdicts)
        self._lines: dict[int, Line] = {}
        self._marks = marks or Marks()

    def batch(self, position: int, opening: Opening | None = None) -> Computed:
        """Return the batch at a position; going upwards is cheap, going back starts a lane again.

        Raises:
            PastEnd, PositionFar: There is no such position, or it is too far.
        """
        tail = opening.tail if opening is not None else None
        source = tail.blanked(position) if tail is not None else None
        lane, offset = self.job.order.address(position if source is None else source)
        line = self._lines.get(lane)
        if line is None or line.offset > offset:
            # A lane whose batch failed is started again, too: its state may be half changed.
            line = Line(self.job, lane, self._items)
        self._lines.pop(lane, None)
        self._marks.asked = max(self._marks.asked, offset + 1)
        computed = compute(self.job, position, tail, line)
        self._marks.made.add(lane, offset)
        self._marks.planned[lane] = max(self._marks.planned.get(lane, 0), offset + 1)
        self._lines[lane] = line
        return computed


class LocalTransport:
    """A `penstock.wire.transport.Transport` over jobs in this process.

    Args:
        config: The job file.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._node = f"local-{uuid.uuid4().hex[:8]}"
        self._runner: asyncio.Runner | None = None
        self._store: Store | None = None
        self._lock = threading.Lock()
        self._marks: dict[bytes, Marks] = {}
        self._books: dict[bytes, VerdictBook] = {}

    def unary(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Answer `Feed/Describe`, `Feed/Status` or a method of `Cursors`."""
        for job in self._config.jobs.values():
            ensure_counted(job)
        service, _, name = method.partition("/")
        if service == "Cursors" and name in Cursors.METHODS:
            with self._lock:
                return self._run(self._cursors_call(name, request))
        if name == "Describe":
            reply = describe(
                self._config.jobs,
                feed_pb2.DescribeRequest.FromString(request),
                node=self._node,
                store=self._store.uuid if self._store is not None else "",
            )
            return reply.SerializeToString()
        if name == "Status":
            return feed_pb2.StatusReply(json=json.dumps(self._status())).SerializeToString()
        raise InvalidRequest(f"there is no method {method!r}", method=method)

    def read(self, opening: bytes) -> LocalRead:
        """Open `Feed/Read`: batches are computed by whoever iterates."""
        return LocalRead(self, opening)

    def check_token(self, request: feed_pb2.Open) -> None:
        """Refuse a reader of an older attempt."""
        if request.group and request.token:
            with self._lock:
                store = self._open_store()
                self._run(
                    store.check_token(request.job, request.group, request.token, request.generation)
                )

    def loader(self, job: Job, *, stored: bool) -> LocalLoader:
        """Return a loader; `stored` = it obeys the store's verdicts, and puts new ones there."""
        if not stored:
            return LocalLoader(job)
        marks = self._marks.setdefault(job.log_id, Marks())

        def insert(verdict: Verdict) -> Verdict:
            with self._lock:
                seen = marks.seen(job, verdict)
                store = self._open_store()
                return self._run(store.add_verdict(job.log_id, verdict, seen, job.max_quarantined))

        with self._lock:
            book = self._books.get(job.log_id)
            if book is None:
                known = self._run(self._open_store().verdicts(job.log_id))
                # One for all readers here: what one of them finds, or releases, all obey.
                book = self._books[job.log_id] = VerdictBook(known, insert)
        return LocalLoader(job, book, marks)

    async def _release(self, job: Job, source: str, index: int) -> list[Verdict]:
        assert self._store is not None
        asked = self._marks[job.log_id].asked if job.log_id in self._marks else 0
        seen = Seen(job.order, asked=asked)
        found = await self._store.release_verdicts(job.log_id, source, index, seen)
        if (book := self._books.get(job.log_id)) is not None:
            book.learn(found)
        return found

    @property
    def node(self) -> str:
        """Return the name of this incarnation."""
        return self._node

    @property
    def jobs(self) -> Any:
        """Return the jobs by name."""
        return self._config.jobs

    def close(self) -> None:
        """Let go of the store."""
        with self._lock:
            if self._store is not None:
                self._run(self._store.close())
                self._store = None
            if self._runner is not None:
                self._runner.close()
                self._runner = None

    def _status(self) -> dict[str, Any]:
        """Return what there is of a node's status: no workers, and no reader but the caller."""
        jobs = [
            {"name": name, "log_id": job.log_id.hex(), "lanes": job.lanes, "groups": []}
            for name, job in sorted(self._config.jobs.items())
        ]
        return {"version": VERSION, "node": self._node, "workers": [], "jobs": jobs}

    async def _cursors_call(self, name: str, request: bytes) -> bytes:
        store = self._store
        if store is None:
            store = open_store(self._config.server.store, self._config.base)
            await store.open()
            self._store = store
        return await Cursors(self._config.jobs, store, release=self._release).call(name, request)

    def _open_store(self) -> Store:
        if self._store is None:
            store = open_store(self._config.server.store, self._config.base)
            self._run(store.open())
            self._store = store
        return self._store

    def _run(self, awaitable: Awaitable[T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def wait() -> T:
            return await awaitable

        return self._runner.run(wait())


class LocalRead:
    """One Read in this process: an iterator of serialized `ReadReply` messages.

    Batches are computed one at a time, when asked for, and never beyond the reader's horizon.
    """

    def __init__(self, transport: LocalTransport, opening: bytes) -> None:
        self._transport = transport
        # What `send` was given; None = cancelled.
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._horizon = 0
        self._cancelled = False
        self._messages = self._stream(opening)

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._messages)

    def cancel(self) -> None:
        """End the iteration from any thread."""
        self._cancelled = True
        self._requests.put(None)

    def send(self, request: bytes) -> None:
        """Move the horizon; takes no lock, see `ReadCall.send`."""
        self._requests.put(request)

    def _stream(self, request: bytes) -> Iterator[bytes]:
        message = parse_request(request)
        if message.WhichOneof("kind") != "open":
            raise BadFrame("the first message of a Read must be `open`")
        opening = open_read(self._transport.jobs, message.open)
        self._transport.check_token(message.open)
        self._horizon = message.open.horizon
        yield opened(opening, self._transport.node).SerializeToString()
        # Who reads for a group obeys its store's verdicts, as a server does: else an item that
        # fails no longer, or not here, would move every item behind it.
        stored = bool(message.open.group) and opening.job.on_item_error == "quarantine"
        loader = self._transport.loader(opening.job, stored=stored)
        end = opening.tail.end if opening.tail is not None else None
        for position in opening.share.walk(opening.start):
            if end is not None and position >= end:
                assert opening.tail is not None
                yield ended(opening.tail).SerializeToString()
                return
            lane = opening.job.order.address(_source(opening, position)).lane
            if opening.lanes is not None and lane not in opening.lanes:
                continue
            if not self._wait_for(position):
                return
            computed = loader.batch(position, opening)
            header = feed_pb2.BatchHeader.FromString(computed.header)
            yield from frame.batch_messages(
                computed.header, header.lane, header.offset, computed.body
            )

    def _wait_for(self, position: int) -> bool:
        """Wait until the horizon lies beyond a position; tell whether it came so far."""
        while self._horizon <= position and not self._cancelled:
            request = self._requests.get()
            if request is None:
                break
            message = parse_request(request)
            if message.WhichOneof("kind") != "horizon":
                raise BadFrame("after `open` a consumer sends only `horizon`")
            self._horizon = max(self._horizon, message.horizon.horizon)
        return not self._cancelled


def _source(opening: Opening, position: int) -> int:
    source = opening.tail.blanked(position) if opening.tail is not None else None
    return position if source is None else source


def open_transport(rest: str) -> LocalTransport:
    """Return the transport of `local:FILE`: an entry point of the group `penstock.transports`.

    Raises:
        InvalidJob: The file is no job file.
    """
    return LocalTransport(load(rest))


__all__ = ["LocalLoader", "LocalRead", "LocalTransport", "open_transport"]
