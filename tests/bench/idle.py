"""Three nodes of 64 readers and 1,024 idle streams: whether memory grows, and what they ask.

Each reader is a process, forked of one that has imported the client; it takes a batch a second and
commits nothing. The idle streams, each on a connection of its own, accept nothing. Memory is the
private memory of a node's processes, or of all readers, every 5 seconds; its slope is that of least
squares. Statements are those that PostgreSQL logs, with BEGIN and COMMIT. `BENCH_IDLE_S` (120) says
for how long both are watched, first while readers read, then, for a third of it, while nobody does.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import numpy as np
import psutil
from scale_costs import KIB, IdleStream, private_kib
from several_nodes import Nodes, nodes, server_folder
from support import HERE, constant, postgresql, table

from penstock.client import Loader

COUNT, READERS, STREAMS, LOOK_S, WARM_S = 3, 64, 1024, 5.0, 30.0
WATCHED_S = float(os.environ.get("BENCH_IDLE_S", "120"))

STATEMENT = re.compile(r"LOG:  (?:execute [^:]*|statement): (.*)")


def run() -> None:
    """Print the tables."""
    with postgresql() as url:
        if url is None:
            return
        _log_statements(url)
        job = {"main": constant(4096, lanes=192)}
        with nodes(url, job, COUNT, workers=1) as served, contextlib.ExitStack() as stack:
            with _reading(served.addresses) as readers:
                for number in range(STREAMS):
                    address = served.addresses[number % COUNT]
                    stream = IdleStream(address, number, STREAMS)
                    stack.callback(stream.close)
                    stream.wait_open()
                time.sleep(WARM_S)
                _watched("64 readers read", url, served, readers, WATCHED_S)
            _watched("nobody reads", url, served, [], WATCHED_S / 3)


def _watched(
    what: str, url: str, served: Nodes, readers: list[psutil.Process], seconds: float
) -> None:
    """Look at memory and statements for so long, and print what was found."""
    log = server_folder(url) / "log"
    start, began = log.stat().st_size, time.monotonic()
    looks: dict[str, list[float]] = {}
    times = []
    while (now := time.monotonic() - began) < seconds:
        times.append(now)
        of = {f"node {number}": served.processes(number) for number in range(COUNT)}
        if readers:
            of[f"{READERS} readers"] = readers
        for name, processes in of.items():
            looks.setdefault(name, []).append(sum(private_kib(each.pid) for each in processes))
        time.sleep(max(0.0, began + len(times) * LOOK_S - time.monotonic()))
    took_s = time.monotonic() - began
    with log.open("rb") as file:
        file.seek(start)
        text = file.read().decode(errors="replace")
    asked = Counter(match[1].strip() for match in STATEMENT.finditer(text))
    table(
        f"Private memory, {STREAMS:,} idle streams, {what}, {took_s:.0f} s (goal: flat)",
        ("of", "at first, MiB", "at last", "least", "most", "slope, MiB a minute"),
        [
            (
                name,
                *(f"{value / KIB:,.1f}" for value in (seen[0], seen[-1], min(seen), max(seen))),
                f"{np.polyfit(times, seen, 1)[0] * 60 / KIB:+.2f}",
            )
            for name, seen in looks.items()
        ],
    )
    table(
        f"Statements at PostgreSQL, {what}, nobody commits: "
        f"{asked.total() / took_s:.1f} a second (goal: below 10)",
        ("statement", "a second"),
        [(f"{each[:76]}", f"{count / took_s:.2f}") for each, count in asked.most_common(12)],
    )


def _log_statements(url: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET log_statement = 'all'")
        connection.execute("SELECT pg_reload_conf()")


@contextlib.contextmanager
def _reading(addresses: list[str]) -> Iterator[list[psutil.Process]]:
    """Have 64 readers read, and yield their processes once each has had a batch."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "idle.py"), *addresses],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    for _ in range(READERS):
        if process.stdout.readline() != "reading\n":
            raise RuntimeError("a reader did not begin")
    try:
        yield psutil.Process(process.pid).children()
    finally:
        process.communicate()  # the end of its input ends it
    if process.returncode:
        raise RuntimeError(f"the readers ended with {process.returncode}")


def _read(addresses: list[str]) -> None:
    """Fork 64 readers, which end with this process's standard input; wait for all of them."""
    readers = []
    for rank in range(READERS):
        pid = os.fork()  # nothing of gRPC has run here
        if pid == 0:
            _read_slowly(addresses, rank)
            return
        readers.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in readers):
        sys.exit("a reader has failed")


def _read_slowly(addresses: list[str], rank: int) -> None:
    """Take a batch a second until standard input ends."""
    target = ",".join(addresses)
    of_run = {"group": "run", "attempt": "bench", "rank": rank, "world_size": READERS}
    with Loader(target, "main", as_numpy=True, **of_run) as loader:  # torch is not what is measured
        for number, _ in enumerate(loader):
            if number == 0:
                os.write(1, b"reading\n")
            if select.select([sys.stdin], [], [], 1.0)[0]:  # its end can be read, too
                return


if __name__ == "__main__":
    _read(sys.argv[1:])
