"""Memory and descriptors that one process makes and another gets; `kill -9` leaves nothing."""

from __future__ import annotations

import errno
import fcntl
import os

F_SEAL_FUTURE_WRITE = 0x10
"""Nobody writes any more, but for those who have it mapped for that; Linux has it from 5.1 on, and
Python's `fcntl` from 3.13 on."""


def sealed_memory(name: str, size_bytes: int, *, more_seals: bool = False) -> int:
    """Return a memfd whose size nobody changes any more.

    Reading memory behind the end of a file that was cut ends the reading process (SIGBUS).

    Args:
        name: What the system calls it.
        size_bytes: How large it is.
        more_seals: `seal_writing` is called for it.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(fd, 0o400)
        os.ftruncate(fd, size_bytes)
        last = 0 if more_seals else fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | last)
    except BaseException:
        os.close(fd)
        raise
    return fd


def seal_writing(fd: int) -> None:
    """Let nobody write to a memfd who has not mapped it for that by now, and set no further seal.

    A process of the same user could otherwise open a descriptor that it was given for reading anew,
    for writing: the file is its own. Before Linux 5.1 there is no such seal, and none is set.
    """
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)


def is_sealed(fd: int) -> bool:
    """Tell whether `seal_writing` was called for a memfd, and is known here."""
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    return bool(seals & F_SEAL_FUTURE_WRITE and seals & fcntl.F_SEAL_SEAL)


class Descriptor:
    """A file descriptor on its way: whoever uses it takes it, else it is closed with this.

    Args:
        fd: What this owns from now on.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return the descriptor, which stays this object's; -1 = it was taken."""
        return self._fd

    def take(self) -> int:
        """Return the descriptor, which the caller closes."""
        fd, self._fd = self._fd, -1
        return fd

    def __del__(self) -> None:
        """Close what nobody has taken."""
        if self._fd >= 0:
            os.close(self._fd)
