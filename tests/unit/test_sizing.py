"""From one core's rate to a run: the arithmetic of `penstockd size`, exhausted where small."""

from __future__ import annotations

import itertools
import math

import pytest

from penstock.server.commands.memory_formula import NodeMemory
from penstock.server.commands.meter import Metered, rate_of
from penstock.server.commands.size_report import notes_of_core, notes_of_units
from penstock.server.commands.sizing import (
    SERVER_BYTES_PER_S,
    UNEVEN,
    Lanes,
    Machine,
    Needed,
    OneCore,
    Size,
    lanes_for,
    size_of,
    store_writes,
)
from penstock.server.job.job import MAX_LANES
from penstock.server.metrics.wanted_nodes import HEAD_ROOM
from penstock.wire.errors import InvalidRequest

GIB = 1 << 30


def core(rate: float = 100.0, **changed: float) -> OneCore:
    values = {
        "low": rate / 2,
        "high": rate * 2,
        "planned": rate * 10,
        "together": 1.0,
        "cores": 1.0,
        "batches": 0.01,
        "wire_bytes": 8.0,
    }
    return OneCore(rate=rate, **{**values, **changed})


def small(workers: int, lanes: float, groups: float) -> NodeMemory:
    return NodeMemory(workers, 50.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


def size(
    per_rank: float,
    ranks: int = 1,
    *,
    core: OneCore = core(),  # noqa: B008 - frozen
    cores: int = 9,
    has: Lanes = Lanes(48, None),  # noqa: B008 - frozen
) -> Size:
    return size_of(Needed("tokens", ranks, per_rank), core, Machine(cores, GIB), has, small)


def busiest(parts: int, nodes: int, workers: int) -> int:
    """Deal parts to nodes in turn, and on each of these to its workers; count the most."""
    counts = [[0] * workers for _ in range(nodes)]
    for part in range(parts):
        node, of_node = part % nodes, part // nodes
        counts[node][of_node % workers] += 1
    return max(itertools.chain.from_iterable(counts))


def test_a_rate_tells_its_median_its_mean_and_its_middle() -> None:
    """Of 20 windows two at each end are left out; a single one is all of them."""
    found = rate_of([(1.0, number) for number in range(20)])

    assert found == (9.5, 2, 17, 9.5)
    assert rate_of([(2.0, 10)]) == (5, 5, 5, 5)
    slow = rate_of([(1.0, 100), (1.0, 100), (8.0, 100)])
    assert slow.median == 100
    assert slow.safe == slow.mean == 30


@pytest.mark.parametrize(("low", "high"), [(150.0, 180.0), (40.0, 60.0)])
def test_the_range_holds_the_rate_that_workers_are_counted_by(low: float, high: float) -> None:
    """Where a few windows are far from all others, that of the whole lies outside of theirs."""
    found = size(100, 3, core=core(low=low, high=high))

    assert found.workers_low <= 3 <= found.workers_high


@pytest.mark.parametrize("ranks", range(1, 9))
def test_workers_give_what_is_needed_with_head_room_and_one_less_does_not(ranks: int) -> None:
    """For every rate of a rank up to that of 16 workers; no worker more than each node has."""
    for per_rank in range(10, 1600 // ranks, 10):
        found = size(per_rank, ranks)

        wanted = math.ceil(round(HEAD_ROOM * ranks * per_rank / 100, 6))
        assert found.cores == wanted
        assert found.workers >= wanted > found.workers - found.nodes
        assert found.workers_per_node <= 8
        assert found.nodes == math.ceil(wanted / 8)
        assert found.limit == "cores"
        assert found.workers_low == pytest.approx(ranks * per_rank / 200)
        assert found.workers_high == pytest.approx(ranks * per_rank / 50)
        assert found.lanes_for_planning == math.ceil(HEAD_ROOM * ranks * per_rank / 1000)


def test_what_slows_workers_asks_for_more_of_them() -> None:
    """Others beside them, threads of their own, a lane that is planned slowly, bytes that leave."""
    assert size(800).cores == 10
    assert size(800, core=core(together=0.5)).cores == 20
    threads = size(800, core=core(cores=2.0))
    assert (threads.cores, threads.nodes, threads.workers_per_node) == (20, 3, 4)
    planned = size(800, core=core(planned=10.0))
    assert planned.lanes_for_planning == 100
    assert planned.lanes.lanes >= 100
    sent = size(800, core=core(wire_bytes=3 * SERVER_BYTES_PER_S / 800))
    assert (sent.nodes, sent.limit) == (3, "network")
    assert size(1, cores=1).workers == 1


def test_memory_decides_where_a_node_has_too_little() -> None:
    """Then more nodes have fewer workers each, down to one, which is told as it is."""

    def memory(workers: int, lanes: float, groups: float) -> NodeMemory:
        return NodeMemory(workers, 300.0 * workers, 0.0, lanes, 0.0, 0.0, 0.0, 0.0)

    needed, has = Needed("tokens", 1, 640), Lanes(48, None)

    found = size_of(needed, core(), Machine(9, GIB), has, memory)
    none = size_of(needed, core(), Machine(9, GIB // 8), has, memory)

    assert (found.nodes, found.workers_per_node, found.limit) == (3, 3, "memory")
    assert found.memory.stalled == 900 + 48 / 3
    assert none.workers_per_node == 1
    assert none.memory.stalled > 128


def test_lanes_are_enough_and_even() -> None:
    """For all small nodes, workers and lanes: as dealing them one by one finds it."""
    for nodes, workers, planning, lanes in itertools.product(
        range(1, 5), range(1, 9), (1, 7, 30), (1, 2, 5, 12, 36, 48, 60)
    ):
        has = Lanes(lanes, None)
        found = lanes_for(nodes, workers, planning, has)

        assert found.groups is None
        assert found.lanes >= max(planning, nodes * workers)
        mean = found.lanes / (nodes * workers)
        assert busiest(found.lanes, nodes, workers) <= UNEVEN * mean + 1e-9
        if lanes >= max(planning, nodes * workers):
            even = busiest(lanes, nodes, workers) * nodes * workers <= UNEVEN * lanes
            assert (found == has) == even or found.lanes == lanes


def test_reading_groups_divide_the_lanes_and_each_worker_has_some() -> None:
    """Those of the job stay where they suit, and so do its lanes where groups can be changed."""
    for nodes, workers, lanes in itertools.product(range(1, 4), range(1, 9), (12, 24, 48, 96)):
        for groups in (each for each in range(1, lanes + 1) if lanes % each == 0):
            has = Lanes(lanes, groups)
            found = lanes_for(nodes, workers, 1, has)

            assert found.groups is not None
            assert found.lanes % found.groups == 0
            assert found.groups >= nodes * workers
            mean = found.groups / (nodes * workers)
            assert busiest(found.groups, nodes, workers) <= UNEVEN * mean + 1e-9
            suits = groups >= nodes * workers and (
                busiest(groups, nodes, workers) * nodes * workers <= UNEVEN * groups
            )
            assert (found == has) == suits
    assert lanes_for(1, 8, 1, Lanes(48, 4)) == Lanes(48, 8)


def test_more_than_a_job_can_have_is_refused() -> None:
    """Of workers and of lanes for planning."""
    with pytest.raises(InvalidRequest, match=r"need 125,000 workers, and a job has at most 65,536"):
        size(10_000_000)
    with pytest.raises(InvalidRequest, match="lanes for planning"):
        size(100_000, core=core(planned=1.0))
    assert size(5_000_000).lanes.lanes <= MAX_LANES


def test_snapshots_are_written_for_batches_and_at_most_once_in_a_while() -> None:
    """In whole pages; where arithmetic leads anywhere there are none."""
    assert store_writes(160, 48, 5000, 16, 0) == (10, 10 * 8192)
    assert store_writes(1600, 48, 4096, 16, 5) == (9.6, 9.6 * 4096)
    assert store_writes(1600, 48, 0, 16, 5) == (0, 0)


@pytest.mark.parametrize(
    ("cpu_s", "queued_s", "notes"),
    [
        (9.9, 0.0, []),
        (4.0, 0.0, ["the core was idle 60% of the time"]),
        (4.0, 5.9, ["other programs had the core 59% of the time"]),
        (2.0, 2.0, ["the core was idle 60%", "other programs had the core 20%"]),
    ],
)
def test_a_busy_machine_is_not_taken_for_one_that_waits(
    cpu_s: float, queued_s: float, notes: list[str]
) -> None:
    """Only time in which nothing was to be run asks for more workers than cores."""
    found = list(notes_of_core(Metered(seconds=10.0, cpu_s=cpu_s, queued_s=queued_s)))

    assert len(found) == len(notes)
    for note, begin in zip(found, notes, strict=True):
        assert note.startswith(begin)


@pytest.mark.parametrize(
    ("has", "nodes", "sentence"),
    [
        (Lanes(48, 16), 17, "16 reading groups for 17 nodes: 1 of them gets nothing to do"),
        (Lanes(1, None), 8, "1 lane for 8 nodes: 7 of them get nothing to do"),
        (Lanes(48, 16), 12, "some nodes get 2 of them and others 1"),
        (Lanes(48, 16), 16, ""),
        (Lanes(240, None), 7, ""),
        (Lanes(1, None), 1, ""),
    ],
)
def test_units_that_are_fewer_than_nodes_are_said(has: Lanes, nodes: int, sentence: str) -> None:
    """With what to change: lanes of a reading group are made by one node."""
    found = " ".join(notes_of_units(has, nodes))

    assert sentence in found
    assert bool(found) == bool(sentence)
