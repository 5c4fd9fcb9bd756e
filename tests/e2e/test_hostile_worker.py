"""A worker that says anything at all, over the real socket of a real node: the node goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack as pack

from penstock.server.job.job import Job
from penstock.server.node.node import Node
from penstock.server.node.protocol.channel import (
    FROM_SERVER,
    FROM_WORKER,
    MessageDecoder,
    encode,
    send_with_fd,
)
from penstock.server.node.protocol.message_port import SocketPort
from penstock.server.node.protocol.messages import (
    Done,
    FromServer,
    FromWorker,
    PlanAhead,
    Planned,
    Ready,
    Ticketed,
    TicketFailed,
)
from penstock.server.node.protocol.observer import Observer
from penstock.server.node.supply.program import Started
from penstock.server.node.supply.worker_pool import Hear, Lose
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.node.workers.arena import ArenaWriter
from penstock.server.processes.page import PAGE_BYTES, Page
from penstock.server.processes.shared_memory import sealed_memory
from penstock.server.roles import IdentityProcessor
from penstock.server.sources import ItemsSource
from penstock.server.store import SqliteStore
from penstock.wire.errors import PenstockError, WorkerCrashed
from penstock.wire.order import Share

ROUNDS = 1500

KINDS = (*FROM_WORKER.values(), *FROM_SERVER.values())

VALUES: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        1,
        2,
        3,
        1 << 40,
        (1 << 64) - 1,
        0.5,
        float("nan"),
        "",
        "job",
        "main",
        b"",
        b"log",
    ),
    *("x" * 5000, [], [0, 0], [[0, 0]], [0, 64], [0, 64, 8], [[0, 0, 0]], {}, {"a": 1}),
    *({"tokens": -1}, {"fetch": 1e300}, {"fetch": 0.5}, {"filtered:\x00": 1}, {"numpy": "2"}),
    ["draw", ["main", 1, 0], "00", "bad", True, 3, 0, 0, None, 0],
    ["exit", ["main", 1, 0], "00", "bad\x00", True, 3, (1 << 64) - 1, 0, None, 0],
    ["exit", ["main", 1, 0], "00", "bad\x00", True, 3, 1, 0, None, 0],
    ["exit", ["main", 1, 0], "00", "bad", True, 3000, 1, 0, None, 0],
    *("bad_item", "source_unavailable"),
]


class NoProcess:
    """The process of a worker that the test plays."""

    pid = 0

    def poll(self) -> int | None:
        """Say that it runs."""
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Say that it was killed."""
        return -9

    def kill(self) -> None:
        """There is nothing to end."""


class Wild(WorkerProcess):
    """A worker whose side of the socket the test holds."""

    def _launch(self) -> Started:
        ours, self.side = socket.socketpair()
        self.side.setblocking(False)
        self.heard = MessageDecoder(FROM_SERVER)
        self.asked: list[FromServer] = []
        fd = sealed_memory("page", PAGE_BYTES)
        page = Page(fd, write=True)
        os.close(fd)
        self.side.send(encode([Ready()])[0])
        return Started(NoProcess(), SocketPort(ours, FROM_WORKER), page)  # type: ignore[arg-type]

    def _gone(self) -> None:
        super()._gone()
        self.side.close()

    def listen(self) -> None:
        """Take what the node has asked."""
        try:
            while data := self.side.recv(1 << 18):
                self.asked += self.heard.feed(data)
        except OSError:
            pass


class Deaths(Observer):
    """Counts workers that ended, and the batches that they made before."""

    def __init__(self) -> None:
        self.died = self.made = 0

    def worker_died(self) -> None:
        """Count it."""
        self.died += 1

    def produced(self, job: str, nbytes: int, counts: Mapping[str, int]) -> None:
        """Count it."""
        self.made += 1


class WildNode(Node):
    """A node of such workers."""

    def _new_worker(self, number: int, hear: Hear, lose: Lose) -> Wild:
        return Wild(number, hear, lose)


class Through(IdentityProcessor):
    """Processes, so that tickets plan and make at once."""

    version = 1
    one_to_one = False


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[WildNode]:
    """A node of two jobs and two wild workers; what would end it is an error."""
    source = ItemsSource([{"n": n} for n in range(50)])
    jobs = {
        "job": Job(source, batch_size=1, lanes=64, name="job", on_item_error="quarantine"),
        "through": Job(source, None, Through(), batch_size=1, lanes=64, name="through"),
    }
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    one = WildNode(jobs, store, workers=2, bound_bytes=1 << 24, observer=Deaths())
    await one.start()
    yield one
    await one.close()
    await store.close()


