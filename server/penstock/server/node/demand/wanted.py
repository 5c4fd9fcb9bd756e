"""A batch that a reader wants, or that is kept: its position, its readers, its bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from penstock.server.job.job import Job
from penstock.server.node.demand.batch_spans import BodySpan
from penstock.server.node.demand.peers import Peer
from penstock.server.node.demand.ranked import Ranked
from penstock.wire.errors import PenstockError
from penstock.wire.order import LaneOffset


class BatchState(Enum):
    """What is known of a wanted batch."""

    WANTED = "wanted"
    MAKING = "making"
    READY = "ready"
    FAILED = "failed"


class Key(NamedTuple):
    """What an entry is: a position, and lane and offset of its batch."""

    position: int
    lane: int
    offset: int
    blank: bool


Reads = tuple[frozenset[int] | None, int, int]
"""Which lanes a reader reads: of these, None = of all, those with a residue by a modulus."""


class Demand(Protocol):
    """One open stream, as the ledger and those who give out work know it: see `Reader`."""

    job: Job
    peer: Peer
    ready: Ranked[WantedBatch]
    closed: bool
    gave_way: bool
    horizon: int
    moved_at: float
    wake: Callable[[], None]

    @property
    def head(self) -> int:
        """Return the lowest own position that was not taken yet."""

    @property
    def next_pending(self) -> WantedBatch | None:
        """Return what its consumer is owed next; None where it accepts nothing more."""

    def urgency(self, entry: WantedBatch) -> int:
        """Return how many positions after the owed batch an entry lies; only the owed one has 0."""

    def replaced(self, entry: WantedBatch, fresh: WantedBatch) -> None:
        """Want a fresh entry in place of one whose bytes were freed."""

    def settled(self, entry: WantedBatch) -> None:
        """Note that an entry that it wants is ready, or has failed."""

    def renumber(self, first: int) -> None:
        """Want anew what it wanted from a position on."""

    def unknown_batches(self) -> Iterable[LaneOffset]:
        """Return the batches of which it must be known more, for the next one or for the end."""

    def learned(self) -> None:
        """Note that more is known of where batches stand, or of what they hold."""

    def reads(self) -> Reads:
        """Return which lanes it may want batches of."""


@dataclass(eq=False)
class WantedBatch:
    """A batch that a reader wants, or that is kept for late readers.

    Attributes:
        key: Its position, lane and offset; the position may change as long as it is not known.
        readers: Who wants it.
        holder: The one among them that has it in its `ready`; None = it is not ready.
        pins: Streams that are writing it to the network right now, and loans of it.
        span: Its body, in shared memory; None = it has none, or gave its memory back.
        nbytes: The lengths of its header and its body, as they travel.
        body_bytes: The length of the body that its reader has, also when its memory was given back.
        is_asked: No reader wants it. It is planned, as positions of others depend on its existing.
        is_given: Some reader was given it.
        evicted: Nobody takes it any more; its memory goes with its last pin.
        gone: Called when an evicted entry has given its memory back.
    """

    key: Key
    state: BatchState = BatchState.WANTED
    readers: set[Demand] = field(default_factory=set)
    holder: Demand | None = None
    pins: int = 0
    header: bytes = b""
    span: BodySpan | None = None
    nbytes: int = 0
    body_bytes: int = 0
    tokens: int = 0
    error: PenstockError | None = None
    is_asked: bool = False
    is_given: bool = False
    evicted: bool = False
    gone: Callable[[WantedBatch], None] | None = None

    @property
    def nearest(self) -> Demand:
        """Return the reader that needs it soonest; there is one."""
        if len(self.readers) == 1:  # as a rule: this is asked for every batch, several times
            return next(iter(self.readers))
        return min(self.readers, key=lambda reader: reader.urgency(self))

    def hold(self) -> None:
        """Let the reader that needs it soonest, if it is ready, have it in its `ready` alone."""
        if self.holder is not None:
            self.holder.ready.discard(self)
        is_ready = self.state is BatchState.READY and self.readers
        self.holder = self.nearest if is_ready else None
        if self.holder is not None:
            self.holder.ready.add(self, -self.key.position)

    @property
    def is_whole(self) -> bool:
        """Tell whether all of it is in memory; a batch of texts alone has no body."""
        is_here = self.span is not None or not self.body_bytes
        return self.state is BatchState.READY and not self.evicted and is_here

    @property
    def body(self) -> memoryview | bytes:
        """Return its body."""
        return b"" if self.span is None else self.span.view

    def fail(self, error: PenstockError) -> None:
        """Note that it cannot be planned or made, and tell those who wait for it."""
        self.state, self.error = BatchState.FAILED, error
        self.hold()
        for reader in self.readers:
            reader.settled(self)

    def free(self) -> None:
        """Free the bytes as soon as no stream writes them, and no process has borrowed them."""
        self.evicted = True
        if self.pins == 0 and self.span is not None:
            span, self.span = self.span, None
            span.free()
            if self.gone is not None:
                self.gone(self)

    def unpin(self) -> None:
        """One stream has written this batch, or one process has given it back."""
        self.pins -= 1
        if self.evicted:
            self.free()
