"""Rates and CPU time of a reading process and of the processes that serve it.

Only the standard library is imported: interpreters without penstock run this, too.
"""

from __future__ import annotations

import math
import os
import resource
import time
from pathlib import Path


def cpu_s() -> float:
    """Return the CPU seconds that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def own_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a running process alone; NaN without Linux's /proc.

    Raises:
        FileNotFoundError: There is no such process.
    """
    if not Path("/proc/self/stat").exists():
        return float("nan")
    # After the name, which may hold blanks: state, parent, ..., then utime and stime.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def tree_cpu_s(pid: int) -> float:
    """Return the CPU seconds of a running process and of all below it; NaN without Linux's /proc.

    Raises:
        FileNotFoundError: There is no such process.
    """
    total = own_cpu_s(pid)
    if math.isnan(total):
        return total
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            total += tree_cpu_s(int(child))
    return total


def free_block(nbytes: int) -> None:
    """Allocate and free a block without writing to it, as a process does that loads weights."""
    bytearray(nbytes)


class Stopwatch:
    """Measures from its making on.

    Args:
        servers: The process whose tree serves this one; 0 where children of this one do.
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._served = self._serving_s()
        self._cpu = cpu_s()
        self._start = time.perf_counter()

    def _serving_s(self) -> float:
        if self._servers:
            return tree_cpu_s(self._servers)
        return tree_cpu_s(os.getpid()) - cpu_s()

    def read(self) -> dict[str, float]:
        """Return `wall_s`, and the CPU seconds `trainer_cpu_s` and `server_cpu_s` meanwhile."""
        wall = time.perf_counter() - self._start
        trainer = cpu_s() - self._cpu
        return {
            "wall_s": wall,
            "trainer_cpu_s": trainer,
            "server_cpu_s": self._serving_s() - self._served,
        }

    def per_gb(self, nbytes: int) -> dict[str, float]:
        """Return what a transfer's row shows: the rate, and CPU seconds per GB (10^9 bytes)."""
        found = self.read()
        return {
            "gb_per_s": nbytes / found["wall_s"] / 1e9,
            "trainer_s_per_gb": found["trainer_cpu_s"] / (nbytes / 1e9),
            "server_s_per_gb": found["server_cpu_s"] / (nbytes / 1e9),
        }

    def per_million(self, tokens: int) -> dict[str, float]:
        """Return what a text job's row shows: tokens/s, and CPU seconds per million tokens."""
        found = self.read()
        return {
            "tokens_per_s": tokens / found["wall_s"],
            "trainer_s_per_m": found["trainer_cpu_s"] / (tokens / 1e6),
            "server_s_per_m": found["server_cpu_s"] / (tokens / 1e6),
        }
