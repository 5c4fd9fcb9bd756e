"""The Loader: what a training loop talks to."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NamedTuple, NoReturn

from penstock.client.aside import aside, tell
from penstock.client.frameworks.notice import reader_ahead
from penstock.client.options import check_arguments, check_step
from penstock.client.reading.buffers import BufferPool
from penstock.client.reading.feed import Delivery, Feed, Opening
from penstock.client.reading.values import Decoder, make_decoder, needs_torch, position_value
from penstock.client.run.ranks import Place, mesh_dimensions
from penstock.client.run.session import Opener, Resources, Session, Wish
from penstock.client.run.state import State
from penstock.client.stats import Tally, Waits, report
from penstock.client.steps import Batch, BatchInfo, Step
from penstock.wire.errors import InvalidRequest, NoGroup, NotStarted, PastEnd, PositionFar
from penstock.wire.transport import Transport
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")

DEADLINE_S = 540.0
"""Below NCCL's default of 600 s: the reason must come before the collective's abort."""

MAX_BODY_BYTES = 4 << 30

PREFETCH_BYTES = 512 << 20
"""Four batches of 128 MB; who asks for thousands of small ones gets them up to here."""


class _At(NamedTuple):
    """Where a Loader stands. It is replaced as a whole, by one assignment, never changed.

    So whatever is broken off, by a signal handler that raises, has happened or has not.

    Attributes:
        wish: Where the session is to begin; None = a state is waited for.
        moves: How often it went elsewhere.
        session: What was settled; None = nothing yet.
        is_opening: It was tried to settle it.
        feed: What delivers, from a position at or below `next` on; None = not open.
        next: The own position that is given next.
        marked: The own position that `mark` has named last.
        pass_first: The own position that the last iter() began with.
        is_over: The end was reached, and told.
        last: What was given last.
        tally: What was given.
    """

    wish: Wish | None
    moves: int = 0
    session: Session | None = None
    is_opening: bool = False
    feed: Feed | None = None
    next: int = 0
    marked: int | None = None
    pass_first: int = 0
    is_over: bool = False
    last: BatchInfo | None = None
    tally: Tally = Tally()


class Loader:
    """Reads a job's batches as one data-parallel rank. Used by one thread.

    Nothing is contacted before it is needed: the first batch, `len`, or a call that says so.

    Args:
        target: Where the node is: `host:port`, `dns:///name:port`, `unix:/path`, `local:FILE` (in
            a process beside this one), `spawn:FILE` (a node of our own); or an open `Transport`.
        job: The job's name.
        group: The training run that reads, all its ranks; None = ephemeral: nothing is stored,
            reading starts at step 0.
        batches_per_step: G, the global batch in batches; default: the group's, else the job file's,
            else the world size. The world size must divide it.
        rank: The data-parallel rank; default: from `mesh`, torch.distributed, RANK, SLURM_PROCID.
        world_size: How many data-parallel ranks; given together with `rank`.
        mesh: A torch DeviceMesh; ranks that differ only in other dimensions read the same.
        dp: The names of its data-parallel dimensions; default: those that contain "dp".
        cp: The names of its context-parallel dimensions, checked against the mesh.
        tp: The names of its tensor-parallel dimensions, checked against the mesh.
        pp: The names of its pipeline-parallel dimensions, checked against the mesh.
        start: `"cursor"` (where the group stands), a step, or `"state"` (wait for load_state_dict).
        mode: `"stream"`: iter() again goes on where it stood; once the end of a finite job was
            reached, it reads the job again from step 0, or, with a group, raises `PastEnd`.
            `"eval"`: every iter() is one whole pass from step 0; ephemeral.
        device: Where tensors go, in one copy per batch; None = they stay on the host.
        attempt: A token that all ranks of this start of the run share and no other start has;
            default: drawn and shared by torch.distributed, or made of the launcher's variables.
        prefetch: How many batches may be ready beyond the one in use.
        prefetch_bytes: How many bytes they may have; the next batch comes whatever its size.
        deadline_s: How long to wait for a batch, or for a server, before an error says why.
        tail: The last step of a finite job: `"pad"` fills it with blanked batches, `"drop"` leaves
            a step that is not full out.
        meta: Put `penstock_position` (int64, no dimensions) among the values.
        max_steps: With `mode="eval"`: a pass ends after this many steps.
        as_numpy: True = NumPy arrays, False = tensors; default: tensors where torch is installed.
        max_body_bytes: A batch that announces more is refused before memory is taken for it.

    Raises:
        InvalidRequest: Arguments that cannot be, or do not go together.
    """

    def __init__(
        self,
        target: str | Sequence[str] | Transport,
        job: str,
        *,
        group: str | None = None,
        batches_per_step: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Any = None,
        dp: str | Sequence[str] | None = None,
        cp: str | Sequence[str] | None = None,
        tp: str | Sequence[str] | None = None,
        pp: str | Sequence[str] | None = None,
        start: Literal["cursor", "state"] | int = "cursor",
        mode: Literal["stream", "eval"] = "stream",
        device: Any = None,
        attempt: str | None = None,
        prefetch: int = 8,
        prefetch_bytes: int = PREFETCH_BYTES,
        deadline_s: float = DEADLINE_S,
        tail: Literal["pad", "drop"] = "pad",
        meta: bool = False,
        max_steps: int | None = None,
        as_numpy: bool | None = None,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._resources = Resources()
        self._resources.guard.check()
        check_arguments(locals())
        self.target, self.job, self.group = target, job, group
        self._batches_per_step, self._start, self._mode = batches_per_step, start, mode
        self._mesh, self._dp = mesh, dp
        self._device, self._as_numpy, self._meta = device, as_numpy, meta
        self._prefetch, self._deadline_s = prefetch, deadline_s
        self._prefetch_bytes = prefetch_bytes
        self._tail_pad, self._max_steps = tail == "pad", max_steps
        self._max_body_bytes = max_body_bytes
        ranks: dict[str, Any] = {
            "rank": rank,
            "world_size": world_size,
            "mesh": mesh,
            "dp": dp,
            "peers": {"cp": cp, "tp": tp, "pp": pp},
        }
        self._opener = Opener(
            self._resources,
            target,
            job,
            group,
            batches_per_step=batches_per_step,
            ranks=ranks,
            attempt=attempt,
            any_store=isinstance(start, int),
            tail_pad=self._tail_pad,
            deadline_s=deadline_s,
        )
        if any(given is not None for given in (rank, world_size, mesh, dp, cp, tp, pp)):
            _ = self._opener.place  # a mistake in them is best told here

        self._closed = False
        wish = None if start == "state" else Wish(start if isinstance(start, int) else None)
        self._at = _At(wish)
        # The step that is being given, with the counts of its batches by position.
        self._given: tuple[int, dict[int, Mapping[str, int]]] = (-1, {})
        self._decoder: Decoder | None = None
        self._waits = Waits()
        self._pool = BufferPool(prefetch + 2, prefetch_bytes)
        self._holds_ahead: str | None = None  # what to say of a framework that never marks
        # At interpreter exit `session` closes what is open.
        self._finalizer = weakref.finalize(self, self._resources.close, waits=False)
        self._finalizer.atexit = False

    # --- reading ---

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches in order.

        After any exception, also one of a signal handler, the same iterator reads on.

        Raises:
            PastEnd: A group has been read to its end by this Loader, and there is no other pass.
            PenstockError: See `Feed.take`; what was yielded before stays counted.
        """
        return _Batches(self, None)

    def steps(self) -> Iterator[Step]:
        """Yield the global steps; each is iterated for this rank's micro batches of it.

        Batches of a step that were not taken when the next step is asked for are skipped, and
        counted as skipped.

        Raises:
            PenstockError: As iterating the Loader.
        """
        return _Steps(self)

    @property
    def last(self) -> BatchInfo | None:
        """The metadata of the batch last given; None before."""
        return self._at.last

    def __len__(self) -> int:
        """Return how many batches this rank reads of the whole job; asks the server once.

        Raises:
            TypeError: The job is endless.
        """
        self._check()
        if not self._opener.info.HasField("batches") and self._max_steps is None:
            raise TypeError(f"job {self.job!r} is endless, so its Loader has no len()")
        steps = self._steps()
        assert steps is not None
        return steps * self._started().share.batches_per_rank

    @property
    def place(self) -> Place:
        """Which data-parallel rank this is, of how many, and from where that is known."""
        self._check()
        return self._opener.place

    @property
    def batches_per_step(self) -> int:
        """G, the batches of a step over all ranks; contacts the server if it is not settled yet."""
        return self._started().share.batches_per_step

    def mark(self, position: Any = None) -> None:
        """Say that everything up to `position` has been trained on, and no more.

        For frameworks that hold a batch ahead: from the first call on, `state_dict` and `commit`
        count what was marked, not what was yielded, and a new `iter()` goes on there.

        Args:
            position: `batch.position`, or the `penstock_position` of a batch; None = one batch more
                than was marked, or, at first, the first that this Loader has yielded.

        Raises:
            InvalidRequest: This rank has not been given that position.
        """
        self._check()
        at = self._at
        if position is not None or at.session is None:
            marked = check_step("mark", 0 if position is None else position)
        elif at.marked is None:
            marked = at.pass_first
        else:
            marked = at.session.share.nth_after(at.marked, 1)
        if at.session is None or not at.session.share.owns(marked) or not 0 <= marked < at.next:
            raise InvalidRequest(
                f"mark({marked}): this Loader has not yielded that position; pass the position of "
                "a batch that came out of it",
                position=marked,
            )
        self._at = at._replace(marked=marked)

    @property
    def dataset(self) -> NoReturn:
        """Say why there is none; frameworks that skip batches by themselves look for it.

        Raises:
            AttributeError: Always; `hasattr` is False.
        """
        raise AttributeError(
            "a penstock Loader has no dataset to skip batches in: it resumes by load_state_dict(), "
            "which goes to the step at once; with the Trainer of transformers use "
            "penstock.client.frameworks.trainer.LoaderTrainer, with Accelerate leave "
            "skip_first_batches out and register_for_checkpointing(loader); docs/frameworks.md has "
            "a script for each"
        )

    # --- cursors ---

    def commit(self, step: int | None = None) -> int:
        """Make it durable that every step before this one is finished; return the group's cursor.

        Call it after the model's checkpoint is durable. Without `step` this rank's row moves to the
        first step that it has not finished; every rank calls it. With `step` all rows move: one
        rank calls it, after a barrier.

        Raises:
            NoGroup: The Loader is ephemeral.
            CommitOutOfRange: The log has no such step.
            PositionFar: `step` lies further ahead than a reader can be taken.
            StaleGeneration: A newer attempt of the group has taken over; nothing was written.
            Unreachable: No answer within the deadline; committing again is safe.
        """
        group = self._need_group("commit")
        session = self._started()
        if step is not None:
            step = check_step("commit", step)
        reply = self._opener.control.commit(
            group,
            session.token,
            session.generation,
            session.share.rank,
            session.share.step(self._counted()) if step is None else step,
            all_rows=step is not None,
        )
        return int(reply.cursor)

    def checkpoint(self, name: str, step: int | None = None) -> int:
        """Name a step of the group for good and return it; None = the group's cursor.

        Raises:
            NoGroup: The Loader is ephemeral.
            PastEnd, PositionFar: No reader could be taken to `step`.
            CheckpointExists: The name stands at another step.
        """
        group = self._need_group("checkpoint")
        if step is not None:
            step = check_step("checkpoint", step)
        return int(self._opener.control.checkpoint(group, name, step).step)

    def seek(self, step: int | None = None, *, position: int | None = None) -> None:
        """Go to a step; with a group that is a new generation, so every rank calls it.

        Args:
            step: The next step to be read.
            position: Instead of a step, for ephemeral Loaders: the next position.

        Raises:
            InvalidRequest: Neither or both are given, or they are negative.
            PastEnd: The job ends before it. The Loader stays where it stands.
            PositionFar: With a group: it takes too much planning to get there. It stays, too.
            StaleGeneration: A newer attempt of the group has taken over.
        """
        self._check()
        if (step is None) == (position is None):
            raise InvalidRequest("seek() takes a step, or position= for an ephemeral Loader")
        target = step if step is not None else position
        assert target is not None
        target = check_step("seek", target)
        if position is not None and self.group is not None:
            raise InvalidRequest(
                f"seek(position={position}): group {self.group!r} stands at steps; pass step=, or "
                "read with group=None"
            )
        self._refuse_eval("seek")
        info = self._opener.info
        if position is not None:
            wish = Wish(position=position)
        else:
            assert step is not None
            wish = Wish(step, State(self.job, info.log_id.hex(), info.store, self.group, 0, step))
        before = self._at
        self._restart(wish)
        try:
            self._started()
        except (PastEnd, PositionFar, InvalidRequest):
            # Refused before anything was moved: reading goes on where it stood.
            self._at = self._parted(before)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return where this Loader stands, for the training checkpoint.

        It counts what was yielded (or marked), not what was prefetched. At a step's boundary it is
        the same on every rank and loads at any world size. After the first batch it does no I/O.

        Raises:
            NotStarted: start="state", and no state was loaded.
            Unreachable: Before the first batch: the server is needed to know where reading starts.
        """
        session = self._started()
        share = session.share
        counted = self._counted()
        self._notice_ahead()
        step = share.step(counted)
        consumed = (counted - share.positions(step).start) // share.world_size
        return State(
            job=self.job,
            log_id=session.log_id.hex(),
            store=session.store,
            group=self.group,
            batches_per_step=share.batches_per_step,
            step=step,
            consumed=consumed,
            world_size=share.world_size,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict` was taken; with a group that is a new generation.

        Raises:
            BadState: It is no state, of another job or step size, or from within a step at another
                world size.
            JobChanged: The job is another log now.
            OtherStore: It comes from another store than the server's, and start= names no step.
        """
        self._check()
        self._refuse_eval("load_state_dict")
        found = State.from_dict(state)
        found.check_loadable(self.job, self._batches_per_step, self.place.world_size)
        info = self._opener.info
        found.check_log(info.log_id.hex())
        # `local:` opens its store with the first use of a group, and compares it then.
        if self.group is not None and info.store and found.store != info.store:
            found.check_store(info.store, start_is_given=isinstance(self._start, int))
            tell(
                logger.warning,
                "group %r of job %r: the state comes from store %s; going on in store %s",
                self.group,
                self.job,
                found.store,
                info.store,
            )
        self._restart(Wish(found.step, found))

    # --- looking and ending ---

    def stats(self) -> dict[str, Any]:
        """Return counts and rates: batches, bytes, tokens, wait_share, reconnects, buffers.

        `wait_share` is the share of the time since the first batch that training waited for data.
        """
        at, feed = self._at, self._at.feed
        ready = {"buffered_batches": 0, "buffer_bytes": 0}
        found = report(at.tally, self._waits)
        if feed is not None:
            ready = feed.statistics(at.next)
            found["reconnects"] += feed.reconnects
        return (
            found
            | ready
            | {"buffer_bytes_limit": self._prefetch_bytes}
            | {f"pool_{k}": v for k, v in self._pool.statistics().items()}
            | {
                "position": at.last.position if at.last else None,
                "next_position": at.next if at.session else None,
            }
        )

    def close(self) -> None:
        """End the stream, the connection, and a node that was spawned; idempotent."""
        self._closed = True
        self._resources.close()
        self._at = self._at._replace(feed=None)
        self._finalizer.detach()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a penstock Loader cannot be copied or sent to another process: it holds a connection "
            "and prefetches in the background itself; with a torch DataLoader pass num_workers=0"
        )

    # --- what a Step needs ---

    def batches_of(self, index: int) -> Iterator[Batch]:
        """Return the batches of step `index` that are still to be given; for `Step`."""
        return _Batches(self, index)

    def counts_ahead(self, index: int) -> dict[int, Mapping[str, int]]:
        """Wait until the rest of step `index` is here; return its counts; for `Step`."""
        found: dict[int, Mapping[str, int]] = {}
        for position in self._started().share.positions(index):
            if position >= self._at.next:
                delivery = self._take(position)
                if delivery is None:
                    break
                found[position] = _counts(delivery.header)
        return found

    def dp_process_group(self) -> Any:
        """Return the mesh's data-parallel process group; None = all processes; for `Step`."""
        if self._mesh is None:
            return None
        names = mesh_dimensions(self._mesh, self._dp)
        if len(names) > 1:
            raise InvalidRequest(
                f"total() over the mesh dimensions {', '.join(names)} needs a process group of "
                "them: pass process_group="
            )
        return self._mesh.get_group(names[0])

    # --- inside: starting ---

    def _check(self) -> None:
        self._resources.guard.check()
        if self._closed:
            raise InvalidRequest("this Loader is closed: make a new one")

    def _started(self) -> Session:
        """Return the session; settle rank, step size and position if that is still to be done."""
        self._check()
        at = self._at
        if at.session is not None:
            return at.session
        if at.wish is None:
            raise NotStarted(
                'start="state" waits for a state: call load_state_dict() or seek() before the '
                'first batch, or use start="cursor"'
            )
        wish = at.wish
        self._at = at = at._replace(is_opening=True)
        session = self._opener.open(wish, at.moves)
        self._at = at._replace(session=session, next=session.first, moves=session.moves)
        return session

    def _steps(self) -> int | None:
        """How many steps a whole pass has; None = endless."""
        steps = self._started().steps(self._tail_pad)
        if steps is None or self._max_steps is None:
            return self._max_steps if steps is None else steps
        return min(steps, self._max_steps)

    def _restart(self, wish: Wish) -> None:
        """Forget where reading stood: the next batch begins at `wish`."""
        at = self._at
        # A call that was broken off and is made again is the same move, to the same place.
        moves = at.moves + (at.session is not None or (at.is_opening and at.wish != wish))
        self._at = self._parted(at)._replace(wish=wish, moves=moves, session=None, is_opening=False)
        self._resources.close_feeds()

    def _parted(self, at: _At) -> _At:
        """Return `at` without its stream and what belongs to it."""
        tally = at.tally
        if at.feed is not None:
            tally = tally._replace(reconnects=tally.reconnects + at.feed.reconnects)
        return at._replace(feed=None, marked=None, is_over=False, tally=tally)

    def _rewind(self) -> None:
        """Go to the first position; for readers without a group."""
        at = self._at
        assert at.session is not None
        self._at = self._parted(at)._replace(next=at.session.share.rank)
        self._resources.close_feeds()

    def begin_pass(self) -> None:
        """Settle where a new iteration begins; for its iterators."""
        session = self._started()
        if self._mode == "eval":
            if session.batches is None and self._max_steps is None:
                raise InvalidRequest(
                    f'job {self.job!r} is endless, and mode="eval" reads whole passes: pass '
                    "max_steps=, or give the job epochs: 1"
                )
            self._rewind()
        elif (counted := self._counted()) != self._at.next:
            # A framework has dropped what it held ahead, untrained: it is read again.
            at = self._at
            self._at = self._parted(at)._replace(next=counted, marked=at.marked)
            self._resources.close_feeds()
        elif self._at.is_over:
            if self.group is not None:
                raise PastEnd(
                    f"group {self.group!r} has read all {session.steps(self._tail_pad)} steps of "
                    f"job {self.job!r}, and a group reads each step once: for more passes give the "
                    "job more epochs: or read with group=None; to read it again, seek(step=0)",
                    batches=session.batches,
                )
            self._rewind()
        self._at = self._at._replace(pass_first=self._at.next)
        if self._mode != "eval":
            self._holds_ahead = reader_ahead(has_length=session.batches is not None)

    def end_pass(self) -> None:
        """Note that an iteration has come to the end; for its iterators."""
        at = self._at
        self._at = at._replace(is_over=True)
        session = at.session
        if session is None or self._mode == "eval" or at.next != session.first or at.is_over:
            return
        steps = session.steps(self._tail_pad)
        if self.group is not None:
            whose, way = f"group {self.group!r} of job {self.job!r}", "seek(step=0) reads it again"
        else:
            whose, way = f"this reader of job {self.job!r}", "the next pass begins at step 0"
        tell(
            logger.warning,
            "%s begins at the end of %s steps: nothing is left; %s",
            whose,
            f"{steps:,}" if steps is not None else "its",
            way,
        )

    # --- inside: reading ---

    def _feed(self) -> Feed:
        if self._decoder is None:
            needs_torch(self._device, self._as_numpy)  # a mistake is told before anything is asked
        feed = self._at.feed
        if feed is None:
            feed = self._open_feed()
        if self._decoder is None:
            # The first batches come while torch is imported. Aside, since an import that is broken
            # off can leave locks behind, too.
            feed.start()
            self._decoder = aside(lambda _: make_decoder(self._device, self._as_numpy))
        return feed

    def _open_feed(self) -> Feed:
        session = self._started()
        at = self._at
        steps = self._steps()
        stop = None if steps is None else steps * session.share.batches_per_step
        opening = Opening(
            target=self._opener.target,
            job=self.job,
            log_id=session.log_id,
            group=self.group or "",
            token=session.token,
            generation=session.generation,
            tail_pad=self._tail_pad,
            steps=session.steps(self._tail_pad),
            given_from=session.given_from,
        )
        feed = Feed(
            self._resources.connect(self.target),
            opening,
            session.share,
            at.next,
            stop=stop,
            prefetch=self._prefetch,
            prefetch_bytes=self._prefetch_bytes,
            max_body_bytes=self._max_body_bytes,
            pool=self._pool,
        )
        self._resources.feeds.add(feed)
        self._at = at._replace(feed=feed)
        self._resources.close_feeds(but=feed)  # those of calls that were broken off
        return feed

    def _take(self, position: int) -> Delivery | None:
        """Return the batch at an own position, None past the end; it stays where it is."""
        self._check()
        feed = self._feed()
        waited = feed.wait_s
        delivery = feed.take(position, self._deadline_s)
        if feed.wait_s > waited:
            self._waits.add(feed.wait_s - waited)
        return delivery

    def _peek(self) -> Delivery | None:
        """Return the batch that is given next, None past the end."""
        session = self._started()
        feed, at = self._feed(), self._at
        feed.finished_step = session.share.step(self._counted())
        feed.release(at.next)
        return self._take(at.next)

    def offer(self, index: int | None) -> tuple[Batch, _At] | None:
        """Return the next batch and where the Loader stands once it is given; for its iterators.

        Args:
            index: The step that it must belong to; None = any.
        """
        if index is not None and self._started().share.step(self._at.next) != index:
            return None
        delivery = self._peek()
        if delivery is None:
            return None
        assert self._decoder is not None
        at = self._at
        values = self._decoder(delivery)
        info = self._describe(delivery)
        if self._meta:
            values["penstock_position"] = position_value(self._decoder.makes_tensors, info.position)
        self._counts_of(info.step)[info.position] = info.counts
        assert at.session is not None
        after = at._replace(
            next=at.session.share.nth_after(info.position, 1),
            last=info,
            tally=at.tally.given(info.nbytes, info.counts.get("tokens", 0), info.is_padding),
        )
        return Batch(values, info=info), after

    def _counts_of(self, index: int) -> dict[int, Mapping[str, int]]:
        """Return the counts of step `index` that were given, to be added to."""
        if self._given[0] != index:
            self._given = (index, {})
        return self._given[1]

    def next_step(self) -> Step | None:
        """Return the step that holds the next batch, None past the end; for `_Steps`."""
        if self._peek() is None:
            return None
        share, due = self._started().share, self._at.next
        index = share.step(due)
        return Step(self, index, share.positions(index), due, self._counts_of(index))

    def _describe(self, delivery: Delivery) -> BatchInfo:
        share, header = self._started().share, delivery.header
        position = header.position
        step = share.step(position)
        micro = (position - step * share.batches_per_step) // share.world_size
        return BatchInfo(
            position=position,
            step=step,
            lane=header.lane,
            offset=header.offset,
            micro=micro,
            is_last_of_step=micro == share.batches_per_rank - 1,
            epoch=header.epoch,
            counts=_counts(header),
            is_padding=header.padding,
            nbytes=header.body_bytes,
            header=header,
            body=delivery.body if self._device is None else None,
        )

    def _counted(self) -> int:
        """The first own position that is not counted as trained on."""
        share, at = self._started().share, self._at
        return at.next if at.marked is None else share.nth_after(at.marked, 1)

    def _notice_ahead(self) -> None:
        """Say once that a state counts a batch which a framework holds and has not trained on."""
        sentence = self._holds_ahead
        if sentence is not None and self._at.marked is None:
            self._holds_ahead = None
            tell(logger.warning, "job %r: %s", self.job, sentence)

    def skip_rest(self, index: int) -> None:
        """Leave out what was not taken of step `index`; for `_Steps`."""
        share = self._started().share
        before = self._at.tally.skipped_batches
        while share.step(self._at.next) == index and self._peek() is not None:
            at = self._at
            tally = at.tally._replace(skipped_batches=at.tally.skipped_batches + 1)
            self._at = at._replace(next=share.nth_after(at.next, 1), tally=tally)
        if skipped := self._at.tally.skipped_batches - before:
            tell(
                logger.warning,
                "job %r: the training loop left %d batches of step %d untaken: skipped",
                self.job,
                skipped,
                index,
            )

    def _need_group(self, what: str) -> str:
        self._check()
        if self.group is None:
            raise NoGroup(f"{what}() needs a group: this Loader is ephemeral; pass group=")
        return self.group

    def _refuse_eval(self, what: str) -> None:
        if self._mode == "eval":
            raise InvalidRequest(f'{what}(): with mode="eval" every iter() starts at step 0')


