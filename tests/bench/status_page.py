"""What the status page costs: its size, its first picture, its viewers, and a scrape.

A node with a run of 64 ranks, which hold their streams open and have what they accept, and with a
quarter of an hour to show: what it does is answer. Viewers ask as the page does (the status every
2 s, the history every 5 s), at moments that are spread evenly, since those who ask within half a
second share a status. What they cost is the CPU time of the node's server process, as a share of
one core, less what it takes without them in the same round.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from support import HERE, Results, free_port, interleaved, serving, table, write_job

from penstock.server.web.history import EVERY_S
from penstock.server.web.routes import FILE

sys.path.append(str(HERE.parent))

from browser import CHROMIUM, browsing
from harness import StubReader, open_channel

VIEWERS, RANKS, POLL_S = 10, 64, 2.0

WATCHED_S = 20.0
"""How long viewers look in a round: each asks for ten statuses and for four histories."""

SCRAPES = 20
"""Of a round, of which the median counts."""

JOB = {
    "lanes": RANKS,
    "batches_per_step": RANKS,
    "source": {"type": "items", "items": [{"input_ids": list(range(n))} for n in range(1, 31)]},
    "batcher": {"type": "best_fit", "max_tokens": 32, "rows": 2, "pool_size": 4},
    "collator": {"type": "packed", "pad_to": 32},
}


FULL = """
from penstock.server.web.history import History

sample = History.sample

def fill(self):
    sample(self)
    while 0 < len(self._samples) < self._samples.maxlen:
        self._samples.append(self._samples[-1])

History.sample = fill
from penstock.server.cli import main

if __name__ == "__main__":
    main()
"""
"""A node that has its quarter of an hour to show from the second sample on."""


class Node(NamedTuple):
    """A node that serves the run.

    Attributes:
        url: Of its port of the metrics.
        pid: The id of its server process.
    """

    url: str
    pid: int


class Figure(NamedTuple):
    """A row of the table.

    Attributes:
        what: What it says.
        values: One for each round.
        form: How they are shown.
        goal: What it is held against.
    """

    what: str
    values: list[float]
    form: str
    goal: str

    def row(self) -> tuple[str, ...]:
        """Return the cells."""
        least, most = (f"{value:{self.form}}" for value in (min(self.values), max(self.values)))
        shown = f"{statistics.median(self.values):{self.form}}"
        return self.what, shown, f"{least} to {most}", self.goal


def run() -> None:
    """Print the table."""
    size = len(FILE.read_bytes())
    figures = [Figure("size of the page, bytes", [size], ",.0f", "60,000")]
    with serving_ranks() as node:
        results = measure(node)
    for way, what, key, form, goal in (
        ("paint", "first contentful paint, ms", "ms", ",.0f", "1,000"),
        ("scrape", f"a scrape with {RANKS} ranks, ms", "ms", ".1f", "20"),
        ("nobody", "CPU of the node, nobody looks, % of a core", "percent", ".2f", ""),
        ("viewers", f"the same, {VIEWERS} viewers", "percent", ".2f", ""),
    ):
        if way in results:
            values = [found[key] for found in results[way]]
            figures.append(Figure(what, values, form, goal))
    pairs = zip(results["viewers"], results["nobody"], strict=True)
    more = [watched["percent"] - alone["percent"] for watched, alone in pairs]
    figures.append(Figure(f"what {VIEWERS} viewers add, % of a core", more, ".2f", "1"))
    table(
        f"The status page of a node with {RANKS} ranks (goals: at most)",
        ("what", "median", "range", "goal"),
        [figure.row() for figure in figures],
    )
    if CHROMIUM is None:
        print("  first contentful paint: none, Chromium is not installed")


@contextlib.contextmanager
def serving_ranks() -> Iterator[Node]:
    """Serve the job to a run of `RANKS` ranks."""
    metrics = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        job_file = write_job(folder, {"code": JOB}, metrics=metrics)
        (folder / "node.py").write_text(FULL)
        program = [str(folder / "node.py")]
        address, process = stack.enter_context(serving(job_file, "--workers", "1", program=program))
        channel = stack.enter_context(open_channel(address))
        readers = [
            StubReader(
                channel,
                job="code",
                group="run",
                rank=rank,
                world_size=RANKS,
                batches_per_step=RANKS,
                horizon=2 * RANKS,
            )
            for rank in range(RANKS)
        ]
        stack.callback(lambda: [reader.cancel() for reader in readers])
        for reader in readers:
            reader.take(2)
        [job] = _asked(f"http://{metrics}/status.json")["status"]["jobs"]
        if len(job["groups"]) != RANKS:
            raise RuntimeError(f"{len(job['groups'])} of {RANKS} ranks read")
        while not _asked(f"http://{metrics}/history.json")["samples"]:
            time.sleep(0.1)
        yield Node(f"http://{metrics}", process.pid)


def _asked(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.loads(reply.read())


def measure(node: Node) -> Results:
    """Return each way's rounds."""
    ways: dict[str, Callable[[], Mapping[str, float]]] = {
        "scrape": partial(_scrape, node),
        "nobody": partial(_watched, node, 0),
        "viewers": partial(_watched, node, VIEWERS),
    }
    if CHROMIUM is not None:
        ways["paint"] = partial(_paint, node)
    return interleaved(ways)


def _scrape(node: Node) -> Mapping[str, float]:
    took = []
    for _ in range(SCRAPES):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{node.url}/metrics", timeout=60) as reply:
            reply.read()
        took.append(time.perf_counter() - began)
    return {"ms": 1e3 * statistics.median(took)}


def _watched(node: Node, viewers: int) -> Mapping[str, float]:
    began, cpu_s = time.perf_counter(), _cpu_s(node.pid)
    asyncio.run(_look(node, viewers))
    return {"percent": 100 * (_cpu_s(node.pid) - cpu_s) / (time.perf_counter() - began)}


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, to the nanosecond: /proc has hundredths alone."""
    return time.clock_gettime((~pid << 3) | 2)  # CPUCLOCK_SCHED of Linux's MAKE_PROCESS_CPUCLOCK


async def _look(node: Node, viewers: int) -> None:
    async def ask(session: aiohttp.ClientSession, path: str) -> None:
        async with session.get(f"{node.url}{path}") as reply:
            reply.raise_for_status()
            await reply.read()

    async def view(number: int) -> None:
        await asyncio.sleep(number * POLL_S / viewers)
        asked_at = -EVERY_S
        async with aiohttp.ClientSession() as session:
            while True:
                if time.monotonic() - asked_at >= EVERY_S:
                    asked_at = time.monotonic()
                    await ask(session, "/history.json")
                await ask(session, "/status.json")
                await asyncio.sleep(POLL_S)

    viewing = [asyncio.ensure_future(view(number)) for number in range(viewers)]
    await asyncio.sleep(WATCHED_S)
    for each in viewing:
        if each.done():
            each.result()  # it ends by an error alone
        each.cancel()
    await asyncio.gather(*viewing, return_exceptions=True)


def _paint(node: Node) -> Mapping[str, float]:
    """Open the page in a browser that has just been started."""

    async def painted() -> float:
        async with browsing() as tab:
            await tab.open(f"{node.url}/")
            entry = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
            return float(await tab.until(entry))

    return {"ms": asyncio.run(painted())}


if __name__ == "__main__":
    run()
