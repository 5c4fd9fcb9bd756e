"""Where reading is to begin, and what is known when it has begun."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.calls.control import Member
from penstock.client.nodes.dealing import LaneUnits
from penstock.client.session.loader_state import LoaderState
from penstock.wire.order import Share, Tail


@dataclass(frozen=True)
class StartPoint:
    """Where the next session is to begin.

    Attributes:
        step: A step, or None for the group's cursor (0 without a group).
        state: From load_state_dict or seek; then `step` is its step.
        position: A position, for ephemeral readers.
    """

    step: int | None = None
    state: LoaderState | None = None
    position: int | None = None


@dataclass(frozen=True)
class Session:
    """What is known when reading begins; every stream is opened with it.

    Attributes:
        target: Where the node is, for messages.
        job: The job's name.
        timeline: The logs of the run, 32 bytes each, with the first step that is read from each:
            one, from step 0 on.
        store: The UUID of the server's store.
        batches: T of a finite log; None = endless, or not known yet.
        finite: The log ends, whether or not it is known where.
        share: Which positions are this rank's.
        units: Which lanes one node makes together.
        first: The own position that reading begins with.
        group: Empty = ephemeral.
        token: The attempt; empty = ephemeral, or a reader that belongs to no attempt.
        generation: The number that the store gave to the attempt; 0 = ephemeral.
        moves: How many times the attempt was moved, by `seek` or a state.
        tail_pad: The last step of a finite log is filled; otherwise it is left out if it is not
            full.
        given_from: Own positions from here to where a stream opens were given before, by this
            Loader or to the run whose state was loaded; None = none.
    """

    target: str
    job: str
    timeline: tuple[tuple[int, bytes], ...]
    store: str
    batches: int | None
    share: Share
    units: LaneUnits
    finite: bool = False
    first: int = 0
    group: str = ""
    token: str = ""
    generation: int = 0
    moves: int = 0
    tail_pad: bool = True
    given_from: int | None = None

    @property
    def log_id(self) -> bytes:
        """The log that is read, 32 bytes."""
        return self.timeline[-1][1]

    @property
    def member(self) -> Member:
        """This rank in the attempt of its group."""
        share = self.share
        return Member(self.group, self.token, share.rank, share.world_size, share.uneven)

    @property
    def is_finite(self) -> bool:
        """Whether the log ends, whether or not it is known where."""
        return self.finite or self.batches is not None

    @property
    def steps(self) -> int | None:
        """How many steps a whole pass has; None = endless, or not known yet."""
        if self.batches is None:
            return None
        return Tail(self.batches, self.share.batches_per_step, self.tail_pad).steps
