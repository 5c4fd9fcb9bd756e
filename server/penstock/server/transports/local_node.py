"""The child process of `local:`: it computes what its parent's transport asks for.

It is started as `python -m penstock.server.transports.local_node FD PAGE_FD PARENT CAREFUL TARGET`,
in the environment of the workers. Roles run in its main thread alone, one after another, as in a
worker; each call has a thread that waits for horizons and writes. The store is opened only where a
group is used, so a running server keeps its own to itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from typing import Any, BinaryIO, TypeVar

from penstock.common.malloc import keep_memory
from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.jobs.load import Config, load
from penstock.server.node.protocol.channel import receive
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder, SoFar
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.line import Computed
from penstock.server.process.allocator import withdraw
from penstock.server.processes.child import die_with_parent, told
from penstock.server.processes.page import Page
from penstock.server.rpc.cursor_calls import Cursors
from penstock.server.rpc.opening import VERSION, OpenedRead
from penstock.server.store import open_store
from penstock.server.store.contract import Store
from penstock.server.store.recorded import Recorded, version_warning
from penstock.server.store.records import Seen
from penstock.server.transports.local import (
    END,
    FAILED,
    MESSAGE,
    SAID,
    SEND,
    UNARY,
    LocalLoader,
    Marks,
    pack_frame,
    read_frame,
)
from penstock.server.transports.local_calls import LocalService
from penstock.server.usercode.contained import contained
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import Internal, PastEnd, PenstockError
from penstock.wire.numbering import Numbering
from penstock.wire.order import Tail

T = TypeVar("T")

COUNT_S = 0.5
"""How long a job is counted for one question about its length: batches wait meanwhile."""

END_S = 5.0
"""A child whose parent has hung up ends within this time, whatever a role does meanwhile."""

logger = logging.getLogger("penstock")


class Turns:
    """The main thread: it runs what other threads ask for, one after another."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._ending = False

    def take(self, call: Callable[[], T]) -> T:
        """Have the main thread call, and return or raise what comes of it; from any other."""
        future: Future[T] = Future()
        self._asked.put((future, call))
        return future.result()

    def end(self) -> None:
        """Let `run` return when the current call is done."""
        self._ending = True
        self._asked.put(None)

    def run(self) -> None:
        """Call, until `end`."""
        while (asked := self._asked.get()) is not None and not self._ending:
            future, call = asked
            try:
                future.set_result(contained(call))
            except BaseException as error:  # for the thread that asked
                future.set_exception(error)
            # What it made is the asker's: an idle main thread must not keep it.
            del asked, future, call


