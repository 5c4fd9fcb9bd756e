"""Fetches media ahead of those who decode them, several at once, within a bound of bytes.

What is asked for here is fetched by threads, in the order in which it was asked for. Whoever needs
a medium takes it, or waits for it while it comes; what no thread has begun is fetched by the caller
itself, so nobody waits for room. Errors are nobody's here: whoever needs the medium tries again,
and is told.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

from penstock.server.media.media_places import MediaPlace
from penstock.server.media.media_storage import FIRST_BYTES
from penstock.wire.credentials import without_credentials

logger = logging.getLogger("penstock")

WAITS_S = 0.001
"""Where fetching a medium takes longer than this, threads fetch; below it they cost more than they
save."""

MAX_ASKED = 4096
"""Media that wait for a thread, at most."""

GAP_BYTES, JOINED_BYTES = 64 << 10, 8 << 20
"""Parts of one file that lie no further apart are read at once, up to so many bytes together: what
lies between them comes faster than another reply does."""

STALE_TAKES = 256
"""What was fetched and not taken while so many others were needed, and four times as many as are
held, will not be taken: its lane has gone on elsewhere."""


class Fetchable(Protocol):
    """What is fetched: a file, or a part of one.

    Attributes:
        name: What errors call it.
        place: Where it is.
    """

    name: str
    place: MediaPlace

    @property
    def key(self) -> Hashable:
        """Return what tells it from others, and is equal for the same bytes."""

    @property
    def expected_bytes(self) -> int | None:
        """Return how many bytes it has; None = nobody knows before they are read."""

    @property
    def span(self) -> tuple[int, int] | None:
        """Return which part of a file it is, `[start, stop)`; None = it ends with its file."""

    def fetch(self, count: int | None, room: int | None = None) -> bytes:
        """Read its first bytes, or all of them where `count` is None.

        Raises:
            NeedsRoom: It has more bytes than `room`.
            Exception: It cannot be read.
        """

    def fetch_parts(self, media: Sequence[Any]) -> list[bytes]:
        """Read several parts of its file at once, this among them; raises as `fetch`."""

    def fetched_by(self, other: Any) -> None:
        """Be told that another one of its key fetched its bytes; called within this room's lock."""

    def forgotten(self) -> None:
        """Be told that its bytes are held no longer; called within this room's lock."""


class NeedsRoom(Exception):
    """A medium turned out larger than the room that is counted for it."""


class _Ahead:
    """A medium that was asked for.

    Attributes:
        medium: What fetches it.
        count: How many of its first bytes; None = all.
        data: The bytes, once they are there.
        is_busy: Somebody fetches it.
        room: Bytes that are counted for it.
        takes: How many were needed before it was there.
    """

    __slots__ = ("count", "data", "is_busy", "medium", "room", "takes")

    def __init__(self, medium: Fetchable, count: int | None) -> None:
        self.medium, self.count = medium, count
        self.data: bytes | None = None
        self.is_busy, self.room, self.takes = False, 0, 0

    def bytes_for(self, medium: Fetchable) -> bytes | None:
        """Return the bytes for a medium of the same key; None = they are not there."""
        if self.data is not None and medium is not self.medium:
            medium.fetched_by(self.medium)
        return self.data


