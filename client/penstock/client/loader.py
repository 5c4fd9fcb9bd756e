"""The Loader: what a training loop talks to."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn

from penstock.client.buffers import BufferPool
from penstock.client.feed import Delivery, Feed, Opening
from penstock.client.frameworks.notice import reader_ahead
from penstock.client.options import check_arguments, check_step
from penstock.client.ranks import Place, mesh_dimensions
from penstock.client.session import Opener, Resources, Session, Wish
from penstock.client.state import State
from penstock.client.stats import Stats
from penstock.client.steps import Batch, BatchInfo, Step
from penstock.client.values import Decoder, make_decoder, position_value
from penstock.wire.errors import InvalidRequest, NoGroup, NotStarted, PenstockError
from penstock.wire.transport import Transport
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")

DEADLINE_S = 540.0
"""Below NCCL's default of 600 s: the reason must come before the collective's abort."""

MAX_BODY_BYTES = 4 << 30


class Loader:
    """Reads a job's batches as one data-parallel rank. Used by one thread.

    Nothing is contacted before it is needed: the first batch, `len`, or a call that says so.

    Args:
        target: Where the node is: `host:port`, `dns:///name:port`, `unix:/path`, `local:FILE` (in
            this process), `spawn:FILE` (a node of our own); or an open `Transport`.
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
        mode: `"stream"`: iter() again goes on where it stood. `"eval"`: every iter() is one whole
            pass from step 0; ephemeral.
        device: Where tensors go, in one copy per batch; None = they stay on the host.
        attempt: A token that all ranks of this start of the run share and no other start has;
            default: drawn and shared by torch.distributed, or made of the launcher's variables.
        prefetch: How many batches may be ready beyond the one in use.
        deadline_s: How long to wait for a batch, or for a server, before an error says why.
        tail: The last step of a finite job: `"pad"` fills it with blanked batches, `"drop"` leaves
            a step that is not full out.
        lineage: Ask for sample refs: `batch.samples`.
        meta: Put `penstock_position` (int64, no dimensions) among the values.
        max_steps: With `mode="eval"`: a pass ends after this many steps.
        as_numpy: True = NumPy arrays, False = tensors; default: tensors where torch is installed.
        max_body_bytes: A batch that announces more is refused before memory is taken for it.

    Attributes:
        last: The metadata of the batch last yielded, for frameworks that rebuild dicts; None
            before.

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
        prefetch: int = 4,
        deadline_s: float = DEADLINE_S,
        tail: Literal["pad", "drop"] = "pad",
        lineage: bool = False,
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
        self._tail_pad, self._lineage, self._max_steps = tail == "pad", lineage, max_steps
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

        self.last: BatchInfo | None = None
        self._closed = False
        self._session: Session | None = None
        self._wish = None if start == "state" else Wish(start if isinstance(start, int) else None)
        self._decoder: Decoder | None = None
        self._stats = Stats()
        self._pool = BufferPool(keep=prefetch + 2)
        self._next = 0  # the own position to be yielded next
        self._marked: int | None = None  # the own position that `mark` has named last
        self._pass_first = 0  # the own position that the last iter() began with
        self._holds_ahead: str | None = None  # what to say of a framework that never marks
        self._held: deque[Delivery] = deque()  # taken from the feed, not yielded yet
        # At interpreter exit too: a gRPC thread that is still reading could keep the process from
        # ending.
        self._finalizer = weakref.finalize(self, self._resources.close)

    # --- reading ---

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches in order.

        Raises:
            PenstockError: See `Feed.take`; what was yielded before stays counted.
        """
        self._begin_pass()
        while (batch := self._yield_next()) is not None:
            yield batch

    def steps(self) -> Iterator[Step]:
        """Yield the global steps; each is iterated for this rank's micro batches of it.

        Batches of a step that were not taken when the next step is asked for are skipped, and
        counted as skipped.

        Raises:
            PenstockError: As iterating the Loader.
        """
        self._begin_pass()
        while self._peek() is not None:
            session = self._started()
            share = session.share
            index = share.step(self._next)
            own = share.positions(index)
            remaining = (own.stop - 1 - self._next) // share.world_size + 1
            yield Step(self, index, remaining, is_whole=self._next == own.start)
            if self._session is session:  # else the loop's body has moved to another place
                self._skip_rest(index)

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
        session = self._session
        if position is not None or session is None:
            marked = check_step("mark", 0 if position is None else position)
        elif self._marked is None:
            marked = self._pass_first
        else:
            marked = session.share.nth_after(self._marked, 1)
        if session is None or not session.share.owns(marked) or not 0 <= marked < self._next:
            raise InvalidRequest(
                f"mark({marked}): this Loader has not yielded that position; pass the position of "
                "a batch that came out of it",
                position=marked,
            )
        self._marked = marked

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
            PastEnd: The job ends before it.
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
        self._restart(wish)
        self._started()

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
            logger.warning(
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
        feed = self._resources.feed
        ready = feed.statistics() if feed else {"buffered_batches": 0, "buffer_bytes": 0}
        ready["buffered_batches"] += len(self._held)
        ready["buffer_bytes"] += sum(delivery.body.nbytes for delivery in self._held)
        found = self._stats.to_dict()
        found["reconnects"] += feed.reconnects if feed else 0
        position = self.last.position if self.last else None
        return (
            found
            | ready
            | {f"pool_{k}": v for k, v in self._pool.statistics().items()}
            | {
                "position": position,
                "next_position": self._next if self._session else None,
            }
        )

    def close(self) -> None:
        """End the stream, the connection, and a node that was spawned; idempotent."""
        self._closed = True
        self._held.clear()
        self._finalizer()

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

    def next_in_step(self, index: int) -> Batch | None:
        """Return the next batch if it belongs to step `index`; for `Step`."""
        if self._peek() is None or self._started().share.step(self._next) != index:
            return None
        return self._yield_next()

    def counts_ahead(self, index: int) -> list[Mapping[str, int]]:
        """Wait until the rest of step `index` is here and return its counts; for `Step`."""
        share = self._started().share
        missing = [p for p in share.positions(index) if p >= self._next][len(self._held) :]
        for _ in missing:
            if not self._pull():
                break
        return [
            _counts(held.header) for held in self._held if share.step(held.header.position) == index
        ]

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
        if self._session is not None:
            return self._session
        if self._wish is None:
            raise NotStarted(
                'start="state" waits for a state: call load_state_dict() or seek() before the '
                'first batch, or use start="cursor"'
            )
        self._session = self._opener.open(self._wish)
        self._next = self._session.first
        return self._session

    def _steps(self) -> int | None:
        """How many steps a whole pass has; None = endless."""
        steps = self._started().steps(self._tail_pad)
        if steps is None or self._max_steps is None:
            return self._max_steps if steps is None else steps
        return min(steps, self._max_steps)

    def _restart(self, wish: Wish) -> None:
        """Forget where reading stood: the next batch begins at `wish`."""
        if self._session is not None:
            self._opener.moved()
        self._drop_feed()
        self._session, self._wish = None, wish

    def _drop_feed(self) -> None:
        if self._resources.feed is not None:
            self._stats.reconnects += self._resources.feed.reconnects
        self._resources.close_feed()
        self._held.clear()
        self._marked = None

    def _begin_pass(self) -> None:
        session = self._started()
        if self._mode != "eval":
            if (counted := self._counted()) != self._next:
                # A framework has dropped what it held ahead, untrained: it is read again.
                marked = self._marked
                self._drop_feed()
                self._next, self._marked = counted, marked
            self._pass_first = self._next
            self._holds_ahead = reader_ahead(has_length=session.batches is not None)
            return
        if session.batches is None and self._max_steps is None:
            raise InvalidRequest(
                f'job {self.job!r} is endless, and mode="eval" reads whole passes: pass '
                "max_steps=, or give the job epochs: 1"
            )
        self._drop_feed()
        self._next = session.share.rank

    # --- inside: reading ---

    def _feed(self) -> Feed:
        feed = self._resources.feed
        if feed is not None:
            return feed
        if self._decoder is None:
            # Before the feed's thread runs: with `local:` roles run in it, and they must not meet a
            # torch that this thread has imported by half.
            self._decoder = make_decoder(self._device, self._as_numpy)
        session = self._started()
        steps = self._steps()
        stop = None if steps is None else steps * session.share.batches_per_step
        transport = self._resources.transport
        assert transport is not None  # _started has made contact
        opening = Opening(
            target=self._opener.target,
            job=self.job,
            log_id=session.log_id,
            group=self.group or "",
            token=session.token,
            generation=session.generation,
            tail_pad=self._tail_pad,
            lineage=self._lineage,
            steps=session.steps(self._tail_pad),
        )
        feed = self._resources.feed = Feed(
            transport,
            opening,
            session.share,
            self._next,
            stop=stop,
            prefetch=self._prefetch,
            max_body_bytes=self._max_body_bytes,
            pool=self._pool,
        )
        return feed

    def _pull(self) -> bool:
        """Take one batch from the feed into `_held`; False past the end."""
        self._check()
        feed = self._feed()
        waited = feed.wait_s
        delivery = feed.take(self._deadline_s)
        self._stats.waited(feed.wait_s - waited)
        if delivery is not None:
            self._held.append(delivery)
        return delivery is not None

    def _peek(self) -> Delivery | None:
        self._started()
        if not self._held and not self._pull():
            return None
        return self._held[0]

    def _yield_next(self) -> Batch | None:
        delivery = self._peek()
        if delivery is None:
            return None
        assert self._decoder is not None
        values = self._decoder(delivery)
        self._held.popleft()
        info = self._describe(delivery)
        if self._meta:
            values["penstock_position"] = position_value(self._decoder.makes_tensors, info.position)
        self._advance(info.position)
        self.last = info
        self._stats.yielded(info.nbytes, info.counts, info.is_padding)
        return Batch(values, info=info)

    def _describe(self, delivery: Delivery) -> BatchInfo:
        share, header = self._started().share, delivery.header
        position = header.position
        if position != self._next:
            raise PenstockError(f"the feed gave position {position} where {self._next} was due")
        step = share.step(position)
        micro = (position - step * share.batches_per_step) // share.world_size
        return BatchInfo(
            position=position,
            step=step,
            lane=header.lane,
            offset=header.offset,
            micro=micro,
            is_last=micro == share.batches_per_rank - 1,
            counts=_counts(header),
            is_padding=header.padding,
            nbytes=header.body_bytes,
            header=header,
            body=delivery.body if self._device is None else None,
        )

    def _advance(self, position: int) -> None:
        share = self._started().share
        self._next = share.nth_after(position, 1)
        feed = self._resources.feed
        if feed is not None:
            feed.finished_step = share.step(self._counted())

    def _counted(self) -> int:
        """The first own position that is not counted as trained on."""
        share = self._started().share
        return self._next if self._marked is None else share.nth_after(self._marked, 1)

    def _notice_ahead(self) -> None:
        """Say once that a state counts a batch which a framework holds and has not trained on."""
        sentence = self._holds_ahead
        if sentence is not None and self._marked is None:
            self._holds_ahead = None
            logger.warning("job %r: %s", self.job, sentence)

    def _skip_rest(self, index: int) -> None:
        share = self._started().share
        skipped = 0
        while share.step(self._next) == index and self._peek() is not None:
            self._advance(self._held.popleft().header.position)
            skipped += 1
        if skipped:
            self._stats.skipped_batches += skipped
            logger.warning(
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


def _counts(header: feed_pb2.BatchHeader) -> dict[str, int]:
    return {count.name: count.value for count in header.counts}


__all__ = ["DEADLINE_S", "MAX_BODY_BYTES", "Loader"]
