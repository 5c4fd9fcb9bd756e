"""One worker process as the server process sees it: its port, page, arenas and tickets."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import structlog

from penstock.server.core.verdict import Verdict
from penstock.server.job.job import Job
from penstock.server.node.demand.batch_spans import ArenaReader, BodySpan
from penstock.server.node.demand.lane_state import LaneState, LineState
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.wanted import WantedBatch
from penstock.server.node.protocol.message_check import check
from penstock.server.node.protocol.messages import (
    Body,
    Free,
    FromServer,
    FromWorker,
    GoneArena,
    KnowJob,
    NewArena,
    Ticketed,
)
from penstock.server.node.supply.program import Started, start_program, status_words
from penstock.server.processes.page import Note
from penstock.server.processes.start import await_zygote, kill_zygote
from penstock.server.usercode.frames import error_line

logger = structlog.get_logger("penstock.worker")

END_S = 0.2
"""How long a process whose socket has closed may take to end by itself."""

FREE_S = 0.05
"""How soon a worker hears at the latest that a batch's memory is free again."""

MIN_DEPTH, MAX_DEPTH, DEPTH_S = 2, 48, 0.004
"""Tickets of a log that a worker holds at once: the next is there when one is done. Where they take
less than `DEPTH_S` seconds it holds more of them, and gets them several at a time: a wake-up costs
as much. Each log by itself: a worker that held as many long ones as short ones would keep the
readers of other logs waiting until it has done them all."""

MEDIA_DEPTH = 6
"""The least of logs whose items name media: a worker fetches those of the tickets that it holds
ahead, and of no others, which another worker may be given. With 6 there are two to five more as one
is begun; with more, readers of other logs would wait longer."""


@dataclass(eq=False)
class Ticket:
    """What a worker was asked, until it has answered."""

    number: int
    log: Log
    lane: LaneState
    entry: WantedBatch
    line: LineState | None
    offset: int
    plans: bool = False  # it only plans, on behalf of `entry`
    suspect: bool = False  # a worker has ended over it
    stale: bool = False  # a verdict has overtaken it: its answer is not used
    given_s: float = 0.0

    def is_of(self, note: Note) -> bool:
        """Tell whether a worker's note is about this ticket; without a lane, about all its job."""
        return note.log_id == self.log.job.log_id and note.lane in (None, self.lane.lane)


