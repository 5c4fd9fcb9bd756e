"""Memory and descriptors that one process makes and another gets; `kill -9` leaves nothing."""

from __future__ import annotations

import fcntl
import os

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def sealed_memory(name: str, size_bytes: int) -> int:
    """Return a memfd whose size nobody changes any more.

    Reading memory behind the end of a file that was cut ends the reading process (SIGBUS).
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        # Whoever is given a descriptor for reading cannot open the file anew for writing.
        os.fchmod(fd, 0o400)
        os.ftruncate(fd, size_bytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


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


__all__ = ["Descriptor", "sealed_memory"]
