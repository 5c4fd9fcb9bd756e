"""Bytes of media from where they lie, each with the stamp of the version that they are of."""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import Any, NamedTuple

from penstock.server.files.catalog import Stamp, local_stamp
from penstock.server.files.filesystems import located
from penstock.server.files.ranges import Ranges, ranges_of
from penstock.server.media.listing import Listed
from penstock.server.media.media_places import MediaPlace, is_url
from penstock.server.usercode.transient import is_transient
from penstock.wire.credentials import without_credentials
from penstock.wire.errors import BadItem, PenstockError, SourceChanged, SourceUnavailable

FIRST_BYTES = 1 << 20
"""What is asked for first of a file whose size nobody knows; the rest follows, if there is more."""

_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENXIO)
_OF_BOTOCORE = ("s3://", "s3a://")
_UNKNOWN = Stamp(-1, "", "", False)


class Part(NamedTuple):
    """Bytes of a file.

    Attributes:
        data: The bytes that were asked for; fewer where the file ends before.
        stamp: How the file looked that they are of.
    """

    data: bytes
    stamp: Stamp


class Filesystems:
    """The filesystems that media lie on, each opened when it is first needed; for several threads.

    Args:
        options: Options of fsspec for URLs.
        requests: How many requests may be on their way to one of them.
        most_bytes: How far a file is counted whose length its server does not tell.
    """

    def __init__(self, options: dict[str, Any], requests: int, most_bytes: int) -> None:
        self._options, self._requests, self._most_bytes = options, requests, most_bytes
        self._opened: dict[str, Ranges] = {}
        self._opening = threading.Lock()

    def find(self, url: str) -> tuple[Ranges, str]:
        """Return how the filesystem of a URL, or of a path, is asked, and its path there.

        Raises:
            MissingExtra: Its package is not installed.
            ValueError: No filesystem has such URLs.
        """
        with self._opening:
            fs, path = located(url, self._options_of(url))
            key = str(id(fs))  # fsspec gives the same object for the same options
            if key not in self._opened:
                self._opened[key] = ranges_of(fs, self._most_bytes)
            return self._opened[key], path

    def _options_of(self, url: str) -> dict[str, Any]:
        if not is_url(url):
            return {}
        if url.startswith(_OF_BOTOCORE) and "config_kwargs" not in self._options:
            # Botocore has 10 connections where nobody says how many, and others wait for one.
            return {**self._options, "config_kwargs": {"max_pool_connections": self._requests}}
        return self._options


def read_local(path: str, start: int, stop: int) -> Part:
    """Return bytes `[start, stop)` of a file of this machine.

    Raises:
        OSError: It cannot be read, or is no file: a pipe or a device would never end.
    """
    # Without O_NONBLOCK opening a pipe waits for somebody who writes to it.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EISDIR, "is not a file", path)
        pieces, at = [], start
        stop = min(stop, found.st_size)
        while at < stop and (piece := os.pread(fd, stop - at, at)):
            pieces.append(piece)
            at += len(piece)
        after = os.fstat(fd)
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        # Whoever cuts it while it is read changes its stamp, which is looked at by the caller.
        return Part(data, local_stamp(after))
    finally:
        os.close(fd)


def read_remote(ranges: Ranges, path: str, start: int, stop: int, known: Stamp | None) -> Part:
    """Return bytes `[start, stop)` of a file behind a URL.

    Args:
        ranges: How its filesystem is asked.
        path: The file.
        start: The first byte.
        stop: After the last.
        known: Its stamp, as far as it is known; None = nothing is.

    Raises:
        Exception: Of the filesystem: it cannot be read.
    """
    if known is not None:
        stop = min(stop, known.size)
        if start >= stop:
            return Part(b"", known)
    try:
        return Part(*ranges.read(path, start, stop, known or _UNKNOWN))
    except Exception as error:
        # A range of a file that ends before it is refused (416): so it is with each empty file.
        if known is None and is_refusal(error) and (found := ranges.look(path)).size <= start:
            return Part(b"", found)
        raise


def is_refusal(error: Exception) -> bool:
    """Tell whether a store has refused a range, or the version that was asked for, and is there."""
    if getattr(error, "status", None) in (412, 416):  # of aiohttp
        return True
    return isinstance(error, OSError) and error.errno == errno.EINVAL  # so s3fs says both


def trouble(error: Exception, place: MediaPlace, listed: Listed | None) -> PenstockError:
    """Return what it means that a medium cannot be read.

    Args:
        error: What reading it raised.
        place: Where it lies.
        listed: How it looked when the job began; None = it is not known.

    Returns:
        `BadItem`: there is no such file; `SourceChanged`: there was one; `SourceUnavailable`:
        another attempt may succeed.
    """
    if isinstance(error, PenstockError):
        return error
    name = without_credentials(place.path)
    if _is_missing(error):
        gone = _mount_is_gone(place)
        if gone is not None:
            return SourceUnavailable(f"{name} cannot be read at the moment: {gone}", item=name)
        if listed is not None:
            return SourceChanged(
                f"{name} is not there any more, and was when the job began: put it back as it was, "
                "or restart with the media that are there as a new job",
                path=name,
            )
        return BadItem(f"{name} is not there", reason=f"{name} is not there", path=name)
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    said = without_credentials(said)
    if is_transient(error, reading=True):
        return SourceUnavailable(f"{name} cannot be read at the moment: {said}", item=name)
    return BadItem(f"{name} cannot be read: {said}", reason=f"{name} cannot be read", path=name)


def _is_missing(error: Exception) -> bool:
    if getattr(error, "status", None) in (404, 410):  # of aiohttp
        return True
    return isinstance(error, FileNotFoundError) or (
        isinstance(error, OSError) and error.errno in _NO_FILE
    )


def _mount_is_gone(place: MediaPlace) -> str | None:
    """Return why no file of a local root is there; None = the root is there, or is not local."""
    if not place.root or is_url(place.root):
        return None
    try:
        with os.scandir(place.root) as entries:
            return None if any(True for _ in entries) else f"{place.root} is empty"
    except OSError as error:
        return f"{place.root}: {error.strerror or error}"


def changed(place: MediaPlace, then: int, now: int) -> SourceChanged:
    """Return the error that names a file that is not the one that was there."""
    name = without_credentials(place.path)
    return SourceChanged(
        f"{name} changed since the job began ({then} bytes then, {now} now): media are immutable; "
        "put it back as it was, or restart with the new files as a new job",
        path=name,
    )
