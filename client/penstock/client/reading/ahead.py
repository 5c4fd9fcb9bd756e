"""Batches on their way to a device before the training loop asks for them.

A thread of the feed decodes what the loop takes next and starts the copy, while the loop works on
the batch before. Where nothing is copied there is no such thread: views of a body cost less than
handing them from thread to thread.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any, NamedTuple

from penstock.client.calls.background_thread import Patience, in_background
from penstock.client.reading.slots import Delivery, Slots
from penstock.client.reading.waiting import PAUSE_S
from penstock.client.values.value_decoder import ValueDecoder
from penstock.wire.errors import DataTimeout, OutOfDeviceMemory
from penstock.wire.order import Share


class _Result(NamedTuple):
    """What came of a batch: what `ValueDecoder.finish` takes, or why there is nothing.

    Attributes:
        begun: What `ValueDecoder.begin` returned.
        error: What it raised; None = nothing.
        has_no_room: The device had no room, before the loop asked for the batch: it is copied once
            more when the loop does. Then the views of those before are gone, as far as the loop
            will release them. The error is not kept: its traceback would keep what had room.
    """

    begun: Any
    error: Exception | None
    has_no_room: bool = False


class Ahead:
    """Decodes the batches that the loop takes next, on a thread of its own.

    The loop's thread may be broken off between any two bytecodes, by a signal handler that raises:
    so it takes no lock, and what it does is right also when it is done twice. It says which
    position it wants, and this thread makes the results from there on. A result
    that was taken and never used is made again, since its batch still lies in its slot.

    Args:
        slots: Where batches come from.
        share: Which positions are the rank's own.
        decoder: Whose `begin` is called here, and `finish` on the loop's thread.
        most: How many batches may be decoded beyond the one in use.

    Attributes:
        wait_s: How long the loop has waited for batches that had come.
    """

    def __init__(self, slots: Slots, share: Share, decoder: ValueDecoder, most: int) -> None:
        self._slots, self._share, self._decoder, self._most = slots, share, decoder, most
        # By position; put in and taken out by both threads, one call of a dict each.
        self._results: dict[int, _Result] = {}
        # One entry for each change. Written in C: putting happens or does not, and raises nothing.
        self._changes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._failure: BaseException | None = None  # why the thread has ended
        # Set by the loop's thread.
        self.wait_s = 0.0
        self._wanted = slots.next
        self._asked = -1  # the position that it waits for, or has waited for last
        self._is_started = False
        # Set and taken by threads that nothing breaks off.
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None

    # --- the loop's thread ---

    def take(self, delivery: Delivery, deadline_s: float) -> dict[str, Any]:
        """Return the values of a batch that has come.

        Raises:
            DataTimeout: The thread did not begin to copy it within `deadline_s`.
            Exception: What the decoder raised for this batch; asking again decodes it again.
        """
        position = delivery.header.position
        self._wanted = self._asked = position
        if not self._is_started:
            in_background(self._start)
            self._is_started = True
        result = self._results.get(position)
        if result is None or result.has_no_room:
            result = self._wait(position, deadline_s)
        # First this, then the result: the thread would see that it lacks, and make it again.
        self._wanted = self._share.nth_after(position, 1)
        self._results.pop(position, None)
        self._note_change()
        if result.error is not None:
            try:
                raise result.error
            finally:
                del result  # else the error's traceback would be a circle, and keep memory
        return self._decoder.finish(result.begun)

    def _wait(self, position: int, deadline_s: float) -> _Result:
        began = time.monotonic()
        try:
            while (result := self._results.get(position)) is None or result.has_no_room:
                if self._failure is not None:
                    raise RuntimeError(f"the thread that decodes failed: {self._failure!r}")
                waited = time.monotonic() - began
                if waited >= deadline_s:
                    raise DataTimeout(
                        f"the batch at position {position} has come, and its copy to the device "
                        f"was not started within {waited:.0f} s: the device is busy with what was "
                        "queued before, or hangs; raise deadline_s= if that is to be expected",
                        position=position,
                        waited_s=round(waited, 3),
                        reason="its copy to the device",
                    )
                self._note_change()
                self._slots.pause(min(PAUSE_S, deadline_s - waited))
            return result
        finally:
            self.wait_s += time.monotonic() - began

    @property
    def ready(self) -> int:
        """How many batches are decoded beyond the one in use; any thread asks."""
        results = list(self._results.values())
        return sum(result.error is None and not result.has_no_room for result in results)

    # --- on threads that no signal handler breaks off ---

    def join(self, deadline_s: float) -> None:
        """Wait until the thread has ended, after `Slots.close`.

        It takes a lock: call it in the background.
        """
        with self._guard:
            thread = self._thread
        if thread is not None:
            thread.join(deadline_s)

    def _start(self, _: Patience) -> None:
        with self._guard:
            if self._thread is None:
                self._slots.on_change = self._note_change
                self._thread = threading.Thread(
                    target=self._run, name="penstock-ahead", daemon=True
                )
                self._thread.start()

    def _note_change(self) -> None:
        """Have the thread look again."""
        self._changes.put(None)

    # --- the thread ---

    def _run(self) -> None:
        try:
            while not self._slots.is_closed:
                delivery = self._due()
                if delivery is None:
                    self._changes.get()
                    continue
                self._results[delivery.header.position] = self._begin(delivery)
                del delivery
                self._slots.wake_consumer()
        except BaseException as error:  # the edge of the thread: the consumer raises it
            self._failure = error
            self._slots.wake_consumer()
        finally:
            self._slots.on_change = None
            self._results.clear()

    def _begin(self, delivery: Delivery) -> _Result:
        is_early = delivery.header.position != self._asked
        try:
            return _Result(self._decoder.begin(delivery.entries, delivery.lease), None)
        except Exception as error:  # the loop raises it when it comes to this batch
            if is_early and isinstance(error, OutOfDeviceMemory):
                return _Result(None, None, has_no_room=True)
            return _Result(None, error)

    def _due(self) -> Delivery | None:
        """Return the next batch to decode that has come, if there is room for it."""
        # What the loop has left out is not asked for any more.
        position = max(self._wanted, self._slots.kept)
        for passed in [at for at in list(self._results) if at < position]:
            self._results.pop(passed, None)
        for _ in range(self._most):
            result = self._results.get(position)
            if result is not None and result.has_no_room:
                if position != self._asked:
                    return None  # nor is there room for those after it
                result = None
            if result is None:
                delivery = self._slots.get(position)
                if delivery is not None:
                    return delivery
            position = self._share.nth_after(position, 1)
        return None
