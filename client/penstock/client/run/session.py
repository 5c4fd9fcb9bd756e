"""How reading begins: which rank this is, what the job is, where the group stands."""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.client.aside import Patience, aside, tell
from penstock.client.reading.feed import Feed
from penstock.client.reading.transport import open_transport, pretty
from penstock.client.run.attempt import attempt_token
from penstock.client.run.control import Control
from penstock.client.run.guard import ProcessGuard
from penstock.client.run.ranks import Place, discover, log_place
from penstock.client.run.state import State
from penstock.wire.attempts import moved, moves_between
from penstock.wire.errors import InvalidRequest, JobChanged, PastEnd
from penstock.wire.order import MAX_POSITION, Share, Tail
from penstock.wire.transport import Transport
from penstock.wire.v1 import cursors_pb2, feed_pb2

logger = logging.getLogger("penstock")


class Resources:
    """What must be closed, apart from the Loader: its finalizer must not keep it alive.

    All of it takes locks of gRPC or of our own, so it is done aside, where no signal breaks it off.
    """

    def __init__(self) -> None:
        self.guard = ProcessGuard()
        self.transport: Transport | None = None
        self.feeds: set[Feed] = set()
        self._lock = threading.Lock()  # taken aside only

    def connect(self, target: str | Sequence[str] | Transport) -> Transport:
        """Return the connection; open it if that is still to be done.

        Raises:
            PenstockError: See `open_transport`.
        """

        def open_once(_: Patience) -> Transport:
            with self._lock:
                if self.transport is None:
                    self.transport = open_transport(target)
                return self.transport

        if self.transport is not None:
            return self.transport
        _OPEN.add(self)
        return aside(open_once)

    def close_feeds(self, but: Feed | None = None) -> None:
        """End every stream but one; idempotent."""
        ending = {feed for feed in tuple(self.feeds) if feed is not but}
        if not ending:
            return
        if self.guard.at_home:
            with contextlib.suppress(TimeoutError):
                aside(lambda _: _end_all(ending), patience_s=JOIN_S)
        self.feeds.difference_update(ending)

    def close(self, *, waits: bool = True) -> None:
        """End the streams and the connection; idempotent. In a fork they are left to the parent.

        Args:
            waits: Return when it is done. The collector does not: it may run anywhere, also on a
                thread that would have to wait for itself.
        """
        if self.guard.at_home:
            with contextlib.suppress(TimeoutError):
                aside(lambda _: self._close(), patience_s=-1 if waits else 0)

    def _close(self) -> None:
        feeds = tuple(self.feeds)
        _end_all(feeds)
        self.feeds.difference_update(feeds)
        with self._lock:
            transport, self.transport = self.transport, None
            if transport is not None:
                transport.close()
        _OPEN.discard(self)


JOIN_S = 5.0
"""How long the end of a stream is waited for: it takes milliseconds."""

_OPEN: set[Resources] = set()


def _end_all(feeds: Iterable[Feed]) -> None:
    for feed in feeds:
        feed.cancel()
    for feed in feeds:
        feed.join(JOIN_S)


def _close_at_exit() -> None:
    """Close what is open: a thread of gRPC that still reads could keep the process from ending."""
    for resources in tuple(_OPEN):
        resources.close()


atexit.register(_close_at_exit)


@dataclass(frozen=True)
class Session:
    """What is settled when reading begins.

    Attributes:
        share: Which positions are this rank's.
        log_id: The log that is read.
        store: The UUID of the server's store.
        batches: T of a finite log; None = endless.
        token: The attempt; empty = ephemeral.
        generation: What the store gave to it; 0 = ephemeral.
        first: The own position that reading begins with.
        moves: How often the attempt has gone elsewhere.
        given_from: Own positions from here to `first` were given before: to the run whose state was
            loaded.
    """

    share: Share
    log_id: bytes
    store: str
    batches: int | None
    token: str
    generation: int
    first: int
    moves: int
    given_from: int

    def steps(self, tail_pad: bool) -> int | None:
        """Return how many steps a whole pass has; None = endless."""
        if self.batches is None:
            return None
        return Tail(self.batches, self.share.batches_per_step, tail_pad).steps


@dataclass(frozen=True)
class Wish:
    """Where the next session is to begin.

    Attributes:
        step: A step, or None for the group's cursor (0 without a group).
        state: From load_state_dict or seek; then `step` is its step.
        position: A position, for ephemeral readers.
    """

    step: int | None = None
    state: State | None = None
    position: int | None = None


