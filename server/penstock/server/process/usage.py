"""What the system says of a node's processes: their memory, and how long this one has run."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

KIB = 1024


def memory(workers: Iterable[int]) -> dict[str, int]:
    """Return the bytes of memory of the node that this process serves, by part.

    A process that has ended counts nothing, and so does all where there is no `/proc`.

    Args:
        workers: The process ids of the workers.

    Returns:
        `server` and `workers`: pages that these processes have of their own. `batches`: pages of
        the arenas, which a worker maps together with the server process; they count once.
    """
    own = arenas = 0
    for pid in workers:
        anonymous, shared = own_and_shared_bytes(pid)
        own, arenas = own + anonymous, arenas + shared
    return {"server": own_and_shared_bytes(os.getpid())[0], "workers": own, "batches": arenas}


def own_and_shared_bytes(pid: int) -> tuple[int, int]:
    """Return the bytes of a process's anonymous and shared pages.

    From `status`, which takes 20 us; `smaps_rollup` walks all pages, and takes milliseconds.
    """
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    found = dict(line.split(":", 1) for line in text.splitlines() if line.startswith("Rss"))
    anonymous, shared = (found.get(name, "0").split()[0] for name in ("RssAnon", "RssShmem"))
    return int(anonymous) * KIB, int(shared) * KIB


def age_s() -> float:
    """Return the seconds since this process was started; 0 where there is no `/proc`."""
    try:
        after_name = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # Field 22 of proc(5), `starttime`; `after_name` begins with field 3.
    started_s = int(after_name[22 - 3]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started_s)
