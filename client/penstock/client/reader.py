"""What a Loader reads with: its position, where a pass begins and ends, and the next batch."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.client.aside import aside, tell
from penstock.client.counters import Counted, count_in
from penstock.client.frameworks.notice import reader_ahead
from penstock.client.options import Options
from penstock.client.passes import Batches
from penstock.client.reading.arrival import Arrival, steps_of
from penstock.client.reading.borrowing import borrowed_bytes
from penstock.client.reading.buffers import BufferPool
from penstock.client.reading.decoders import check_values, make_decoder
from penstock.client.reading.feed import Feed
from penstock.client.reading.route import Node
from penstock.client.reading.slots import Delivery
from penstock.client.reading.stages import TimedPool, Waited
from penstock.client.reading.values import Decoder
from penstock.client.run.opener import Opener
from penstock.client.run.ranks import WorldRank, mesh_dimensions
from penstock.client.run.resources import Resources
from penstock.client.run.session import Session, Start
from penstock.client.standing import Standing
from penstock.client.stats import Waits, report
from penstock.client.steps import Batch, BatchInfo, Step
from penstock.wire.errors import InvalidRequest, NotStarted, PastEnd
from penstock.wire.order import Share, Tail
from penstock.wire.prefetch import LEAST_AHEAD
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")

ENDLESS = (
    ": train by a number of steps (max_steps of a Trainer, a break in a loop), or give the job "
    'epochs: 1; evaluate with mode="eval" and max_steps=; where a torch Dataset is asked for, '
    "penstock.client.frameworks.data.LoaderDataset(loader) is one, without a length"
)
"""What to do about a job that has no length."""


class Reader:
    """Gives one rank's batches in order, to the iterators of a Loader. Used by one thread.

    Args:
        options: What the Loader was given.
        resources: Where its connection and its streams are kept; closed when this is collected.

    Attributes:
        at: Where the Loader stands.
        opener: Settles what a session needs.
        waits: How long the loop has waited.
    """

    def __init__(self, options: Options, resources: Resources) -> None:
        self._options, self._resources = options, resources
        self.opener = Opener(resources, options)
        start = options.start
        begins = None if start == "state" else Start(start if isinstance(start, int) else None)
        self.at = Standing(begins)
        self._closed = False
        # The step that is being given, with the counts of its batches by position.
        self._given: tuple[int, dict[int, Mapping[str, int]]] = (-1, {})
        self._decoder: Decoder | None = None
        self.waits = Waits()
        self._pool = TimedPool(
            BufferPool((options.prefetch or LEAST_AHEAD) + 2, options.limits.prefetch_bytes)
        )
        self._holds_ahead: str | None = None  # the warning about a framework that never marks
        # At interpreter exit `resources` closes what is open.
        self._finalizer = weakref.finalize(self, resources.close, waits=False)
        self._finalizer.atexit = False
        self._counted: Counted | None = None
        if options.metrics is not None:
            self._counted = count_in(options.metrics, self, options.job, options.group)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def check(self) -> None:
        """Refuse to be used after `close`, and in another process.

        Raises:
            ForkedLoader: This is another process.
            InvalidRequest: It was closed.
        """
        self._resources.guard.check()
        if self._closed:
            raise InvalidRequest("this Loader is closed: make a new one")

    def close(self) -> None:
        """End the stream, the connection, and a node that was spawned; idempotent."""
        self._closed = True
        self._resources.close()
        if self._counted is not None:
            self._counted.look()
        self.at = self.at._replace(feed=None)
        self._finalizer.detach()

    def describe(self) -> str:
        """Return one line about where it stands, for people; asks nobody."""
        options, at = self._options, self.at
        who = f"<Loader of job {options.job!r} at {self.opener.target}"
        if options.group is not None:
            who += f", group {options.group!r}"
        if at.session is not None:
            who += f", rank {at.session.share.rank} of {at.session.share.world_size}"
        return f"{who}: {self._where()}>"

    def _where(self) -> str:
        at = self.at
        given = f"{at.tally.batches:,} batch{'' if at.tally.batches == 1 else 'es'} given"
        if self._closed:
            return f"closed; {given}"
        if at.session is None:
            return "waits for load_state_dict()" if at.start is None else "nothing is read yet"
        if at.is_over:
            return f"at its end; {given}"
        return f"next is position {at.next:,}, step {at.session.share.step(at.next):,}; {given}"

    # --- where it stands ---

    def started(self) -> Session:
        """Return the session; find out rank, step size and position first if necessary.

        Raises:
            NotStarted: start="state", and no state was loaded.
            PenstockError: See `Opener.open`.
        """
        self.check()
        at = self.at
        if at.session is not None:
            return at.session
        if at.start is None:
            raise NotStarted(
                'start="state" waits for a state: call load_state_dict() or seek() before the '
                'first batch, or use start="cursor"'
            )
        start = at.start
        self.at = at = at._replace(is_opening=True)
        session = self.opener.open(start, at.moves)
        self.at = at._replace(session=session, next=session.first, moves=session.moves)
        return session

    @property
    def steps(self) -> int | None:
        """How many steps a whole pass has; None = endless, or not known as reading began."""
        return self._cut(self.started().steps)

    def count_steps(self) -> int | None:
        """Return how many steps a whole pass has; None = endless, or not known yet.

        Nothing begins for it without a length, or before the state that is waited for is loaded:
        frameworks ask before that.
        """
        batches = self.opener.count_batches()
        if batches is None:
            return self._options.max_steps
        tail = Tail(batches, self._share().batches_per_step, self._options.tail_pad)
        return self._cut(tail.steps)

    def count_batches(self) -> int | None:
        """Return how many batches this rank has in a whole pass; None as for `count_steps`."""
        steps = self.count_steps()
        return None if steps is None else steps * self._share().batches_per_rank

    def _share(self) -> Share:
        awaits_state = self.at.session is None and self.at.start is None
        return self.opener.share() if awaits_state else self.started().share

    def length(self, count: Callable[[], int | None]) -> int:
        """Return what `count` gives, for `len()`.

        Raises:
            TypeError: The job is endless, or it is not known yet where it ends.
        """
        self.check()
        found = count()
        if found is not None:
            return found
        job, info = self._options.job, self.opener.info
        if not info.finite:
            raise TypeError(f"job {job!r} is endless, so its Loader has no len(){ENDLESS}")
        so_far = f" ({info.counted_so_far})" if info.counted_so_far else ""
        raise TypeError(
            f"job {job!r} has a length that is not known yet{so_far}, so its Loader has no len(): "
            "ask again later; a job with a plan, made of an index of sizes, has it at once"
        )

    def _cut(self, steps: int | None) -> int | None:
        most = self._options.max_steps
        if steps is None or most is None:
            return most if steps is None else steps
        return min(steps, most)

    @property
    def counted(self) -> int:
        """The first own position that is not counted as trained on."""
        share, at = self.started().share, self.at
        return at.counted(share)

    def restart(self, start: Start) -> None:
        """Forget the position: the next batch is that of `start`."""
        at = self.at
        # A call that was interrupted and is made again is the same move, to the same position.
        moves = at.moves + (at.session is not None or (at.is_opening and at.start != start))
        self.at = self._parted(at)._replace(
            start=start, moves=moves, session=None, is_opening=False
        )
        self._resources.close_feeds()

    def go_back(self, before: Standing) -> None:
        """Return to the position before `restart`: the move was refused."""
        self.at = self._parted(before)

    def _parted(self, at: Standing) -> Standing:
        """Return `at` without its feed and what belongs to it."""
        tally = at.tally
        if at.feed is not None:
            tally = tally._replace(reconnects=tally.reconnects + at.feed.reconnects)
        return at._replace(feed=None, marked=None, is_over=False, tally=tally)

    def _rewind(self) -> None:
        """Go to the first position; for readers without a group."""
        at = self.at
        assert at.session is not None
        self.at = self._parted(at)._replace(next=at.session.share.at_or_after(0))
        self._resources.close_feeds()

    # --- a pass ---

    def begin_pass(self) -> None:
        """Decide where a new iteration begins.

        Raises:
            InvalidRequest: A pass of `mode="eval"` would be endless.
            PastEnd: The group has been read to its end.
        """
        session = self.started()
        if self._options.is_eval:
            if not session.is_finite and self._options.max_steps is None:
                raise InvalidRequest(
                    f'job {session.job!r} is endless, and mode="eval" reads whole passes: pass '
                    "max_steps=, or give the job epochs: 1"
                )
            self._rewind()
        elif (counted := self.counted) != self.at.next:
            # A framework has dropped a batch that it fetched ahead: it is read again.
            at = self.at
            self.at = self._parted(at)._replace(next=counted, marked=at.marked)
            self._resources.close_feeds()
        elif self.at.is_over:
            if session.group:
                raise PastEnd(
                    f"group {session.group!r} has read all {_steps(session)} steps of job "
                    f"{session.job!r}, and a group reads each step once: for more passes give the "
                    "job more epochs: or read with group=None; to read it again, seek(step=0)",
                    batches=session.batches,
                )
            self._rewind()
        self.at = self.at._replace(pass_first=self.at.next)
        if not self._options.is_eval:
            self._holds_ahead = reader_ahead(has_length=session.batches is not None)

    def end_pass(self) -> None:
        """Note that an iteration has come to the end."""
        at = self.at
        self.at = at._replace(is_over=True)
        session = at.session
        if session is None or self._options.is_eval or at.next != session.first or at.is_over:
            return
        if session.group:
            whose, way = (
                f"group {session.group!r} of job {session.job!r}",
                "seek(step=0) reads it again",
            )
        else:
            whose, way = f"this reader of job {session.job!r}", "the next pass begins at step 0"
        tell(
            logger.warning,
            "%s begins at the end of %s steps: nothing is left; %s",
            whose,
            _steps(session),
            way,
        )

    # --- the next batch ---

    def _feed(self) -> Feed:
        options = self._options
        if self._decoder is None:
            # A mistake is reported before the node is called. In `aside`, since a search for a
            # module, or an import, that is interrupted can leave locks of the interpreter locked.
            aside(lambda _: check_values(options.device, options.as_numpy, options.memory))
        feed = self.at.feed
        if feed is None:
            feed = self._open_feed()
        if self._decoder is None:
            # The first batches come while torch is imported, in `aside`, too.
            feed.start()
            made = aside(
                lambda _: make_decoder(
                    options.device,
                    options.as_numpy,
                    options.memory,
                    Arrival(steps_of(options.arrive)),
                )
            )
            decoder = made.settle(options.limits.pinned_bytes)
            self._pool.use(decoder.memory)
            self._decoder = decoder
        if feed.ahead is None and self._decoder.is_ahead:
            feed.decode_ahead(self._decoder, options.limits.device_batches)
        return feed

    def _open_feed(self) -> Feed:
        session = self.started()
        at, steps = self.at, self.steps
        if not session.tail_pad and self._options.max_steps is None:
            steps = None  # the stream's end says what was left out
        transport = self._resources.connect(self._options)
        feed = Feed(
            [Node(transport, session.target)],
            session,
            at.next,
            stop=None if steps is None else steps * session.share.batches_per_step,
            prefetch=self._options.prefetch,
            prefetch_bytes=self._options.limits.prefetch_bytes,
            max_body_bytes=self._options.limits.max_body_bytes,
            pool=self._pool,
        )
        self._resources.feeds.add(feed)
        self.at = at._replace(feed=feed)
        self._resources.close_feeds(but=feed)  # those of calls that were interrupted
        return feed

    def _take(self, feed: Feed, position: int) -> Delivery | None:
        """Return the batch at an own position, None past the end; it stays where it is."""
        lending = self._pool.lending
        waited, lent = feed.wait_s, lending.so_far_s()
        try:
            return feed.take(position, self._options.deadline_s)
        finally:
            if (waited := feed.wait_s - waited) > 0:
                memory_s = lending.share_s(lent, waited)
                self._note_wait(Waited(network_s=waited - memory_s, memory_s=memory_s))

    def _decode(self, delivery: Delivery) -> dict[str, Any]:
        """Return the values of a batch, which may have been decoded ahead."""
        feed, decoder = self.at.feed, self._decoder
        assert feed is not None
        assert decoder is not None
        ahead, copied = feed.ahead, decoder.copying.so_far_s()
        taken = decoder.taking.so_far_s()
        began = time.monotonic() if ahead is None else ahead.wait_s
        try:
            if ahead is not None:
                return ahead.take(delivery, self._options.deadline_s)
            return decoder.finish(decoder.begin(delivery.entries, delivery.lease))
        finally:
            # On its own thread the loop waits as long as it decodes.
            waited = (time.monotonic() if ahead is None else ahead.wait_s) - began
            if waited > 0:
                copy_s = decoder.copying.share_s(copied, waited)
                memory_s = decoder.taking.share_s(taken, copy_s)  # which is a part of that
                self._note_wait(
                    Waited(memory_s=memory_s, copy_s=copy_s - memory_s, decode_s=waited - copy_s)
                )

    def _note_wait(self, waited: Waited) -> None:
        self.waits.add(waited, is_first=not self.at.tally.batches)

    def _peek(self) -> Delivery | None:
        """Return the batch that is given next, None past the end."""
        share = self.started().share
        feed, at = self._feed(), self.at
        feed.finished_step = share.step(at.counted(share))
        feed.release(at.next)
        return self._take(feed, at.next)

    def offer(self, index: int | None) -> tuple[Batch, Standing] | None:
        """Return the next batch and where the Loader stands once it is given.

        Args:
            index: The step that it must belong to; None = any.

        Raises:
            PenstockError: See `Feed.take`.
        """
        if index is not None and self.started().share.step(self.at.next) != index:
            return None
        delivery = self._peek()
        if delivery is None:
            return None
        at = self.at
        values = self._decode(delivery)
        assert at.session is not None
        info = self._describe(delivery, at.session.share)
        if self._options.meta:
            assert self._decoder is not None
            values["penstock_position"] = self._decoder.position(info.position)
        self._counts_of(info.step)[info.position] = info.counts
        after = at._replace(
            next=at.session.share.nth_after(info.position, 1),
            last=info,
            tally=at.tally.given(info.nbytes, info.counts, info.is_padding),
        )
        return Batch(values, info=info), after

    def _counts_of(self, index: int) -> dict[int, Mapping[str, int]]:
        """Return the counts of step `index` that were given, to be added to."""
        if self._given[0] != index:
            self._given = (index, {})
        return self._given[1]

    def _describe(self, delivery: Delivery, share: Share) -> BatchInfo:
        header = delivery.header
        body = delivery.lease.array if self._options.device is None else None
        return BatchInfo(header.position, _counts(header), header, body, share)

    # --- steps ---

    def next_step(self) -> Step | None:
        """Return the step that holds the next batch, None past the end."""
        if self._peek() is None:
            return None
        share, due = self.started().share, self.at.next
        index = share.step(due)
        return Step(self, index, share.positions(index), due, self._counts_of(index))

    def skip_rest(self, index: int) -> None:
        """Leave out what was not taken of step `index`."""
        session = self.started()
        before = self.at.tally.skipped_batches
        while session.share.step(self.at.next) == index and self._peek() is not None:
            at = self.at
            tally = at.tally._replace(skipped_batches=at.tally.skipped_batches + 1)
            self.at = at._replace(next=session.share.nth_after(at.next, 1), tally=tally)
        if skipped := self.at.tally.skipped_batches - before:
            tell(
                logger.warning,
                "job %r: the training loop did not take %d batches of step %d: skipped",
                session.job,
                skipped,
                index,
            )

    @property
    def world_rank(self) -> WorldRank:
        """Which data-parallel rank this is, of how many."""
        self.check()
        return self.opener.world_rank

    def batches_of(self, index: int) -> Iterator[Batch]:
        """Return the batches of step `index` that are still to be given."""
        return Batches(self, index)

    def counts_ahead(self, index: int) -> dict[int, Mapping[str, int]]:
        """Wait until the rest of step `index` is here, and return its counts by position."""
        found: dict[int, Mapping[str, int]] = {}
        for position in self.started().share.positions(index):
            if position >= self.at.next:
                delivery = self._take(self._feed(), position)
                if delivery is None:
                    break
                found[position] = _counts(delivery.header)
        return found

    def dp_process_group(self) -> Any:
        """Return the mesh's data-parallel process group; None = all processes.

        Raises:
            InvalidRequest: The mesh has several data-parallel dimensions.
        """
        mesh = self._options.ranks.mesh
        if mesh is None:
            return None
        names = mesh_dimensions(mesh, self._options.ranks.dp)
        if len(names) > 1:
            raise InvalidRequest(
                f"counts over the mesh dimensions {', '.join(names)} need a process group of "
                "them: pass process_group="
            )
        return mesh.get_group(names[0])

    # --- looking ---

    def notice_ahead(self) -> None:
        """Warn once that a state counts a batch which a framework holds and has not trained on."""
        sentence = self._holds_ahead
        if sentence is not None and self.at.marked is None:
            self._holds_ahead = None
            tell(logger.warning, "job %r: %s", self._options.job, sentence)

    def statistics(self) -> dict[str, Any]:
        """Return what `Loader.stats` says."""
        at, feed = self.at, self.at.feed
        ready = dict.fromkeys(
            ("dropped_batches", "dropped_samples", "buffered_batches", "buffer_bytes"), 0
        )
        found, pool = report(at.tally, self.waits), dict(self._pool.statistics())
        pool["leased_bytes"] += borrowed_bytes(self._pool)
        device = dict.fromkeys(
            (
                "device_batches",
                "pinned_bytes",
                "pinned_grown",
                "pinned_overflowed",
                "pinned_staged",
            ),
            0,
        )
        if self._decoder is not None and self._decoder.memory is not None:
            device |= {f"pinned_{k}": v for k, v in self._decoder.memory.counts().items()}
        if feed is not None:
            ready = feed.statistics(at.next)
            found["reconnects"] += feed.reconnects
            if feed.ahead is not None:
                device["device_batches"] = feed.ahead.ready
        return (
            found
            | ready
            | {"buffer_bytes_limit": self._options.limits.prefetch_bytes}
            | {f"pool_{k}": v for k, v in pool.items()}
            | device
            | {
                "position": at.last.position if at.last else None,
                "next_position": at.next if at.session else None,
            }
        )


def _steps(session: Session) -> str:
    return f"{session.steps:,}" if session.steps is not None else "its"


def _counts(header: feed_pb2.BatchHeader) -> dict[str, int]:
    return {count.name: count.value for count in header.counts}


__all__ = ["Reader"]