@dataclass(eq=False)
class WorkerProcess:
    """A worker process.

    Args:
        number: Its slot on this node.
        on_message: Called in the event loop for each message.
        on_death: Called once in the event loop, when its socket has closed.
        files_fd: What the node knows of its sources' files (`pack_catalogs`); -1 = nothing.
        workers: How many there are on this node: what they keep for themselves is bounded for all
            of them together.
        imports: Modules that it imports once it is ready: the jobs will need them.

    Attributes:
        tickets: What it was asked and has not answered, in the order in which it was asked.
        logs: Those whose jobs it was told of.
        taken_back: Tickets that it may still answer, and whose answer nobody wants any more.
        fault: What it said that no worker says, for which it was ended.
        held_up_s: For how long it has been at one thing, where that is long: it is asked nothing
            more, and has no share of the lanes.
        stuck_s: For how long it was allowed to do one thing, where it was ended for that.
        made_way: It was ended for others, who waited for what nobody reads.
    """

    number: int
    on_message: Callable[[WorkerProcess, FromWorker], None]
    on_death: Callable[[WorkerProcess], None]
    files_fd: int = -1
    workers: int = 1
    imports: Sequence[str] = ()
    tickets: dict[int, Ticket] = field(default_factory=dict)
    taken_back: dict[int, Ticket] = field(default_factory=dict)
    arenas: dict[int, ArenaReader] = field(default_factory=dict)
    logs: set[bytes] = field(default_factory=set)
    started: bool = False
    ready: bool = False
    dead: bool = False
    fault: str | None = None
    stuck_s: float | None = None
    made_way: bool = False
    held_up_s: float = 0.0
    _held: Counter[Log] = field(default_factory=Counter)  # of its tickets
    _answered_s: float = 0.0

    @staticmethod
    async def prepare() -> None:
        """Wait until processes start at once: what forks them may still do its imports.

        Raises:
            OSError: None can be started.
        """
        waiting = asyncio.ensure_future(asyncio.to_thread(await_zygote))
        try:
            await asyncio.shield(waiting)
        except asyncio.CancelledError:
            kill_zygote()
            await asyncio.wait({waiting})
            waiting.exception()  # it was not waited for any more
            raise

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the process; `on_message` tells when it is ready.

        Raises:
            OSError: The system has no memory, process or file descriptor left for it.
        """
        self.process, self._port, self.page = self._launch()
        self._loop = loop
        self._unsent: list[FromServer] = []
        self._flush_scheduled = False
        self._frees: list[tuple[int, int]] = []
        self._free_scheduled = False
        self._port.listen(loop, self._hear_all)
        self.started = True

    def _launch(self) -> Started:
        return start_program(self.files_fd, self.imports)

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self.process.pid

    def send(self, message: FromServer) -> None:
        """Send a message, together with all others of this turn of the loop."""
        if self.dead:
            return
        self._unsent.append(message)
        if not self._flush_scheduled:  # once: a wake-up costs more than a ticket
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def send_job(
        self,
        job: Job,
        verdicts: Iterable[Verdict],
        ends: Iterable[tuple[int, int]] = (),
        *,
        set_up: bool = False,
    ) -> None:
        """Have it know a job, and set its roles up where that is asked for.

        Args:
            job: The job.
            verdicts: All that hold.
            ends: Lanes with how many batches they were found to hold.
            set_up: Whether its roles are set up at once.
        """
        told = (job.log_id, job.definition, tuple(ends), self.workers, tuple(verdicts))
        self.send(KnowJob(*told, set_up))

    @property
    def takes_part(self) -> bool:
        """Tell whether it has a share of the lanes: not while it starts, or is held up."""
        return self.ready and not self.dead and not self.held_up_s

    @property
    def alone(self) -> bool:
        """Tell whether it does what has ended a worker before.

        What it was given after that would wait for it, perhaps to its deadline: so nothing is.
        """
        last = next(reversed(self.tickets.values()), None)
        return last is not None and last.suspect

    def room(self, log: Log) -> int:
        """Return how many tickets of a log this worker may be given now."""
        if not self.ready or self.dead or self.held_up_s:
            return 0
        if self.alone:
            return 0
        least = MEDIA_DEPTH if log.takes_media else MIN_DEPTH
        depth = min(MAX_DEPTH, max(least, int(DEPTH_S * log.tickets_per_s)))
        held = self._held[log]
        return depth - held if held <= depth // 2 else 0

    def give(self, ticket: Ticket, message: Ticketed) -> None:
        """Give a ticket."""
        ticket.given_s = self._loop.time()
        self.tickets[ticket.number] = ticket
        self._held[ticket.log] += 1
        self.send(message)

    def answer(self, number: int) -> Ticket | None:
        """Take an answered ticket back, and learn how long tickets take.

        None where it was taken from this worker before it answered.
        """
        self.taken_back.pop(number, None)
        ticket = self.tickets.pop(number, None)
        if ticket is not None:
            self._held[ticket.log] -= 1
            now = self._loop.time()
            took_s = now - max(ticket.given_s, self._answered_s)
            # A mean of rates: where every other ticket takes next to no time, the next one must be
            # there at once, however long those between them take.
            rate = 1 / max(took_s, DEPTH_S / MAX_DEPTH)
            ticket.log.tickets_per_s += 0.2 * (rate - ticket.log.tickets_per_s)
            ticket.log.ticket_s += 0.2 * (took_s - ticket.log.ticket_s)
            self._answered_s = now
        return ticket

    def at_work(self, note: Note) -> Ticket | None:
        """Return the ticket that it is at: the one of its note, else the first."""
        tickets = list(self.tickets.values())
        return next((ticket for ticket in tickets if ticket.is_of(note)), next(iter(tickets), None))

    def take_back(self, ticket: Ticket) -> None:
        """Take a ticket from this worker, which may still answer it."""
        self.taken_back[ticket.number] = self.tickets.pop(ticket.number)
        self._held[ticket.log] -= 1

    def take_span(self, body: Body) -> BodySpan:
        """Return the body of a batch that lies in an arena."""
        arena, start, nbytes = body.arena, body.start, body.nbytes
        reader = self.arenas[arena]
        reader.starts.add(start)
        view = reader.view[start : start + nbytes]
        return BodySpan(reader, start, view, lambda: self.free_later(arena, start))

    def free_later(self, arena: int, start: int) -> None:
        """Tell the worker that a span is free, with the next message or soon."""
        reader = self.arenas[arena]
        reader.starts.discard(start)
        if self.dead:
            if reader.spans == 0:
                del self.arenas[arena]
                reader.close()
            return
        self._frees.append((arena, start))
        if not self._free_scheduled:
            self._free_scheduled = True
            self._loop.call_later(FREE_S, self._send_frees)

    def _send_frees(self) -> None:
        self._free_scheduled = False
        self._flush()

    def current(self) -> Note:
        """Return what the worker noted last."""
        return self.page.read()

    def notice_end(self) -> None:
        """See to a process that has ended although its socket is still open."""
        if self.process.poll() is not None:
            self._end()

    def end_status(self) -> int:
        """Return how the process ended, as `subprocess` says it; end it if it has not yet.

        Its socket closes a moment before it has ended by itself, and a SIGKILL then would hide why.
        """
        if self.fault is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=END_S)
        self.kill()
        return self.process.wait()

    def how_it_ended(self) -> str:
        """Return in words how the process ended."""
        if self.fault is not None:
            return f"for what it said on its socket ({self.fault})"
        if self.made_way:
            return "killed for the readers of another job, who waited for it"
        if self.stuck_s is not None:
            return f"killed because it was still at it after item_seconds = {self.stuck_s:g}"
        return status_words(self.process.wait())

    def kill(self) -> None:
        """End the process at once."""
        if self.process.poll() is None:
            self.process.kill()

    def hang_up(self) -> None:
        """Close the socket, at which the process ends when it has done what it is at."""
        self._gone()

    def await_end(self, most_s: float) -> None:
        """Wait for the process to end by itself, at most so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=most_s)

    def close(self) -> None:
        """Close the socket, and end the process where it has not ended yet."""
        self.hang_up()
        self.kill()
        self.process.wait()

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self.dead:
            return
        if self._frees:  # before what needs room
            self._unsent.insert(0, Free(tuple(self._frees)))
            self._frees = []
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._port.send(unsent)

    def _hear_all(self) -> None:
        """Act upon what the worker has said since the last time."""
        try:
            messages = self._port.receive(wait=False)
            if messages is None:
                self._end()
                return
            for message in messages:
                self.hear(message)
                if self.dead:
                    return  # it was ended for what it said
        except Exception as error:
            # No memory to map an arena, or something else has written to the socket: what came
            # with it is lost, so its tickets would never be answered.
            self.misspoke(error)

    def hear(self, message: FromWorker) -> None:
        """Act upon a message: the one place where anything that a worker says comes in.

        Raises:
            ProtocolError: No worker of ours says this.
            OSError: An arena cannot be mapped.
        """
        known = ChainMap(self.tickets, self.taken_back) if self.taken_back else self.tickets
        check(message, known, self.arenas, self.logs)
        if isinstance(message, NewArena):
            self.arenas[message.number] = ArenaReader(message.memory.take(), message.size_bytes)
        elif isinstance(message, GoneArena):
            self.arenas.pop(message.number).close()
        else:
            self.on_message(self, message)

    def misspoke(self, error: Exception) -> None:
        """End a worker that has said what no worker says; what it was asked others shall do."""
        self.fault = error_line(error)
        logger.error("a worker cannot be understood; it is replaced", error=self.fault)
        self._end()

    def _end(self) -> None:
        """Say once that the worker is gone."""
        if not self.dead:
            self._gone()
            self.on_death(self)

    def _gone(self) -> None:
        if self.dead:
            return
        self.dead = True
        self._port.close()
        for number, reader in list(self.arenas.items()):
            if reader.spans == 0:  # others stay mapped until their last batch is sent
                del self.arenas[number]
                reader.close()
