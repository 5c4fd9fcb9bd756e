"""How reading begins: which rank this is, what the job is, where the group stands."""

from __future__ import annotations

import logging
import time

from penstock.client.calls.background_thread import log_in_background
from penstock.client.calls.control import Control, Member
from penstock.client.nodes.dealing import LaneUnits
from penstock.client.run.attempt import attempt_token
from penstock.client.run.loader_resources import Resources
from penstock.client.run.options import Options
from penstock.client.run.ranks import WorldRank, discover, log_world_rank
from penstock.client.session.session import Session, StartPoint
from penstock.wire.attempt_names import moved, moves_between
from penstock.wire.errors import InvalidRequest, JobChanged, PastEnd, UnknownGroup
from penstock.wire.order import MAX_POSITION, Share
from penstock.wire.v1 import cursors_pb2, feed_pb2

logger = logging.getLogger("penstock")

COUNT_S = 10.0
"""How long `len()` of a Loader waits, all calls of it together, for a job to be counted."""

FIRST_PAUSE_S, MAX_PAUSE_S = 0.02, 0.5
"""Between two questions of it."""


class Opener:
    """Finds out what a session needs, as late as possible and only once.

    Args:
        resources: Where the connection is kept.
        options: What the Loader was given.
    """

    def __init__(self, resources: Resources, options: Options) -> None:
        self.target = options.address.text
        self._resources, self._options = resources, options
        self._control: Control | None = None
        self._info: feed_pb2.DescribeReply | None = None
        self._count_s = COUNT_S
        self._world_rank: WorldRank | None = None
        self._token: str | None = None

    @property
    def world_rank(self) -> WorldRank:
        """Which data-parallel rank this is; found and logged at first use."""
        if self._world_rank is None:
            self._world_rank = discover(self._options.ranks)
            log_world_rank(self._world_rank, self._options.job)
        return self._world_rank

    @property
    def control(self) -> Control:
        """The short calls; connects at first use."""
        if self._control is None:
            nodes = self._resources.connect(self._options)
            self._control = Control(
                nodes.ways, self._options.job, self.target, self._options.deadline_s
            )
        return self._control

    @property
    def info(self) -> feed_pb2.DescribeReply:
        """What the job is; asked once."""
        if self._info is None:
            self._info = self._resources.connect(self._options).describe(self.control)
        return self._info

    def batches(self) -> int | None:
        """Return how many batches the log holds; None = endless, or the node does not know it yet.

        As long as that is so it is asked again.
        """
        if self.info.finite and not self.info.HasField("batches"):
            self._info = self.control.describe()
        return self.info.batches if self.info.HasField("batches") else None

    def count_batches(self) -> int | None:
        """Return the same, and have the node find it out where it is not known: that may wait.

        All calls together wait `COUNT_S`; then they say what is known.
        """
        pause_s = FIRST_PAUSE_S
        while self.info.finite and not self.info.HasField("batches"):
            began_s = time.monotonic()
            self._info = info = self.control.describe(count=True)
            if info.HasField("batches") or not info.counting or self._count_s <= 0:
                break
            time.sleep(min(pause_s, self._count_s))
            pause_s = min(2 * pause_s, MAX_PAUSE_S)
            self._count_s -= time.monotonic() - began_s
        return self.info.batches if self.info.HasField("batches") else None

    def share(self) -> Share:
        """Return this rank's positions, as far as that is known before anything begins.

        With a group these are what its next attempt has.
        """
        options, world_rank = self._options, self.world_rank
        size = options.batches_per_step
        if size is None and options.group is not None:
            try:
                [group] = self.control.groups(options.group)
                size = int(group.batches_per_step)
            except UnknownGroup:
                size = None  # it will be of the size that a reader without a group has
        return self._share(size or self.info.batches_per_step or world_rank.world_size)

    def _share(self, batches_per_step: int) -> Share:
        world_rank, uneven = self.world_rank, self._options.fills_uneven
        return Share(batches_per_step, world_rank.rank, world_rank.world_size, uneven=uneven)

    def open(self, start: StartPoint, moves: int) -> Session:
        """Begin: with a group this starts or joins a generation.

        Args:
            start: Where.
            moves: How many times this reader was moved, by `seek` or a state: each move is an
                attempt of its own, with the same name on all ranks.

        Raises:
            PenstockError: See `Control.describe` and `Control.begin`.
            UnevenStep: The world size does not divide the step, and nothing fills it up.
            PastEnd: The job ends before the step that is asked for.
        """
        world_rank, info, state, options = self.world_rank, self.info, start.state, self._options
        # A state from `seek` has no step size: the group keeps its own.
        wanted = options.batches_per_step or (state.batches_per_step if state else 0) or None
        token, generation, store = "", 0, info.store
        timeline: tuple[tuple[int, bytes], ...] = ((0, info.log_id),)
        if options.group is None:
            step_size = wanted or info.batches_per_step or world_rank.world_size
            first_step = start.step or 0
        else:
            attempt = self._attempt_token(world_rank)
            begun = self._begin(options.group, moved(attempt, moves), wanted, start)
            # A rank that was restarted alone learns how many times its attempt has moved.
            token = begun.token
            moves = moves_between(attempt, token) or 0
            generation, step_size = int(begun.generation), int(begun.batches_per_step)
            store = begun.store
            timeline = timeline_of(begun)
            # A joining rank's row may be ahead of the state, but the trainer's checkpoint decides.
            first_step = state.step if state else int(begun.start_step)
        share = self._share(step_size)
        first = share.at_or_after(first_step * step_size)
        if state is not None:
            first = share.nth_after(first, state.consumed)
        if start.position is not None:
            first = share.at_or_after(start.position)
        session = Session(
            target=self.target,
            job=options.job,
            timeline=timeline,
            store=store,
            batches=self.batches(),
            share=share,
            units=LaneUnits(info.lanes, tuple(info.units), info.log_id, info.snapshot_every),
            finite=info.finite,
            first=first,
            group=options.group or "",
            token=token,
            generation=generation,
            moves=moves,
            tail_pad=options.tail_pad,
            given_from=0 if state is not None else first,
        )
        _check_end(session, start)
        if options.group is None:
            log_in_background(
                logger.info,
                "job %r: reading from step %s, %d batches per step",
                options.job,
                f"{share.step(first):,}",
                step_size,
            )
        return session

    def _attempt_token(self, world_rank: WorldRank) -> str:
        if self._token is None:
            self._token = attempt_token(self._options.attempt, world_rank)
        return self._token

    def _begin(
        self, group: str, token: str, batches_per_step: int | None, start: StartPoint
    ) -> cursors_pb2.BeginReply:
        # With an explicit step, a state of another store may be loaded.
        names_step = isinstance(self._options.start, int)
        begun = self.control.begin(
            Member(
                group,
                token,
                self.world_rank.rank,
                self.world_rank.world_size,
                self._options.fills_uneven,
            ),
            batches_per_step=batches_per_step,
            start_step=start.step,
            store="" if start.state is None or names_step else start.state.store,
        )
        if begun.log_id != self.info.log_id:
            raise JobChanged(
                f"job {self._options.job!r} became another log between two calls "
                f"({self.info.log_id.hex()[:12]}, then {begun.log_id.hex()[:12]}): start again",
                log_id=begun.log_id.hex(),
                expected=self.info.log_id.hex(),
            )
        logs = timeline_of(begun)
        if logs != ((0, begun.log_id),):
            read = ", ".join(f"{log_id.hex()[:12]} from step {step:,}" for step, log_id in logs)
            raise JobChanged(
                f"group {group!r} of job {self._options.job!r} has read several logs, one after "
                f"the other ({read}), and this penstock reads groups of one: install the server's "
                "version, or read with another group name",
                job=self._options.job,
                group=group,
                log_id=begun.log_id.hex(),
            )
        log_in_background(logger.info, "%s", resuming(self._options.job, group, begun, start))
        return begun