class _Batches:
    """Iterates a Loader, or one step of it. It may be asked again after any exception.

    Attributes:
        loader: The Loader.
        index: The step; None = all.
    """

    def __init__(self, loader: Loader, index: int | None) -> None:
        self._loader, self._index = loader, index
        self._is_begun = index is not None
        self._is_over = False

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        loader = self._loader
        if self._is_over:
            raise StopIteration
        if not self._is_begun:
            loader.begin_pass()
            self._is_begun = True
        offered = loader.offer(self._index)
        if offered is None:
            if self._index is None:
                loader.end_pass()
            self._is_over = True
            raise StopIteration
        # The batch is given by one assignment, and nothing comes after it but the return: CPython
        # runs signal handlers after calls and backward jumps, so not between the two.
        batch, after = offered
        before = loader._at
        try:
            loader._at = after
            return batch
        except BaseException:
            loader._at = before
            raise


class _Steps:
    """Iterates a Loader's steps. It may be asked again after any exception."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._is_begun = self._is_over = False
        self._given: tuple[Session, int] | None = None

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        loader = self._loader
        if self._is_over:
            raise StopIteration
        if not self._is_begun:
            loader.begin_pass()
            self._is_begun = True
        # If the loop's body has moved to another place there is nothing to skip.
        if self._given is not None and loader._at.session is self._given[0]:
            loader.skip_rest(self._given[1])
        step = loader.next_step()
        session = loader._at.session
        if step is None or session is None:
            loader.end_pass()
            self._is_over = True
            raise StopIteration
        before, given = self._given, (session, step.index)
        try:
            self._given = given
            return step
        except BaseException:
            self._given = before
            raise


def _counts(header: feed_pb2.BatchHeader) -> dict[str, int]:
    return {count.name: count.value for count in header.counts}


__all__ = ["DEADLINE_S", "MAX_BODY_BYTES", "Loader"]
