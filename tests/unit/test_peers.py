"""Many streams that ask for everything, beside one that reads: what they want, take and cost."""

from __future__ import annotations

import gc
import math
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from penstock.server.job.job import Job
from penstock.server.node.demand.batch_spans import ArenaReader, BodySpan
from penstock.server.node.demand.candidates import candidates, most_urgent
from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.peers import LEAST_PENDING, MAX_PENDING, FairTurns, Taking
from penstock.server.node.demand.room import find_room
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.node.supply.worker_process import MIN_DEPTH
from penstock.server.processes.shared_memory import sealed_memory
from penstock.server.rpc.reads import host_of
from penstock.server.sources import ItemsSource
from penstock.server.store import SqliteStore
from penstock.wire.order import Share
from unit.inline_workers import InlineNode

SIZE, STREAMS, EVERYTHING = 100, 60, 2**62
ARENA = ArenaReader(sealed_memory("peers", 4096), 4096)


def make_job(name: str = "job", lanes: int = 4) -> Job:
    items = [{"x": n, "job": name} for n in range(50)]
    return Job(ItemsSource(items), batch_size=1, lanes=lanes, name=name)


def open_reader(
    log: Log, horizon: int, *, start: int = 0, host: str = "", of: Share | None = None
) -> StreamDemand:
    reader = StreamDemand(log, of or Share(1, 0, 1), None, start, None, lambda: None, host=host)
    reader.extend(horizon)
    return reader


def flood(log: Log, streams: int = STREAMS, *, hosts: int = 1) -> list[StreamDemand]:
    """Open streams that accept everything, each of positions of its own."""
    return [
        open_reader(log, EVERYTHING, host=f"h{n % hosts}", of=Share(streams, n, streams))
        for n in range(streams)
    ]


def finish(log: Log, reader: StreamDemand, count: int) -> None:
    """Make the first batches that a reader wants."""
    for entry in list(reader.pending.values())[:count]:
        log.started(entry)
        log.ready(entry, b"", SIZE, SIZE, BodySpan(ARENA, 0, memoryview(bytes(SIZE)), lambda: None))


def work(run: Callable[[], object]) -> int:
    """Return how many bytecodes a call executes, in all that it calls."""
    executed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal executed
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        executed += event == "opcode"
        return trace

    before = sys.gettrace()
    # Python 3.12 counts bytecodes only where some frame asks for it before `settrace` is called.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return executed


@pytest.mark.parametrize("hosts", [1, 3])
def test_a_host_has_so_many_wanted_at_once_however_many_streams_it_opens(hosts: int) -> None:
    """The sum of equal parts of a bound, as streams come one by one; and a few for each."""
    log = Log(make_job(), bound_bytes=10**9)

    flood(log, hosts=hosts)

    each = STREAMS // hosts
    most = MAX_PENDING * (1 + math.log(each)) + LEAST_PENDING * each
    assert len(log.entries) <= hosts * most
    for _ in range(2 * STREAMS):
        flood(log, 1)
    assert len(log.entries) <= hosts * most + 2 * STREAMS * LEAST_PENDING


def test_streams_of_one_host_leave_others_their_part() -> None:
    """What other hosts want is not less for them; and what is left alone wants all again."""
    log = Log(make_job(), bound_bytes=10**9)
    readers = flood(log, hosts=1)

    other = open_reader(log, EVERYTHING, host="another")
    assert len(other.pending) == MAX_PENDING
    late = open_reader(log, EVERYTHING, host="h0")
    assert len(late.pending) == LEAST_PENDING
    for reader in readers:
        reader.close()
    late.extend(EVERYTHING)

    assert len(late.pending) == MAX_PENDING


@pytest.mark.parametrize("hosts", [1, 10])
def test_room_costs_the_same_however_much_is_wanted(hosts: int) -> None:
    """Counted in bytecodes: ten readers that want 10 batches each, or 10,000 and more together."""
    costs = []
    for horizon in (80, EVERYTHING):
        crowd, other = (Log(make_job(name), 16 * SIZE) for name in ("crowd", "other"))
        many = [
            open_reader(crowd, horizon, host=f"h{n % hosts}", of=Share(10, n, 10))
            for n in range(10)
        ]
        for reader in many:
            finish(crowd, reader, 3)
            reader.moved_at -= 60
        one = open_reader(other, 4)
        finish(other, one, 1)
        wanted = len(crowd.entries)
        assert wanted == 80 if horizon == 80 else wanted >= 1024 * hosts

        def give_out(logs: tuple[Log, ...] = (crowd, other)) -> None:
            for log in logs:
                list(candidates(log))
            found = most_urgent(logs[1])
            assert found is not None
            assert find_room(logs[1], found.entry, logs)

        costs.append(work(give_out))
        assert crowd.ready_bytes < 30 * SIZE, "nothing gave way"

    assert 0 < costs[1] < 1.2 * costs[0], costs


