"""A loader node: demand in, tickets out to workers, batches back, snapshots to the store.

Everything here runs in one event loop. Nothing here knows gRPC: `penstock.server.rpc` opens the
readers, whose demand it is. This is the face that the edge sees, and the order in which the parts
start and end: the ledger of a log and its readers say what is wanted, `dispatch` gives it to
workers as tickets, `messages` takes what they send, `answers` what tickets bring, `pool` keeps them
alive; `snapshots`, `audit` and `quarantine` handle snapshots, purity and verdicts, and `counting`
lengths.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog

from penstock.server.core.verdict import Verdict
from penstock.server.files.catalog import pack_catalogs
from penstock.server.job.job import Job
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.node.demand.wanted import BatchState, WantedBatch
from penstock.server.node.protocol.messages import TakeSnapshots
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.audit import Audit
from penstock.server.node.supply.counting import LaneCounting, count_processes
from penstock.server.node.supply.dispatch import Dispatch
from penstock.server.node.supply.halts import Halts
from penstock.server.node.supply.lane_ends import Ends
from penstock.server.node.supply.leads import Leads
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.message_dispatch import MessageDispatch
from penstock.server.node.supply.quarantine import Quarantine
from penstock.server.node.supply.rest import Rest
from penstock.server.node.supply.snapshot_writer import SnapshotWriter
from penstock.server.node.supply.ticket_answers import Answers
from penstock.server.node.supply.witnesses import Witnesses
from penstock.server.node.supply.worker_pool import ITEM_DEADLINE_S, Hear, Lose, WorkerPool
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.pipeline.known_order import SoFar
from penstock.server.pipeline.known_verdicts import VerdictBook
from penstock.server.process.usage import age_s
from penstock.server.processes.page import Note
from penstock.server.roles.reading import Reading
from penstock.server.store.contract import Store
from penstock.server.store.records import JobRecord, LogChanges
from penstock.wire.errors import InvalidJob
from penstock.wire.numbering import Numbering
from penstock.wire.order import Cut, Share

logger = structlog.get_logger("penstock.node")

END_GRACE_S = 2.0


class Node:
    """One loader node.

    Args:
        jobs: The jobs that it holds, by name: workers build them from their definitions. Two names
            may be of one log, which then has one ledger, under its id like all in the node.
        store: Where snapshots and verdicts go; open.
        workers: How many worker processes.
        bound_bytes: How many bytes of batches may be ready or being made.
        snapshot_seconds: The least time between two writes of snapshots.
        observer: Told what happens.
        imports: Modules that workers import once they are ready: the jobs will need them.

    Attributes:
        node_id: What others know it by, from when its port is open.

    Glossary:
        node: One `penstockd serve` process and its workers.
    """

    def __init__(
        self,
        jobs: Mapping[str, Job],
        store: Store,
        *,
        workers: int,
        bound_bytes: int,
        snapshot_seconds: float = 2.0,
        item_deadline_s: float = ITEM_DEADLINE_S,
        observer: Observer | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        self.jobs, self.store = dict(jobs), store
        self.bound_bytes, self._snapshot_seconds = bound_bytes, snapshot_seconds
        self.observer = observer = observer or Observer()
        self.incarnation = uuid.uuid4().hex[:12]
        self.started_at, self.start_s = time.monotonic(), 0.0
        self.verdicts: dict[bytes, VerdictBook] = {}
        self._imports, self._files_fd = imports, -1
        self._drained: dict[int, asyncio.Future[None]] = {}
        self.lines_saved = asyncio.Event()  # where they stand as the node drains
        self.life = life = Life()
        self.snapshots = SnapshotWriter(store, life)
        self._worker_count = workers
        self.pool = pool = WorkerPool(workers, self._new_worker, life, observer, item_deadline_s)
        self.dispatch = dispatch = Dispatch(
            self.verdicts, pool, self.snapshots, life, observer, bound_bytes
        )
        self.node_id = ""
        self.halts = halts = Halts(store, life, dispatch.logs, lambda: self.node_id)
        audit = Audit(dispatch, pool, store, life, observer)
        self.witnesses = Witnesses(dispatch, store, life, observer)
        self._rest = Rest(dispatch.logs, dispatch.lines, life)
        self._quarantine = Quarantine(self.verdicts, dispatch, pool, store, life, observer)
        self._quarantine.on_halts = halts.heard
        self._leads = leads = Leads(store, life, self._quarantine.heard, dispatch.schedule)
        dispatch.covers, dispatch.on_halt = leads.cover, halts.stopped
        self.ends = ends = Ends(dispatch, store, life)
        shared = pool, self.snapshots, ends, life, observer, item_deadline_s
        self.counting = LaneCounting(count_processes(workers), self.verdicts, *shared)
        answers = Answers(dispatch, self.snapshots, audit, self.witnesses, observer)
        messages = MessageDispatch(
            dispatch,
            pool,
            answers,
            self.snapshots,
            audit,
            self.witnesses,
            self._quarantine,
            ends,
            life,
            observer,
        )
        messages.counting = self.counting
        self.snapshots.on_diverged = dispatch.diverged
        pool.dispatch, pool.hear = dispatch, messages.hear
        pool.on_lost, messages.drained = self._lost, self._has_drained
        messages.is_draining = lambda worker: worker.number in self._drained

    def _new_worker(self, number: int, hear: Hear, lose: Lose) -> WorkerProcess:
        return WorkerProcess(
            number,
            hear,
            lose,
            files_fd=self._files_fd,
            workers=self._worker_count,
            imports=self._imports,
        )

    @property
    def workers(self) -> list[WorkerProcess]:
        """Return the workers by slot."""
        return self.pool.workers

    @property
    def unsaved_snapshots(self) -> int:
        """Return how many snapshots wait to be written."""
        return len(self.snapshots.unsaved)

    def left_out(self, job: Job) -> dict[tuple[str, str, str], int]:
        """Return how many items verdicts leave out of a job, by source, stage and reason."""
        found = self.verdicts[job.log_id].left_out
        return {key: count for key, count in found.items() if count > 0}

    def figures(self, job: Job) -> dict[str, int]:
        """Return how many batches of a job were made, and what is in memory.

        Of two names of one log only one has them: else sums over jobs would be wrong.
        """
        log = self.log(job)
        found = log.figures()
        return found if log.job is job else dict.fromkeys(found, 0)

    def largest_body_bytes(self, job: Job) -> int:
        """Return the length of the largest body of a job that was made so far."""
        return self.log(job).largest_body_bytes

    def latest(self, job: Job, most_bytes: int) -> WantedBatch | None:
        """Return the batch of a job that stands last, of those in memory; see `Log.latest`."""
        return self.log(job).latest(most_bytes)

    @property
    def logs(self) -> dict[bytes, Log]:
        """Return what this node does for each log."""
        return self.dispatch.logs

    # --- life ---

    async def start(self) -> None:
        """Start the workers and wait until all are ready.

        Raises:
            InvalidJob: Two names of one log have other policies about its items.
            Internal: A worker does not start.
        """
        self.life.begin()
        firsts: dict[bytes, Job] = {}
        for name, job in self.jobs.items():
            _check_policies(job, firsts.setdefault(job.log_id, job))
            record = JobRecord(name, job.log_id, job.plan, job.stored_definition)
            await self.store.register_job(record)
            if job.needs_counting:
                ends = await self.store.lane_ends(job.log_id)
                # A log without batches is counted again: its readers are told why it has none.
                if any(ends.values()):
                    job.set_lane_ends([ends.get(lane) for lane in range(job.lanes)])
        for log_id, job in firsts.items():
            self.dispatch.hold(job)
            self._say_how_it_reads(job)
            log = self.logs[log_id]
            if self.store.shared:
                # Before the verdicts: what is made between the two is heard once more.
                log.begun_change = (await self.store.changes(log_id, None)).change
                log.known_change = log.begun_change
            self.verdicts[log_id] = VerdictBook(await self.store.verdicts(log_id))
            self.observer.quarantined(job.name, self.verdicts[log_id].left_out)
            await self.witnesses.load(log_id)
        catalogs = [catalog for job in self.jobs.values() for catalog in job.hand_over()]
        self._files_fd = pack_catalogs(catalogs)
        for worker in self.pool:
            worker.files_fd = self._files_fd
        self.counting.files_fd = self._files_fd
        await self.pool.start()
        self.life.spawn(self.snapshots.keep_saving(self._snapshot_seconds))
        self.life.spawn(self.witnesses.keep_saving(self._snapshot_seconds))
        self.life.spawn(self._rest.keep_looking())
        self.start_s = age_s()

    def _say_how_it_reads(self, job: Job) -> None:
        """Log a job's reading groups, and if there are more workers than suit it."""
        for reading in job.readings():
            self._say_how_a_set_reads(job, reading)
        groups = {group for group in job.reading_groups if group is not None}
        if groups and None not in job.reading_groups and len(groups) < len(self.pool):
            logger.warning(
                "some workers have no work for a job; more reading_groups give them some",
                job=job.name,
                groups=len(groups),
                workers=len(self.pool),
            )

    def _say_how_a_set_reads(self, job: Job, reading: Reading) -> None:
        if reading.is_read_by_all and len(self.workers) > 1:
            logger.warning(
                "every worker reads and decodes all of a job; shuffle: blocks deals it to them",
                job=job.name,
                blocks=reading.all_blocks,
                workers=len(self.workers),
            )
        if reading.groups is None:
            return
        logger.info(
            "a job reads by groups",
            job=job.name,
            groups=reading.groups,
            blocks_in_memory=reading.held,
            about_mib=round(reading.held * reading.block_bytes / 2**20),
            amplification=round(reading.amplification(len(self.workers)) or 1.0, 2),
        )

    async def drain(self, grace_s: float) -> None:
        """Give out no more tickets, let workers finish theirs, and save where lines stand."""
        self.life.draining = True
        loop = self.life.loop
        deadline = loop.time() + grace_s
        asked: set[int] = set()
        # Tickets end in many places, and this runs once, to a deadline.
        while loop.time() < deadline:
            for worker in self.pool:
                # Each as soon as it is free: one that hangs costs the others no snapshot.
                busy = worker.tickets or self.dispatch.sets_up(worker)
                if worker.ready and not (worker.dead or busy or worker.number in asked):
                    asked.add(worker.number)
                    self._drained[worker.number] = loop.create_future()
                    worker.send(TakeSnapshots())
            if not self._drained and not any(worker.tickets for worker in self.pool):
                break
            await asyncio.sleep(0.02)
        await self.snapshots.save()
        self.lines_saved.set()
        await self.witnesses.save()

    def _lost(self, worker: WorkerProcess) -> None:
        self._has_drained(worker)
        self.counting.lost(worker)

    def _has_drained(self, worker: WorkerProcess) -> None:
        future = self._drained.pop(worker.number, None)
        if future is not None and not future.done():
            future.set_result(None)

    async def close(self, grace_s: float = END_GRACE_S) -> None:
        """End everything; workers have a moment to end by themselves."""
        await self.life.end()
        self.pool.close(grace_s)
        if self._files_fd >= 0:
            os.close(self._files_fd)
            self._files_fd = -1

    # --- readers ---

    def log(self, job: Job) -> Log:
        """Return what this node does for the log of a job."""
        return self.logs[job.log_id]

    def numbering(self, job: Job) -> Numbering:
        """Return what is known of the order of a job's log; it learns as lanes are planned."""
        return self.log(job).numbering

    def count(self, job: Job) -> SoFar | None:
        """Find out where a job's log ends, for somebody who asks; None = that is known."""
        return self.counting.ask(self.log(job))

    def open(
        self,
        job: Job,
        share: Share,
        cut: Cut | None,
        start: int,
        lanes: Iterable[int] | None,
        wake: Callable[[], None],
        host: str = "",
    ) -> StreamDemand:
        """Return a new reader, of a process on this host; the caller closes it."""
        wanted = frozenset(lanes) if lanes is not None else None
        return StreamDemand(self.log(job), share, cut, start, wanted, wake, job, host)

    def note_given(self, job: Job, offsets: Mapping[int, int]) -> None:
        """Take in what a reader was given before this node knew of it: nothing of it may move.

        Args:
            job: The job.
            offsets: By lane the offset below which batches were given.
        """
        lanes = self.log(job).lanes
        for lane, offset in offsets.items():
            lanes[lane].note_given_elsewhere(offset)

    def extend(
        self, reader: StreamDemand, horizon: int, position: int = 0, bytes_limit: int = 0
    ) -> None:
        """Move a reader's horizon, and what it has room for; see to what it wants now."""
        reader.grant(position, bytes_limit)
        reader.extend(horizon)
        self.dispatch.schedule()

    def take(
        self, reader: StreamDemand, fits: Callable[[WantedBatch], bool] | None = None
    ) -> WantedBatch | None:
        """Return a reader's next batch, as `StreamDemand.take`, and see to what else it wants.

        Raises:
            PenstockError: The batch that is owed next cannot be made.
        """
        entry = reader.take(fits)
        if entry is None:
            # Looking for it may have reached positions that nobody has asked for.
            self.dispatch.schedule()
        return entry

    def sent(self, reader: StreamDemand, *entries: WantedBatch) -> None:
        """Batches of a reader have gone out: there may be room for others."""
        for entry in entries:
            reader.sent(entry)
        self.dispatch.schedule()

    def give_back(self, entry: WantedBatch) -> None:
        """A process has given a batch back that was lent to it."""
        entry.unpin()
        self.dispatch.schedule()

    def leave(self, reader: StreamDemand) -> None:
        """A reader is gone."""
        reader.close()
        self.dispatch.schedule()

    def waiting_for(self, reader: StreamDemand) -> tuple[int, int, str, str]:
        """Return (lane, offset, stage, item) of what a reader's next position waits for."""
        entry = reader.pending.get(reader.head)
        if entry is None:
            return 0, 0, "horizon", ""
        key = entry.key
        if reader.log.withheld.unproven:
            return key.lane, key.offset, "proving", ""
        if reader.log.awaited_verdicts:  # what a worker does meanwhile is to wait for its verdict
            return key.lane, key.offset, "store", ""
        lane = reader.log.lanes[key.lane]
        frontier = reader.log.numbering.frontier
        if reader.lacks is not None and frontier is not None:
            # It depends on a batch of which it is not known whether it exists.
            lane = reader.log.lanes[frontier.lane]
            key = key._replace(lane=frontier.lane, offset=frontier.offset)
            if lane.has_ended(frontier.offset):
                return key.lane, key.offset, "store", ""
        if entry.state is BatchState.MAKING or lane.planning:
            for worker in self.pool:
                if any(t.log is reader.log and t.lane is lane for t in worker.tickets.values()):
                    note = worker.current()
                    if (note.log_id, note.lane) != (reader.job.log_id, key.lane):
                        return key.lane, key.offset, "queued", self._in_the_way(note)
                    return key.lane, key.offset, note.stage or "producing", str(note.item or "")
            return key.lane, key.offset, "producing", ""
        if lane.looking or self._leads.awaits(reader.log, lane):
            return key.lane, key.offset, "store", ""
        if any(not worker.ready for worker in self.pool):
            return key.lane, key.offset, "restarting", ""
        busy = [worker for worker in self.pool if worker.tickets]
        holders = {line.worker for line in lane.lines}
        first = max(
            busy, key=lambda worker: (worker.number in holders, worker.held_up_s), default=None
        )
        way = self._in_the_way(first.current()) if first is not None else ""
        return key.lane, key.offset, "queued", way

    def _in_the_way(self, note: Note) -> str:
        """Return in words what a worker is doing for somebody else."""
        if note.stage in ("", "idle"):
            return ""
        return f"{note.item or note.stage} of job {self.dispatch.name(note.log_id)!r}"

    async def release(self, job: Job, source: str, index: int) -> list[Verdict]:
        """Let an item be drawn again, above all that was given or asked for; tell every worker.

        Returns:
            Every verdict about the item, released; empty = there is none.

        Raises:
            LogDiverged: The log holds no batch above.
            StoreUnavailable: The store does not answer.
        """
        return await self._quarantine.release(self.log(job), source, index)

    def heard(self, log_id: bytes, changes: LogChanges) -> None:
        """Take in what has changed in a log: verdicts, releases, lanes that stopped elsewhere."""
        self._quarantine.heard(self.logs[log_id], changes)

    def asked(self, job: Job) -> int:
        """Return below which offset lanes of a job's log were planned here, or are being."""
        return self._quarantine.planned_below(job)


def _check_policies(job: Job, first: Job) -> None:
    """Refuse another name of a log with other policies about its items: verdicts are the log's.

    Args:
        job: The job.
        first: The first one of its log.

    Raises:
        InvalidJob: Names both.
    """
    for key in ("on_item_error", "max_quarantined"):
        ours, theirs = getattr(first, key), getattr(job, key)
        if ours != theirs:
            raise InvalidJob(
                f"jobs {first.name!r} and {job.name!r} are one log, {job.log_id.hex()[:12]}, and "
                f"their {key} is {ours} and {theirs}: give both the same, or another seed",
                key=key,
            )
