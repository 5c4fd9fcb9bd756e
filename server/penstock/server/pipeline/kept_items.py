"""Items that are here before they are needed: kept up to a bound in bytes, or read ahead.

Raw ones, and what processing gave for those of which later batches hold other pieces. It only saves
time. An item that is not kept, or could not be read ahead, is read when it is needed, and only that
read reports errors: so errors and verdicts come in the same order as without.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from penstock.server.core.refs import ItemRef
from penstock.server.roles.samples import RawItem
from penstock.server.usercode.frames import error_line
from penstock.server.usercode.held_bytes import held_bytes

logger = logging.getLogger("penstock")

KEPT_BYTES, NODE_KEPT_BYTES = 64 << 20, 256 << 20
"""Items that a worker keeps for a job, and all workers of a node together: some seconds of text, a
pool of a few hundred images, the tokens of 30 lanes' documents of 500,000 each."""


def kept_bytes(workers: int) -> int:
    """Return what each of so many workers of a node keeps for a job, at most."""
    return min(KEPT_BYTES, NODE_KEPT_BYTES // workers)


MAX_ASKED = 64
"""Requests that wait for the thread; where it does not follow, what is needed is read at once."""


class KeptItems:
    """Raw items by their refs, the oldest dropped first, and a thread that reads more.

    What was processed is here, too, by whatever names it: all of it is one memory, with one bound.

    Args:
        read: Reads items of one request, in a thread of this object; its errors are ignored.
        max_bytes: The most bytes that are kept.
    """

    def __init__(
        self, read: Callable[[Sequence[ItemRef]], list[RawItem]], max_bytes: int = KEPT_BYTES
    ) -> None:
        self._read, self.max_bytes = read, max_bytes
        self.nbytes = 0
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._asked: deque[list[ItemRef]] = deque()
        self._in_flight: frozenset[ItemRef] = frozenset()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._item_bytes = 0.0  # of an item, in the mean

    def keep(self, items: Sequence[ItemRef], raws: Sequence[RawItem]) -> None:
        """Keep items that were read and will be needed again."""
        with self._changed:
            for item, raw in zip(items, raws, strict=True):
                self._put(item, raw, self._measured(raw))

    def keep_outcome(self, name: Hashable, outcome: Any, nbytes: int) -> None:
        """Keep what processing an item gave.

        Args:
            name: Names it, and is no ref of an item.
            outcome: It.
            nbytes: About how much memory it takes.
        """
        with self._changed:
            self._put(name, outcome, nbytes)

    def lacks(self, name: Hashable) -> bool:
        """Tell whether nothing is kept under a name."""
        with self._changed:
            return name not in self._kept

    def look(self, items: Sequence[ItemRef]) -> dict[ItemRef, RawItem]:
        """Return those of some items that are here, and keep them; nothing is waited for."""
        with self._changed:
            return {item: self._kept[item][0] for item in items if item in self._kept}

    def take_outcomes(self, names: Iterable[Hashable]) -> dict[Hashable, tuple[Any, int]]:
        """Return those of some outcomes that are here, with their bytes, and forget them."""
        with self._changed:
            found = {name: self._kept.pop(name) for name in names if name in self._kept}
            self.nbytes -= sum(nbytes for _, nbytes in found.values())
            return found

    def ask(self, items: Sequence[ItemRef]) -> None:
        """Have items read by the thread, if there is room for them."""
        with self._changed:
            waiting = sum(map(len, self._asked)) + len(self._in_flight)
            expected = self.nbytes + (waiting + len(items)) * self._item_bytes
            if len(self._asked) >= MAX_ASKED or expected > self.max_bytes:
                return
            known = {item for request in self._asked for item in request} | self._in_flight
            new = [item for item in items if item not in self._kept and item not in known]
            if not new:
                return
            self._asked.append(new)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._bring, name="penstock-reading", daemon=True
                )
                self._thread.start()

    def take(self, items: Sequence[ItemRef]) -> dict[ItemRef, RawItem]:
        """Return those of some items that are here, and forget them; wait for what is being read.

        The thread drops requests for these that it has not begun.
        """
        with self._changed:
            if self._asked:
                wanted = set(items)
                left = ([item for item in asked if item not in wanted] for asked in self._asked)
                self._asked = deque(request for request in left if request)
            if not self._in_flight.isdisjoint(items):
                begun = self._in_flight
                self._changed.wait_for(lambda: self._in_flight is not begun)
            found: dict[ItemRef, RawItem] = {}
            for item in items:
                kept = self._kept.pop(item, None)
                if kept is not None:
                    found[item], nbytes = kept
                    self.nbytes -= nbytes
            return found

    def _measured(self, raw: RawItem) -> int:
        nbytes = held_bytes(raw)
        self._item_bytes += 0.1 * (nbytes - self._item_bytes)
        return nbytes

    def _put(self, name: Hashable, value: Any, nbytes: int) -> None:
        if nbytes > self.max_bytes:
            return
        before = self._kept.pop(name, None)
        if before is not None:
            self.nbytes -= before[1]
        self._kept[name] = value, nbytes
        self.nbytes += nbytes
        while self.nbytes > self.max_bytes:
            _, (_, freed) = self._kept.popitem(last=False)
            self.nbytes -= freed

    def _bring(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked)
                request = self._asked.popleft()
                self._in_flight = frozenset(request)
            raws: list[RawItem] | None = None
            try:
                raws = self._read(request)
            except Exception as error:
                # They are read again when they are needed, and errors are reported then.
                logger.debug("%s was not read ahead: %s", request[0], error_line(error))
            with self._changed:
                for item, raw in zip(request, raws or (), strict=False):
                    self._put(item, raw, self._measured(raw))
                del raws
                self._in_flight = frozenset()
                self._changed.notify_all()
