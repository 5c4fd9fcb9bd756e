"""`local:FILE`: a job in a process of its own beside this one, by the messages that a server sends.

For a notebook, for tests, and to check what a server sent: the bytes are the same. Roles run in a
child process with the environment of the workers (`penstock.server.process.environment`): the
trainer keeps its random generators, its threads and its modules to itself, and a role sees what it
sees in a worker. The child (`penstock.server.transports.local_node`) starts with the first call and
ends with `close`, with the Loader that is collected, or with this process, however that ends.

Every call has a socket of its own, which only the thread that made the call reads. So whatever
breaks a call off, a Ctrl-C too, concerns no other.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import logging
import mmap
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import weakref
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from penstock.server.core.verdict import Verdict
from penstock.server.jobs.target import absolute_target
from penstock.server.node.demand.made import MadeOffsets
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.pipeline.line import (
    Computed,
    Line,
    check_reachable,
    compute,
    nearest_line,
    replay_cost,
)
from penstock.server.pipeline.retry import Progress
from penstock.server.process.allocator import preloaded
from penstock.server.process.environment import worker_environment
from penstock.server.process.extra import require_server
from penstock.server.store.recorded import Recorded
from penstock.server.store.records import Seen
from penstock.wire.errors import (
    ERRORS,
    DataTimeout,
    ForkedLoader,
    Internal,
    InvalidRequest,
    PenstockError,
    Unreachable,
    WorkerCrashed,
)
from penstock.wire.frame import Reply, parse_replies

if TYPE_CHECKING:
    from penstock.server.job.job import Job
    from penstock.server.processes.page import Note
    from penstock.wire.numbering import Located
    from penstock.wire.order import Cut, Order

logger = logging.getLogger("penstock")

MAX_DEATHS = 3
"""So often the child may die at the same work before that is an error, as a node's workers may."""

ANSWER_S = 540.0
"""A short call may have to build a job first: to read its files once, to import torch."""

GRACE_S = 2.0
"""How long a child that is told to end may take, before it is killed."""


class Marks:
    """How far the readers of one log, in this process, have had it planned.

    Attributes:
        planned: By lane, the offset below which batches were made, or given by another process.
        asked: Offsets of any lane below this were made, or are being made.
        made: The batches themselves.
    """

    def __init__(self) -> None:
        self.planned: dict[int, int] = {}
        self.asked = 0
        self.made = MadeOffsets()

    def note_given(self, offsets: Mapping[int, int]) -> None:
        """Take in, by lane, the offset below which a reader was given batches before."""
        for lane, offset in offsets.items():
            self.planned[lane] = max(self.planned.get(lane, 0), offset)
            self.asked = max(self.asked, offset)

    def seen(self, order: Order, verdict: Verdict) -> Seen:
        """Return what a store must know of before it takes a verdict, in a log of this order."""
        planned = self.planned.get(verdict.lane, 0)
        if verdict.stage != "draw":
            planned = verdict.offset + 1 if (verdict.lane, verdict.offset) in self.made else 0
        return Seen(order, planned, self.asked)


