"""A store in memory that several nodes of one process share, and what each hears of the others."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.store import Memory, MemoryStore, SqliteStore, Store
from penstock.server.store.records import (
    BeginRequest,
    Halt,
    JobRecord,
    Latest,
    LogChanges,
    Seen,
    SnapshotRecord,
)
from penstock.wire.errors import LogDiverged, StaleGeneration
from penstock.wire.order import Order

LOG = bytes(32)
JOB = JobRecord("code", LOG, {"lanes": 2})
SEEN = Seen(Order(2))


async def opened(memory: Memory) -> MemoryStore:
    store = MemoryStore(memory)
    await store.open()
    return store


def bad(index: int) -> Verdict:
    return Verdict("exit", ItemRef("main", index, 0), "", "r", True)


def test_threads_that_share_a_memory_commit_one_after_the_other() -> None:
    """8 nodes, each with a loop of its own: all that was answered is there, and one begin wins."""
    memory = Memory()
    numbers: list[int] = []

    async def node(rank: int) -> None:
        store = await opened(memory)
        for step in range(1, 101):
            answer = await store.commit("code", "run", "t", 1, rank, step)
            assert answer.row == step
            verdict = bad(100 * rank + step)._replace(offset=10**6)
            numbers.append((await store.add_verdict(LOG, verdict, SEEN)).number)
        begun = await store.begin(BeginRequest(JOB, f"own {rank}", "t", 0, 1))
        assert begun.generation == 1

    async def begin() -> None:
        store = await opened(memory)
        await store.begin(BeginRequest(JOB, "run", "t", 0, 8))

    asyncio.run(begin())
    threads = [
        threading.Thread(target=lambda rank=rank: asyncio.run(node(rank))) for rank in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def show() -> Any:
        store = await opened(memory)
        return await store.groups("code", "run"), len(await store.groups("code"))

    [record], count = asyncio.run(show())
    assert record.rows == (100,) * 8
    assert count == 9
    assert sorted(numbers) == list(range(1, 801))


async def test_a_transaction_that_is_refused_leaves_nothing() -> None:
    """Also where it had written already."""
    store = await opened(Memory())
    await store.put_snapshots([SnapshotRecord(LOG, 0, 5, b"x")])

    with pytest.raises(LogDiverged):
        await store.put_snapshots([SnapshotRecord(LOG, 0, 6, b"z"), SnapshotRecord(LOG, 0, 5, b"")])

    assert await store.nearest_snapshot(LOG, 0, 9) == SnapshotRecord(LOG, 0, 5, b"x")


async def test_a_store_tells_what_another_one_over_the_same_memory_has_done() -> None:
    """Verdicts made and released, halts, generations begun and moved, a group that is gone."""
    memory = Memory()
    here, there = await opened(memory), await opened(memory)
    await there.add_verdict(LOG, bad(0), SEEN)
    await there.begin(BeginRequest(JOB, "run", "t1", 0, 1))
    known = (await here.changes(LOG, None)).change

    made = await there.add_verdict(LOG, bad(1), SEEN)
    halt = await there.add_halt(LOG, Halt(1, 7, "bad_item", "it is damaged", {"item": 3}, "b"))
    await there.begin(BeginRequest(JOB, "run", "t2", 0, 1, owner="ada"))
    [released] = await there.release_verdicts(LOG, "main", 0, SEEN)
    found = await here.changes(LOG, known)

    assert found.verdicts == [released, made]
    assert found.halts == [halt]
    assert await here.changes(LOG, found.change) == LogChanges(found.change, [], [])
    assert await here.latest([("code", "run")]) == [Latest(2, "ada", "begin", 0)]
    with pytest.raises(StaleGeneration):
        await here.commit("code", "run", "t1", 1, 0, 5)
    await there.seek("code", "run", 9, "", "bob")
    assert await here.latest([("code", "run")]) == [Latest(3, "bob", "seek", 9)]
    await there.delete_group("code", "run")
    assert await here.latest([("code", "run")]) == [None]


async def test_only_a_store_that_others_can_write_to_is_shared(tmp_path: Path) -> None:
    """Nobody has to ask a file for news that one node alone has open."""
    stores: list[Store] = [MemoryStore(), SqliteStore(tmp_path / "penstock.db")]

    assert [store.shared for store in stores] == [True, False]
