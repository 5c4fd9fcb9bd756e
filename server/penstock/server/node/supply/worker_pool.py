"""The workers of a node: their start, their end and their replacement.

It also watches how long each has been at one thing: a worker that hangs is killed, one that is slow
is relieved.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import structlog

from penstock.server.node.demand.candidates import most_urgent
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.wanted import WantedBatch
from penstock.server.node.protocol.messages import FromWorker, MakeSooner
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.processes.page import Note
from penstock.wire.errors import Internal, PenstockError

logger = structlog.get_logger("penstock.node")

START_DEADLINE_S = 120.0

MAX_FAILED_STARTS = 3
"""A node whose workers end this often before they are ready does not start."""

ITEM_DEADLINE_S = 150.0
"""How long one item may take. Three times this, and two restarts, are below a client's deadline of
540 s: it hears of the item, and not of a timeout."""

HELD_UP_S, HELD_UP_SHARE, HELD_UP_TICKETS = 10.0, 0.25, 4.0
"""A worker is held up when it has been at one thing for so long, or for this share of the item
deadline where that is less; but never before several times what a ticket of that job usually takes:
to plan its lanes again elsewhere would cost a slow job more than to wait."""

SET_UP_S = 5.0
"""How long readers of other jobs wait for a worker that sets up a job which nobody reads."""

MAX_RESTART_DELAY_S = 5.0
WATCH_S = 0.5

Hear = Callable[[WorkerProcess, FromWorker], None]
Lose = Callable[[WorkerProcess], None]
Hire = Callable[[int, Hear, Lose], WorkerProcess]
"""(slot, what hears its messages, what hears of its end) -> a worker that is not started yet."""


class Dispatcher(Protocol):
    """What the pool needs of whatever gives its workers their tickets."""

    @property
    def logs(self) -> Mapping[bytes, Log]:
        """Return what is done for each log."""

    def name(self, log_id: bytes | None) -> str | None:
        """Return what people call a log: a job's name."""

    def schedule(self) -> None:
        """Soon give out the tickets that can be given out."""

    def relieve(self, worker: WorkerProcess, note: Note) -> None:
        """Give others what a worker that is held up has not begun."""

    def sets_up(self, worker: WorkerProcess) -> bool:
        """Tell whether a worker sets a job up for readers to come."""

    def is_ahead(self, worker: WorkerProcess, note: Note) -> bool:
        """Tell whether a worker is at a batch that no reader accepts yet."""

    def in_the_way(self, worker: WorkerProcess) -> bool:
        """Tell whether it does so while readers of other jobs wait for it."""

    def lost(self, worker: WorkerProcess, note: Note) -> None:
        """Take back the tickets of a worker that is gone, and blame the one that it was at."""


