"""Ranges of bytes of files, each with the stamp of the very version that they were read from.

Who looks at a file and then reads it may read another version than the one that was looked at. So
the stamp comes with the bytes: of a local file from the descriptor that they were read through, of
S3 and HTTP from the reply itself. Where a filesystem does not tell that, the file is looked at
after the read: what is unchanged by then was so while it was read.
"""

from __future__ import annotations

import io
import os
import posixpath
import re
from abc import ABC, abstractmethod
from typing import Any

from typing_extensions import override

from penstock.server.files.catalog import Stamp, local_stamp, remote_stamp
from penstock.server.files.content import ReadAt
from penstock.server.files.filesystems import require
from penstock.server.files.patience import ReplyClock, asked
from penstock.wire.errors import InvalidJob

LOOKERS = 16
"""Threads that look at files: they wait for a disk or a store, and compute little."""

_PART = re.compile(r"bytes +([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)")
"""What `Content-Range` says: the first byte, the last one, and how many the file has."""


class Ranges(ABC):
    """How one kind of filesystem is asked for ranges; for several threads at once.

    Args:
        fs: The filesystem, of fsspec.
    """

    def __init__(self, fs: Any) -> None:
        self.fs = fs

    def info(self, path: str, *, listed: bool = False) -> dict[str, Any]:
        """Return what the filesystem tells of a file or a folder.

        Args:
            path: The file.
            listed: What a listing said a moment ago will do.

        Raises:
            OSError: It cannot be looked at.
        """
        if not listed:
            self.fs.invalidate_cache(posixpath.dirname(path))
        # Of a web server two requests are made, HEAD and then GET.
        found: dict[str, Any] = asked(self.fs, self.fs.info, path, requests=2)
        return found

    @abstractmethod
    def look(self, path: str, *, listed: bool = False) -> Stamp:
        """Return the stamp of a file as it is now.

        Args:
            path: The file.
            listed: What a listing said a moment ago will do.

        Raises:
            OSError: It cannot be looked at.
        """

    @abstractmethod
    def read(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        """Return the bytes `[start, stop)`, fewer where the file ends before, and their stamp.

        Args:
            path: The file.
            start: The first byte.
            stop: After the last byte.
            wanted: The version that is asked for; a store may refuse to give any other.

        Raises:
            Exception: They cannot be read, or the store has another version.
        """


class LocalRanges(Ranges):
    """Files of this machine."""

    @override
    def look(self, path: str, *, listed: bool = False) -> Stamp:
        return local_stamp(os.stat(path))

    def read(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        """Return the bytes `[start, stop)` and the stamp that the file had after it was read."""
        with open(path, "rb", buffering=0) as stream:
            stream.seek(start)
            data = stream.read(stop - start)
            while len(data) < stop - start and (more := stream.read(stop - start - len(data))):
                data += more  # a read gives 2 GiB at most
            return data, local_stamp(os.fstat(stream.fileno()))


class StoreRanges(Ranges):
    """Files behind a URL, on any filesystem of fsspec."""

    def look(self, path: str, *, listed: bool = False) -> Stamp:
        """Return the stamp of a file as the filesystem tells it."""
        info = self.info(path, listed=listed)
        if info.get("size") is None:
            raise InvalidJob(
                f"the server does not tell how large {path!r} is (Content-Length): items are read "
                "by ranges of bytes, which needs a server that gives them; else copy the file",
                key="source.files",
            )
        return remote_stamp(info)

    def read(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        """Return the bytes `[start, stop)`, and the stamp that the file had after that."""
        count = stop - start
        data = asked(self.fs, self.fs.cat_file, path, start=start, end=stop, nbytes=count)
        return data[:count], self.look(path)


class S3Ranges(StoreRanges):
    """Objects in S3: one request for a range, which names the version that is wanted."""

    def read(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        """Return the bytes `[start, stop)` and the stamp that came with them.

        Raises:
            OSError: It is another version (412), or cannot be read; or other bytes came.
        """
        bucket, key, version = self.fs.split_path(path)
        field, _, tag = wanted.version.partition("=")
        named = {"VersionId": version} if version else {}
        if field == "ETag":
            named["IfMatch"] = tag
        reply = asked(
            self.fs,
            self.fs.call_s3,
            "get_object",
            Bucket=bucket,
            Key=key,
            Range=f"bytes={start}-{stop - 1}",
            **named,
        )
        length = int(reply["ContentLength"])
        total = _total(reply.get("ContentRange"), start, stop, length)
        sync = require("fsspec.asyn").sync
        read, count = reply["Body"].read, stop - start
        data: bytes = asked(self.fs, sync, self.fs.loop, read, nbytes=count)
        return _whole(data, start, stop, total), remote_stamp({**reply, "size": total})


class HttpRanges(StoreRanges):
    """Files of a web server: one request for a range, which names the version that is wanted.

    Args:
        fs: The filesystem, of fsspec.
        most_bytes: A file whose length is not told is counted up to here; None = to its end.
    """

    def __init__(self, fs: Any, most_bytes: int | None = None) -> None:
        super().__init__(fs)
        self._most_bytes = most_bytes

    def info(self, path: str, *, listed: bool = False) -> dict[str, Any]:
        """Return what the server tells of a file.

        Raises:
            FileNotFoundError: The server has no such file.
            PermissionError: It refuses to give it.
            OSError: It does not answer.
        """
        try:
            return super().info(path, listed=listed)
        except FileNotFoundError as error:  # by this name the filesystem tells any failure
            raise _refusal(path, error) from error

    def read(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        """Return the bytes `[start, stop)` and the stamp that came with them.

        Raises:
            Exception: Of `aiohttp`: it is another version (412), or cannot be read.
            OSError: Other bytes came, too few in their time, or nobody knows which.
        """
        sync = require("fsspec.asyn").sync
        try:
            return sync(  # type: ignore[no-any-return]
                self.fs.loop, self._get, path, start, stop, wanted
            )
        except TimeoutError as error:  # fsspec raises its own, without a word
            raise error.__cause__ or error from None

    async def _get(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        session = await self.fs.set_session()
        options = {**self.fs.kwargs}
        # That of the session is for all of a reply, however long it is.
        options.setdefault("timeout", require("aiohttp").ClientTimeout(total=None))
        # Compressed on the way, it would be another representation, with a tag of its own.
        headers = {
            **options.pop("headers", {}),
            "Range": f"bytes={start}-{stop - 1}",
            "Accept-Encoding": "identity",
        }
        field, _, value = wanted.version.partition("=")
        if field == "ETag" and not value.startswith("W/"):  # a weak tag never matches
            headers["If-Match"] = value
        elif field == "Last-Modified":
            headers["If-Unmodified-Since"] = value
        url = self.fs.encode_url(path)
        async with (
            ReplyClock() as clock,
            session.get(url, headers=headers, **options) as reply,
        ):
            reply.raise_for_status()
            return await self._taken(reply, start, stop, clock)

    async def _taken(
        self, reply: Any, start: int, stop: int, clock: ReplyClock
    ) -> tuple[bytes, Stamp]:
        """Return the bytes of a reply, and the stamp that it tells."""
        if reply.status not in (200, 206):
            raise OSError(f"the server answers {reply.status} {reply.reason}, and gives no file")
        if (coding := reply.headers.get("Content-Encoding", "identity")) != "identity":
            raise OSError(f"the server gives it as {coding!r}, though asked for it as it is")
        told = {name: reply.headers.get(name) for name in ("ETag", "Last-Modified")}
        length = reply.headers.get("Content-Length")
        if reply.status == 206:
            content_range = reply.headers.get("Content-Range", "none")
            total = _total(content_range, start, stop, 0)
            count = min(stop, total) - start
            data = _whole((await _within(reply, 0, count, clock, count))[0], start, stop, total)
        else:  # with 200 it takes no notice of Range, and gives all
            most = stop if length is not None else self._most_bytes
            data, given = await _within(reply, start, stop, clock, most)
            total = given
            if length is not None:
                total = int(length)
                data = _whole(data, start, stop, total)
        return data, remote_stamp({**told, "size": total})


def _refusal(path: str, error: FileNotFoundError) -> Exception:
    """Return what the failed look at a URL means: no such file, a refusal, or no answer."""
    cause = error.__cause__
    status = getattr(cause, "status", 0)  # of a reply; a connection that failed has none
    if cause is None or status in (404, 410):
        return FileNotFoundError(f"{path} is not there")
    if 400 <= status < 500 and status not in (408, 425, 429):
        return PermissionError(
            f"the server answers {status} {getattr(cause, 'message', '')}; storage_options may "
            "hold what it asks for"
        )
    return OSError(f"no answer: {cause}")


async def _within(
    reply: Any, start: int, stop: int, clock: ReplyClock, most: int | None
) -> tuple[bytes, int]:
    """Return bytes `[start, stop)` of what a reply gives, and how many it has given in all.

    No more is kept. Where it gives more than `most`, the rest is not waited for, and it counts as
    one more than these.
    """
    kept, given = bytearray(), 0
    async for piece in reply.content.iter_any():
        clock.count(len(piece))
        kept += piece[max(0, start - given) : max(0, stop - given)]
        given += len(piece)
        if most is not None and given > most:
            reply.close()
            return bytes(kept), most + 1
    return bytes(kept), given


def _total(content_range: str | None, start: int, stop: int, length: int) -> int:
    """Return the bytes of a whole file, by the headers of a reply with a part of it.

    Args:
        content_range: Which part it is; None = the whole file.
        start: The first byte that was asked for.
        stop: The byte after the last one.
        length: Bytes of the reply, where it is the whole file.

    Raises:
        OSError: It is another part, or the file's length is not told.
    """
    asked_for = f"bytes {start} to {stop - 1} were asked for"
    if content_range is None:
        if start or length > stop:
            raise OSError(f"the store gives all {length:,} bytes where {asked_for}")
        return length
    found = _PART.fullmatch(content_range.strip())
    if found is not None and found[3] == "*":
        raise OSError(
            f"the server does not tell how large the file is: its part is {content_range[:100]!r}"
        )
    if found is None or (int(found[1]), int(found[2]) + 1) != (start, min(stop, int(found[3]))):
        raise OSError(f"the server gives the part {content_range[:100]!r} where {asked_for}")
    return int(found[3])


def _whole(data: bytes, start: int, stop: int, total: int) -> bytes:
    """Return the bytes of a reply, all that it says it has.

    Raises:
        OSError: They are fewer.
    """
    wanted = max(0, min(stop, total) - start)
    if len(data) < wanted:
        raise OSError(f"{len(data):,} bytes came of the {wanted:,} that the server told of")
    return data


def ranges_of(fs: Any, most_bytes: int | None = None) -> Ranges:
    """Return how a filesystem of fsspec is asked for ranges.

    Args:
        fs: The filesystem.
        most_bytes: How far a file is counted whose length nobody tells; None = to its end.
    """
    protocol = fs.protocol
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    if "file" in names:
        return LocalRanges(fs)
    if "s3" in names and hasattr(fs, "call_s3"):
        return S3Ranges(fs)
    if "https" in names and hasattr(fs, "set_session"):
        return HttpRanges(fs, most_bytes)
    return StoreRanges(fs)


class RangeStream(io.RawIOBase):
    """A file that is read by ranges: what takes an open file reads it by this.

    Args:
        read_at: `(start, stop) -> bytes`.
        size: Bytes of the whole file.
    """

    def __init__(self, read_at: ReadAt, size: int) -> None:
        self._read_at, self._size, self._at = read_at, size, 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be read at any place."""
        return True

    def tell(self) -> int:
        """Return the offset in the file."""
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to an offset in the file."""
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def read(self, count: int | None = -1) -> bytes:
        """Read from here on, up to the end of the file."""
        left = max(0, self._size - self._at)
        length = left if count is None or count < 0 else min(count, left)
        data = self._read_at(self._at, self._at + length) if length else b""
        self._at += len(data)
        return data


def windowed(read_at: ReadAt, size: int, window: int) -> ReadAt:
    """Return what reads ranges of a file that follow one another, for one thread: more than each.

    Args:
        read_at: `(start, stop) -> bytes`.
        size: Bytes of the whole file.
        window: Bytes that are read at least.
    """
    first, held = 0, b""

    def read(start: int, stop: int) -> bytes:
        nonlocal first, held
        if start < first or stop > first + len(held):
            first, held = start, read_at(start, max(stop, min(size, start + window)))
        return held[start - first : stop - first]

    return read
