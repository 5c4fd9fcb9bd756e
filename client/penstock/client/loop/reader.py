"""What a Loader reads with: where it stands, what moves it, and the next batch."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from penstock.client.loop.intake import Intake
from penstock.client.loop.loop_state import LoopState
from penstock.client.loop.steps import Batch, BatchInfo
from penstock.client.reading.feed import Feed
from penstock.client.reading.slots import Delivery
from penstock.client.run.loader_resources import Resources
from penstock.client.run.opener import Opener
from penstock.client.run.options import Options
from penstock.client.session.session import Session, StartPoint
from penstock.wire.errors import InvalidRequest, NotStarted
from penstock.wire.v1 import feed_pb2


class LoopReader:
    """Gives one rank's batches in order, to the iterators of a Loader. Used by one thread.

    Args:
        options: What the Loader was given.
        resources: Where its connection and its streams are kept; closed when this is collected.

    Attributes:
        at: Where the Loader stands.
        opener: Settles what a session needs.
        intake: Brings batches as values.
        is_closed: `close` was called.
    """

    def __init__(self, options: Options, resources: Resources) -> None:
        self._options, self._resources = options, resources
        self.opener, self.intake = Opener(resources, options), Intake(options, resources)
        start = options.start
        begins = None if start == "state" else StartPoint(start if isinstance(start, int) else None)
        self.at = LoopState(begins)
        self.is_closed = False
        # The step that is being given, with the counts of its batches by position.
        self._given: tuple[int, dict[int, Mapping[str, int]]] = (-1, {})
        # At interpreter exit `resources` closes what is open.
        self._finalizer = weakref.finalize(self, resources.close, waits=False)
        self._finalizer.atexit = False

    def check(self) -> None:
        """Refuse to be used after `close`, and in another process.

        Raises:
            ForkedLoader: This is another process.
            InvalidRequest: It was closed.
        """
        self._resources.guard.check()
        if self.is_closed:
            raise InvalidRequest("this Loader is closed: make a new one")

    def close(self) -> None:
        """End the stream, the connection, and a node that was spawned; idempotent."""
        self.is_closed = True
        self._resources.close()
        self.at = self.at.parted()
        self._finalizer.detach()

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
    def counted(self) -> int:
        """The first own position that is not counted as trained on."""
        share, at = self.started().share, self.at
        return at.counted(share)

    def restart(self, start: StartPoint) -> None:
        """Forget the position: the next batch is that of `start`."""
        at = self.at
        # A call that was interrupted and is made again is the same move, to the same position.
        moves = at.moves + (at.session is not None or (at.is_opening and at.start != start))
        self.at = at.parted()._replace(start=start, moves=moves, session=None, is_opening=False)
        self._resources.close_feeds()

    def go_back(self, before: LoopState) -> None:
        """Return to the position before `restart`: the move was refused."""
        self.at = before.parted()

    def read_from(self, position: int, *, marked: int | None = None) -> None:
        """Go to an own position of this session.

        Args:
            position: What is given next.
            marked: What `mark` has named last, where that stays.
        """
        self.at = self.at.parted()._replace(next=position, marked=marked)
        self._resources.close_feeds()

    # --- the next batch ---

    def feed(self) -> Feed:
        """Return the open feed; open it first if necessary.

        Raises:
            PenstockError: See `Intake.open` and `Intake.prepare`.
        """
        intake, feed = self.intake, self.at.feed
        if feed is not None and feed.is_prepared:
            return feed
        intake.check()
        if feed is None:
            session = self.started()
            at, steps = self.at, self._options.cut(session.steps)
            if not session.tail_pad and self._options.max_steps is None:
                steps = None  # the stream's end says what was left out
            feed = intake.open(session, at.next, steps)
            self.at = at._replace(feed=feed)
            self._resources.close_feeds(but=feed)  # those of calls that were interrupted
        intake.prepare(feed)
        return feed

    def peek(self) -> Delivery | None:
        """Return the batch that is given next, None past the end.

        Raises:
            PenstockError: See `Feed.take`.
        """
        share = self.started().share
        feed, at = self.feed(), self.at
        feed.release(at.next, share.step(at.counted(share)))
        return self.intake.take(feed, at.next, is_first=not at.tally.batches)

    def offer(self, index: int | None) -> tuple[Batch, LoopState] | None:
        """Return the next batch and where the Loader stands once it is given.

        Args:
            index: The step that it must belong to; None = any.

        Raises:
            PenstockError: See `Feed.take`.
        """
        if index is not None and self.started().share.step(self.at.next) != index:
            return None
        delivery = self.peek()
        if delivery is None:
            return None
        at, options = self.at, self._options
        assert at.session is not None
        assert at.feed is not None
        values = self.intake.decode(at.feed, delivery, is_first=not at.tally.batches)
        header, share = delivery.header, at.session.share
        body = delivery.lease.array if options.device is None else None
        info = BatchInfo(header.position, counts_in(header), header, body, share)
        if options.meta:
            values["penstock_position"] = self.intake.position_value(info.position)
        self.given_of(info.step)[info.position] = info.counts
        after = at._replace(
            next=share.nth_after(info.position, 1),
            last=info,
            tally=at.tally.given(info.nbytes, info.counts, info.is_padding),
        )
        return Batch(values, info=info), after

    def given_of(self, index: int) -> dict[int, Mapping[str, int]]:
        """Return the counts of step `index` that were given, to be added to."""
        if self._given[0] != index:
            self._given = (index, {})
        return self._given[1]


def counts_in(header: feed_pb2.BatchHeader) -> dict[str, int]:
    """Return the counts of a batch by name."""
    return {count.name: count.value for count in header.counts}
