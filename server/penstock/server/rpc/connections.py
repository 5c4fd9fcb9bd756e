"""How many connections a port takes at once, and the descriptors that they need.

gRPC closes what does not finish its handshake after a while, and has no bound of its own for how
many there are until then: each takes a descriptor and 10 to 35 KB.
"""

from __future__ import annotations

import contextlib
import resource

MAX_CONNECTIONS = 2048
"""Each rank has one, and commands one while they run. As many that do nothing, or stop in the
middle of a TLS handshake, cost up to 100 MB at once, and twice that if they come again and again:
malloc keeps what they have freed until a reader leaves."""

FILES_SHARE = 4
"""One part in so many of the files of this process is not for connections: the store, snapshots,
certificates, probes and workers need some, too."""

FILES = 65_536
"""What the process asks for, where its hard limit allows it: shells and container runtimes often
start with 1,024, and raise it on demand."""


def raise_files() -> None:
    """Raise this process's own limit of open files, as far as nobody needs to be asked."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # a kernel's own bound is lower: it stays
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def most_connections() -> int:
    """Return how many connections are taken at once; what comes beyond is closed at once."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, files - files // FILES_SHARE)