class LocalNode:
    """What answers: the jobs of a file, their store, and the main thread.

    Args:
        target: The job file; read at the first call.
        turns: Where everything runs that touches a role.
        page: Where it is noted what runs.
        careful: Items one at a time.
    """

    def __init__(self, target: str, turns: Turns, page: Page, *, careful: bool) -> None:
        self._target, self._turns, self._page, self._careful = target, turns, page, careful
        self._node = f"local-{uuid.uuid4().hex[:8]}"
        self._loaded: Config | None = None
        self._built: set[str] = set()
        self._lane: int | None = None  # what is computed now
        self._runner: asyncio.Runner | None = None
        self._store: Store | None = None
        self._compared: set[bytes] = set()  # logs whose libraries were compared
        self._computed: dict[bytes, int] = {}  # by log: offsets of any lane below this
        self._marks: dict[bytes, Marks] = {}
        self._books: dict[bytes, VerdictBook] = {}
        self._lock = threading.Lock()  # guards the runner, the store and both of these
        self._orders: dict[str, KnownOrder] = {}
        self._order_lock = threading.Lock()

    def with_jobs(self, name: str, call: Callable[[Mapping[str, Job]], T]) -> T:
        """Have the main thread call with the jobs, the one of this name built."""
        return self._turns.take(lambda: call(self._jobs(name)))

    def check_token(self, job: str, group: str, token: str, generation: int) -> None:
        """Refuse a reader of an older attempt.

        Raises:
            StaleGeneration: A newer attempt has taken over.
        """
        with self._lock:
            store = self._open_store()
            self._run(store.check_token(job, group, token, generation))

    @property
    def store_uuid(self) -> str:
        """Return which store this is; empty = none was opened yet."""
        return self._store.uuid if self._store is not None else ""

    def status(self) -> dict[str, Any]:
        """Return what there is of a node's status: no workers, and no reader but the caller."""
        return self._turns.take(self._status)

    def cursors(self, method: str, job: str, request: bytes) -> bytes:
        """Answer a call about cursors; about a job that is built it waits for no batch."""
        if job not in self._built:
            self._turns.take(lambda: self._jobs(job))
        with self._lock:
            jobs, store = self._config().jobs, self._open_store()
            cursors = Cursors(
                jobs, store, numbered=self.numbering, release=self._release, asked=self._asked
            )
            return self._run(cursors.call(method, request))

    def loader(self, opening: OpenedRead, *, stored: bool) -> LocalLoader:
        """Return a loader; `stored` = it obeys the store's verdicts, and puts new ones there."""
        job = opening.job

        def note(stage: str, item: ItemRef | None) -> None:
            self._note(job, stage, item)

        book, marks = self._verdicts(job) if stored else (None, None)
        if marks is not None:
            marks.note_given(opening.given())

        config = self._config()
        recorded = Recorded(config.server.store, config.base)
        return LocalLoader(
            job,
            book,
            marks,
            progress=note,
            careful=self._careful,
            recorded=recorded,
            order=self._order(job),
        )

    def _note(self, job: Job, stage: str, item: ItemRef | None) -> None:
        self._page.note(stage, job.name, self._lane, item)

    def lane_at(self, loader: LocalLoader, opening: OpenedRead, position: int) -> int | None:
        """Return the lane of the batch at a position; None = it lies past the end."""
        try:
            return self._turns.take(lambda: loader.locate(position, opening.cut)).lane
        except PastEnd:
            return None

    def compute(self, loader: LocalLoader, opening: OpenedRead, position: int) -> Computed:
        """Compute a batch when it is its turn."""

        def batch() -> Computed:
            lane, lane_offset, _ = loader.locate(position, opening.cut)
            self._lane = lane
            self._page.note("plan", loader.job.name, lane)
            try:
                filler = opening.share.is_filler(position)
                computed = loader.batch(position, opening.cut, filler=filler)
                log_id = loader.job.log_id
                self._computed[log_id] = max(self._computed.get(log_id, 0), lane_offset + 1)
                self._compare_versions(loader.job)
                return computed
            finally:
                self._page.note("idle")

        return self._turns.take(batch)

    def dropped_samples(self, loader: LocalLoader, tail: Tail) -> int:
        """Return how many samples lie in the batches of a log's end that fill no step."""
        positions = range(tail.end, tail.batches)
        return self._turns.take(lambda: sum(map(loader.samples, positions)))

    def _compare_versions(self, job: Job) -> None:
        """Say once where a log is computed with other libraries than it began with.

        Where this process holds the store, for a group, that was said as the group began.
        """
        if job.log_id in self._compared:
            return
        self._compared.add(job.log_id)
        config = self._config()
        if self._store is None and (
            warning := version_warning(config.server.store, config.base, job)
        ):
            logger.warning("%s", warning)

    @property
    def name(self) -> str:
        """Return the name of this incarnation."""
        return self._node

    def close(self) -> None:
        """Close the store."""
        with self._lock:
            if self._store is not None:
                self._run(self._store.close())
                self._store = None
            if self._runner is not None:
                self._runner.close()
                self._runner = None

    # --- in the main thread ---

    def _config(self) -> Config:
        if self._loaded is None:
            self._loaded = load(self._target)
        return self._loaded

    def _jobs(self, name: str) -> Mapping[str, Job]:
        """Return the jobs, the one of this name built: that is where roles first run."""
        self._page.note("build", name)
        try:
            jobs = self._config().jobs
            if not name and len(jobs) == 1:
                [name] = jobs
            if name in jobs:
                _ = jobs[name].log_id
                jobs[name].check_not_empty(self.numbering(jobs[name]))
                self._built.add(name)
            return jobs
        finally:
            self._page.note("idle")

    def _status(self) -> dict[str, Any]:
        jobs = [
            {"name": name, "log_id": job.log_id.hex(), "lanes": job.lanes, "groups": []}
            for name, job in sorted(self._config().jobs.items())
        ]
        return {"version": VERSION, "node": self._node, "workers": [], "jobs": jobs}

    # --- what is known of orders ---

    def _order(self, job: Job) -> KnownOrder:
        """Return what is known of the order of a job's log."""
        with self._order_lock:
            if job.name not in self._orders:
                items = Items(job, progress=lambda stage, item: self._note(job, stage, item))
                items.careful = self._careful
                self._orders[job.name] = KnownOrder(job, items)
            return self._orders[job.name]

    def numbering(self, job: Job) -> Numbering:
        """Return what is known of the order of a job's log; from any thread."""
        return self._order(job).numbering

    def count(self, job: Job) -> SoFar | None:
        """Count a job for a moment, in the main thread; say how far that is, None = to the end."""
        order, until_s = self._order(job), time.monotonic() + COUNT_S
        try:
            order.count(lambda: time.monotonic() > until_s)
        except PenstockError as error:
            # Its readers meet the same, where it holds them up.
            return SoFar(f"it cannot be counted: {error.message}", is_going_on=False)
        return None if order.numbering.is_complete else SoFar(order.so_far)

    # --- the store, from any thread ---

    def _asked(self, job: Job) -> int:
        """Return below which offset some lane of a job was computed here."""
        return self._computed.get(job.log_id, 0)

    def _verdicts(self, job: Job) -> tuple[VerdictBook, Marks]:
        """Return the verdicts of a log that the store holds; new ones are inserted there."""

        def insert(verdict: Verdict) -> Verdict:
            with self._lock:
                seen = marks.seen(self.numbering(job).order, verdict)
                store = self._open_store()
                return self._run(store.add_verdict(job.log_id, verdict, seen, job.max_quarantined))

        with self._lock:
            marks = self._marks.setdefault(job.log_id, Marks())
            book = self._books.get(job.log_id)
            if book is None:
                known = self._run(self._open_store().verdicts(job.log_id))
                # One for all readers here: what one of them finds, or releases, all obey.
                book = self._books[job.log_id] = VerdictBook(known, insert)
        return book, marks

    async def _release(self, job: Job, source: str, index: int) -> list[Verdict]:
        """Release an item; inside a call of `Cursors`, so under the lock."""
        asked = self._marks[job.log_id].asked if job.log_id in self._marks else 0
        seen = Seen(self.numbering(job).order, asked=asked)
        found = await self._open_store().release_verdicts(job.log_id, source, index, seen)
        if (book := self._books.get(job.log_id)) is not None:
            book.learn(found)
        return found

    def _open_store(self) -> Store:
        if self._store is None:
            config = self._config()
            store = open_store(config.server.store, config.base)
            self._run(store.open())
            self._store = store
        return self._store

    def _run(self, awaitable: Awaitable[T]) -> T:
        if self._runner is None:
            self._runner = asyncio.Runner()

        async def wait() -> T:
            return await awaitable

        return self._runner.run(wait())


