"""How often the workers of a node read storage blocks, told before they do."""

from __future__ import annotations

import pytest

from penstock.server.node.demand.lane_assignment import GroupAssignment
from penstock.server.roles.distributors.block_shuffle import BlockOrder
from penstock.server.roles.reading import MOST_AMPLIFICATION, Reading


def reading(groups: int | None, blocks: int | None, all_blocks: int) -> Reading:
    return Reading(("main",), groups, blocks, all_blocks, 1e6, 1e6, 1e3)


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 16, 20])
@pytest.mark.parametrize("blocks", [7, 30, 101, 400])
def test_what_an_epoch_reads_is_known_from_borders_alone(blocks: int, workers: int) -> None:
    """Each border between two workers costs one block more, or none where it lies between two."""
    groups = 16
    order = BlockOrder([97] * blocks, groups, 4, 7, 0, "main")
    assignment = GroupAssignment(groups)
    assignment.settle(range(workers))
    of = {(assignment.of(p % groups), order[p] // 97) for p in range(len(order))}
    told = reading(groups, 5, blocks).amplification(workers)

    assert told is not None
    most = round(told * blocks)
    assert most - min(workers, groups) < len(of) <= most
    assert (told <= MOST_AMPLIFICATION) == (min(workers, groups) - 1 <= 0.15 * blocks)


def test_without_groups_every_worker_reads_everything() -> None:
    """Once, where all blocks are kept; anew in each epoch, where they are not."""
    assert reading(None, 32, 32).amplification(4) == 4
    assert reading(None, 2, 32).amplification(4) == 4
    assert reading(None, None, 32).amplification(4) is None
