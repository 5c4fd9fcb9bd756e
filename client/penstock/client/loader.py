"""The Loader: what a training loop talks to."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Never, NoReturn

from penstock.client.calls.background_thread import log_in_background
from penstock.client.calls.node_address import Tls, Token, address_of
from penstock.client.loop.batches import Batches
from penstock.client.loop.counters import CountedLoader, count_in
from penstock.client.loop.loader_report import describe, statistics
from penstock.client.loop.pass_lengths import Lengths
from penstock.client.loop.passes import Passes
from penstock.client.loop.reader import LoopReader
from penstock.client.loop.step_passes import Steps
from penstock.client.loop.steps import Batch, BatchInfo, BatchLayout
from penstock.client.run.loader_resources import Resources
from penstock.client.run.options import LIMITS, Limits, Options, one_rank
from penstock.client.run.ranks import Ranks, WorldRank
from penstock.client.run.unknown_parameters import refuse_unknown
from penstock.client.session.loader_state import LoaderState
from penstock.client.session.session import StartPoint
from penstock.common.checks import step_argument
from penstock.wire.errors import InvalidRequest, NoGroup, PastEnd, PositionFar
from penstock.wire.transports import Transport

logger = logging.getLogger("penstock")

DEADLINE_S = 540.0
"""Below NCCL's default of 600 s: the reason must come before the collective's abort."""


class Loader:
    """Reads a job's batches as one data-parallel rank. Used by one thread.

    Nothing is contacted before it is needed: the first batch, `len`, or a call that says so.

    Args:
        target: Where the nodes are: `host:port` or `unix:/path`, one of them, several with commas
            between, or a list; `dns:///name:port`, all addresses of a name; `file:/path`, a file
            with an address a line; `ray:NAME` or `slurm:JOBID:PORT`, where an engine has placed
            them. Addresses that come and go are noticed while it reads. `local:FILE` starts a node
            of this Loader's own, with one worker; `spawn:FILE?workers=4` starts a node on this
            machine, with the settings `workers`, `store` and `metrics` if given, and ends it with
            its last reader; or an open `Transport`.
        job: The job's name in the job file.
        group: The name of the training run, the same on all its ranks: its cursor is kept in the
            node's store. `None` stores nothing and begins at step 0.
        batches_per_step: G, the global batch in batches, over all ranks and micro batches; the
            world size must divide it, but with `uneven="fill"`. `None` takes the group's, else the
            job file's, else the world size.
        rank: The data-parallel rank. `None` looks at `mesh`, then torch.distributed, then `RANK`,
            then SLURM's variables; what was found is logged once.
        world_size: How many data-parallel ranks there are; given together with `rank`.
        mesh: A torch `DeviceMesh`: ranks that differ only in other dimensions than the
            data-parallel ones (those with `dp` in their name) read the same batches.
        ranks: In place of the three above, a `Ranks`, which also takes the names of the mesh's
            dimensions.
        start: `"cursor"` begins where the group stands. A step begins there, as a new generation of
            the group. `"state"` refuses to read until `load_state_dict` or `seek` says where.
        mode: `"stream"`: `iter()` again goes on where the last one stood; after the end of a finite
            job it reads the job again from step 0 or, with a group, raises `PastEnd`. `"eval"`:
            every `iter()` is one whole pass from step 0, and nothing is stored.
        device: Where tensors go, in one copy per batch: `"cuda"`, `"cuda:1"`, or a device; to CUDA
            through pinned memory, while the loop works on the batch before. `None` leaves them on
            the host.
        memory: Which library pins memory for CUDA, and copies from there: `"torch"`, whose tensors
            batches hold, or `"cupy"`, with arrays of cupy, which JAX and others take by DLPack.
            `"auto"` takes torch where it has CUDA, else cupy where a device answers, and logs why.
            `"plain"` pins nothing: torch copies each batch when the loop takes it, which holds the
            loop up; take it where memory cannot be pinned.
        arrive: What is done with values before the loop gets them: functions by the names of
            values, such as `{"input_ids": Cast("int64")}` (`penstock.client.arrive`); a function of
            the whole batch, such as `penstock.client.packed.complete`; or a list of these, done in
            order. On CUDA it is queued next to the copy, beside the loop; on the host the loop's
            thread does it. `None` changes nothing.
        attempt: A token that all ranks of one start of the run share, and no other start has.
            `None` makes it from torch.distributed or the launcher's variables.
        prefetch: How many batches may be ready beyond the one in use. A larger number bridges
            longer pauses of the node, and takes memory for that many batches, here and in the node,
            up to `Limits.prefetch_bytes`. `None` takes 4, or as many small ones as 8 MiB hold, up
            to 64, which suits most runs; 1 takes the least memory.
        limits: How much memory batches may take, a `Limits`; the default suits most runs.
        deadline_s: Seconds to wait for a batch, or for a node, before an error says why. More sit
            out a longer absence of the node. Stay below the timeout of your collectives (600 for
            NCCL), so that the reason comes before their abort.
        tail: What becomes of the last step of a finite job where it is not full: `"pad"` fills it
            with blanked batches whose counts are 0, `"drop"` leaves it out, and logs how many
            batches and samples that costs.
        uneven: What becomes of a world size that does not divide `batches_per_step`: `"error"`
            refuses it; with `"fill"` every rank gets `ceil(G / W)` batches of a step, and where it
            has one fewer a filler, the step's last batch blanked, with counts of 0. Fillers cost
            the step's time and train nothing, so take it for a while, or for evaluation. The same
            on all ranks.
        meta: Put `penstock_position` (int64, no dimensions) among the values, for frameworks that
            rebuild the dict.
        max_steps: With `mode="eval"`: a pass ends after this many steps.
        as_numpy: `True`: NumPy arrays. `False`: tensors. `None`: tensors where torch is installed.
        tls: How to speak TLS with a node that is beyond this machine, such as `Tls(ca="ca.pem")`;
            its files are read again at each reconnect. `None` takes the variables
            `PENSTOCK_TLS_CA`, `_CERT`, `_KEY` and `_NAME`, where one is set. `unix:`, `local:` and
            `spawn:` need none.
        token: What the node is shown, as `penstockd token new` printed it, or the `Path` of a file
            that holds it and is read again for each call. `None` takes `PENSTOCK_TOKEN`, or the
            file `PENSTOCK_TOKEN_FILE`. Without TLS it goes no further than this machine.
        metrics: A registry of `prometheus_client`, such as `prometheus_client.REGISTRY`: what
            `stats` counts is then in it, as `penstock_loader_*`. Whoever owns the registry serves
            it; a Loader opens no port. `None` leaves it out.

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
        ranks: Ranks | None = None,
        start: Literal["cursor", "state"] | int = "cursor",
        mode: Literal["stream", "eval"] = "stream",
        device: Any = None,
        memory: Literal["auto", "torch", "cupy", "plain"] = "auto",
        arrive: Any = None,
        attempt: str | None = None,
        prefetch: int | None = None,
        limits: Limits = LIMITS,
        deadline_s: float = DEADLINE_S,
        tail: Literal["pad", "drop"] = "pad",
        uneven: Literal["error", "fill"] = "error",
        meta: bool = False,
        max_steps: int | None = None,
        as_numpy: bool | None = None,
        tls: Tls | None = None,
        token: Token | str | os.PathLike[str] | None = None,
        metrics: Any = None,
        **unknown: Never,
    ) -> None:
        if unknown:
            refuse_unknown(unknown, inspect.signature(Loader))
        resources = Resources()
        resources.guard.check()
        self._options = options = Options(
            address=address_of(target, tls, token),
            job=job,
            group=group,
            batches_per_step=batches_per_step,
            ranks=one_rank(rank, world_size, mesh, ranks),
            start=start,
            mode=mode,
            device=device,
            memory=memory,
            arrive=arrive,
            attempt=attempt,
            prefetch=prefetch,
            limits=limits,
            deadline_s=deadline_s,
            tail=tail,
            uneven=uneven,
            meta=meta,
            max_steps=max_steps,
            as_numpy=as_numpy,
            metrics=metrics,
        )
        self.target, self.job, self.group = target, job, group
        self._reader = LoopReader(options, resources)
        self._opener, self._passes = self._reader.opener, Passes(self._reader, options)
        self._counted: CountedLoader | None = None
        if metrics is not None:
            self._counted = count_in(metrics, self._reader, job, group)
        if options.ranks.is_given:
            _ = self._opener.world_rank  # a mistake in them is best reported here

    # --- reading ---

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's batches in order.

        After any exception, also one of a signal handler, the same iterator reads on.

        Raises:
            PastEnd: A group has been read to its end by this Loader, and there is no other pass.
            PenstockError: See `Feed.take`; what was yielded before stays counted.
        """
        return Batches(self._reader, self._passes)

    def steps(self) -> Steps:
        """Yield the global steps; each is iterated for this rank's micro batches of it.

        `len()` of what this returns is the number of steps of a whole pass, where it is known.
        Batches of a step that were not taken when the next step is asked for are skipped, and
        counted as skipped.

        Raises:
            PenstockError: As iterating the Loader.
        """
        return Steps(self._reader, self._options, self._passes)

    @property
    def last(self) -> BatchInfo | None:
        """The metadata of the batch last given; None before."""
        return self._reader.at.last

    def __len__(self) -> int:
        """Return how many batches this rank reads of the whole job; asks the server until it knows.

        With start="state" it can be asked before the state is loaded; a state of another step size
        then changes it.

        Raises:
            TypeError: The job is endless, or it is not known yet where it ends.
        """
        return Lengths(self._reader, self._options).batches()

    @property
    def world_rank(self) -> WorldRank:
        """Which data-parallel rank this is, of how many, and from where that is known."""
        self._reader.check()
        return self._opener.world_rank

    @property
    def batches_per_step(self) -> int:
        """G, the batches of a step over all ranks; contacts the server if it is not settled yet."""
        return self._reader.started().share.batches_per_step

    @property
    def layout(self) -> BatchLayout:
        """How samples lie in a batch, and what its labels are; contacts the server at first use.

        Raises:
            PenstockError: The server cannot be reached, or has no such job.
        """
        info = self._opener.info
        ignored = info.ignore_index if info.HasField("ignore_index") else None
        return BatchLayout(info.layout, info.labels_shifted, ignored)

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
        self._reader.check()
        at = self._reader.at
        if position is not None or at.session is None:
            marked = step_argument("mark", 0 if position is None else position)
        elif at.marked is None:
            marked = at.pass_first
        else:
            marked = at.session.share.nth_after(at.marked, 1)
        if at.session is None or not at.session.share.owns(marked) or not 0 <= marked < at.next:
            raise InvalidRequest(
                f"mark({marked}): this Loader has not yielded that position; pass the position of "
                "a batch that came out of it",
                field="position",
                value=marked,
            )
        self._reader.at = at._replace(marked=marked)

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
        self._need_group("commit")
        session = self._reader.started()
        if step is not None:
            step = step_argument("commit", step)
        reply = self._opener.control.commit(
            session.member,
            session.generation,
            session.share.step(self._reader.counted) if step is None else step,
            all_rows=step is not None,
        )
        return int(reply.cursor)

    def checkpoint(self, name: str, step: int | None = None) -> int:
        """Name a step of the group for good and return it; None = the group's cursor.

        Raises:
            InvalidRequest: The name is empty or not a text, or `step` is not a number.
            NoGroup: The Loader is ephemeral.
            UnknownGroup: Nothing of the group was read or committed yet.
            PastEnd, PositionFar: No reader could be taken to `step`.
            CheckpointExists: The name belongs to another step.
        """
        group = self._need_group("checkpoint")
        if not isinstance(name, str):
            raise InvalidRequest(
                f"checkpoint({name!r}): pass a name first, such as 'step-12000', and a number as "
                "step="
            )
        if step is not None:
            step = step_argument("checkpoint", step)
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
        self._reader.check()
        if (step is None) == (position is None):
            raise InvalidRequest("seek() takes a step, or position= for an ephemeral Loader")
        target = step if step is not None else position
        assert target is not None
        target = step_argument("seek", target)
        if position is not None and self.group is not None:
            raise InvalidRequest(
                f"seek(position={position}): group {self.group!r} stands at steps; pass step=, or "
                "read with group=None"
            )
        self._refuse_eval("seek")
        info = self._opener.info
        if position is not None:
            start = StartPoint(position=position)
        else:
            assert step is not None
            timeline = ((0, info.log_id.hex()),)
            start = StartPoint(
                step, LoaderState(self.job, timeline, info.store, self.group, 0, step)
            )
        before = self._reader.at
        self._reader.restart(start)
        try:
            self._reader.started()
        except (PastEnd, PositionFar, InvalidRequest):
            # Refused before anything was moved: reading goes on where it stood.
            self._reader.go_back(before)
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return where this Loader stands, for the training checkpoint.

        It counts what was yielded (or marked), not what was prefetched. At a step's boundary it is
        the same on every rank and loads at any world size. After the first batch it does no I/O.

        Raises:
            NotStarted: start="state", and no state was loaded.
            Unreachable: Before the first batch: the server is needed to know where reading starts.
        """
        session = self._reader.started()
        share = session.share
        counted = self._reader.counted
        self._passes.notice_ahead()
        step = share.step(counted)
        return LoaderState(
            job=self.job,
            timeline=tuple((step, log_id.hex()) for step, log_id in session.timeline),
            store=session.store,
            group=self.group,
            batches_per_step=share.batches_per_step,
            step=step,
            consumed=share.micro(counted),
            world_size=share.world_size,
        ).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where `state_dict` was taken; with a group that is a new generation.

        Raises:
            BadState: It is not a state, or is of another job or step size, or from within a step at
                another world size.
            JobChanged: The job is another log now.
            OtherStore: It comes from another store than the server's, and start= names no step.
        """
        self._reader.check()
        self._refuse_eval("load_state_dict")
        found = LoaderState.from_dict(state)
        found.check_loadable(self.job, self._options.batches_per_step, self.world_rank.world_size)
        info = self._opener.info
        found.check_log(info.log_id.hex())
        # `local:` opens its store with the first use of a group, and compares it then.
        if self.group is not None and info.store and found.store != info.store:
            found.check_store(info.store, start_is_given=isinstance(self._options.start, int))
            log_in_background(
                logger.warning,
                "group %r of job %r: the state comes from store %s; going on in store %s",
                self.group,
                self.job,
                found.store,
                info.store,
            )
        self._reader.restart(StartPoint(found.step, found))

    # --- looking and ending ---

    def stats(self) -> dict[str, Any]:
        """Return counts and rates: batches, bytes, tokens, waits, reconnects, failovers, buffers.

        `wait_share` is the share of the time since the first batch that training waited for data.
        """
        return statistics(self._reader)

    def close(self) -> None:
        """End the stream, the connection, and a node that was spawned; idempotent."""
        self._reader.close()
        if self._counted is not None:
            self._counted.look()

    def __repr__(self) -> str:
        return describe(self._reader, self._options)

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

    def _need_group(self, what: str) -> str:
        self._reader.check()
        if self.group is None:
            raise NoGroup(f"{what}() needs a group: this Loader is ephemeral; pass group=")
        return self.group

    def _refuse_eval(self, what: str) -> None:
        if self._options.is_eval:
            raise InvalidRequest(f'{what}(): with mode="eval" every iter() starts at step 0')
