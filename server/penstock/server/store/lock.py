"""An exclusive lock on a file, which the kernel releases when its holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from penstock.wire.errors import StoreLocked, StoreUnavailable


class FileLock:
    """Holds `<path>.lock` by `flock`, with the holder's pid in it for people.

    The file stays when the lock is released, unless the store goes as well. Whoever then has the
    removed file open, and gets its lock, takes that of the file which has the name instead: two
    processes never hold two files of one name.
    """

    def __init__(self, path: Path) -> None:
        self._guarded = path
        self._path = path.with_name(path.name + ".lock")
        self._fd = -1

    def acquire(self) -> None:
        """Take the lock without waiting.

        Raises:
            StoreLocked: Another holder has it; names its pid if the file has it.
            StoreUnavailable: The lock file cannot be made, or the file system knows no locks.
        """
        while True:
            fd = self._locked()
            if self._is_named(fd):
                break
            os.close(fd)
        self._fd = fd
        os.ftruncate(fd, 0)
        os.pwrite(fd, b"%d\n" % os.getpid(), 0)

    def release(self, removes: bool = False) -> None:
        """Release the lock; idempotent.

        Args:
            removes: Remove the file, if it is held: the store has gone, too.
        """
        if self._fd >= 0:
            if removes and self._is_named(self._fd):
                self._path.unlink()
            os.close(self._fd)
            self._fd = -1

    def _locked(self) -> int:
        """Return the file, which may have been removed before its lock was taken."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StoreUnavailable(
                f"the lock file {self._path} cannot be opened: {error.strerror}; make its folder "
                "writable, or put the store elsewhere",
                path=str(self._guarded),
            ) from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = _read_pid(fd)
            os.close(fd)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StoreUnavailable(
                    f"the file system of {self._path} gives no locks: {error.strerror}; put the "
                    "store on a local disk",
                    path=str(self._guarded),
                ) from error
            holder = f"process {pid}" if pid else "another process"
            raise StoreLocked(
                f"the store {self._guarded} is held by {holder}: stop it, or give this server a "
                "store of its own (--store, or store: in the job file)",
                path=str(self._guarded),
                pid=pid,
            ) from error
        return fd

    def _is_named(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._path))
        except FileNotFoundError:
            return False


def _read_pid(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None
