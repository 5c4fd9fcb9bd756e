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
from abc import ABC, abstractmethod
from typing import Any

from typing_extensions import override

from penstock.server.files.catalog import Stamp, local_stamp, remote_stamp
from penstock.server.files.content import ReadAt
from penstock.server.files.filesystems import require
from penstock.wire.errors import InvalidJob

LOOKERS = 16
"""Threads that look at files: they wait for a disk or a store, and compute little."""


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
        found: dict[str, Any] = self.fs.info(path)
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
        data: bytes = self.fs.cat_file(path, start=start, end=stop)
        return data, self.look(path)


class S3Ranges(StoreRanges):
    """Objects in S3: one request for a range, which names the version that is wanted."""

    def read(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        """Return the bytes `[start, stop)` and the stamp that came with them.

        Raises:
            OSError: It is another version (412), or cannot be read.
        """
        bucket, key, version = self.fs.split_path(path)
        field, _, tag = wanted.version.partition("=")
        named = {"VersionId": version} if version else {}
        if field == "ETag":
            named["IfMatch"] = tag
        reply = self.fs.call_s3(
            "get_object", Bucket=bucket, Key=key, Range=f"bytes={start}-{stop - 1}", **named
        )
        data: bytes = require("fsspec.asyn").sync(self.fs.loop, reply["Body"].read)
        total = _total(reply.get("ContentRange"), reply["ContentLength"])
        return data, remote_stamp({**reply, "size": total})


class HttpRanges(StoreRanges):
    """Files of a web server: one request for a range, which names the version that is wanted."""

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
        """
        return require("fsspec.asyn").sync(  # type: ignore[no-any-return]
            self.fs.loop, self._get, path, start, stop, wanted
        )

    async def _get(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        session = await self.fs.set_session()
        options = {**self.fs.kwargs}
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
        async with session.get(url, headers=headers, **options) as reply:
            reply.raise_for_status()
            # With 200 it takes no notice of Range, and gives all.
            before = start if reply.status == 200 else 0
            data, given = await _within(reply, before, before + stop - start)
            length = int(reply.headers.get("Content-Length", given))
            total = _total(reply.headers.get("Content-Range"), length)
            told = {name: reply.headers.get(name) for name in ("ETag", "Last-Modified")}
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


async def _within(reply: Any, start: int, stop: int) -> tuple[bytes, int]:
    """Return bytes `[start, stop)` of what a reply gives, and how many it has given in all.

    No more is kept, and where the length is known otherwise the rest is not waited for.
    """
    kept, given = bytearray(), 0
    is_told = reply.status == 206 or "Content-Length" in reply.headers
    async for piece in reply.content.iter_any():
        kept += piece[max(0, start - given) : max(0, stop - given)]
        given += len(piece)
        if is_told and given > stop:
            reply.close()
            break
    return bytes(kept), given


def _total(content_range: str | None, length: int) -> int:
    """Return the bytes of a whole file, by the headers of a reply with a part of it."""
    total = (content_range or "").rpartition("/")[2]
    return int(total) if total.isdigit() else length


def ranges_of(fs: Any) -> Ranges:
    """Return how a filesystem of fsspec is asked for ranges."""
    protocol = fs.protocol
    names = {protocol} if isinstance(protocol, str) else set(protocol)
    if "file" in names:
        return LocalRanges(fs)
    if "s3" in names and hasattr(fs, "call_s3"):
        return S3Ranges(fs)
    if "https" in names and hasattr(fs, "set_session"):
        return HttpRanges(fs)
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