class Said(logging.Handler):
    """Keeps what penstock logs here until the next message: the parent logs it."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[bytes] = deque(maxlen=100)

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record."""
        self._lines.append(json.dumps([record.levelno, record.getMessage()]).encode())

    def take(self) -> bytes:
        """Return all that was not taken yet, as frames."""
        frames = b""
        with contextlib.suppress(IndexError):
            while True:
                frames += pack_frame(SAID, self._lines.popleft())
        return frames


class Answerer:
    """Takes calls and answers each in a thread of its own.

    Args:
        node: What answers.
        said: What was logged.
    """

    def __init__(self, node: LocalNode, said: Said) -> None:
        self._service, self._said = LocalService(node), said

    def listen(self, control: socket.socket) -> None:
        """Take calls until the parent hangs up."""
        with contextlib.suppress(OSError):
            while True:
                data, fds = receive(control)
                for fd in fds:
                    thread = threading.Thread(
                        target=self._answer, args=(socket.socket(fileno=fd),), daemon=True
                    )
                    thread.start()
                if not data:
                    return

    def _answer(self, sock: socket.socket) -> None:
        with sock, sock.makefile("rb") as file, contextlib.suppress(OSError):
            asked = read_frame(file)
            if asked is None:
                return
            try:
                if asked[0] == UNARY:
                    method, _, request = asked[1].partition(b"\0")
                    reply = self._service.unary(method.decode(), request)
                    sock.sendall(self._said.take() + pack_frame(MESSAGE, reply))
                else:
                    self._read(sock, file, asked[1])
                last = pack_frame(END)
            except OSError:
                raise
            except PenstockError as error:
                last = _failure(error)
            except BaseException as error:
                what = f"a bug in penstock: {error_line(error)}"
                last = _failure(Internal(what, traceback=traceback.format_exc()))
            sock.sendall(self._said.take() + last)
            sock.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for horizons

    def _read(self, sock: socket.socket, file: BinaryIO, opening: bytes) -> None:
        reading = self._service.read(opening)

        def listen() -> None:
            with contextlib.suppress(OSError, ValueError):  # the other thread has closed it
                while (sent := read_frame(file)) is not None and sent[0] == SEND:
                    reading.send(sent[1])
            reading.cancel()

        threading.Thread(target=listen, daemon=True).start()
        for message in reading:
            sock.sendall(self._said.take() + pack_frame(MESSAGE, message))


def _failure(error: PenstockError) -> bytes:
    return pack_frame(FAILED, json.dumps(told(error)).encode())


def main(argv: list[str]) -> None:
    """Answer calls until the parent hangs up."""
    withdraw()  # before anything here starts a process of its own
    control_fd, page_fd, parent, careful, target = argv
    die_with_parent()
    if os.getppid() != int(parent):
        return  # the parent died before that took effect
    # Ctrl-C and SIGTERM are the trainer's to handle: this process ends when it hangs up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    keep_memory()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # what a role prints is read while it runs
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    said = Said()
    logging.getLogger("penstock").addHandler(said)
    logging.getLogger("penstock").propagate = False
    turns = Turns()
    page = Page(int(page_fd), write=True)
    page.note("idle")
    node = LocalNode(target, turns, page, careful=careful == "careful")
    control = socket.socket(fileno=int(control_fd))

    def serve() -> None:
        Answerer(node, said).listen(control)
        turns.end()
        threading.Event().wait(END_S)
        os._exit(0)  # a role goes on and on, and nobody wants what it makes

    threading.Thread(target=serve, daemon=True).start()
    turns.run()
    node.close()


if __name__ == "__main__":
    main(sys.argv[1:])
