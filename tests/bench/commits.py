"""Stores: what commits, begins and snapshots cost, and how many commits come in a second.

Ranks commit together, as at a checkpoint of the model. `CPU` is that of the process, the store's
thread among it; the time by the clock has the disk in it, of the folder for temporary files. Where
PostgreSQL can be started, as for tests, its server has its data in that folder, too, and what it
computes is not in `CPU`; a ratio is that of the rates in one round.
An older tree beside this one: `PYTHONPATH=OLD/client:OLD/proto:OLD/server python
tests/bench/run.py commits`.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from support import Rounds, interleaved, median, postgresql, spread, table

from penstock.server.store import SqliteStore, Store
from penstock.server.store.records import BeginRequest, JobRecord, SnapshotRecord

JOB = JobRecord("code", bytes(32), {"lanes": 48})
RANKS, COMMITS = (1, 8, 64, 1024), 2048


def run() -> None:
    """Print the table."""
    ways = {"SQLite": partial(_measure, SqliteStore)}
    try:
        from penstock.server.store import MemoryStore
    except ImportError:
        pass  # an older tree
    else:
        ways["memory"] = partial(_measure, lambda path: MemoryStore())
    with postgresql() as url:
        if url is not None:
            ways["PostgreSQL"] = partial(_measure, lambda path: _in_postgres(url))
        results = interleaved(ways)
    keys = list(next(iter(results.values()))[0])
    for names in (["SQLite", "memory"], ["PostgreSQL"]):
        shown = [name for name in names if name in results]
        header = ("what", *(f"{way}, {part}" for way in shown for part in ("median", "range")))
        rows = []
        for key in keys:
            cells = [
                (f"{median(results[way], key):,.0f}", _span(results[way], key)) for way in shown
            ]
            rows.append((key, *(part for cell in cells for part in cell)))
        if shown:
            table("Stores", header, rows)
    if "PostgreSQL" in results:
        pairs = list(zip(results["PostgreSQL"], results["SQLite"], strict=True))
        ratios = [
            (key, *(f"{value:.2f}" for value in _of_three([a[key] / b[key] for a, b in pairs])))
            for key in keys
            if key.startswith("commits/s")
        ]
        table("PostgreSQL / SQLite", ("what", "median", "least", "most"), ratios)


def _span(rounds: Rounds, key: str) -> str:
    return spread(rounds, key, ",.0f")


def _of_three(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def _in_postgres(url: str) -> Store:
    import postgres
    from penstock.server.store import open_store

    return open_store(postgres.in_schema(url, postgres.new_schema()), Path())


def _measure(make: Callable[[Path], Store]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_all(make(Path(folder) / "penstock.db")))


async def _all(store: Store) -> dict[str, float]:
    await store.open()
    found: dict[str, float] = {}
    for ranks in RANKS:
        group = f"of {ranks}"
        await store.begin(BeginRequest(JOB, group, "t", 0, ranks))
        steps = max(2, COMMITS // ranks)

        async def step(number: int, group: str = group, ranks: int = ranks) -> None:
            commits = (store.commit("code", group, "t", 1, r, number + 1) for r in range(ranks))
            await asyncio.gather(*commits)

        cpu_s, wall_s = await _timed(steps, step)
        found[f"commits/s, {ranks} ranks"] = steps * ranks / wall_s
        found[f"us of CPU a commit, {ranks} ranks"] = cpu_s / (steps * ranks) * 1e6

    async def whole(number: int) -> None:
        await store.commit("code", "of 64", "t", 1, 0, 10**6 + number, all_rows=True)

    async def begin(number: int) -> None:
        await store.begin(BeginRequest(JOB, "of 8", f"t{number + 1}", 0, 8))

    async def put(number: int) -> None:
        records = [SnapshotRecord(bytes(32), lane, number, bytes(1000)) for lane in range(48)]
        await store.put_snapshots(records)

    for name, count, call in (
        ("us of CPU a commit of all 64 rows", 100, whole),
        ("us of CPU a begin of 8 ranks", 100, begin),
        ("us of CPU a put of 48 snapshots", 50, put),
    ):
        cpu_s, _ = await _timed(count, call)
        found[name] = cpu_s / count * 1e6
    await store.close()
    return found


async def _timed(count: int, call: Callable[[int], Awaitable[None]]) -> tuple[float, float]:
    """Return the seconds of CPU, and by the clock, of so many calls one after the other."""
    cpu, wall = time.process_time(), time.perf_counter()
    for number in range(count):
        await call(number)
    return time.process_time() - cpu, time.perf_counter() - wall
