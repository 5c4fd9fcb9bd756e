"""Nodes over one PostgreSQL, and ranks that read from all of them, for `nodes` and `idle`."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psutil
from prometheus_client.parser import text_string_to_metric_families
from support import free_port, serving, write_job

from penstock.client import Loader

MADE, READ, DRAWN = (
    "penstock_batches_produced_total",
    "penstock_source_read_bytes_total",
    "penstock_source_drawn_bytes_total",
)
"""Counters of a node that `Nodes.counted` adds up."""

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
"""Of what starts nodes for each round: with six of them a table takes longer than five minutes."""

QUIET_S = 2.0
"""Nothing more is made when nothing was made for so long."""


class Nodes:
    """Nodes of one job and one store, each a process of its own, with the ids of a StatefulSet.

    Args:
        folder: Theirs.
        url: The store.
        jobs: What they serve.
        count: How many there are.
        server: Settings of each.

    Attributes:
        addresses: Of each.
    """

    def __init__(
        self, folder: Path, url: str, jobs: dict[str, Any], count: int, **server: Any
    ) -> None:
        self._folder, self._url, self._jobs, self._server = folder, url, jobs, server
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self._pages = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self._running: dict[int, tuple[contextlib.ExitStack, subprocess.Popen[bytes]]] = {}
        self._ended: Counter[str] = Counter()
        try:
            with ThreadPoolExecutor(count) as together:
                list(together.map(self.start, range(count)))
        except BaseException:
            self.close()
            raise

    def start(self, number: int) -> None:
        """Start a node, and return when it is ready."""
        folder = self._folder / str(number)
        folder.mkdir(exist_ok=True)
        settings = {"store": self._url, "metrics": self._pages[number], **self._server}
        file = write_job(folder, self._jobs, node_id=f"penstock-{number}", **settings)
        stack = contextlib.ExitStack()
        _, process = stack.enter_context(serving(file, listen=self.addresses[number]))
        self._running[number] = stack, process

    def end(self, number: int) -> None:
        """Have a node drain and end, as an update does; what it has counted stays counted."""
        stack, process = self._running[number]
        process.send_signal(signal.SIGTERM)
        last: Counter[str] = Counter()
        while process.poll() is None:
            with contextlib.suppress(OSError):  # it closes its page before it ends
                last = self._scrape(number)
            time.sleep(0.1)
        del self._running[number]
        self._ended += last
        stack.close()

    def close(self) -> None:
        """End all that run."""
        for stack, _ in self._running.values():
            stack.close()
        self._running.clear()

    def processes(self, number: int) -> list[psutil.Process]:
        """Return a node's server process and its workers."""
        process = psutil.Process(self._running[number][1].pid)
        return [process, *process.children(recursive=True)]

    def cpu_s(self) -> float:
        """Return the seconds of CPU that all nodes have used since they began."""
        return sum(cpu_s(self.processes(number)) for number in self._running)

    def counted(self) -> Counter[str]:
        """Return the sums of `MADE`, `READ` and `DRAWN` over all nodes, and over those before."""
        return sum((self._scrape(number) for number in self._running), self._ended.copy())

    def settled(self) -> Counter[str]:
        """Return what is counted when nothing more is made."""
        found, since = self.counted(), time.monotonic()
        while time.monotonic() - since < QUIET_S:
            time.sleep(0.2)
            if (now := self.counted()) != found:
                found, since = now, time.monotonic()
        return found

    def _scrape(self, number: int) -> Counter[str]:
        with urllib.request.urlopen(f"http://{self._pages[number]}/metrics", timeout=10) as page:
            text = page.read().decode()
        found: Counter[str] = Counter()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in (MADE, READ, DRAWN):
                    found[sample.name] += int(sample.value)
        return found


@contextlib.contextmanager
def nodes(url: str, jobs: dict[str, Any], count: int, **server: Any) -> Iterator[Nodes]:
    """Serve jobs by several nodes over a schema of their own."""
    import postgres

    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        started = Nodes(
            Path(name), postgres.in_schema(url, postgres.new_schema()), jobs, count, **server
        )
        try:
            yield started
        finally:
            started.close()


class Ranks:
    """Ranks that read, each a Loader on a thread of its own.

    Args:
        target: Where the nodes are.
        count: How many ranks.
        job: What they read.
        group: Their run; None = they commit nothing.
    """

    def __init__(
        self, target: Sequence[str], count: int, job: str = "main", group: str | None = None
    ) -> None:
        self._legs: list[queue.SimpleQueue[tuple[int, float] | None]] = [
            queue.SimpleQueue() for _ in range(count)
        ]
        self._taken: queue.SimpleQueue[list[float] | BaseException] = queue.SimpleQueue()
        self._loaders = [
            Loader(
                ",".join(target),
                job,
                group=group,
                attempt=None if group is None else "bench",
                rank=rank,
                world_size=count,
            )
            for rank in range(count)
        ]
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(rank,)) for rank in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self, rank: int) -> None:
        try:
            with self._loaders[rank] as loader:
                batches = iter(loader)
                while (leg := self._legs[rank].get()) is not None:
                    steps, step_s = leg
                    taken, began = [], time.perf_counter()
                    for step in range(steps):
                        if self._ended.is_set():
                            break
                        time.sleep(max(0.0, began + step * step_s - time.perf_counter()))
                        next(batches)
                        taken.append(time.perf_counter())
                    self._taken.put(taken)
        except BaseException as error:  # `wait` raises it on the bench's thread
            self._taken.put(error)

    def begin(self, steps: int, step_s: float = 0.0) -> None:
        """Have all take so many steps, at most one in `step_s` seconds."""
        for leg in self._legs:
            leg.put((steps, step_s))

    def wait(self) -> list[list[float]]:
        """Wait until all have taken them; return when each batch was taken, in s, by rank."""
        found = []
        for _ in self._legs:
            taken = self._taken.get()
            if isinstance(taken, BaseException):
                raise taken
            found.append(taken)
        return found

    def read(self, steps: int, step_s: float = 0.0) -> list[list[float]]:
        """Begin, and wait."""
        self.begin(steps, step_s)
        return self.wait()

    def close(self) -> None:
        """End all, after the batch that each takes now."""
        self._ended.set()
        for leg in self._legs:
            leg.put(None)
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def ranks(
    target: Sequence[str], count: int, job: str = "main", group: str | None = None
) -> Iterator[Ranks]:
    """Have ranks read, and end them."""
    started = Ranks(target, count, job, group)
    try:
        yield started
    finally:
        started.close()


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Return the seconds of CPU that processes have used, with what their ended children had."""
    found = 0.0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            found += sum(process.cpu_times()[:4])
    return found


def server_folder(url: str) -> Path:
    """Return the folder of a PostgreSQL that `support.postgresql` has started."""
    return Path(parse_qs(urlsplit(url).query)["host"][0])


def database_processes(url: str) -> list[psutil.Process]:
    """Return PostgreSQL's own process and its backends."""
    pid = int((server_folder(url) / "data" / "postmaster.pid").read_text().split()[0])
    process = psutil.Process(pid)
    return [process, *process.children()]
