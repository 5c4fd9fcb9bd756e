"""A rank's slots: one for each of its own positions that it accepts, filled by streams.

The horizon ("I accept my positions below H") is the consumer's next position plus `prefetch` own
positions: so memory is bounded, and a late position always has its slot, whichever stream brings
it. Slots know positions, what has come and how long is waited; they know no calls and no nodes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import NamedTuple, Protocol

from penstock.client.aside import tell
from penstock.client.reading.buffers import Lease
from penstock.wire.errors import DataTimeout, PenstockError
from penstock.wire.order import Share
from penstock.wire.prefetch import fitting_ahead
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")

LOG_EVERY_S = 30.0
"""A waiting consumer says so, with the reason, this often."""

PAUSE_S = 0.5
"""A waiting consumer looks up this often: a signal handler runs soon on every platform."""

TELL_S = 0.005
"""A consumer that waits longer tells the server where it is, in case that holds a batch back for
want of room. What is made as fast as it is read comes sooner, and a message for each would cost
both sides."""


class Delivery(NamedTuple):
    """A whole batch, checked.

    Attributes:
        header: Its header; `header.position` says which it is.
        lease: Where its body lies.
        route: The number of the route that it came by.
    """

    header: feed_pb2.BatchHeader
    lease: Lease
    route: int = 0


class Supply(Protocol):
    """Who fills slots, as a waiting consumer sees it; called on the consumer's thread."""

    def may_send(self, position: int) -> bool:
        """Tell whether every node knows that it may send `position`, as far as that is known."""
        ...

    def tell(self, position: int, waited_s: float) -> None:
        """Send what the nodes must know so that `position` can come, and was held back so far."""
        ...

    def why(self) -> str:
        """Return what is waited for, in words."""
        ...

    def blocked(self, waited_s: float) -> PenstockError | None:
        """Return what keeps batches from coming, such as a node that is away; None = nothing."""
        ...


class Slots:
    """What has come of a rank's own positions, between one consumer and the threads of its streams.

    The consumer may be broken off between any two bytecodes, by a signal handler that raises: so it
    takes no lock. Batches lie in a dict by position, where they stay until the consumer says that
    it is past them; and what it does is right also when it is done twice. It is woken by a lock
    that is a semaphore: whoever changes something lets it go, and the consumer looks again.

    Args:
        job: The job's name, for messages.
        share: Which positions are the rank's own.
        start: The first position that is wanted.
        stop: No position from here on is wanted; None = until the log ends.
        prefetch: How many own positions may be ready beyond the next to be taken; None = as many as
            `fitting_ahead` says of the largest that has come.

    Attributes:
        next: The first position that the consumer has not been given.
        wait_s: How long it has waited in all.
        missing: The first position that has not come.
        largest_bytes: What the largest batch takes that has come, header included.
        end: The first position that will not come; None = not known.
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
        self._kept = first  # the first position that it may ask for once more
        self.wait_s = 0.0
        # Set by the threads of the streams, one at a time.
        self._landing = threading.Lock()
        self.missing = first
        self.largest_bytes = 0
        self._landed: set[int] = set()  # those above it that have come
        self.end = stop
        self._error: BaseException | None = None
        self._is_closed = False

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
        while self._kept < position:
            self._ready.pop(self._kept, None)
            self._kept = self._share.nth_after(self._kept, 1)

    def ready(self, due: int) -> list[Delivery]:
        """Return what has come from position `due` on."""
        return [found for at, found in list(self._ready.items()) if at >= due]

    @property
    def prefetch(self) -> int:
        """How many own positions may be ready beyond the next to be taken; any thread asks."""
        given = self._prefetch
        return fitting_ahead(self.largest_bytes) if given is None else given

    @property
    def horizon(self) -> int:
        """The first own position that is not accepted yet."""
        horizon = self._share.nth_after(self.next, self.prefetch)
        return horizon if self.end is None else min(horizon, self.end)

    def _wait(self, position: int, deadline_s: float, supply: Supply) -> Delivery | None:
        began = time.monotonic()
        log_at = LOG_EVERY_S
        try:
            while (delivery := self._ready.get(position)) is None:
                if self.end is not None and position >= self.end:
                    return None
                # After the look for the batch: those before an error have come.
                error, ended = self._error, self._is_closed
                if position in self._ready:
                    continue
                if error is not None:
                    raise _again(error)
                if ended:
                    raise PenstockError("the Loader was closed while a batch was waited for")
                waited = time.monotonic() - began
                may_come = supply.may_send(position)
                supply.tell(position, waited)
                if waited >= deadline_s:
                    raise supply.blocked(waited) or self._late(position, waited, supply.why())
                if waited >= log_at:
                    log_at += LOG_EVERY_S
                    tell(
                        logger.warning,
                        "job %r: waiting %.0f s for the batch at position %d: %s",
                        self._job,
                        waited,
                        position,
                        supply.why(),
                    )
                pause_s = PAUSE_S if may_come or waited >= TELL_S else TELL_S
                self._changed.acquire(timeout=max(0.0, min(pause_s, deadline_s - waited)))
            return delivery
        finally:
            self.wait_s += time.monotonic() - began

    def _late(self, position: int, waited: float, reason: str) -> PenstockError:
        return DataTimeout(
            f"the batch at position {position} of job {self._job!r} did not come within "
            f"{waited:.0f} s: {reason}; raise deadline_s= if that is to be expected",
            position=position,
            waited_s=round(waited, 3),
            reason=reason,
        )

    # --- the threads of the streams ---

    def has(self, position: int) -> bool:
        """Tell whether a position has come, or was given to the consumer."""
        return position < self.missing or position in self._landed

    def put(self, delivery: Delivery) -> None:
        """Put a batch into its slot; the consumer looks when it is woken."""
        position = delivery.header.position
        nbytes = delivery.lease.nbytes + delivery.header.ByteSize()  # texts lie in the header
        self._ready[position] = delivery
        with self._landing:
            self.largest_bytes = max(self.largest_bytes, nbytes)
            self._landed.add(position)
            while self.missing in self._landed:
                self._landed.remove(self.missing)
                self.missing = self._share.nth_after(self.missing, 1)

    def end_at(self, position: int) -> None:
        """Note that no position from here on will come."""
        with self._landing:
            self.end = position if self.end is None else min(self.end, position)
        self.wake()

    @property
    def is_complete(self) -> bool:
        """Whether all that is wanted has come."""
        return self.end is not None and self.missing >= self.end

    def fail(self, error: BaseException) -> None:
        """Have the consumer raise an error once it has been given what came before."""
        if self._error is None:
            self._error = error
        self.wake()

    def close(self) -> None:
        """Have a waiting consumer give up."""
        self._is_closed = True
        self.wake()

    def wake(self) -> None:
        """Have the consumer look again, now or when it comes to wait."""
        with contextlib.suppress(RuntimeError):  # it was told, and has not looked yet
            self._changed.release()


def _again(error: BaseException) -> BaseException:
    """Return a fresh error to raise: the traceback of one would grow with every call."""
    if isinstance(error, PenstockError):
        return error.reworded(error.message)
    return RuntimeError(f"the feed's thread failed: {error!r}").with_traceback(error.__traceback__)


__all__ = ["LOG_EVERY_S", "PAUSE_S", "TELL_S", "Delivery", "Slots", "Supply"]