class LocalLoader:
    """Computes batches of one job, in the process that calls it.

    `local:` runs it in a child process, as the module says. Called directly it computes under the
    environment of the caller's process, and puts the global random generators back after each item.

    Args:
        job: The job.
        verdicts: The verdicts that hold; None = none, and new ones stay in this process.
        marks: Where to note what was planned.
        progress: Told (stage, item) before anything that may take long or crash.
        careful: One item at a time, so that `progress` names the one that crashes.
        recorded: The store that snapshots are looked for in; None = every lane is planned from its
            beginning.
        order: What is known of the job's order; None = it is found out here.
    """

    def __init__(
        self,
        job: Job,
        verdicts: VerdictBook | None = None,
        marks: Marks | None = None,
        *,
        progress: Progress | None = None,
        careful: bool = False,
        recorded: Recorded | None = None,
        order: KnownOrder | None = None,
    ) -> None:
        self.job, self._recorded, self._has_told = job, recorded, False
        self._items = Items(job, verdicts, progress)
        self._items.careful = careful
        self._lines: dict[int, Line] = {}
        self._marks = marks or Marks()
        self._order = order or KnownOrder(job)

    def batch(self, position: int, cut: Cut | None = None, *, filler: bool = False) -> Computed:
        """Return the batch at a position; going upwards is cheap, going back starts a lane again.

        Args:
            position: Which.
            cut: How a finite log is cut into steps: a padding position gives the blanked batch.
            filler: As for `compute`.

        Raises:
            PastEnd, PositionFar: There is no such position, or it is too far.
        """
        located = self.locate(position, cut)
        lane, offset, _ = located
        # Taken out: a lane whose batch fails is started again, its state may be half changed.
        line = self._lines.pop(lane, None)
        if line is None or not line.has_plan(offset):
            line = nearest_line(self.job, lane, offset, self._items, line, self._nearest)
        line.kept_plans = self._step_rows(cut)
        self._tell(line, offset)
        self._marks.asked = max(self._marks.asked, offset + 1)
        computed = compute(self.job, position, located, line, filler=filler)
        self._marks.made.add(lane, offset)
        self._marks.planned[lane] = max(self._marks.planned.get(lane, 0), offset + 1)
        self._lines[lane] = line
        self._learn(line)
        return computed

    def locate(self, position: int, cut: Cut | None = None) -> Located:
        """Return which batch stands at a position; plan what that depends on, where necessary.

        It is planned by the lines that make batches: what is processed for it is not lost to them.

        Raises:
            PastEnd: It lies past the end.
            PenstockError: A lane cannot be planned.
        """
        kept = self._step_rows(cut)
        return self._order.locate(position, cut, lambda lane, at: self._look(lane, at, kept))

    def _step_rows(self, cut: Cut | None) -> int:
        """Return of how many batches of a lane those of a step may be, at most."""
        return 2 + (0 if cut is None else cut.batches_per_step // self.job.lanes)

    def _look(self, lane: int, offset: int, kept: int) -> None:
        line = self._lines.pop(lane, None)
        # From where its next batch stands, not from there: plans on the way are made, most often.
        start = offset if line is None or line.offset > offset else line.offset
        line = nearest_line(self.job, lane, start, self._items, line, self._nearest)
        line.look(offset, kept)
        self._lines[lane] = line
        self._learn(line)

    def _learn(self, line: Line) -> None:
        self._order.reached(line.lane, line.planner.offset, line.end, line.counters())

    def samples(self, position: int) -> int:
        """Return how many samples the batch at a position has, without making it.

        Raises:
            PastEnd, PositionFar: As `batch`.
        """
        lane, offset, _ = self.locate(position)
        line = self._lines.pop(lane, None)
        line = nearest_line(self.job, lane, offset, self._items, line, self._nearest)
        check_reachable(self.job, line, offset)
        line.skip_to(offset)
        samples = line.advance().samples
        self._lines[lane] = line
        return samples

    def _nearest(self, lane: int, offset: int) -> bytes | None:
        if self._recorded is None:
            return None
        return self._recorded.snapshot(self.job.log_id, lane, offset)

    def _tell(self, line: Line, offset: int) -> None:
        """Say once why a batch takes long."""
        if self._recorded is None or self._has_told:
            return
        if cost := replay_cost(line, offset, self._recorded.why_none()):
            self._has_told = True
            logger.warning("job %r: %s", self.job.name, cost)


# --- how the two processes talk -------------------------------------------------------------------

_HEAD = struct.Struct("<cQ")

UNARY, READ = b"u", b"r"
"""What the first frame of a call asks for: the method, a zero byte and the request; an opening."""

SEND = b"s"
"""From the caller: a further `ReadRequest`. The end of what it sends means that it has gone."""

MESSAGE, SAID, FAILED, END = b"m", b"l", b"f", b"e"
"""To the caller: a message, a line for it to log, an error, and that no more comes."""


def pack_frame(kind: bytes, data: bytes = b"") -> bytes:
    """Return one frame of a call: its kind, the length of its data, and the data."""
    return _HEAD.pack(kind, len(data)) + data


def read_frame(file: BinaryIO) -> tuple[bytes, bytes] | None:
    """Return the kind and the data of the next frame; None if the other side has gone."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    kind, length = _HEAD.unpack(head)
    data = file.read(length)
    return None if len(data) < length else (kind, data)


# --- the side of the caller -----------------------------------------------------------------------


class Work(NamedTuple):
    """What a child was doing as it died; equal for two deaths at the same thing."""

    stage: str
    job: str | None
    lane: int | None
    item: Any

    def __str__(self) -> str:
        of = f" of job {self.job!r}" if self.job else ""
        lane = f", lane {self.lane}" if self.lane is not None else ""
        item = f", item {self.item}" if self.item is not None else ""
        return f"at stage {self.stage}{of}{lane}{item}"


class Child:
    """The process that computes, as the one that started it sees it.

    Args:
        target: The job file.
        careful: Items one at a time, so that a death is blamed on the right one.

    Raises:
        OSError: The system has no memory, process or file descriptor left for it.
    """

    def __init__(self, target: str, *, careful: bool) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._page_fd = os.memfd_create("penstock-page", os.MFD_CLOEXEC)
        os.ftruncate(self._page_fd, mmap.PAGESIZE)
        self.status: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        told: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        command = [sys.executable, "-P", "-m", "penstock.server.transports.local_node"]
        command += [str(theirs.fileno()), str(self._page_fd), str(os.getpid())]
        command += ["careful" if careful else "-", target]

        def own() -> None:
            # The kernel ends the child with the *thread* that started it: this one waits for it.
            try:
                self._process = subprocess.Popen(
                    command,
                    env=preloaded(worker_environment(os.environ)),
                    pass_fds=(theirs.fileno(), self._page_fd),
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # Ctrl-C in the trainer's terminal is not for it
                )
            except BaseException as error:
                told.put(error)
                return
            finally:
                theirs.close()
            told.put(None)
            self.status = self._process.wait()

        try:
            # Not threading.Thread, nor an Event: their locks are left taken for ever where a
            # Ctrl-C meets the thread that waits for them.
            _thread.start_new_thread(own, ())
            failure = told.get()
        except BaseException:
            self.end()
            raise
        if failure is not None:
            self.end()
            raise failure

    def call(self) -> socket.socket:
        """Return our end of a new call.

        Raises:
            OSError: The child has ended.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A packet is sent whole or not at all: no lock, and nothing to tear.
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [theirs.fileno()]).tobytes())
            self._control.sendmsg([b"c"], [rights], socket.MSG_NOSIGNAL)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def wait(self, seconds: float) -> int | None:
        """Return the exit status; None if it has not ended within so many seconds."""
        deadline = time.monotonic() + seconds
        while self.status is None and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.status

    def note(self) -> Note:
        """Return what it noted last about its work."""
        # Here and not above: this is for a death, and its imports are those of a node.
        from penstock.server.processes.page import Page

        return Page(self._page_fd).read()

    def end(self) -> None:
        """End it: it has a moment to do so by itself, and to write out what it has printed."""
        with contextlib.suppress(OSError):
            # Not by closing alone: a fork of ours may hold a copy of the socket.
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        process = self._process
        if process is not None and self.wait(GRACE_S) is None:
            process.kill()
            self.wait(GRACE_S)
        fd, self._page_fd = self._page_fd, -1
        if fd >= 0:
            os.close(fd)