def test_what_gives_way_is_the_farthest_of_all_that_is_ready() -> None:
    """Of several readers and logs, and no more than is needed."""
    bound = 10 * SIZE
    logs = [Log(make_job(str(n)), bound) for n in range(3)]
    near, far, one = (open_reader(log, 100) for log in logs)
    finish(logs[0], near, 4)
    finish(logs[1], far, 6)
    one.extend(100)
    owed = next(iter(one.pending.values()))
    finish(logs[2], one, 1)
    assert one.take() is owed
    missing = next(iter(one.pending.values()))

    assert find_room(logs[2], missing, logs)

    assert [p for p, entry in far.pending.items() if entry.span is not None] == [0, 1, 2, 3, 4]
    assert [p for p, entry in near.pending.items() if entry.span is not None] == [0, 1, 2, 3]


def test_a_burst_of_demand_leaves_no_memory_behind() -> None:
    """What its streams wanted is forgotten with them, also where others want something before."""
    log = Log(make_job(), bound_bytes=10**9)
    steady = open_reader(log, 8, host="steady")
    readers = flood(log, 40, hosts=40)
    for reader in readers:
        reader.close()
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(2):
            before = tracemalloc.get_traced_memory()[0]
            readers = flood(log, 40, hosts=40)
            peak = tracemalloc.get_traced_memory()[0] - before
            for reader in readers:
                reader.close()
            del readers, reader
            gc.collect()
            left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert len(steady.pending) == 8
    assert most_urgent(log) is not None
    assert left < peak / 50, (left, peak)


class _Log(Taking):
    turn = 0.0


def test_turns_go_to_who_was_given_least() -> None:
    """Unlike tickets: time is shared, not tickets; and who was away is owed nothing for that."""
    turns, slow, quick, late = FairTurns(), _Log(), _Log(), _Log()
    given = {slow: 0, quick: 0}
    for _ in range(110):
        one = min((slow, quick), key=turns.of)
        turns.give(one, 0.1 if one is slow else 0.01)
        given[one] += 1
    assert given == {slow: 10, quick: 100}

    order = []
    for _ in range(8):
        one = min((quick, late), key=turns.of)
        turns.give(one, 0.01)
        order.append(one is late)

    assert sum(order) in (4, 5)


@pytest.mark.parametrize("start", [0, 100_000])
async def test_streams_of_another_job_take_no_more_than_half_of_the_workers(
    start: int, tmp_path: Path
) -> None:
    """As long as they take all that is made for them; wherever the one reader's job is."""
    jobs = {name: make_job(name) for name in ("crowd", "other")}
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    node = InlineNode(jobs, store, workers=2, bound_bytes=10**6)
    try:
        await node.start()
        crowd = [
            node.open(jobs["crowd"], Share(STREAMS, n, STREAMS), None, 0, None, lambda: None, "h")
            for n in range(STREAMS)
        ]
        other = node.open(jobs["other"], Share(1, 0, 1), None, start, None, lambda: None, "h")
        for reader in crowd:
            node.extend(reader, EVERYTHING)
        for _ in range(400):
            node.extend(other, other.head + 16)
            await node.settle()
            for hand in node.hands:
                hand.answer_one()
            for reader in (*crowd, other):
                while (entry := node.take(reader)) is not None:
                    node.sent(reader, entry)
        made = sum(reader.sent_batches for reader in (*crowd, other))

        assert made > 300
        assert other.sent_batches > 0.4 * made, (other.sent_batches, made)
    finally:
        await node.close(0.0)
        await store.close()


async def test_a_worker_holds_no_more_of_one_job_for_what_it_does_of_another(
    tmp_path: Path,
) -> None:
    """Else slow batches have a queue as long as quick ones, and other readers wait for it."""
    jobs = {name: make_job(name) for name in ("quick", "slow")}
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    node = InlineNode(jobs, store, workers=1, bound_bytes=10**6)
    try:
        await node.start()
        [worker] = node.hands

        def read(job: str) -> StreamDemand:
            return node.open(jobs[job], Share(1, 0, 1), None, 0, None, lambda: None, "h")

        quick = read("quick")
        while quick.sent_batches < 300:
            node.extend(quick, quick.head + 64)
            await node.settle()
            while worker.answer_one():
                pass
            while (entry := node.take(quick)) is not None:
                node.sent(quick, entry)
        held = [len(worker.tickets)]
        node.leave(quick)
        while held[-1]:
            await node.settle()
            worker.answer_one()
            held.append(len(worker.tickets))
        node.extend(read("slow"), EVERYTHING)
        await node.settle()

        assert len(worker.tickets) == MIN_DEPTH, f"{max(held)} of the quick job"
    finally:
        await node.close(0.0)
        await store.close()


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:10.0.0.7:51234", "10.0.0.7"),
        ("ipv6:%5B::1%5D:51234", "%5B::1%5D"),
        ("unix:", "unix"),
        ("unix:/run/penstock.sock", "unix"),
        ("unix-abstract:penstock", "unix-abstract"),
    ],
)
def test_the_port_of_a_peer_is_not_its_host(peer: str, host: str) -> None:
    """Each stream may have a connection of its own."""
    assert host_of(peer) == host
