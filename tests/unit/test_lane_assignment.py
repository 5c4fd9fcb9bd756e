"""Reading groups and workers: dealt alike, moved no more than needed."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from penstock.server.node.demand.lane_assignment import GroupAssignment
from penstock.server.node.workers.block_needs import IDLE_ROUNDS, BlockNeeds
from penstock.server.roles import Reading


def dealt(assignment: GroupAssignment, groups: int) -> list[int | None]:
    return [assignment.of(group) for group in range(groups)]


@pytest.mark.parametrize("groups", [1, 2, 3, 16, 48])
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 16, 64])
def test_groups_are_dealt_alike_and_neighbours_together(groups: int, workers: int) -> None:
    """Equal to within one; each worker has groups that follow each other."""
    assignment = GroupAssignment(groups)

    assignment.settle(range(workers))

    found = dealt(assignment, groups)
    counts = Counter(found)
    assert sum(counts.values()) == groups
    assert max(counts.values()) - min(counts[worker] for worker in range(workers)) <= 1
    assert len(list(itertools.groupby(found))) == min(groups, workers)


def test_whoever_comes_and_goes_groups_stay_even_and_move_no_more_than_needed() -> None:
    """Any 200 changes: equal to within one, and only what must move does."""
    rng = random.Random(4)
    assignment = GroupAssignment(24)
    before: list[int | None] = [None] * 24
    for _ in range(200):
        workers = sorted(rng.sample(range(8), rng.randrange(1, 8)))
        assignment.settle(workers)
        found = dealt(assignment, 24)
        counts = Counter(found)
        assert set(found) <= set(workers)
        assert max(counts.values()) - min(counts[worker] for worker in workers) <= 1
        stayed = Counter(old for old in before if old in workers)
        least = 24 // len(workers)
        for worker, had in stayed.items():
            kept = sum(old == new == worker for old, new in zip(before, found, strict=True))
            assert kept >= min(had, least)
        before = found


def test_with_nobody_there_groups_stay_where_they_were() -> None:
    """A single worker is replaced by one of the same number."""
    assignment = GroupAssignment(3)
    assignment.settle([0])

    assignment.settle([])

    assert dealt(assignment, 3) == [0, 0, 0]


def reading(groups: int | None) -> Reading:
    return Reading(("main",), groups, 5, 99, 1.0, 1.0, 1.0)


def test_a_process_keeps_blocks_for_the_groups_that_it_reads() -> None:
    """Five for each group of its lines; lanes of one group share them."""
    needs = BlockNeeds(reading(4))

    kept = [needs.use(line, lane) and needs.blocks() for line, lane in enumerate([0, 4, 1, 5])]
    assert kept == [5, 5, 10, 10]

    needs.close(2)
    needs.close(3)
    assert needs.blocks() == 5


def test_lines_of_readers_far_apart_each_count_while_they_are_used() -> None:
    """Two lines of a lane read at two positions; a line whose reader has gone keeps nothing."""
    needs = BlockNeeds(reading(2))
    for _ in range(3):
        for line, lane in ((1, 0), (2, 1), (3, 0)):
            needs.use(line, lane)
    both = needs.blocks()

    for _ in range(4 * IDLE_ROUNDS):
        needs.use(1, 0)
        needs.use(2, 1)

    assert both == 15
    assert needs.blocks() == 10


def test_without_groups_all_blocks_in_use_are_kept() -> None:
    """Whatever lanes a process has, they draw from the same ones."""
    needs = BlockNeeds(reading(None))

    needs.use(1, 3)
    needs.use(2, 0)
    alike = needs.blocks()
    needs.use(3, 3)

    assert alike == 5
    assert needs.blocks() == 10, "a lane has two lines: they read at two positions"