class _Children:
    """The child that there is, apart from the transport: the finalizer must not keep that alive."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.child: Child | None = None
        self.closed = False

    def end(self) -> None:
        if os.getpid() != self.pid:
            return  # a fork: the child is its parent's
        with self.lock:
            self.closed = True
            child, self.child = self.child, None
        if child is not None:
            child.end()


class LocalTransport:
    """A `penstock.wire.transports.Transport` over jobs that a child process computes.

    Args:
        target: A job file, or `jobs.py:name`.
    """

    memory = None

    def __init__(self, target: str) -> None:
        self.target = target
        self._children = _Children()
        self._deaths: Counter[Work] = Counter()
        self._finalizer = weakref.finalize(self, self._children.end)

    def unary(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Answer `Feed/Describe`, `Feed/Status` or a method of `Cursors`.

        Raises:
            DataTimeout: No answer for `ANSWER_S`, or `timeout_s` where that is longer: whoever
                builds a job is not away, so a short timeout says nothing here.
            PenstockError: What a server would say.
        """
        call = self._call(UNARY, method.encode() + b"\0" + request)
        call.deadline_s = max(timeout_s, ANSWER_S)
        try:
            return next(call)
        except StopIteration:
            raise self._closed() from None
        finally:
            call.release()

    def read(self, opening: bytes) -> LocalRead:
        """Open `Feed/Read`; batches are computed one at a time, never beyond the horizon."""
        return LocalRead(self._call(READ, opening))

    def close(self) -> None:
        """End the child; idempotent."""
        self._finalizer()

    def _call(self, kind: bytes, data: bytes) -> LocalCall:
        for _ in range(MAX_DEATHS):
            child = self._child()
            try:
                sock = child.call()
            except OSError:  # it was ended while nobody wanted anything of it
                error = self.died(child)
                if error.status != "UNAVAILABLE":
                    break
            else:
                call = LocalCall(self, child, sock)
                call.write(pack_frame(kind, data))
                return call
        raise error

    def _child(self) -> Child:
        if os.getpid() != self._children.pid:
            raise ForkedLoader(
                f"local:{self.target} was opened in process {self._children.pid} and is used in "
                f"its fork {os.getpid()}: open it after the fork",
                opened=self._children.pid,
                used=os.getpid(),
            )
        with self._children.lock:
            if self._children.closed:
                raise self._closed()
            if self._children.child is None:
                careful = any(work.stage != "idle" for work in self._deaths)
                self._children.child = Child(self.target, careful=careful)
            return self._children.child

    def died(self, child: Child) -> PenstockError:
        """Return the error for a call that ended with its child; the next call has a new one."""
        if self._children.closed:
            return self._closed()
        status = child.wait(GRACE_S)
        if status is None:
            return Internal(
                f"the process of local:{self.target} broke a call off; its stderr says why"
            )
        how = f"with status {status}" if status >= 0 else f"by {_signal_name(-status)}"
        sentence = f"the process that computes local:{self.target} was ended {how}"
        again = Unreachable(f"{sentence}; it is started again", target=self.target)
        with self._children.lock:
            if self._children.child is not child:
                return again  # another call has met this death already
            self._children.child = None
            note = child.note()
            work = Work(note.stage or "start", note.of, note.lane, note.item)
            self._deaths[work] += 1
            child.end()
        if work.stage == "idle":
            return again
        if self._deaths[work] < MAX_DEATHS:
            return Unreachable(f"{sentence} {work}; it is started again", target=self.target)
        return WorkerCrashed(
            f"{sentence} {work}, and that {MAX_DEATHS} times; a crash in native code or too little "
            "memory does this: remove or repair what it was working on",
            lane=work.lane,
            item=list(work.item) if work.item is not None else None,
            deaths=self._deaths[work],
            exit_status=status,
        )

    def _closed(self) -> PenstockError:
        return InvalidRequest(f"the transport to local:{self.target} is closed: open a new one")


