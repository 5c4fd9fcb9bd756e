"""A store in memory that several nodes of one process share, and what each hears of the others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.store import Memory, MemoryStore, SqliteStore, Store
from penstock.server.store.base import (
    BeginRequest,
    Halt,
    JobRecord,
    Latest,
    Seen,
    SnapshotRecord,
)
from penstock.server.store.news import Listener, News
from penstock.wire.errors import LogDiverged, StaleGeneration, StoreUnavailable
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


# --- news ---


class Heard(Listener):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.verdicts_: list[Verdict] = []
        self.halts: list[Halt] = []
        self.moves: list[tuple[str, Latest | None]] = []
        self.event = asyncio.Event()

    def verdicts(self, log_id: bytes, verdicts: Sequence[Verdict]) -> None:
        """Keep them."""
        self.verdicts_ += verdicts

    def halted(self, log_id: bytes, halt: Halt) -> None:
        """Keep it."""
        self.halts.append(halt)
        self.event.set()

    def moved_on(self, job: str, group: str, latest: Latest | None) -> None:
        """Keep it."""
        self.moves.append((group, latest))


async def test_a_node_hears_once_of_what_another_has_done() -> None:
    """Verdicts made and released, halts, generations begun and moved, a group that is gone."""
    memory = Memory()
    here, there, heard = await opened(memory), await opened(memory), Heard()
    await there.add_verdict(LOG, bad(0), SEEN)
    await there.begin(BeginRequest(JOB, "run", "t1", 0, 1))
    news = News(here, heard)
    await news.follow_log(LOG)
    news.follow_group("code", "run", 1)

    await news.look()
    assert (heard.verdicts_, heard.moves) == ([], []), "that was known"
    made = await there.add_verdict(LOG, bad(1), SEEN)
    halt = await there.add_halt(LOG, Halt(1, 7, "bad_item", "it is damaged", {"item": 3}, "b"))
    await there.add_halt(b"\1" * 32, halt)
    await there.begin(BeginRequest(JOB, "run", "t2", 0, 1, owner="ada"))
    [released] = await there.release_verdicts(LOG, "main", 0, SEEN)
    for _ in range(2):
        await news.look()

    assert heard.verdicts_ == [released, made]
    assert heard.halts == [halt]
    assert heard.moves == [("run", Latest(2, "ada", "begin", 0))]
    with pytest.raises(StaleGeneration):
        await here.commit("code", "run", "t1", 1, 0, 5)
    await there.seek("code", "run", 9, "", "bob")
    await news.look()
    await there.delete_group("code", "run")
    for _ in range(2):
        await news.look()
    assert heard.moves[1:] == [("run", Latest(3, "bob", "seek", 9)), ("run", None)]
    news.leave_group("code", "run")


async def test_news_that_came_while_a_store_was_away_come_later() -> None:
    """Looking goes on by itself, and nothing is missed or told twice."""
    memory = Memory()
    here, there, heard = await opened(memory), await opened(memory), Heard()
    news = News(here, heard, every_s=0.001)
    await news.follow_log(LOG, 0)
    await here.close()
    with pytest.raises(StoreUnavailable):
        await news.look()
    halt = await there.add_halt(LOG, Halt(1, 7, "bad_item", "it is damaged", {}, "b"))

    news.start()
    news.start()
    await here.open()
    await asyncio.wait_for(heard.event.wait(), 60)
    await news.look()
    await news.close()
    await news.close()

    assert heard.halts == [halt]


async def test_only_a_store_that_others_can_write_to_is_shared(tmp_path: Path) -> None:
    """Nobody has to ask a file for news that one node alone has open."""
    stores: list[Store] = [MemoryStore(), SqliteStore(tmp_path / "penstock.db")]

    assert [store.shared for store in stores] == [True, False]
