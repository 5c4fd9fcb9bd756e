"""A rank's slots: one for each of its own positions that it accepts, filled by streams.

The horizon ("I accept my positions below H") is the consumer's next position plus `prefetch` own
positions: so memory is bounded, and a late position always has its slot, whichever stream brings
it. Slots know positions and what has come; they know no calls and no nodes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

from penstock.client.bodies.buffers import Lease
from penstock.client.reading.arrivals import Arrivals
from penstock.client.reading.waiting import BatchWait, Supply
from penstock.wire.errors import PenstockError
from penstock.wire.frame import Entries
from penstock.wire.order import Share
from penstock.wire.v1 import feed_pb2


class Delivery(NamedTuple):
    """A whole batch, checked.

    Attributes:
        header: Its header; `header.position` says which it is.
        entries: What its header says of its values.
        lease: Where its body lies.
        route: The number of the route that it came by.
    """

    header: feed_pb2.BatchHeader
    entries: Entries
    lease: Lease
    route: int = 0


class Slots:
    """What has come of a rank's own positions, between one consumer and the threads of its streams.

    The consumer may be broken off between any two bytecodes, by a signal handler that raises: so it
    takes no lock. Batches lie in a dict by position, where they stay until the consumer says that
    it is past them; and what it does is right also when it is done twice. It is woken by a lock
    that is a semaphore: a thread that changes something releases it, and the consumer looks again.

    Args:
        job: The job's name, for messages.
        share: Which positions are the rank's own.
        start: The first position that is wanted.
        stop: No position from here on is wanted; None = until the log ends.
        prefetch: How many own positions may be ready beyond the next to be taken; None = as many as
            `fitting_ahead` says of the largest that has come.

    Attributes:
        next: The first position that the consumer has not been given.
        kept: The first position that it may ask for, or ask for once more.
        wait_s: How long it has waited in all.
        arrivals: Which positions have come, and where the log ends.
        is_closed: Nothing more is to come.
        on_change: Called when something has changed, beside waking the consumer, on any thread.
    """

    def __init__(
        self, job: str, share: Share, start: int, stop: int | None, prefetch: int | None
    ) -> None:
        self._job, self._share, self._prefetch = job, share, prefetch
        first = share.at_or_after(start)
        # All threads put in and take out; one call of a dict is whole or has not happened.
        self._ready: dict[int, Delivery] = {}
        self._changed = threading.Lock()  # a semaphore: free = something has changed
        # Set by the consumer.
        self.next = first
        self.kept = first
        self.wait_s = 0.0
        # Set by the threads of the streams.
        self.arrivals = Arrivals(share, first, stop)
        self._error: BaseException | None = None
        self._halted_from: int | None = None  # the job's other ranks do not enter this step either
        self.is_closed = False
        self.on_change: Callable[[], None] | None = None

    # --- the consumer ---

    def take(self, position: int, deadline_s: float, supply: Supply) -> Delivery | None:
        """Return the batch at an own position, or None past the end.

        Going upwards; the same position may be asked for again until `release`.

        Raises:
            DataTimeout: It did not come within `deadline_s`; says what is waited for.
            PenstockError: What has failed, or keeps batches from coming.
        """
        if position > self.next:
            self.next = position  # what was skipped takes no room any more
        if self._halted_from is not None and position >= self._halted_from:
            assert self._error is not None
            raise _again(self._error)
        delivery = self._ready.get(position)
        if delivery is None:
            delivery = self._wait(position, deadline_s, supply)
        return delivery

    def given(self, position: int) -> bool:
        """Note that the consumer has been given `position`; tell whether for the first time."""
        if position < self.next:
            return False
        self.next = self._share.nth_after(position, 1)
        return True

    def release(self, position: int) -> None:
        """Release the own positions below `position`: they will not be asked for again."""
        while self.kept < position:
            self._ready.pop(self.kept, None)
            self.kept = self._share.nth_after(self.kept, 1)

    def ready(self, due: int) -> list[Delivery]:
        """Return what has come from position `due` on."""
        return [found for at, found in list(self._ready.items()) if at >= due]

    def get(self, position: int) -> Delivery | None:
        """Return the batch at a position, if it has come and is kept; any thread may ask."""
        return self._ready.get(position)

    def pause(self, timeout_s: float) -> None:
        """Wait until the consumer is woken, on its thread.

        Raises:
            PenstockError: The Loader was closed: no more will come.
        """
        if self.is_closed:
            raise PenstockError("the Loader was closed while a batch was waited for")
        self._changed.acquire(timeout=max(0.0, timeout_s))

    @property
    def prefetch(self) -> int:
        """How many own positions may be ready beyond the next to be taken; any thread asks."""
        given = self._prefetch
        return self.arrivals.fitting if given is None else given

    @property
    def horizon(self) -> int:
        """The first own position that is not accepted yet."""
        horizon = self._share.nth_after(self.next, self.prefetch)
        end = self.arrivals.end
        return horizon if end is None else min(horizon, end)

    def _wait(self, position: int, deadline_s: float, supply: Supply) -> Delivery | None:
        waiting, arrivals = BatchWait(self._job, position, deadline_s, supply), self.arrivals
        try:
            while (delivery := self._ready.get(position)) is None:
                if arrivals.end is not None and position >= arrivals.end:
                    return None
                # After the look for the batch: those before an error have come.
                error = self._error
                if position in self._ready:
                    continue
                if error is not None:
                    raise _again(error)
                self.pause(waiting.next_pause_s())
            return delivery
        finally:
            self.wait_s += waiting.so_far_s()

    # --- the threads of the streams ---

    def put(self, delivery: Delivery) -> bool:
        """Put a batch into its slot, or drop a second copy; the consumer looks when it is woken."""
        header = delivery.header
        # Texts lie in the header. First this: a copy that lands when the consumer is past its
        # position would lie there until the end.
        if not self.arrivals.note(header.position, delivery.lease.nbytes + header.ByteSize()):
            return False
        self._ready[header.position] = delivery
        return True

    def fail(self, error: BaseException) -> None:
        """Have the consumer raise an error once it has been given what came before.

        Some rank may be unable to end a step of which this one has all of its own: then it is not
        given that.
        """
        if self._error is None:
            self._error = error
            stop = error.more.get("halted_from") if isinstance(error, PenstockError) else None
            self._halted_from = stop if isinstance(stop, int) else None
        self.wake()

    def close(self) -> None:
        """Have a waiting consumer give up."""
        self.is_closed = True
        self.wake()

    def wake(self) -> None:
        """Have the consumer look again, and whatever else listens."""
        self.wake_consumer()
        on_change = self.on_change  # it may go between two looks, as the thread that listens ends
        if on_change is not None:
            on_change()

    def wake_consumer(self) -> None:
        """Have the consumer look again, now or when it comes to wait."""
        with contextlib.suppress(RuntimeError):  # it was woken, and has not looked yet
            self._changed.release()


def _again(error: BaseException) -> BaseException:
    """Return a fresh error to raise: the traceback of one would grow with every call."""
    if isinstance(error, PenstockError):
        return error.reworded(error.message)
    return RuntimeError(f"the feed's thread failed: {error!r}").with_traceback(error.__traceback__)
