"""The order of copies, events and leases: any use of it is right, and any other order is found."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from itertools import product

import pytest

from penstock.client.testing import Random, Schedule, every_schedule
from unit.device_model import MUTANTS, Parts, Run, search

EXAMPLES = int(os.environ.get("DEVICE_EXAMPLES", "200"))
"""How many runs are tried; more find rarer ones."""


def test_whatever_is_done_each_batch_has_its_own_bytes() -> None:
    """Sizes, depth, views that are kept, batches left out, calls that fail, the end at any time."""
    search(EXAMPLES, Parts())


@pytest.mark.parametrize("name", MUTANTS)
def test_each_thing_done_wrong_is_found_within_200_runs(name: str) -> None:
    with pytest.raises(AssertionError):
        search(200, MUTANTS[name])


def test_pinned_memory_does_not_grow_with_the_run() -> None:
    """Sizes change with every batch; what is pinned is bounded by what is in use at once."""
    rng = random.Random(11)
    run = Run(Random(11), Parts())
    pinned = []
    for number in range(2000):
        run.begin(rng.randrange(1, 60_000), is_pinned=number % 5 > 0)
        if number >= 3:
            run.take()
        pinned.append(run.simulator.counts["pin"])
    run.close()

    assert pinned[-1] == pinned[600] <= 40, "seed 11"


# --- every order in which a device can do three copies and three kernels ---

POINTS = frozenset({"record", "launch"})
"""What the host does between two of these, no order of the device's work is told apart by."""


def three_batches(parts: Parts, are_pinned: tuple[bool, ...], ahead: int) -> Callable[..., None]:
    """Return a scenario: three batches, `ahead` of them begun before the first is taken."""

    def scenario(schedule: Schedule) -> None:
        run = Run(schedule, parts, POINTS)
        for number, is_pinned in enumerate(are_pinned):
            run.begin(4096, is_pinned)
            if number >= ahead:
                run.take()
        for _ in range(ahead):
            run.take()
        run.close()

    return scenario


ALIKE = [(True, True, True), (False, False, False)]
KINDS = [*ALIKE, (True, False, True), (False, True, False)]
if os.environ.get("DEVICE_KINDS") == "all":
    ALIKE = KINDS = list(product((True, False), repeat=3))
"""Which of three batches are pinned, and which staged; `DEVICE_KINDS=all` takes every mixture."""


@pytest.mark.parametrize(
    ("ahead", "kinds"), [(1, ALIKE), (2, KINDS)], ids=["one ahead", "two ahead"]
)
def test_three_batches_are_right_in_every_order(
    ahead: int, kinds: list[tuple[bool, ...]], record_property: Callable[[str, int], None]
) -> None:
    """Each of them pinned or staged, with two buffers, on two streams."""
    counts = [every_schedule(three_batches(Parts(), are_pinned, ahead)) for are_pinned in kinds]

    record_property("schedules", sum(counts))
    assert min(counts) > 1000
