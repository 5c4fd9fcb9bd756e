"""The open streams of a node: who reads what, how far, and why they end."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Coroutine, Iterator
from typing import Any
from urllib.parse import unquote

import structlog
from typing_extensions import override

from penstock.common import tracing
from penstock.common.malloc import release_memory
from penstock.server.access.caller import ANYBODY, Caller
from penstock.server.access.callers import Access
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.rpc import event_log
from penstock.server.rpc.lending import Lender
from penstock.server.rpc.listener import Listener
from penstock.server.rpc.unsent import Unsent
from penstock.server.store.contract import Store
from penstock.server.store.records import (
    BeginAnswer,
    BeginRequest,
    CheckpointRecord,
    Committed,
    GroupRecord,
    Latest,
    Moved,
)
from penstock.server.store.rules.arguments import printable
from penstock.wire import CHUNK_BYTES, MAX_MESSAGE_BYTES, WIDE_CHUNK_BYTES
from penstock.wire.errors import PenstockError, StaleGeneration, UnknownGroup
from penstock.wire.left_reasons import left_reason
from penstock.wire.plain import clean_text
from penstock.wire.v1 import cursors_pb2, feed_pb2

logger = structlog.get_logger("penstock.rpc")

MAX_ERROR_CHARS = 1000
"""Of a sentence in the log: it may quote what a request said."""

_BESIDE_BYTES = 4096
"""More than a message holds beside a header and a chunk: tags, lengths, lane and offset."""


CURSOR_S = 5.0
"""Where nodes share a store, commits go through any of them: whoever looks at a node sees cursors
that are so old at most, and a little more, and nobody asks for them where nobody looks."""

RELEASE_S = 5.0
"""So long after a stream has ended the memory of all that have is given back, at once."""

WIDE_BUNDLE_BYTES = 4 << 20
"""Body bytes that share one message at most, where a stream has not had a wide one yet."""


class OpenRead:
    """One open Read, as operators see it.

    Attributes:
        request: What it opened with.
        peer: Where its consumer is, as the network names it.
        error: What it ends with, as soon as it can be told.
        ending: Why it ended, in a word or two, where it has.
        finished_step: The first step that the consumer has not finished, as it says here or by a
            commit.
        opened_at: When it was opened, of the monotonic clock.
        opened_ns: The same in nanoseconds since 1970, for its span.
        wrote_at: When a batch was written last, of the same; -inf = none was.
        lender: Lends it bodies; None = they are sent.
        unsent: Sends its messages, and those of all others.
        holds: It was told of that it holds as much as may be lent to it.
        caller: Who reads.
        accepts: Its consumer takes positions below this.
        loop_waited_s: For how long its consumer has waited for batches since it first said so, of
            any node: what it waited for before that, a start or a stream that broke, is no load.
    """

    def __init__(
        self,
        request: feed_pb2.Open,
        reader: StreamDemand,
        wake: asyncio.Event,
        peer: str = "",
        lender: Lender | None = None,
        unsent: Unsent | None = None,
        caller: Caller = ANYBODY,
    ) -> None:
        self.caller, self.accepts = caller, 0
        self.lender, self.holds, self.unsent = lender, False, unsent or Unsent()
        self.request, self.reader, self.wake, self.peer = request, reader, wake, unquote(peer)
        self.error: PenstockError | None = None
        self.ending = "hung up"
        self.finished_step = reader.share.step(reader.head)
        self.waiting_since: float | None = None
        self.waited_s = 0.0
        self.loop_waited_s, self._said_first_ms = 0.0, -1
        self.wrote_at = -math.inf
        self.opened_at, self.opened_ns = time.monotonic(), time.time_ns()
        self._widest = CHUNK_BYTES // 2  # body bytes of the largest message so far, or this

    @property
    def horizon(self) -> int:
        """The position below which batches are made for it now: as it accepts them, or fewer."""
        most = self.caller.horizon
        if most is None:
            return self.accepts
        return min(self.accepts, self.reader.share.nth_after(self.reader.head, most))

    def chunk_bytes(self, header_bytes: int, body_bytes: int) -> int:
        """Return how many bytes of a body go into each message of the next batch.

        `CHUNK_BYTES`, which are the fastest; but the first batch of a size, to the next power of
        two, goes in the fewest messages. That is for malloc on the consumer's side: glibc's keeps
        as much freed memory as twice the largest block that it has seen freed. A consumer that has
        seen no more than chunks gives each of them back to the system, and page faults for the
        next take a quarter of its time.

        Args:
            header_bytes: The length of its header, which shares the first message.
            body_bytes: The length of its body.
        """
        wide = min(body_bytes, WIDE_CHUNK_BYTES, MAX_MESSAGE_BYTES - _BESIDE_BYTES - header_bytes)
        if wide < 2 * self._widest or self.unsent.is_much:
            return CHUNK_BYTES
        self._widest = wide
        return wide

    @property
    def bundle_bytes(self) -> int:
        """How many bytes of bodies share a message.

        `CHUNK_BYTES`; but more until a message was wide, for malloc as above: of 200 KB each, a
        consumer had 54 page faults a batch, and has one.
        """
        was_wide = self._widest >= WIDE_BUNDLE_BYTES // 2
        return CHUNK_BYTES if was_wide or self.unsent.is_much else WIDE_BUNDLE_BYTES

    def note_bundle(self, nbytes: int) -> None:
        """Note that bodies of so many bytes have shared a message."""
        self._widest = max(self._widest, nbytes)

    def note_finished(self, step: int) -> None:
        """Note that all steps below this one are finished; messages may come out of order."""
        self.finished_step = max(self.finished_step, step)

    def note_loop_waited(self, waited_ms: int) -> None:
        """Note for how long the consumer says that it has waited in all; 0 = it says nothing."""
        if self._said_first_ms < 0:
            self._said_first_ms = waited_ms
        self.loop_waited_s = max(self.loop_waited_s, (waited_ms - self._said_first_ms) / 1000)

    def waiting_s(self) -> float:
        """Return for how long the consumer has waited for its next batch, all waits together."""
        now = time.monotonic()
        return self.waited_s + (now - self.waiting_since if self.waiting_since is not None else 0.0)

    def stalled_s(self) -> float:
        """Return for how long the consumer has waited for the batch that it is owed now."""
        return 0.0 if self.waiting_since is None else time.monotonic() - self.waiting_since

    @property
    def lag_batches(self) -> int:
        """Return how many batches were sent of steps that the consumer has not finished."""
        share = self.reader.share
        first = share.index(self.finished_step * share.batches_per_step)
        return max(0, share.index(self.reader.head) - first)

    def waits(self, waiting: bool) -> float | None:
        """Note that the consumer waits, or not; return the seconds of a wait that ends now."""
        now = time.monotonic()
        if waiting and self.waiting_since is None:
            self.waiting_since = now
        elif not waiting and self.waiting_since is not None:
            length, self.waiting_since = now - self.waiting_since, None
            self.waited_s += length
            return length
        return None

    def who(self) -> dict[str, Any]:
        """Return the fields of a message that say whose stream it is."""
        fields: dict[str, Any] = {"job": self.request.job, "group": self.request.group}
        fields |= {"rank": self.request.rank, "world_size": self.request.world_size or 1}
        return fields | ({"generation": self.request.generation} if self.request.token else {})

    def how_far(self) -> dict[str, Any]:
        """Return the fields of a message that say how far it came."""
        return {
            "position": self.reader.head,
            "step": self.reader.share.step(self.reader.head),
            "finished_step": self.finished_step,
            "sent_batches": self.reader.sent_batches,
            "after_s": round(time.monotonic() - self.opened_at, 3),
        }

    def status(self) -> dict[str, Any]:
        """Return the stream as `Feed.Status` shows it."""
        reader, share = self.reader, self.reader.share
        return {
            "group": self.request.group,
            "rank": self.request.rank,
            "world_size": self.request.world_size or 1,
            "generation": self.request.generation,
            "batches_per_step": share.batches_per_step,
            "next": reader.head,
            "horizon": reader.horizon,
            "finished_step": self.finished_step,
            "sent_batches": reader.sent_batches,
            "sent_bytes": reader.sent_bytes,
            "sent_tokens": reader.sent_tokens,
            "waiting_s": round(self.waiting_s(), 3),
            "stalled_s": round(self.stalled_s(), 3),
            "lag_batches": self.lag_batches,
        }


class Streams(Listener):
    """Every open stream of a node, and what is known of their groups.

    Args:
        store: Asked where a group stands that is read here and has not committed here.
        metrics: Where streams are counted.

    Attributes:
        story: Tells what happens to them.
        unsent: Sends their messages.
    """

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics
        self.events, self.unsent = event_log.EventLog(), Unsent()
        self._streams: dict[int, OpenRead] = {}
        self._sent_to: dict[str, int] = {}  # by caller, bytes of its streams that have ended
        self._numbers = itertools.count(1)
        # By (job, group): the generation, and its ranks that have opened a stream.
        self._ranks: dict[tuple[str, str], tuple[int, set[int]]] = {}
        # By (job, group), of groups that are read here: the cursor; None = not known yet.
        self._cursors: dict[tuple[str, str], int | None] = {}
        self._cursor_at: dict[tuple[str, str], float] = {}  # when it was heard of, or asked for
        self._tasks: set[asyncio.Task[None]] = set()
        self._releasing: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._streams)

    def __iter__(self) -> Iterator[OpenRead]:
        return iter(tuple(self._streams.values()))

    def numbered(self) -> Iterator[tuple[int, OpenRead]]:
        """Return the open streams with their numbers."""
        return iter(tuple(self._streams.items()))

    def add(self, stream: OpenRead) -> int:
        """Take a stream in; return its number."""
        number = next(self._numbers)
        self._streams[number] = stream
        self._metrics.streams.inc()
        self._note_restart(stream.request)
        for because in stream.request.left:
            self._metrics.failed_over(stream.request.job, left_reason(because))
        place = stream.request.job, stream.request.group
        if stream.request.group and place not in self._cursors:
            self._cursors[place], self._cursor_at[place] = None, time.monotonic()
            self._spawn(self._look_up(*place))
        return number

    def joined(self, stream: OpenRead) -> None:
        """Tell of a stream that was taken in."""
        position = stream.reader.head
        bodies = "sent" if stream.lender is None else "lent"
        self.events.tell(
            event_log.JOINED, **stream.who(), position=position, peer=stream.peer, bodies=bodies
        )

    def remove(self, number: int) -> None:
        """Remove a stream that has ended."""
        stream = self._streams.pop(number)
        if name := stream.caller.name:
            self._sent_to[name] = self._sent_to.get(name, 0) + stream.reader.sent_bytes
        self._metrics.streams.dec()
        place = stream.request.job, stream.request.group
        if not any((s.request.job, s.request.group) == place for s in self):
            self._cursors.pop(place, None)
            self._cursor_at.pop(place, None)
        self.events.tell(event_log.LEFT, **stream.who(), why=stream.ending, **stream.how_far())
        about = {**stream.who(), "why": stream.ending, "sent_batches": stream.reader.sent_batches}
        tracing.record("node.stream", stream.opened_ns, about)
        if self._releasing is None:
            loop = asyncio.get_running_loop()
            self._releasing = loop.call_later(RELEASE_S, self._release)

    def _release(self) -> None:
        """Give back what malloc keeps of messages that streams did not take, and of their books."""
        self._releasing = None
        release_memory()

    def close(self) -> None:
        """Log what was only counted so far."""
        for task in self._tasks:
            task.cancel()
        if self._releasing is not None:
            self._releasing.cancel()
        self.events.close()

    def refused(self, error: StaleGeneration, call: str) -> None:
        """Tell of a call or a reader that came from an attempt that is over."""
        self.events.tell(
            event_log.REFUSED,
            job=error.job or "",
            group=error.group or "",
            call=call,
            generation=error.generation,
            current=error.current,
            by=error.owner or "",
        )

    def holds(self, stream: OpenRead, lent_bytes: int, limit_bytes: int, batch_bytes: int) -> None:
        """Tell of a consumer that is sent a batch, as it has no room for it in its share."""
        if not stream.holds:
            stream.holds = True
            self.events.tell(
                event_log.HOLDS,
                **stream.who(),
                lent_bytes=lent_bytes,
                limit_bytes=limit_bytes,
                batch_bytes=batch_bytes,
            )

    def turned_away(self, error: PenstockError, request: cursors_pb2.BeginRequest) -> None:
        """Tell of a rank that could not begin: its own output may be on a machine that is gone."""
        self.events.tell(
            event_log.TURNED_AWAY,
            level="warning",
            job=printable(request.job),  # any caller's, of any length: nothing has checked them
            group=printable(request.group),
            rank=request.rank,
            by=printable(request.owner),
            code=error.code,
            error=clean_text(error.message, MAX_ERROR_CHARS),
        )

    def by_caller(self) -> dict[str, tuple[int, int]]:
        """Return by caller the streams that are open, and the bytes that all of its were sent."""
        found = {name: (0, sent) for name, sent in self._sent_to.items()}
        for stream in self:
            streams, sent = found.get(stream.caller.name, (0, 0))
            found[stream.caller.name] = streams + 1, sent + stream.reader.sent_bytes
        return found

    def check_callers(self, access: Access) -> None:
        """End the streams of those who are not let in any more, or to something else."""
        for stream in self:
            if stream.caller.name and (error := access.still(stream.caller)) is not None:
                stream.error = error
                stream.wake.set()

    def status(self, job: str) -> dict[str, Any]:
        """Return the streams of a job, and the cursors of their groups, for `Feed.Status`."""
        groups = [
            {"id": number, **stream.status()}
            for number, stream in self._streams.items()
            if stream.request.job == job
        ]
        cursors = {group: step for (name, group), step in self._cursors.items() if name == job}
        now_s = time.monotonic()
        for group in cursors if self._store.shared else ():
            if now_s - self._cursor_at[job, group] >= CURSOR_S:
                self._cursor_at[job, group] = now_s
                self._spawn(self._look_up(job, group))
        return {"groups": groups, "cursors": cursors}

    # --- what happens to groups ---

    @override
    def readers(self, job: str, group: str) -> int:
        return sum(1 for _ in self._of_attempts(job, group))

    @override
    def began(self, request: BeginRequest, begun: BeginAnswer) -> None:
        job, group = request.job.name, request.group
        who = request.owner or "another attempt"
        self._at(job, group, begun.start_step)
        self.events.tell(
            event_log.BEGAN,
            job=job,
            group=group,
            generation=begun.generation,
            world_size=request.world_size,
            batches_per_step=begun.batches_per_step,
            start_step=begun.start_step,
            start=_origin(request, begun),
            by=request.owner,
        )
        self._fence(job, group, begun.generation, f"began generation {begun.generation}", who)

    @override
    def moved(self, job: str, group: str, moved: Moved, how: str, owner: str) -> None:
        self._at(job, group, moved.step)
        place = {"job": job, "group": group}
        self.events.tell(event_log.MOVED, **place, **moved._asdict(), how=how, by=owner)
        self._fence(job, group, moved.generation, how, owner or "somebody")

    @override
    def committed(self, job: str, group: str, rank: int, committed: Committed) -> None:
        self._at(job, group, committed.cursor)
        for stream in self._of_attempts(job, group):
            # A reader that ends after its last commit says no more on its stream.
            own = stream.request.rank == rank
            stream.note_finished(committed.row if own else committed.cursor)
        logger.debug("cursor committed", job=job, group=group, rank=rank, **committed._asdict())

    @override
    def checkpointed(self, job: str, group: str, made: CheckpointRecord) -> None:
        self.events.tell(event_log.NAMED, job=job, group=group, name=made.name, step=made.step)

    @override
    def deleted(self, record: GroupRecord, owner: str) -> None:
        what = f"was deleted by {owner or 'somebody'} at step {record.cursor}"
        readers = self._end_deleted(record.job, record.name, what)
        self.events.tell(
            event_log.DELETED,
            job=record.job,
            group=record.name,
            generation=record.generation,
            cursor=record.cursor,
            checkpoints=len(record.checkpoints),
            readers=readers,
            by=owner,
        )

    # --- what other nodes have done to groups ---

    def attempts(self) -> dict[tuple[str, str], int]:
        """Return the groups that attempts read here: the lowest generation among their streams."""
        found: dict[tuple[str, str], int] = {}
        for stream in self:
            request = stream.request
            if request.group and request.token and stream.error is None:
                place = request.job, request.group
                found[place] = min(request.generation, found.get(place, request.generation))
        return found

    def heard(self, job: str, group: str, latest: Latest | None) -> None:
        """End the streams of attempts that are over: a group has a newer one, or is gone."""
        if latest is None:
            self._end_deleted(job, group, "was deleted by another node")
            return
        self._at(job, group, latest.start_step)
        how = {
            "seek": f"moved the cursor to step {latest.start_step}",
            "restore": f"restored checkpoint {latest.checkpoint!r}, step {latest.start_step}",
        }.get(latest.made_by, f"began generation {latest.generation}")
        self._fence(job, group, latest.generation, how, latest.owner or "somebody")

    def end_attempts(self, error: PenstockError) -> None:
        """End the streams of all attempts: whether they are over is not known."""
        for stream in self:
            if stream.request.group and stream.request.token and stream.error is None:
                stream.error = error
                stream.wake.set()

    def _end_deleted(self, job: str, group: str, what: str) -> int:
        self._ranks.pop((job, group), None)
        readers = list(self._of_attempts(job, group))
        for stream in readers:
            stream.error = UnknownGroup(
                f"group {group!r} of job {job!r} {what}, while this attempt (generation "
                f"{stream.request.generation}) read it: start the run again, with its state or "
                "start=, to begin the group anew",
                job=job,
                group=group,
                generation=stream.request.generation,
            )
            stream.wake.set()
        return len(readers)

    def _fence(self, job: str, group: str, generation: int, how: str, by: str) -> None:
        """End the streams of a group's older attempts."""
        fenced = [s for s in self._of_attempts(job, group) if s.request.generation < generation]
        for stream in fenced:
            stream.error = StaleGeneration(
                f"group {group!r} of job {job!r} has moved on: {by} {how}; this reader belongs "
                f"to generation {stream.request.generation}: stop it, or open it again",
                generation=stream.request.generation,
                current=generation,
                job=job,
                group=group,
            )
            stream.wake.set()
        if fenced:
            self.events.tell(
                event_log.FENCED,
                job=job,
                group=group,
                readers=len(fenced),
                generation=max(stream.request.generation for stream in fenced),
                current=generation,
                by=by,
                how=how,
            )

    def _of_attempts(self, job: str, group: str) -> Iterator[OpenRead]:
        """Yield a group's streams, those left out that only look."""
        for stream in self:
            request = stream.request
            if (request.job, request.group) == (job, group) and request.token:
                yield stream

    def _at(self, job: str, group: str, step: int) -> None:
        if (job, group) in self._cursors:
            self._cursors[job, group], self._cursor_at[job, group] = step, time.monotonic()

    async def _look_up(self, job: str, group: str) -> None:
        """Ask the store where a group stands; without an answer it is not known."""
        asked_at = self._cursor_at.get((job, group))
        try:
            [record] = await self._store.groups(job, group)
        except PenstockError as error:
            logger.debug("a cursor is not known", job=job, group=group, error=str(error))
            return
        if asked_at is not None and self._cursor_at.get((job, group)) == asked_at:
            # Else it has committed meanwhile.
            self._cursors[job, group] = record.cursor

    def _note_restart(self, request: feed_pb2.Open) -> None:
        """Count a stream that a rank of the group's latest attempt has opened before."""
        if not request.token:
            return
        place = request.job, request.group
        generation, ranks = self._ranks.get(place, (0, set()))
        if request.generation != generation:
            ranks = set()
        if request.rank in ranks:
            self._metrics.restarts.labels(request.job).inc()
        ranks.add(request.rank)
        self._ranks[place] = request.generation, ranks

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _origin(request: BeginRequest, begun: BeginAnswer) -> str:
    """Return in words where a new generation's start comes from."""
    if request.start_step is not None:
        return "the trainer's state" if request.store else "start="
    if begun.batches_per_step_from != "group":
        return "a new group"
    return f"the cursor of generation {begun.generation - 1}"