class Fetching:
    """Fetches, keeps within a bound, and counts what is read. For any thread.

    Args:
        requests: How many are fetched at once, at most.
        most_bytes: Bytes that are fetched and not taken, or on their way, at most.
        fetch_s: How long fetching a medium takes, as long as nobody has measured it.

    Attributes:
        held_bytes: Bytes that are fetched and not taken, or on their way.
    """

    def __init__(self, requests: int, most_bytes: int, fetch_s: float) -> None:
        self._requests, self._most_bytes = requests, most_bytes
        self._fetch_s = fetch_s
        self._changed = threading.Condition()
        self._ahead: OrderedDict[Hashable, _Ahead] = OrderedDict()
        self._asked: deque[_Ahead] = deque()
        self._spare: OrderedDict[Hashable, None] = OrderedDict()  # held, and needed by nobody
        self._threads = self._idle = self._takes = self._read_bytes = 0
        self.held_bytes = 0

    @property
    def most_bytes(self) -> int:
        """Return how many bytes are held at most."""
        return self._most_bytes

    @property
    def waits(self) -> bool:
        """Tell whether it is worth while to ask for media before they are needed."""
        return self._fetch_s > WAITS_S and self._most_bytes > 0

    # --- for those who know what will be needed ---

    def ask(self, media: Iterable[Fetchable], count: int | None = None, *, now: bool) -> None:
        """Have media fetched.

        Args:
            media: The media, in the order in which they are needed.
            count: How many of their first bytes; None = all.
            now: They are needed before all that was asked for earlier.
        """
        with self._changed:
            new: list[_Ahead] = []
            for medium in media:
                known = self._ahead.get((medium.key, count))
                if known is None and len(self._asked) + len(new) < MAX_ASKED:
                    known = self._ahead[medium.key, count] = _Ahead(medium, count)
                    new.append(known)
                elif now and known is not None and known in self._asked:
                    self._asked.remove(known)
                    new.append(known)
            if now:
                self._asked.extendleft(reversed(new))
            else:
                self._asked.extend(new)
            lacking = len(self._asked) - self._idle
            for _ in range(min(lacking, self._requests - self._threads)):
                self._threads += 1
                threading.Thread(target=self._serve, name="penstock-media", daemon=True).start()
            self._changed.notify_all()

    def need(self, media: Iterable[Fetchable]) -> None:
        """Keep media that somebody needs again, as far as they are held."""
        with self._changed:
            for medium in media:
                self._spare.pop(medium.key, None)

    def spare(self, media: Iterable[Fetchable]) -> None:
        """Hold media, which `look` has kept, only until there is need of their room."""
        with self._changed:
            for medium in media:
                if (known := self._ahead.get((medium.key, None))) is None:
                    medium.forgotten()  # there was no place for it, or it was dropped
                elif known in self._asked:  # nobody has begun with it, and nobody wants it
                    self._asked.remove(known)
                    self._drop(known)
                else:
                    self._spare[medium.key] = None
            self._changed.notify_all()

    # --- for those who need it ---

    def take(self, medium: Fetchable, count: int | None = None) -> bytes | None:
        """Return the bytes of a medium that was asked for, and forget them.

        Waits for one that is on its way.

        Returns:
            None = it was not asked for, no thread has begun with it, or it could not be fetched:
            fetch it.
        """
        with self._changed:
            self._takes += 1
            known = self._ahead.get((medium.key, count))
            if known is None:
                return None
            if not known.is_busy and known.data is None:
                self._asked.remove(known)
                del self._ahead[medium.key, count]
                return None
            self._changed.wait_for(lambda: not known.is_busy)
            if known in self._asked:  # it turned out larger than there was room for
                self._asked.remove(known)
            if self._ahead.get((medium.key, count)) is known:
                self._drop(known)
            return known.bytes_for(medium)

    def look(self, medium: Fetchable) -> bytes | None:
        """Return the bytes of a medium that is asked for whole, and keep them.

        What no thread has begun is fetched here: whoever looks at the head of a medium that is
        asked for whole is about to read it.
        """
        with self._changed:
            self._takes += 1
            known = self._ahead.get((medium.key, None))
            if known is None:
                return None
            self._changed.wait_for(lambda: not known.is_busy)
            known.takes = self._takes  # it is in use, so it is not stale
            if known.data is not None or known not in self._asked:
                return known.bytes_for(medium)
            self._asked.remove(known)
            self._begin([known])
        self._fetch([known], is_needed=True)
        with self._changed:
            return known.bytes_for(medium)

    # --- counts ---

    def count_read(self, nbytes: int) -> None:
        """Count bytes that were read from where media lie."""
        with self._changed:
            self._read_bytes += nbytes

    def note(self, nbytes: int, seconds: float) -> None:
        """Count what a request for a file gave, and note how long it took."""
        with self._changed:
            self._read_bytes += nbytes
            self._fetch_s += 0.1 * (seconds - self._fetch_s)

    def read_bytes(self) -> int:
        """Return the bytes that were read since the last call."""
        with self._changed:
            count, self._read_bytes = self._read_bytes, 0
        return count

    # --- in threads ---

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(self._may_begin)
                self._idle -= 1
                together = self._neighbours(self._asked[0])
                for known in together:
                    self._asked.remove(known)
                self._begin(together)
            self._fetch(together)

    def _may_begin(self) -> bool:
        if not self._asked:
            return False
        if not self.held_bytes:
            return True
        self._drop_stale()
        room = self._most_bytes - self._room(self._asked[0])
        while self.held_bytes > room and (known := self._oldest_spare()) is not None:
            self._drop(known)
        return self.held_bytes <= room

    def _oldest_spare(self) -> _Ahead | None:
        """Return what is held and needed by nobody, for the longest time."""
        for key in self._spare:
            if not (known := self._ahead[key, None]).is_busy:
                return known
        return None

    def _room(self, known: _Ahead) -> int:
        expected = known.medium.expected_bytes
        if expected is None:
            expected = FIRST_BYTES
        return expected if known.count is None else min(known.count, expected)

    def _begin(self, together: list[_Ahead]) -> None:
        for known in together:
            known.is_busy, known.room = True, self._room(known)
            self.held_bytes += known.room

    def _neighbours(self, first: _Ahead) -> list[_Ahead]:
        """Return a part of a file with others that are asked for and lie beside it, in order."""
        span = first.medium.span
        if span is None or first.count is not None:
            return [first]
        path = first.medium.place.path
        others = [
            (known.medium.span, known)
            for known in self._asked
            if known.medium.place.path == path and known.count is None and known is not first
        ]
        start, stop = span
        found = [(start, first)]
        room = self._most_bytes - self.held_bytes
        apart = sorted((other, n) for n, (other, _) in enumerate(others) if other is not None)
        for (begin, end), number in [each for each in apart if each[0] >= span]:
            longer = max(stop, end) - start
            if begin - stop > GAP_BYTES or longer > min(JOINED_BYTES, room):
                break
            found.append((begin, others[number][1]))
            stop = max(stop, end)
        for (begin, end), number in [each for each in apart[::-1] if each[0] < span]:
            longer = max(stop, end) - begin
            if start - end > GAP_BYTES or longer > min(JOINED_BYTES, room):
                break
            found.append((begin, others[number][1]))
            start, stop = begin, max(stop, end)
        return [known for _, known in sorted(found, key=lambda each: each[0])]

    def _fetch(self, together: list[_Ahead], *, is_needed: bool = False) -> None:
        """Fetch what was begun; what fails is forgotten, and what is too large waits for room."""
        found: list[bytes] | None = None
        waits = False
        try:
            first = together[0].medium
            if len(together) == 1:
                room = None if is_needed else together[0].room
                found = [first.fetch(together[0].count, room)]
            else:
                found = first.fetch_parts([known.medium for known in together])
        except NeedsRoom:
            waits = True
        except Exception as error:
            # Whoever needs it tries again, and is told: see FileMedium.
            said = without_credentials(str(error))
            logger.debug("%s was not fetched ahead: %s", together[0].medium.name, said)
        with self._changed:
            for number, known in enumerate(together):
                known.is_busy, known.takes = False, self._takes
                if waits:
                    self.held_bytes -= known.room
                    known.room = 0
                    self._asked.appendleft(known)
                elif found is None:
                    self._drop(known)
                else:
                    known.data = found[number]
                    self.held_bytes += len(known.data) - known.room
                    known.room = len(known.data)
            self._changed.notify_all()

    def _drop(self, known: _Ahead) -> None:
        if self._ahead.pop((known.medium.key, known.count), None) is not None:
            self._spare.pop(known.medium.key, None)
            known.medium.forgotten()
        self.held_bytes -= known.room
        known.room = 0
        self._changed.notify_all()

    def _drop_stale(self) -> None:
        limit = max(STALE_TAKES, 4 * len(self._ahead))
        stale = [
            known
            for known in self._ahead.values()
            if known.data is not None and self._takes - known.takes > limit
        ]
        for known in stale:
            self._drop(known)
