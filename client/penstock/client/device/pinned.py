"""Memory of the host that a device copies from: one bounded arena, of which bodies are spans."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.buffers import Lease
from penstock.client.bodies.lifetimes import Lifetimes, keep_until
from penstock.client.bodies.stages import Stage
from penstock.client.calls.background_thread import log_in_background
from penstock.client.device.pinned_arena import PinnedArena, PinnedSpan
from penstock.client.device.port import End, Port
from penstock.client.device.trouble import too_little_to_pin
from penstock.common.prefetch import AHEAD_BYTES
from penstock.common.resources import usable_memory_bytes
from penstock.wire.errors import CannotPin, PenstockError

logger = logging.getLogger("penstock")

LEAST_BYTES = 2 * AHEAD_BYTES
"""A Loader's arena is not smaller: small bodies are ready by the dozen, up to `AHEAD_BYTES`."""

SHARE = 16
"""At most one byte in so many is pinned, of the memory that there is for each process here."""

LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE")
"""Variables by which launchers say how many processes of a run are on a host."""


def default_pinned_bytes() -> int:
    """Return what may be pinned where nobody says it."""
    given = [os.environ.get(name, "") for name in LOCAL_RANKS]
    ranks = next((int(count) for count in given if count.isdigit() and int(count)), 1)
    return usable_memory_bytes() // ranks // SHARE


