"""What this machine, or the container on it, lends: processors and memory."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Return how many processors this process may use: affinity, cut by the container's quota."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        count = min(count, int(quota) // int(period))
    return max(1, count)


def usable_memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the bytes of memory this process may use: all, cut by the container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _read(cgroup / "memory.max")
    return min(total, int(limit)) if limit.isdigit() else total


def _read(path: Path) -> str:
    """Return the text of a control file; empty where this system has no such file."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
