"""What some batches were, recorded for whoever makes them again: on another node, or years later.

One batch in 64 of each lane is a witness, and the first of each. A node whose packages are not
those that a log is known to come out alike with makes some of them before it gives any batch away.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress

import structlog

from penstock.server.job.job import Job
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.ranked import Ranked
from penstock.server.node.demand.wanted import BatchState, Key, Reads, WantedBatch
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.dispatch import Dispatch
from penstock.server.node.supply.life import Life
from penstock.server.node.supply.snapshot_writer import STORE_RETRY_S
from penstock.server.store.contract import Store
from penstock.server.store.records import Witness
from penstock.server.usercode import libraries
from penstock.wire.digest import made_digest
from penstock.wire.errors import BadFrame, LogDiverged, PastEnd, PenstockError
from penstock.wire.order import MAX_POSITION, LaneOffset

logger = structlog.get_logger("penstock.node")

WITNESS_EVERY = 64
"""One batch in this many of a lane is a witness."""

PROOF_WITNESSES = 8
"""So many are made again by a node with other packages: half of them the latest of their lanes."""

SAVE_S = 5.0
"""Seconds between two writes."""

INLINE_BYTES = 256 << 10
"""Batches up to this are hashed at once, in 0.2 ms; a thread takes longer to wake up."""

MAX_UNSAVED = 65536
"""Witnesses that wait for a store that is away; further ones are not recorded."""

Packages = Mapping[str, str]


def is_witness(lane: int, offset: int) -> bool:
    """Tell whether a batch is a witness: lanes have theirs at different offsets."""
    return offset == 0 or (offset + lane) % WITNESS_EVERY == 0


def environment_of(packages: Packages) -> bytes:
    """Return the id of an environment."""
    return hashlib.sha256(json.dumps(dict(packages), sort_keys=True).encode()).digest()


def is_like(ours: Packages, recorded: Iterable[Packages]) -> bool:
    """Tell whether some recorded environment has no package in another version than ours.

    A package that only one of them names was imported later there, or by another of the job's sets.
    """
    return any(not libraries.differences(ours, each) for each in recorded)


class Witnesses:
    """Records witnesses, and compares.

    Args:
        dispatch: Stops a lane whose batch was another before.
        store: Where they are recorded.
        life: The node's.
        observer: Told of every comparison.
    """

    def __init__(self, dispatch: Dispatch, store: Store, life: Life, observer: Observer) -> None:
        self._dispatch, self._store = dispatch, store
        self._life, self._observer = life, observer
        self._recorded: dict[bytes, dict[bytes, Packages]] = {}
        self._unwitnessed: set[bytes] = set()
        self._ours: dict[bytes, tuple[bytes, Packages]] = {}
        self._unsaved: dict[bytes, dict[tuple[int, int], Witness]] = {}
        self._has_unsaved = asyncio.Event()

    async def load(self, log_id: bytes) -> None:
        """Learn with what a log is known to come out alike."""
        self._recorded[log_id] = dict(await self._store.environments(log_id))
        if not await self._store.some_witnesses(log_id, 1):
            self._unwitnessed.add(log_id)

    # --- batches ---

    def made(self, log: Log, entry: WantedBatch) -> None:
        """Record what a batch was, if it is a witness; in the background."""
        _, lane, offset, blank = entry.key
        if blank or not is_witness(lane, offset) or not entry.is_whole:
            return
        if entry.nbytes > INLINE_BYTES:
            self._life.spawn(self._note_large(log, entry))
            return
        with suppress(BadFrame):  # a worker that does not tell the truth: readers refuse it by name
            self._note(log, lane, offset, made_digest(entry.header, entry.body))

    async def _note_large(self, log: Log, entry: WantedBatch) -> None:
        _, lane, offset, _ = entry.key
        with suppress(BadFrame):
            self._note(log, lane, offset, await _digest(entry))

    def _note(self, log: Log, lane: int, offset: int, digest: bytes) -> None:
        log_id = log.job.log_id
        unsaved = self._unsaved.setdefault(log_id, {})
        ours = self._ours.get(log_id)  # a worker says it before its first batch
        if ours is not None and len(unsaved) < MAX_UNSAVED:
            unsaved[lane, offset] = Witness(lane, offset, digest, ours[0])
            self._has_unsaved.set()

    async def keep_saving(self, every_s: float = SAVE_S) -> None:
        """Write what waits, again and again."""
        while True:
            await self._has_unsaved.wait()
            await asyncio.sleep(every_s)
            self._has_unsaved.clear()
            await self.save()

    async def save(self) -> None:
        """Write what waits, and stop the lanes in which a batch was another before."""
        unsaved, self._unsaved = self._unsaved, {}
        for log_id, of_log in unsaved.items():
            log = self._dispatch.logs[log_id]
            ours = list(of_log.values())
            if log.withheld.unproven:  # what these are worth is not known yet
                self._keep(log_id, of_log)
                continue
            if log.withheld.refused is not None:
                continue
            try:
                differ = await self._store.put_witnesses(log_id, ours)
            except PenstockError as error:
                logger.debug("witnesses were not written", error=str(error))
                self._keep(log_id, of_log)
                continue
            self._observer.witnessed(log.job.name, len(ours), len(differ))
            for theirs in differ:
                other = self._diverged(log.job, of_log[theirs.lane, theirs.offset], theirs)
                self._dispatch.diverged(log_id, theirs.lane, other)

    def _keep(self, log_id: bytes, of_log: dict[tuple[int, int], Witness]) -> None:
        self._unsaved[log_id] = {**of_log, **self._unsaved.get(log_id, {})}
        self._has_unsaved.set()

    def _diverged(self, job: Job, ours: Witness, theirs: Witness) -> LogDiverged:
        lane, offset = ours.lane, ours.offset
        found = self._differences(job.log_id, theirs.environment)
        why = (
            f"it was made with other packages before: here {', '.join(found)}; install the "
            "recorded ones"
            if found
            else "its packages were the same, so a role is impure, or files differ; run "
            "`penstockd check` on the nodes"
        )
        return LogDiverged(
            f"the batch at lane {lane}, offset {offset} of job {job.name!r} is another than the "
            f"one that was made before: {why}, then restart the node",
            what=f"batch at lane {lane}, offset {offset}",
            lane=lane,
            offset=offset,
            ours=ours.digest.hex(),
            theirs=theirs.digest.hex(),
        )

    def _differences(self, log_id: bytes, environment: bytes) -> list[str]:
        """Return what is in use here in another version than in a recorded environment."""
        recorded = self._recorded[log_id].get(environment, {})
        return libraries.differences(self._ours[log_id][1], recorded)

    # --- environments ---

    def computes_with(self, log: Log, packages: Packages) -> None:
        """Note with what a worker computes a log; give nothing away before that is proven."""
        log_id = log.job.log_id
        environment = environment_of(packages)
        self._ours[log_id] = environment, packages
        recorded = self._recorded[log_id]
        if environment in recorded or log.withheld.refused is not None:
            return
        known = list(recorded.values())
        recorded[environment] = packages  # it is looked at once
        if is_like(packages, known) or log_id in self._unwitnessed:
            # Of two nodes that begin a log at once, whoever makes a witness otherwise stops its
            # lane.
            self._life.spawn(self._record(log, environment, packages))
            return
        log.withheld.unproven += 1
        self._life.spawn(self._prove(log, environment, packages))

    async def _record(self, log: Log, environment: bytes, packages: Packages) -> None:
        while True:
            try:
                await self._store.add_environment(log.job.log_id, environment, packages)
                return
            except PenstockError as error:
                logger.debug("an environment is not recorded; waiting", error=str(error))
            await asyncio.sleep(STORE_RETRY_S)

    async def _prove(self, log: Log, environment: bytes, packages: Packages) -> None:
        """Make witnesses again: alike, the environment is recorded; else the job is refused."""
        try:
            witnesses = await self._witnesses(log.job.log_id)
            if witnesses:
                logger.info(
                    "a job is proven with other packages than it was computed with",
                    job=log.job.name,
                    witnesses=len(witnesses),
                )
                proof = _Proof(log, witnesses)
                self._dispatch.schedule()
                log.withheld.refused = await self._compare(log, proof)
            if log.withheld.refused is None:
                await self._record(log, environment, packages)
        finally:
            log.withheld.unproven -= 1
            log.withheld.wake_all()
            self._dispatch.schedule()

    async def _witnesses(self, log_id: bytes) -> list[Witness]:
        while True:
            try:
                # Another node may have recorded environments since this one began.
                for known, packages in (await self._store.environments(log_id)).items():
                    self._recorded[log_id].setdefault(known, packages)
                return await self._store.some_witnesses(log_id, PROOF_WITNESSES)
            except PenstockError as error:
                logger.debug("an environment waits for the store", error=str(error))
            await asyncio.sleep(STORE_RETRY_S)

    async def _compare(self, log: Log, proof: _Proof) -> LogDiverged | None:
        """Return the error for a job that is made otherwise here; None = it is made alike."""
        name, compared = log.job.name, 0
        try:
            async for witness, entry in proof.results():
                if entry.state is BatchState.FAILED:
                    logger.warning(
                        "a witness cannot be made again",
                        job=name,
                        lane=witness.lane,
                        offset=witness.offset,
                        error=str(entry.error),
                    )
                    continue
                try:
                    digest = await _digest(entry)
                except BadFrame:
                    digest = b""  # it is no batch at all
                compared += 1
                self._observer.witnessed(name, 1, int(digest != witness.digest))
                if digest != witness.digest:
                    ours = witness._replace(digest=digest)
                    error = self._diverged(log.job, ours, witness)
                    logger.error("a job is refused", job=name, code=error.code, error=str(error))
                    return error
        finally:
            proof.close()
        logger.info("a job is made alike with other packages", job=name, witnesses=compared)
        return None


async def _digest(entry: WantedBatch) -> bytes:
    """Return the digest of a batch that is ready; of a large one in a thread."""
    if entry.nbytes <= INLINE_BYTES:
        return made_digest(entry.header, entry.body)
    entry.pins += 1
    try:
        return await asyncio.to_thread(made_digest, entry.header, entry.body)
    finally:
        entry.unpin()


class _Proof:
    """Wants the batches of witnesses, as a reader wants its own.

    Args:
        log: The ledger.
        witnesses: Which.
    """

    def __init__(self, log: Log, witnesses: Iterable[Witness]) -> None:
        self.job, self._log, self.peer = log.job, log, log.peers.join("")
        self.ready: Ranked[WantedBatch] = Ranked()
        self.closed = self.gave_way = False
        self.horizon, self.head = MAX_POSITION, 0
        self.moved_at = time.monotonic()
        self._settled = asyncio.Event()
        self.wake: Callable[[], None] = self._settled.set
        self._wanted: dict[WantedBatch, Witness] = {}
        log.readers.add(self)
        order = log.numbering.order
        for witness in witnesses:
            try:
                position = order.position(witness.lane, witness.offset)
            except PastEnd:  # the lane is known to end before: that is told where it is met
                continue
            key = Key(position, witness.lane, witness.offset, False)
            self._wanted[log.want(key, self)] = witness

    @property
    def next_pending(self) -> WantedBatch | None:
        """Return what is looked at next."""
        return next(iter(self._wanted), None)

    def urgency(self, entry: WantedBatch) -> int:
        """Return 0: readers wait for all of them."""
        return 0

    def replaced(self, entry: WantedBatch, fresh: WantedBatch) -> None:
        """Want a fresh entry in place of one whose bytes were freed."""
        if entry in self._wanted:
            self._wanted[fresh] = self._wanted.pop(entry)

    def settled(self, entry: WantedBatch) -> None:
        """Note that an entry is ready, or has failed."""
        self._settled.set()

    def renumber(self, first: int) -> None:
        """Nothing: entries keep their lanes and offsets."""

    def unknown_batches(self) -> Iterable[LaneOffset]:
        """Return nothing: these batches exist."""
        return ()

    def learned(self) -> None:
        """Nothing: no position is waited for."""

    def reads(self) -> Reads:
        """Return the lanes of its witnesses."""
        return frozenset(entry.key.lane for entry in self._wanted), 1, 0

    async def results(self) -> AsyncIterator[tuple[Witness, WantedBatch]]:
        """Yield each witness with its batch, ready or failed."""
        while self._wanted:
            self._settled.clear()
            done = [
                entry
                for entry in self._wanted
                if entry.state in (BatchState.READY, BatchState.FAILED)
            ]
            for entry in done:
                yield self._wanted[entry], entry
                del self._wanted[entry]
                self._log.leave(entry, self)
            if not done:
                await self._settled.wait()

    def close(self) -> None:
        """Want nothing more."""
        self.closed = True
        for entry in self._wanted:
            self._log.leave(entry, self)
        self._wanted.clear()
        self._log.peers.leave(self.peer)
        self._log.readers.discard(self)
