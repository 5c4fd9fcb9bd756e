"""Media in LMDBs: opened once in each process, when first needed, to be read without a lock."""

from __future__ import annotations

import errno
import os
import stat
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.server.core.shown import shown
from penstock.server.files.catalog import local_stamp
from penstock.server.files.filesystems import require
from penstock.server.media.listing import Listed
from penstock.server.media.lmdb_pages import DamagedLmdb, LmdbPages
from penstock.server.media.media_places import MediaPlace, is_url
from penstock.server.media.media_storage import changed, trouble
from penstock.server.media.medium import HEAD_BYTES, Medium
from penstock.wire.errors import BadItem, PenstockError, SourceUnavailable

if TYPE_CHECKING:
    from penstock.server.media.fetching import Fetching

DATA_FILE = "data.mdb"

_AWAY = ("DiskError", "MemoryError", "ReadersFullError", "MapResizedError")
"""Errors of LMDB that are about the machine and not about the file."""


class _OpenedBy(NamedTuple):
    """The file of an LMDB that this process has opened; LMDB opens none twice."""

    process: int
    device: int
    inode: int


_environments: dict[_OpenedBy, Any] = {}
_opening = threading.Lock()


class LmdbMedium(Medium):
    """A value of an LMDB.

    Args:
        place: The folder or the file of the database.
        key: The key.
        listed: How its file looked when the job began; None = that is not known.
        most_bytes: What has more bytes is not read.
        fetching: Counts what is read.
    """

    def __init__(
        self,
        place: MediaPlace,
        key: str,
        listed: Listed | None,
        most_bytes: int,
        fetching: Fetching,
    ) -> None:
        self.name = f"lmdb: {place.path}::{key}"
        self._place, self._key, self._listed = place, key, listed
        self._most_bytes, self._fetching = most_bytes, fetching

    def head(self, count: int = HEAD_BYTES) -> bytes | memoryview:
        """Return its first bytes; see `Medium.head`."""
        return self._tried(count)

    def read(self) -> bytes | memoryview:
        """Return all its bytes; see `Medium.read`."""
        return self._tried(None)

    def _tried(self, count: int | None) -> bytes:
        self.failure = None
        try:
            data = self._value(count)
        except Exception as error:
            self.failure = self._trouble(error)
            if self.failure is error:
                raise
            raise self.failure from error
        self._fetching.count_read(len(data))
        return data

    def _value(self, count: int | None) -> bytes:
        path = self._place.path
        if is_url(path):
            raise BadItem(
                f"{self.name} lies behind a URL, and LMDB maps files of this machine: copy it",
                reason=f"{self.name} lies behind a URL",
            )
        file = os.path.join(path, DATA_FILE) if os.path.isdir(path) else path
        found = os.stat(file)
        stamp = local_stamp(found)
        if self._listed is not None and not self._listed.is_same(stamp):
            raise changed(self._place._replace(path=file), self._listed.size, stamp.size)
        with _environment(file, found).begin(buffers=True) as view:
            value = view.get(self._key.encode())
            if value is None:
                raise BadItem(
                    f"{path} has no key {shown(self._key)}",
                    reason=f"{path} has no key {shown(self._key)}",
                    path=path,
                )
            if len(value) > self._most_bytes:
                raise BadItem(
                    f"{self.name} has {len(value):,} bytes, and max_file_bytes of media is "
                    f"{self._most_bytes:,}: raise that, if such values are meant",
                    reason=f"{self.name} has {len(value):,} bytes",
                    path=path,
                )
            return bytes(value[:count])  # the map is gone with the transaction

    def _trouble(self, error: Exception) -> PenstockError:
        if type(error).__module__.startswith("lmdb"):
            if type(error).__name__ in _AWAY:
                return SourceUnavailable(
                    f"{self.name} cannot be read at the moment: {error}", item=self.name
                )
            return BadItem(
                f"{self.name} cannot be read: {error}", reason=str(error), path=self._place.path
            )
        return trouble(error, self._place, self._listed)


def _check(file: str) -> None:
    """Refuse a damaged database, or what is not a regular file: LMDB might end the process.

    Raises:
        BadItem: Says what is wrong with it.
    """
    # Without O_NONBLOCK opening a pipe waits for somebody who writes to it.
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EISDIR, "is not a file", file)
        LmdbPages(fd, found.st_size).check()
    except DamagedLmdb as error:
        raise BadItem(
            f"the LMDB {file} is damaged: {error}; copy it again, whole",
            reason=f"{file} is damaged",
            path=file,
        ) from None
    finally:
        os.close(fd)


def _environment(file: str, found: os.stat_result) -> Any:
    """Return the open database of a file.

    Raises:
        MissingExtra: The package lmdb is not installed.
        BadItem: Its end is missing, or its first pages are damaged.
        Exception: Of LMDB: it cannot be opened.
    """
    key = _OpenedBy(os.getpid(), found.st_dev, found.st_ino)
    with _opening:
        if key not in _environments:
            lmdb = require("lmdb", extra="lmdb", who="a medium in an LMDB")
            _check(file)
            opened = lmdb.open(
                file, subdir=False, readonly=True, lock=False, readahead=False, max_readers=1
            )
            _environments[key] = opened
        return _environments[key]