def timeline_of(begun: cursors_pb2.BeginReply) -> tuple[tuple[int, bytes], ...]:
    """Return the logs that a group reads, by the first step of each."""
    logs = tuple((int(entry.from_step), entry.log_id) for entry in begun.timeline)
    return logs or ((0, begun.log_id),)


def _check_end(session: Session, start: StartPoint) -> None:
    share, steps = session.share, session.steps
    if steps is None:
        if session.first > MAX_POSITION:
            raise InvalidRequest(
                f"step {share.step(session.first)} of {share.batches_per_step} batches lies beyond "
                f"position {MAX_POSITION}, the last that there is: start before",
                field="position",
                value=session.first,
            )
        return
    if session.first > share.at_or_after(steps * share.batches_per_step):
        asked, remedy = f"step {share.step(session.first)}", f"start at step {steps} at most"
        if start.position is not None:
            asked = f"position {start.position}"
        elif session.group and start.step is None and start.state is None:
            # It was accepted while nobody knew where the lanes end.
            asked = f"the cursor of group {session.group!r} is at {asked}, which"
            remedy = (
                f"seek(step={steps}) moves it to the end, and a lower step is read again from there"
            )
        raise PastEnd(
            f"{asked} lies past the end: job {session.job!r} holds {session.batches} batches, "
            f"{steps} steps of {share.batches_per_step}; {remedy}",
            position=session.first,
            batches=session.batches,
        )


def resuming(job: str, group: str, begun: cursors_pb2.BeginReply, start: StartPoint) -> str:
    """Return the sentence that says where a group goes on, and who committed last."""
    who = f"group {group!r} of job {job!r}"
    origin = begun.batches_per_step_from or "server"
    attempt = (
        f"generation {begun.generation}, {begun.batches_per_step} batches per step (from {origin})"
    )
    committed = "nothing committed yet"
    if begun.committed_at:
        at = begun.committed_at.replace("T", " ")[:16]
        committed = f"committed {at} by generation {begun.committed_by}"
    if start.state is not None:
        return f"{who}: going to step {start.state.step:,} as asked; {committed}; {attempt}"
    # Every rank but the first joins, so joining means nothing: at a fresh start all rows are 0.
    verb = "resuming" if begun.start_step else "starting"
    return f"{who}: {verb} at step {begun.start_step:,}, {committed}; {attempt}"