class Opener:
    """Settles, as late as possible and once, what a session needs.

    Args:
        resources: Where the connection is kept.
        target: Where the node is.
        job: The job's name.
        group: None = ephemeral.
        batches_per_step: What the caller asks for; None = the group's or the job's.
        ranks: Arguments of `ranks.discover`.
        attempt: The caller's token; None = draw or derive one.
        any_store: A state of another store may be loaded: the caller named the step itself.
        tail_pad: How the last step of a finite job is treated.
        deadline_s: How long an unreachable node is called again.
    """

    def __init__(
        self,
        resources: Resources,
        target: str | Sequence[str] | Transport,
        job: str,
        group: str | None,
        *,
        batches_per_step: int | None,
        ranks: dict[str, Any],
        attempt: str | None,
        any_store: bool,
        tail_pad: bool,
        deadline_s: float,
    ) -> None:
        self.target = pretty(target)
        self._resources, self._to, self._job, self._group = resources, target, job, group
        self._batches_per_step, self._ranks, self._attempt = batches_per_step, ranks, attempt
        self._any_store, self._tail_pad, self._deadline_s = any_store, tail_pad, deadline_s
        self._control: Control | None = None
        self._info: feed_pb2.DescribeReply | None = None
        self._place: Place | None = None
        self._token: str | None = None

    @property
    def place(self) -> Place:
        """Which data-parallel rank this is; found and logged at the first look."""
        if self._place is None:
            self._place = discover(**self._ranks)
            log_place(self._place, self._job)
        return self._place

    @property
    def control(self) -> Control:
        """The short calls; connects at the first look."""
        if self._control is None:
            transport = self._resources.connect(self._to)
            self._control = Control(transport, self._job, self.target, self._deadline_s)
        return self._control

    @property
    def info(self) -> feed_pb2.DescribeReply:
        """What the job is; asked once."""
        if self._info is None:
            self._info = self.control.describe()
        return self._info

    def open(self, wish: Wish, moves: int) -> Session:
        """Begin: with a group this starts or joins a generation.

        Args:
            wish: Where.
            moves: How often this reader has gone elsewhere: each is an attempt of its own, which
                all ranks name alike.

        Raises:
            PenstockError: See `Control.describe` and `Control.begin`.
            UnevenStep: The world size does not divide the step.
            PastEnd: The job ends before the place that is wished for.
        """
        place, info, state = self.place, self.info, wish.state
        # A state from seek names no step size: the group's stays.
        wanted = self._batches_per_step or (state.batches_per_step if state else 0) or None
        token, generation, store = "", 0, info.store
        if self._group is None:
            step_size = wanted or info.batches_per_step or place.world_size
            first_step = wish.step or 0
        else:
            attempt = self._attempt_token(place)
            begun = self._begin(self._group, moved(attempt, moves), wanted, wish)
            # A rank that was started again alone is told how often its attempt has moved.
            token = begun.token
            moves = moves_between(attempt, token) or 0
            generation, step_size = int(begun.generation), int(begun.batches_per_step)
            store = begun.store
            # A joining rank's row may be ahead of the state, but the trainer's checkpoint is the
            # truth.
            first_step = state.step if state else int(begun.start_step)
        share = Share(step_size, place.rank, place.world_size)
        first = first_step * step_size + place.rank
        if state is not None:
            first += state.consumed * place.world_size
        if wish.position is not None:
            first = share.at_or_after(wish.position)
        batches = info.batches if info.HasField("batches") else None
        session = Session(
            share,
            info.log_id,
            store,
            batches,
            token,
            generation,
            first,
            moves,
            given_from=0 if state is not None else first,
        )
        self._check_end(session, wish)
        if self._group is None:
            tell(
                logger.info,
                "job %r: reading from step %s, %d batches per step",
                self._job,
                f"{share.step(first):,}",
                step_size,
            )
        return session

    def _attempt_token(self, place: Place) -> str:
        if self._token is None:
            self._token = attempt_token(self._attempt, place)
        return self._token

    def _begin(
        self, group: str, token: str, batches_per_step: int | None, wish: Wish
    ) -> cursors_pb2.BeginReply:
        begun = self.control.begin(
            group,
            token,
            self.place.rank,
            self.place.world_size,
            batches_per_step=batches_per_step,
            start_step=wish.step,
            store="" if wish.state is None or self._any_store else wish.state.store,
        )
        if begun.log_id != self.info.log_id:
            raise JobChanged(
                f"job {self._job!r} became another log between two calls "
                f"({self.info.log_id.hex()[:12]}, then {begun.log_id.hex()[:12]}): start again",
                log_id=begun.log_id.hex(),
                expected=self.info.log_id.hex(),
            )
        tell(logger.info, "%s", resuming(self._job, group, begun, wish))
        return begun

    def _check_end(self, session: Session, wish: Wish) -> None:
        steps = session.steps(self._tail_pad)
        if steps is None:
            if session.first > MAX_POSITION:
                raise InvalidRequest(
                    f"step {session.share.step(session.first)} of {session.share.batches_per_step} "
                    f"batches lies beyond position {MAX_POSITION}, the last that there is: start "
                    "before",
                    field="position",
                    value=session.first,
                )
            return
        step_size = session.share.batches_per_step
        if session.first > steps * step_size + session.share.rank:
            asked = f"step {session.share.step(session.first)}"
            if wish.position is not None:
                asked = f"position {wish.position}"
            raise PastEnd(
                f"{asked} lies past the end: job {self._job!r} "
                f"holds {session.batches} batches, {steps} steps of {step_size}",
                position=session.first,
                batches=session.batches,
            )


def resuming(job: str, group: str, begun: cursors_pb2.BeginReply, wish: Wish) -> str:
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
    if wish.state is not None:
        return f"{who}: going to step {wish.state.step:,} as told; {committed}; {attempt}"
    # Every rank but the first joins, so to join tells nothing: at a fresh start all rows are 0.
    verb = "resuming" if begun.start_step else "starting"
    return f"{who}: {verb} at step {begun.start_step:,}, {committed}; {attempt}"


__all__ = ["Opener", "Resources", "Session", "Wish", "resuming"]
