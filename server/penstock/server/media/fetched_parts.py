"""Parts of large files that are fetched before somebody reads the file by pieces, and shared.

Several items may need one part: of the cameras or the windows of an episode. Each part is fetched
once, joined with its neighbours, and stays while an item that was asked for needs it; after that
as long as nothing else wants its room. All of it is memory of the process that reads, within
`ahead_bytes` together with media that are fetched whole, so nothing is left after a kill.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Protocol

from penstock.server.files.catalog import Stamp
from penstock.server.media.fetching import JOINED_BYTES, Fetching
from penstock.server.media.media_places import MediaPlace

CHUNK_BYTES, CHUNK_ASKS = 2 << 20, 4096
"""As long as what was asked for lately, so often, lies in so few chunks of files that half of the
room holds them all, chunks are fetched: whole episodes then take a few requests, and not one for
each of their frames. Where draws mix more of them, chunks would be gone before they are used."""

MAX_STAMPS = 65_536
"""Files whose stamp is remembered, some 200 bytes each."""

_begins = attrgetter("start")


class PartedFile(Protocol):
    """A file, or a stretch of one, that is read by parts.

    Attributes:
        name: What errors call it.
        place: Where it is.
        offset: Where it begins in its file.
    """

    name: str
    place: MediaPlace
    offset: int

    def known(self) -> tuple[int, str]:
        """Return its size and version, as far as they are known; see `Medium.known`."""

    def fetch_parts(self, media: Sequence[Any]) -> list[bytes]:
        """Read several parts of its file at once; see `Fetchable.fetch_parts`."""


class FilePart:
    """Bytes `[start, stop)` of a file, as they are fetched ahead.

    Args:
        medium: Reads them.
        start: The first byte, of the whole file.
        stop: After the last.
        parts: What it is one of.

    Attributes:
        users: What needs it.
        seen: How the file looked that its bytes are of; None = a directory lists it.
    """

    def __init__(self, medium: PartedFile, start: int, stop: int, parts: FetchedParts) -> None:
        self.medium, self.start, self.stop = medium, start, stop
        self.name, self.place = medium.name, medium.place
        self.users: set[Hashable] = set()
        self.seen: Stamp | None = None
        self._parts = parts

    @property
    def key(self) -> Hashable:
        """Return what tells it from others; no medium has such a key."""
        return self.place.path, self.start, self.stop, "part"

    @property
    def expected_bytes(self) -> int:
        """Return how many bytes it has."""
        return self.stop - self.start

    @property
    def span(self) -> tuple[int, int]:
        """Return which part of the file it is."""
        return self.start, self.stop

    def fetch(self, count: int | None, room: int | None = None) -> bytes:
        """Read it; see `Fetchable.fetch`."""
        del count, room  # it is asked for whole, and its size is known
        [data] = self.fetch_parts([self])
        return data

    def fetch_parts(self, media: Sequence[Any]) -> list[bytes]:
        """Read several parts of its file at once, this among them; see `Fetchable.fetch_parts`."""
        return self.medium.fetch_parts(media)

    def fetched_by(self, other: FilePart) -> None:
        """Learn how the file looked that its bytes were read of."""
        self.seen = other.seen

    def forgotten(self) -> None:
        """Be none of the file's parts any more: its bytes are no longer there."""
        self._parts.forget(self)


