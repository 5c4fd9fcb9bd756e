"""A picture or a sound in a file: of this machine, or behind a URL."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from penstock.server.files.catalog import Stamp, local_stamp
from penstock.server.media.fetched_parts import FetchedParts, FilePart
from penstock.server.media.fetching import Fetchable, Fetching, NeedsRoom
from penstock.server.media.listing import Listed
from penstock.server.media.media_places import MediaPlace, is_url
from penstock.server.media.media_reference import FileReference
from penstock.server.media.media_storage import (
    FIRST_BYTES,
    Filesystems,
    Part,
    changed,
    is_refusal,
    read_local,
    read_remote,
    trouble,
)
from penstock.server.media.medium import HEAD_BYTES, Medium
from penstock.wire.credentials import without_credentials
from penstock.wire.errors import BadItem

T = TypeVar("T")


class FileMedium(Medium):
    """The bytes of a file, or of a part of it.

    Args:
        reference: What the item says.
        place: Where that leads.
        listed: How the file looked when the job began; None = that is not known.
        most_bytes: What has more bytes is not read.
        filesystems: Opens what lies behind URLs.
        fetching: Counts, and fetches ahead.
        parts: Parts of files that were fetched ahead.

    Attributes:
        place: The same.
        key: What is read, for those who fetch it ahead.
        offset: Where in the file it begins.
    """

    def __init__(
        self,
        reference: FileReference,
        place: MediaPlace,
        listed: Listed | None,
        most_bytes: int,
        filesystems: Filesystems,
        fetching: Fetching,
        parts: FetchedParts,
    ) -> None:
        self.name = without_credentials(place.path)
        self.place, self._reference = place, reference
        self.offset = reference.start
        self.key = place.path, reference.start, reference.length
        self._listed, self._most_bytes = listed, most_bytes
        self._filesystems, self._fetching, self._parts = filesystems, fetching, parts
        self._seen: Stamp | None = None  # of a file that is not listed
        self._head: bytes | None = None

    def head(self, count: int = HEAD_BYTES) -> bytes | memoryview:
        """Return its first bytes; see `Medium.head`."""
        if self._head is None or (len(self._head) < count and not self._is_all(self._head)):
            known = self._fetching.look(self)
            if known is not None:
                return memoryview(known)[:count]
            found = self._fetching.take(self, count)
            if found is None and (part := self._fetched(0, count)) is not None:
                found = bytes(part)
            self._head = found or self._tried(partial(self.fetch, count))
        return self._head[:count]

    def read(self) -> bytes | memoryview:
        """Return all its bytes; see `Medium.read`."""
        if self._head is not None and self._is_all(self._head):
            return self._head
        found = self._fetching.take(self)
        if found is None:
            return self._tried(partial(self.fetch, None))
        self.failure = None
        return found

    def size(self) -> int:
        """Return how many bytes it has, which reading its head tells; see `Medium.size`."""
        if self.expected_bytes is None and self._fetched(0, 1) is None:
            self.head()
        if (known := self._listed or self._seen) is not None:
            self._tried(lambda: self._check_part(known.size))
        assert self.expected_bytes is not None
        return self.expected_bytes

    def at(self, start: int, stop: int) -> bytes | memoryview:
        """Return bytes `[start, stop)` of it, read alone; see `Medium.at`."""
        stop = min(stop, self.size())
        if self._head is not None and stop <= len(self._head):
            return self._head[start:stop]
        if stop <= start:
            return b""
        if (found := self._fetched(start, stop)) is not None:
            return found
        first = self._reference.start
        return self._tried(lambda: self._read(first + start, first + stop))

    def available(self, start: int, stop: int) -> bytes | memoryview:
        """Return what was fetched ahead from a byte on, else all; see `Medium.available`."""
        size = self.size()
        found = self._fetched(start, start + 1, most=min(stop, size) - start)
        return self.at(start, stop) if found is None else found

    def _fetched(self, start: int, stop: int, most: int | None = None) -> memoryview | None:
        """Return bytes that a part has which was fetched ahead; None = it lacks some of them.

        Args:
            start: The first.
            stop: After the last that there must be, where the file does not end before.
            most: How many to return, if there are; None = as many as there must be.
        """
        first = self._reference.start
        if (found := self._parts.find(self.place, first + start)) is None:
            return None
        data, seen = found
        if seen is not None:
            self._tried(partial(self._check_same, seen))
            self._seen = self._seen or seen
        if self.expected_bytes is not None:
            stop = min(stop, self.expected_bytes)
        if len(data) < stop - start:
            return None
        return data[: stop - start if most is None else most]

    @property
    def is_far(self) -> bool:
        """Tell whether it is fetched ahead; see `Medium.is_far`."""
        return self._fetching.waits

    def known(self) -> tuple[int, str]:
        """Return its size and version as the directory, or an earlier reader, has seen it."""
        before = None if self._listed or self._seen else self._parts.last_seen(self.place)
        version = self._version(before or self._seen)
        return int(version.partition(" ")[0] or 0), version

    def version(self) -> str:
        """Return its size and what its filesystem tells of its version; see `Medium.version`."""
        self.size()
        return self._version(self._seen)

    def _version(self, seen: Stamp | None) -> str:
        known, start, length = self._listed or seen, self.offset, self._reference.length
        if known is None:
            return ""
        size = max(0, known.size - start) if length is None else length
        if self._listed is not None and self._listed.version:
            return f"{size} {self._listed.version}"
        return f"{size} {seen.whole}" if seen and seen.is_settled else ""

    @property
    def expected_bytes(self) -> int | None:
        """Return how many bytes it has; None = nobody knows before they are read."""
        if self._reference.length is not None:
            return self._reference.length
        known = self._listed or self._seen
        return None if known is None else max(0, known.size - self._reference.start)

    @property
    def span(self) -> tuple[int, int] | None:
        """Return which part of a file it is, `[start, stop)`; None = it ends with its file."""
        start, length = self._reference.start, self._reference.length
        return None if length is None else (start, start + length)

    def _is_all(self, head: bytes) -> bool:
        return len(head) == self.expected_bytes

    def _tried(self, read: Callable[[], T]) -> T:
        self.failure = None
        try:
            return read()
        except Exception as error:
            self.failure = trouble(error, self.place, self._listed)
            if self.failure is error:
                raise
            raise self.failure from error

    # --- reading ---

    def fetch(self, count: int | None, room: int | None = None) -> bytes:
        """Read its first bytes, or all of them, from where they lie; for any thread.

        Args:
            count: How many; None = all.
            room: The most bytes that are read of one whose size nobody knows before; None = any.

        Raises:
            NeedsRoom: It has more than these.
            BadItem: It has more bytes than are read, or fewer than the item says.
            SourceChanged: It is not the one that the job began with.
            Exception: It cannot be read; see `trouble`.
        """
        start = self._reference.start
        if (size := self.expected_bytes) is not None:
            self._check_bytes(size)
            stop = start + (size if count is None else min(size, count))
            data = self._read(start, stop)
        elif is_url(self.place.path):
            data = self._read(start, start + (FIRST_BYTES if count is None else count))
            size = self.expected_bytes
            assert size is not None
            if count is None:
                self._check_bytes(size)
            if count is None and len(data) < size:
                self._check_room(size, room)
                data += self._read(start + len(data), start + size)
        else:
            self._seen = local_stamp(os.stat(self.place.path))
            self._check_part(self._seen.size)
            size = max(0, self._seen.size - start)
            if count is None:
                self._check_room(size, room)
            data = self._read(start, start + (size if count is None else min(size, count)))
        wanted = size if count is None or size is None else min(size, count)
        if wanted is not None and len(data) < wanted:
            raise OSError(f"{len(data):,} bytes of it came where {wanted:,} were asked for")
        return data

    def fetched_by(self, other: FileMedium) -> None:
        """Learn how the file looked that its bytes were read of."""
        self._seen = self._seen or other._seen

    def forgotten(self) -> None:
        """Be told that what was fetched ahead was dropped: nothing refers to it."""

    def fetch_parts(self, media: Sequence[Fetchable]) -> list[bytes]:
        """Read several parts of its file at once; raises as `fetch`.

        Args:
            media: Parts of the same file.
        """
        spans = [medium.span for medium in media if medium.span is not None]
        for start, stop in spans:
            self._check_bytes(stop - start)
        first, last = min(spans)[0], max(stop for _, stop in spans)
        data = self._read(first, last)
        if len(data) < last - first:
            raise EOFError(f"{self.name} ends before byte {last}")
        for each in media:
            if isinstance(each, FilePart):
                each.seen = self._seen
        return [data[start - first : stop - first] for start, stop in spans]

    def _read(self, start: int, stop: int) -> bytes:
        began_s = time.monotonic()
        part = self._part(start, stop)
        self._check_same(part.stamp)
        if self._listed is None and self._seen is None:
            self._seen = part.stamp
            self._parts.saw(self.place, part.stamp)
        self._check_part(part.stamp.size)
        self._fetching.note(len(part.data), time.monotonic() - began_s)
        return part.data

    def _part(self, start: int, stop: int) -> Part:
        if not is_url(self.place.path):
            return read_local(self.place.path, start, stop)
        ranges, path = self._filesystems.find(self.place.path)
        known = self._seen
        if self._listed is not None:
            known = Stamp(self._listed.size, "", "", False)
        try:
            return read_remote(ranges, path, start, stop, known)
        except Exception as error:
            if known is not None and is_refusal(error):  # of any version but this
                found = None
                with contextlib.suppress(Exception):  # of the look: the first error says more
                    found = ranges.look(path)
                if found is not None:
                    self._check_same(found)
            raise

    def _check_same(self, stamp: Stamp) -> None:
        """Refuse a version that is not the one that the job, or this medium, began with.

        Raises:
            SourceChanged: It is not.
        """
        if self._listed is not None:
            if not self._listed.is_same(stamp):
                raise changed(self.place, self._listed.size, stamp.size)
        elif self._seen is not None and self._seen[:2] != stamp[:2]:
            raise changed(self.place, self._seen.size, stamp.size)

    def _check_part(self, size: int) -> None:
        """Refuse a file that ends before the part that the item names.

        Args:
            size: Bytes of the whole file.

        Raises:
            BadItem: It does.
        """
        start, length = self._reference.start, self._reference.length
        if length is None and 0 < start >= size:
            part = f"what follows its byte {start:,}"
        elif length is not None and start + length > size:
            part = f"{length:,} bytes of it from byte {start:,} on"
        else:
            return
        raise BadItem(
            f"{self.name} has {size:,} bytes, and the item names {part}: the item is of another "
            "file, or this one was cut off",
            reason=f"{self.name} is too short",
            path=self.name,
        )

    def _check_room(self, size: int, room: int | None) -> None:
        self._check_bytes(size)
        if room is not None and size > room:
            raise NeedsRoom

    def _check_bytes(self, size: int) -> None:
        if size > self._most_bytes:
            part = "" if self._reference.length is None else "the part that the item names of "
            raise BadItem(
                f"{part}{self.name} has {size:,} bytes or more, and max_file_bytes of media is "
                f"{self._most_bytes:,}: raise that, if such files are meant",
                reason=f"{self.name} has {size:,} bytes or more",
                path=self.name,
            )