class LocalCall:
    """One call to the child: an iterator of serialized messages."""

    def __init__(self, transport: LocalTransport, child: Child, sock: socket.socket) -> None:
        self._transport, self._child, self._sock = transport, child, sock
        self._file = sock.makefile("rb")
        self._cancelled = self._over = False
        self.deadline_s: float | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._over:
            raise StopIteration
        while True:
            frame = self._frame()
            if frame is not None and frame[0] == MESSAGE:
                return frame[1]
            if frame is not None and frame[0] == SAID:
                level, text = json.loads(frame[1])
                logger.log(level, "%s", text)
                continue
            self.release()
            if self._cancelled or (frame is not None and frame[0] == END):
                raise StopIteration
            if frame is None:
                raise self._transport.died(self._child)
            raise _error(frame[1])

    def send(self, request: bytes) -> None:
        """Send a `ReadRequest`, from any thread."""
        self.write(pack_frame(SEND, request))

    def write(self, frame: bytes) -> None:
        """Write a frame; where that fails the iteration says why."""
        with contextlib.suppress(OSError):
            self._sock.sendall(frame)

    def cancel(self) -> None:
        """End the iteration from any thread; idempotent."""
        self._cancelled = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the socket; the thread that iterates does, at the end."""
        self._over = True
        self._file.close()
        self._sock.close()

    def _frame(self) -> tuple[bytes, bytes] | None:
        try:
            if self.deadline_s is not None:
                self._sock.settimeout(self.deadline_s)
            return read_frame(self._file)
        except TimeoutError:
            note = self._child.note()
            raise DataTimeout(
                f"local:{self._transport.target} has not answered for {self.deadline_s:.0f} s: its "
                f"process is at stage {note.stage}" + (f" of job {note.of!r}" if note.of else ""),
                waited_s=self.deadline_s,
                reason=note.stage,
            ) from None
        except OSError:
            return None


class LocalRead:
    """One open `Feed/Read`; see `wire.transport.ReadCall`."""

    def __init__(self, call: LocalCall) -> None:
        self._call = call
        self.send, self.cancel = call.send, call.cancel

    def __iter__(self) -> Iterator[Sequence[Reply]]:
        return self

    def __next__(self) -> Sequence[Reply]:
        return parse_replies(next(self._call))


def _error(data: bytes) -> PenstockError:
    told = json.loads(data)
    return ERRORS.get(told["code"], PenstockError).with_fields(told["message"], told["fields"])


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def open_transport(rest: str) -> LocalTransport:
    """Return the transport of `local:FILE`: an entry point of the group `penstock.transports`.

    Nothing is started or read before the first call.

    Raises:
        MissingExtra: The server half's packages are not installed.
    """
    require_server(f"local:{rest}")
    return LocalTransport(absolute_target(rest))


__all__ = ["LocalCall", "LocalLoader", "LocalTransport", "Marks", "open_transport"]