def right_answer(rng: random.Random, asked: Ticketed) -> FromWorker:
    """Return what a worker of ours might answer."""
    if rng.random() < 0.1:
        return TicketFailed(asked.ticket, "bad_item", "bad", {})
    if isinstance(asked, PlanAhead):
        plan = json.dumps([asked.lane, asked.offset, []]).encode()
        return Planned(asked.ticket, (plan,), False, ())
    return Done(asked.ticket, None, b"header", None, {}, False, (), {})


def frame(rows: Any) -> bytes:
    """Return a frame of anything."""
    data = pack.encode(rows)
    return struct.pack("<I", len(data)) + data


def spoilt(rng: random.Random, row: list[Any], changes: int) -> list[Any]:
    """Return a message with some other values in it, sometimes one too few or too many."""
    for at in rng.sample(range(1, len(row)), min(changes, len(row) - 1)):
        row[at] = rng.choice(VALUES)
    if rng.random() < 0.05:
        row = rng.choice([row[:-1], [*row, 0]])
    return row


def some_bytes(rng: random.Random, worker: Wild) -> bytes | bytearray:
    """Return what a worker might say: garbage, a message that is right in places, or all right."""
    kind = rng.random()
    if kind < 0.02:
        return rng.randbytes(rng.randrange(1, 200))
    if kind < 0.04:
        return frame(rng.choice([{}, 3, "x", [3], [[]], [[[]]], [["Done"]], [["Nothing"]]]))
    live = [
        one for one in worker.asked if isinstance(one, Ticketed) and one.ticket in worker.tickets
    ]
    if not live and kind < 0.9:
        return b""
    if kind < 0.9:
        answer = right_answer(rng, rng.choice(live))
        data, _ = encode([answer])
        if kind < 0.7:
            return data
        if kind < 0.72:
            return data * 2
        [row] = pack.decode(data[4:])
        data = frame([spoilt(rng, row, rng.randrange(3))])
        if rng.random() < 0.3:
            data += b"x"
    else:
        one = rng.choice(KINDS)
        names = one.__struct_fields__
        row = spoilt(rng, [one.__name__, *names], len(names))
        at = 1 + names.index("log_id") if "log_id" in names else len(row)
        if at < len(row) and worker.logs and rng.random() < 0.8:
            row[at] = rng.choice(sorted(worker.logs))
        data = frame([row])
    return data[: rng.randrange(len(data))] if kind > 0.97 else data


async def test_whatever_a_worker_says_the_node_goes_on(node: WildNode) -> None:
    """Random messages, truncated ones and garbage: each costs its worker, and blames what it did.

    Every reader either gets something or hears of its lane; the ledger stays as it should be.
    """
    ended: list[str] = []
    node.life.on_fatal = lambda: ended.append("ended")
    rng = random.Random(24)
    readers = {
        name: [
            node.open(node.jobs[name], Share(64, rank, 64), None, 0, None, lambda: None)
            for rank in range(64)
        ]
        for name in node.jobs
    }
    told: list[PenstockError] = []
    for turn in range(ROUNDS):
        for number, name in enumerate(node.jobs):
            reader = readers[name][(turn + number) % 64]
            node.extend(reader, reader.head + 64 * 3)
            try:
                while (entry := node.take(reader)) is not None:
                    node.sent(reader, entry)
            except PenstockError as error:
                told.append(error)
                node.leave(reader)
                readers[name][(turn + number) % 64] = node.open(
                    node.jobs[name], Share(64, reader.share.rank, 64), None, 0, None, lambda: None
                )
        for worker in node.workers:
            assert isinstance(worker, Wild)
            worker.listen()
            if rng.random() < 0.05:
                arena = ArenaWriter(rng.choice([len(worker.arenas), 7]), 4096)
                size = rng.choice([4096, 1 << 20, 0, -1])
                said = frame([["NewArena", arena.number, size, None]])
                if not worker.dead:
                    send_with_fd(worker.side, said, arena.fd)
                arena.view.release()
                os.close(arena.fd)
            with contextlib.suppress(OSError):  # it has been ended
                worker.side.send(some_bytes(rng, worker))
        for _ in range(4):
            await asyncio.sleep(0)
        assert ended == [], f"turn {turn}"

    assert isinstance(node.observer, Deaths)
    assert node.observer.died > ROUNDS // 10
    assert node.observer.made > ROUNDS // 100
    assert any(isinstance(error, WorkerCrashed) for error in told)
    for log in node.logs.values():
        busy = sum(1 for entry in log.entries.values() if entry.state.value == "making")
        assert log.making >= busy >= 0
    assert not node.life.draining