class PinnedMemory:
    """What bodies land in on their way to a device: a `buffers.BodyMemory`.

    One span, as long as the largest body, is never lent to those that land: others are staged
    there one after another. So staging waits for copies alone, never for a loop that holds views.

    Any thread but the loop's calls; what the attributes say any thread may look at.

    Args:
        port: Of the device. It is asked for nothing before the Loader's stream there was made.
        most_bytes: The most that is pinned, with what is registered of others; None = a sixteenth
            of the memory that there is for each process on this host.
        least_bytes: How large the arena is at least, if it may be.

    Attributes:
        registered_bytes: How much memory of others is pinned where it lies.
        overflowed: How many bodies found no free span, and landed in plain memory.
        staged: How many bodies were copied within the host, into the arena.
        taking: Staging takes a span: memory is pinned for it, or copies are waited for.
    """

    def __init__(self, port: Port, most_bytes: int | None = None, least_bytes: int = 0) -> None:
        self._port, self._arena = port, PinnedArena(port, least_bytes)
        self._most_bytes = default_pinned_bytes() if most_bytes is None else most_bytes
        self._lock = threading.Lock()  # no signal handler breaks the threads off that take it
        self._leased: Lifetimes[PinnedSpan] = Lifetimes()  # of arrays
        # Their views are gone, and an event was not complete when it was looked at.
        self._awaited: deque[PinnedSpan] = deque()
        self._staging: deque[tuple[PinnedSpan, End]] = deque()
        self._leased_bytes = 0
        self._refused_bytes: int | None = None  # the shortest body that there is no arena for
        self._has_warned = False
        self.registered_bytes = self.overflowed = self.staged = 0
        self.taking = Stage()
        # A device may read on when this is gone; at exit it is gone by itself.
        left = (self._leased, self._awaited, self._staging)
        weakref.finalize(self, _outlive, *left).atexit = False

    @property
    def arena_bytes(self) -> int:
        """How large the arena is."""
        return self._arena.nbytes

    @property
    def grown(self) -> int:
        """How often the arena has grown, since a body was larger than any before."""
        return self._arena.grown

    # --- bodies that land ---

    def lease(self, nbytes: int) -> Lease | None:
        """Return a lease of a span; None = none is free, and nothing is waited for."""
        with self._lock:
            self._sort_in()
            if self._refused_bytes is None or nbytes < self._refused_bytes:
                try:
                    self._fit(nbytes)
                except CannotPin as error:
                    self._refused_bytes = nbytes
                    self._warn(f"a batch of {nbytes:,} bytes lands in plain memory: {error}")
            span = self._arena.take(nbytes)
            if span is None:
                self.overflowed += 1
                return None
            self._leased_bytes += span.nbytes
        # Its base is a memoryview: every view has *it* as its base.
        array = np.frombuffer(span.piece.storage.data, np.uint8, nbytes, span.start)
        self._leased.watch(array, span)
        return Lease(array, span.events, is_pinned=True)

    def statistics(self) -> dict[str, int]:
        """Return `leased_bytes` and `free_bytes`; takes no lock, as the consumer asks."""
        leased = self._leased_bytes - sum(span.nbytes for span in self._leased.ended())
        return {"leased_bytes": leased, "free_bytes": max(0, self.arena_bytes - leased)}

    def counts(self) -> dict[str, int]:
        """Return `bytes` that are pinned in all, `grown`, `overflowed` and `staged`; no lock."""
        return {
            "bytes": self.arena_bytes + self.registered_bytes,
            "grown": self.grown,
            "overflowed": self.overflowed,
            "staged": self.staged,
        }

    # --- bodies that have landed elsewhere ---

    def stage(self, body: NDArray[np.uint8], end: End) -> NDArray[np.uint8]:
        """Return a span that holds the bytes, as long as `end` is not complete.

        One thread at a time calls, and has settled the end before the next one does.

        Raises:
            CannotPin: There is no memory to stage a body of this length in.
        """
        with self.taking.going_on():
            while (span := self._take_for_staging(len(body), end)) is None:
                self._await_staged()
        staged = span.piece.storage[span.start : span.start + len(body)]
        staged[:] = body
        self.staged += 1
        return staged

    def _take_for_staging(self, nbytes: int, end: End) -> PinnedSpan | None:
        with self._lock:
            self._sort_in()
            try:
                self._fit(nbytes)
            except CannotPin:
                if not self._staging:
                    raise
                return None  # what is copied from now may be what is in the way
            span = self._arena.take(nbytes)
            if span is None:
                span = self._arena.take_reserve()
            if span is not None:
                self._staging.append((span, end))
                self._leased_bytes += span.nbytes
            return span

    def _await_staged(self) -> None:
        """Wait for the oldest copy of what was staged: without any, the reserve would be free."""
        with self._lock:
            if not self._staging:
                return
            span, end = self._staging[0]
        end.synchronize()
        with self._lock:
            if self._staging and self._staging[0][0] is span:
                self._staging.popleft()
                self._give_back(span)

    # --- memory of others ---

    def register(self, array: NDArray[np.uint8], nbytes: int) -> bool:
        """Pin memory of others where it lies, and say whether that was possible.

        Args:
            array: uint8 (n,), whole pages, mapped until `unregister`. Holes are filled with memory:
                so it counts in full.
            nbytes: The length of a body there: an arena for those must have room beside it.
        """
        with self._lock:
            own = self._arena.least_for(nbytes)
            if self.registered_bytes + array.nbytes + own > self._most_bytes:
                self._warn(
                    f"lent batches are copied within the host: {array.nbytes:,} bytes of the "
                    f"node's memory are more than is left of {self._most_bytes:,} that may be "
                    "pinned (limits=Limits(pinned_bytes=))"
                )
                return False
            try:
                self._port.register(array)
            except PenstockError as error:
                self._warn(f"lent batches are copied within the host: {error}")
                return False
            self.registered_bytes += array.nbytes
            return True

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Unpin what was registered, once every copy from it is over."""
        with self._lock:
            self.registered_bytes -= array.nbytes
            try:
                self._port.unregister(array)
            except Exception as error:  # of whatever driver: the caller may be another Loader
                logger.debug("memory of the node's stays pinned: %s", error)

    # --- the arena; all of it below the lock ---

    def _fit(self, nbytes: int) -> None:
        """Make sure of an arena, and in it of a span for staging that is as long as a body.

        Raises:
            CannotPin: There can be none.
        """
        if not self._arena.fit(nbytes, self._most_bytes - self.registered_bytes):
            raise too_little_to_pin(nbytes, self._most_bytes)

    def _give_back(self, span: PinnedSpan) -> None:
        self._leased_bytes -= span.nbytes
        self._arena.give_back(span)

    def _sort_in(self) -> None:
        self._awaited.extend(self._leased.take_ended())
        for _ in range(len(self._awaited)):
            span = self._awaited[0]
            is_over = all(event.query() for event in span.events)  # it may raise: a device failed
            self._awaited.popleft()
            if is_over:
                self._give_back(span)
            else:
                self._awaited.append(span)
        while self._staging and self._staging[0][1].query():
            self._give_back(self._staging.popleft()[0])

    def _warn(self, sentence: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log_in_background(logger.warning, "%s", sentence)


def _outlive(
    leased: Lifetimes[PinnedSpan],
    awaited: deque[PinnedSpan],
    staging: deque[tuple[PinnedSpan, End]],
) -> None:
    """Keep the arena as long as a device may read it, when nobody lends of it any more."""
    kept: list[tuple[PinnedSpan, list[Any]]] = [(span, span.events) for span in leased.values()]
    kept += [(span, span.events) for span in awaited]
    kept += [(span, [end]) for span, end in staging]
    for span, events in kept:
        if events:
            keep_until(span.piece.storage, events)
