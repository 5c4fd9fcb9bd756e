"""What the system says of a process and those that it started: which they are, what they take."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from penstock.server.process.usage import own_and_shared_bytes


def descendants(pid: int) -> list[int]:
    """Return the processes that one has started, and those that these have; without itself.

    Empty where there is no `/proc`; one that ends meanwhile may be left out, with its own.
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for children in Path(f"/proc/{waiting.pop()}/task").glob("*/children"):
            try:
                started = [int(child) for child in children.read_text().split()]
            except OSError:  # the thread has ended
                continue
            found += started
            waiting += started
    return found


def cpu_s(pid: int) -> float:
    """Return the processor seconds that a process has used; 0 where it has ended."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # Fields 14 and 15 of proc(5), `utime` and `stime`; `after_name` begins with field 3.
    return (int(after_name[14 - 3]) + int(after_name[15 - 3])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pids: Iterable[int], sharing: Iterable[int]) -> int:
    """Return the memory of processes: pages of their own, and what some of them share.

    Args:
        pids: All of them.
        sharing: Those whose shared pages count: arenas are mapped by several processes, and count
            once, with the worker that has them.
    """
    own = sum(own_and_shared_bytes(pid)[0] for pid in pids)
    return own + sum(own_and_shared_bytes(pid)[1] for pid in sharing)