class FetchedParts:
    """The parts of files that were asked for in this process. For any thread.

    Args:
        fetching: Fetches them, within its bound.
    """

    def __init__(self, fetching: Fetching) -> None:
        self._fetching = fetching
        self._changing = threading.Lock()  # taken within that of `fetching`, never around it
        self._files: dict[str, list[FilePart]] = {}  # by path, disjoint and rising
        self._used: dict[Hashable, set[FilePart]] = {}
        self._stamps: OrderedDict[str, Stamp] = OrderedDict()
        self._asks = 0
        self._chunks: OrderedDict[tuple[str, int], int] = OrderedDict()  # by which ask, rising

    def ask(
        self,
        medium: PartedFile,
        spans: Iterable[tuple[int, int]],
        user: Hashable,
        *,
        now: bool,
    ) -> None:
        """Have parts of a file fetched, and kept until they are released.

        Args:
            medium: Reads the file.
            spans: Which, `[start, stop)` of the medium, disjoint. Where they take more than half
                of the room, none is fetched: who reads a long file to its end does it by pieces.
            user: What needs them: see `release`.
            now: They are needed before all that was asked for earlier.
        """
        spans = self._widened(medium, spans)
        spans = [(medium.offset + start, medium.offset + stop) for start, stop in spans]
        if 2 * sum(stop - start for start, stop in spans) > self._fetching.most_bytes:
            return
        wanted: dict[FilePart, None] = {}
        with self._changing:
            own = self._files.setdefault(medium.place.path, [])
            for start, stop in spans:
                wanted.update(dict.fromkeys(self._covering(medium, own, start, stop)))
            for part in wanted:
                part.users.add(user)
            if wanted:
                self._used.setdefault(user, set()).update(wanted)
            elif not own:
                del self._files[medium.place.path]
        self._fetching.need(wanted)
        self._fetching.ask(wanted, now=now)

    def _widened(
        self, medium: PartedFile, spans: Iterable[tuple[int, int]]
    ) -> list[tuple[int, int]]:
        """Return spans, of whole chunks where all that is in use has room."""
        spans = list(spans)
        chunks = [range(start // CHUNK_BYTES, -(-stop // CHUNK_BYTES)) for start, stop in spans]
        with self._changing:
            self._asks += 1
            for chunk in sorted({each for some in chunks for each in some}):
                self._chunks[medium.place.path, chunk] = self._asks
                self._chunks.move_to_end((medium.place.path, chunk))
            while self._chunks and next(iter(self._chunks.values())) <= self._asks - CHUNK_ASKS:
                self._chunks.popitem(last=False)
            in_use = len(self._chunks) * CHUNK_BYTES
        size = medium.known()[0]
        if 2 * in_use > self._fetching.most_bytes or not size:
            return spans
        found: list[tuple[int, int]] = []
        for some in chunks:
            start, stop = some.start * CHUNK_BYTES, min(some.stop * CHUNK_BYTES, size)
            if found and start <= found[-1][1]:
                found[-1] = found[-1][0], max(stop, found[-1][1])
            else:
                found.append((start, stop))
        return found

    def _covering(
        self, medium: PartedFile, own: list[FilePart], start: int, stop: int
    ) -> list[FilePart]:
        """Return the parts that a span lies in; those that lack are made."""
        at = max(0, bisect_right(own, start, key=_begins) - 1)
        there = [part for part in own[at:] if part.start < stop and part.stop > start]
        found: list[FilePart] = []
        for part in [*there, None]:
            end = stop if part is None else part.start
            while start < end:
                until = min(end, start + JOINED_BYTES)
                made = FilePart(medium, start, until, self)
                insort(own, made, key=_begins)
                found.append(made)
                start = until
            if part is not None:
                found.append(part)
                start = max(start, part.stop)
        return found

    def release(self, users: Iterable[Hashable]) -> None:
        """Let others have the room of what these needed, once it is wanted."""
        spare: list[FilePart] = []
        with self._changing:
            for user in users:
                for part in self._used.pop(user, ()):
                    part.users.discard(user)
                    if not part.users:
                        spare.append(part)
        if spare:
            self._fetching.spare(spare)

    def forget(self, part: FilePart) -> None:
        """Remove a part whose bytes are no longer there."""
        with self._changing:
            for user in part.users:
                if (used := self._used.get(user)) is not None:
                    used.discard(part)
                    if not used:
                        del self._used[user]
            own = self._files.get(part.place.path, [])
            at = bisect_right(own, part.start, key=_begins) - 1
            if at >= 0 and own[at] is part:
                del own[at]
                if not own:
                    del self._files[part.place.path]

    def find(self, place: MediaPlace, start: int) -> tuple[memoryview, Stamp | None] | None:
        """Return bytes of a file that were fetched, or wait for them while they come.

        Args:
            place: The file.
            start: The first byte that is wanted, of the whole file.

        Returns:
            Bytes from there on, at least one, and how the file looked that they are of, as
            `FilePart.seen`; None = they were not asked for, or could not be fetched.
        """
        if not self._files:  # as a rule nothing is: no lock for that
            return None
        with self._changing:
            own = self._files.get(place.path, [])
            at = bisect_right(own, start, key=_begins) - 1
            part = own[at] if at >= 0 and own[at].stop > start else None
        if part is None or (data := self._fetching.look(part)) is None:
            return None
        return memoryview(data)[start - part.start :], part.seen

    # --- what is remembered of files that no directory lists ---

    def saw(self, place: MediaPlace, stamp: Stamp) -> None:
        """Note how a file looked when it was read last."""
        with self._changing:
            self._stamps[place.path] = stamp
            self._stamps.move_to_end(place.path)
            if len(self._stamps) > MAX_STAMPS:
                self._stamps.popitem(last=False)

    def last_seen(self, place: MediaPlace) -> Stamp | None:
        """Return how a file looked when it was read last: it may look otherwise by now."""
        return self._stamps.get(place.path)