class WorkerPool:
    """A node's worker processes, each in a slot that is filled again when it dies.

    Args:
        size: How many.
        hire: Makes a worker.
        life: The node's.
        observer: Told of deaths.
        item_deadline_s: How long a worker may be at one thing.

    Attributes:
        workers: The workers by slot.
        hear: Hears every message of every worker; set before the start, as are the next two.
        dispatch: Gives the workers their tickets.
        on_lost: Called with a worker that is gone, when its tickets were taken back.
    """

    def __init__(
        self, size: int, hire: Hire, life: Life, observer: Observer, item_deadline_s: float
    ) -> None:
        self._hire, self._life, self._observer = hire, life, observer
        self.item_deadline_s = item_deadline_s
        self.hear: Hear
        self.dispatch: Dispatcher
        self.on_lost: Lose
        self.workers = [self._new(number) for number in range(size)]
        self._all_ready = asyncio.Event()
        self._start_error: PenstockError | None = None
        self._failed_starts = 0
        self._died_at: dict[int, float] = {}  # by slot, as long as it is empty
        self._page_seen: dict[int, tuple[int, float]] = {}
        self._waiting: dict[bytes, WantedBatch] = {}  # by log, its most urgent batch a turn ago

    def __iter__(self) -> Iterator[WorkerProcess]:
        """Yield the workers by slot."""
        return iter(self.workers)

    def __len__(self) -> int:
        """Return how many slots there are."""
        return len(self.workers)

    def __getitem__(self, number: int) -> WorkerProcess:
        """Return the worker in a slot."""
        return self.workers[number]

    def sharing(self) -> list[WorkerProcess]:
        """Return those that have a share of the lanes now."""
        return [worker for worker in self.workers if worker.takes_part]

    def _new(self, number: int) -> WorkerProcess:
        return self._hire(number, lambda *heard: self.hear(*heard), self.lost)

    # --- start and end ---

    async def start(self) -> None:
        """Start all workers and wait until they are ready.

        Raises:
            Internal: One does not start.
        """
        try:
            for worker in self.workers:
                await worker.prepare()
                worker.start(self._life.loop)
        except OSError as error:  # memory, processes or file descriptors are short
            raise Internal(f"a worker cannot be started: {error}") from error
        try:
            await asyncio.wait_for(self._all_ready.wait(), START_DEADLINE_S)
        except TimeoutError:
            raise Internal(
                f"the workers did not start within {START_DEADLINE_S:.0f} s; their output says why"
            ) from None
        if self._start_error is not None:
            raise self._start_error
        self._life.spawn(self._watch())

    def ready(self, worker: WorkerProcess) -> None:
        """Note that a worker has started."""
        worker.ready = True
        self._failed_starts = 0
        if (died_at := self._died_at.pop(worker.number, None)) is not None:
            after_s = round(self._life.loop.time() - died_at, 3)
            logger.info(
                "a worker was replaced", worker=worker.number, pid=worker.pid, after_s=after_s
            )
        if all(worker.ready for worker in self.workers):
            self._all_ready.set()

    def close(self, grace_s: float) -> None:
        """End all workers; they get a moment to end by themselves.

        Args:
            grace_s: How long, all together.
        """
        started = [worker for worker in self.workers if worker.started]
        for worker in started:
            worker.hang_up()
        deadline = time.monotonic() + grace_s  # of all together: they end at the same time
        for worker in started:
            worker.await_end(max(0.0, deadline - time.monotonic()))
        for worker in started:
            worker.kill()
        for worker in started:
            worker.close()

    # --- deaths ---

    def lost(self, worker: WorkerProcess) -> None:
        """Replace a worker that is gone; its lines go on elsewhere from their snapshots."""
        code = worker.end_status()
        note = worker.current()
        if not worker.ready:
            self._failed_starts += 1
        logger.warning(
            "a worker died",
            worker=worker.number,
            pid=worker.pid,
            exit=code,
            how=worker.how_it_ended(),
            stage=note.stage,
            **({} if note.item is None else {"item": str(note.item)}),
        )
        self._observer.worker_died()
        self._died_at.setdefault(worker.number, self._life.loop.time())
        self.dispatch.lost(worker, note)
        self.on_lost(worker)
        if self._life.draining:
            return
        if self._failed_starts >= MAX_FAILED_STARTS and not self._all_ready.is_set():
            self._start_error = Internal(
                f"a worker ended with status {code} before it was ready, {MAX_FAILED_STARTS} "
                "times; its output above says why"
            )
            self._all_ready.set()
            return
        delay_s = 0.0 if worker.ready else self._restart_delay_s()
        self._life.loop.call_later(delay_s, self._replace, worker.number)

    def _restart_delay_s(self) -> float:
        """Return how long to wait where the last start failed, too."""
        # The power stays small, however long the trouble lasts: a float ends at 2**1024.
        return float(min(0.1 * 2 ** min(self._failed_starts, 10), MAX_RESTART_DELAY_S))

    def _replace(self, number: int) -> None:
        """Start a worker to replace one that died, or a little later if it cannot be started."""
        if self._life.draining:
            return
        replacement = self._new(number)
        try:
            replacement.start(self._life.loop)
        except OSError as error:  # memory, processes or file descriptors are short
            self._failed_starts += 1
            delay_s = self._restart_delay_s()
            logger.error("a worker cannot be started", error=str(error), again_in_s=delay_s)
            self._life.loop.call_later(delay_s, self._replace, number)
            return
        self.workers[number] = replacement
        self.dispatch.schedule()

    # --- hangs ---

    async def _watch(self) -> None:
        """End a worker that has been at one thing for longer than `item_deadline_s`.

        And end the waiting of one whose retries hold up another job.
        """
        while True:
            await asyncio.sleep(WATCH_S)
            stalled = self._stalled_logs()
            for worker in self.workers:
                # A child of its own may hold its socket open beyond its end.
                worker.notice_end()
                if worker.dead or not (worker.tickets or self.dispatch.sets_up(worker)):
                    self._page_seen.pop(worker.number, None)
                    worker.held_up_s = 0.0
                    continue
                note = worker.current()
                # Its own readers wait with it, unless it is at what none of them accepts.
                if (note.stage == "retrying" and note.log_id is not None) and (
                    stalled - {note.log_id} or (stalled and self.dispatch.is_ahead(worker, note))
                ):
                    worker.send(MakeSooner(note.log_id))
                self._look_at(worker, note)

    def _look_at(self, worker: WorkerProcess, note: Note) -> None:
        """See for how long a worker has been at one thing, and act where that is too long."""
        now = self._life.loop.time()
        seen = self._page_seen.get(worker.number)
        if seen is None or seen[0] != note.serial:
            self._page_seen[worker.number] = (note.serial, now)
            if worker.held_up_s:  # it goes on, and takes part again
                worker.held_up_s = 0.0
                self.dispatch.schedule()
            return
        since_s = now - seen[1]
        if since_s > self.item_deadline_s:
            logger.error(
                "a worker is stuck",
                worker=worker.number,
                stage=note.stage,
                **({} if note.item is None else {"item": str(note.item)}),
                item_seconds=self.item_deadline_s,
            )
            self._page_seen.pop(worker.number)
            worker.stuck_s = self.item_deadline_s
            worker.kill()
        elif since_s > SET_UP_S and self.dispatch.in_the_way(worker):
            worker.made_way = True
            worker.kill()
        elif since_s > self._patience_s(note):
            self._relieve(worker, note, since_s)

    def _patience_s(self, note: Note) -> float:
        """Return after how long at one thing a worker is held up."""
        log = self.dispatch.logs.get(note.log_id) if note.log_id is not None else None
        usual_s = log.ticket_s if log is not None else 0.0
        least_s = min(HELD_UP_S, HELD_UP_SHARE * self.item_deadline_s)
        return max(least_s, HELD_UP_TICKETS * usual_s)

    def _relieve(self, worker: WorkerProcess, note: Note, since_s: float) -> None:
        """Give others what a worker that is held up has not begun, and the lines that it holds."""
        first, worker.held_up_s = not worker.held_up_s, since_s
        if not any(other.takes_part for other in self.workers):
            return  # no other worker could do it
        self.dispatch.relieve(worker, note)
        if first:
            logger.warning(
                "a worker has been at one thing for long; others take its lanes meanwhile",
                worker=worker.number,
                job=self.dispatch.name(note.log_id),
                stage=note.stage,
                **({} if note.item is None else {"item": str(note.item)}),
                since_s=round(since_s, 1),
            )

    def _stalled_logs(self) -> set[bytes]:
        """Return the logs whose most urgent batch waits for a worker as it did a turn ago."""
        waiting = {
            log_id: first.entry
            for log_id, log in self.dispatch.logs.items()
            if (first := most_urgent(log)) is not None
        }
        before, self._waiting = self._waiting, waiting
        return {log_id for log_id, entry in waiting.items() if before.get(log_id) is entry}
