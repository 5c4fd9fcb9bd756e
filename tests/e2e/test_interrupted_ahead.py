"""A loop that copies ahead, interrupted at every place."""

from __future__ import annotations

import pytest

from e2e.test_client_interrupts import COUNT, interrupted
from unit.served import ServedNode


@pytest.mark.parametrize("how", ["signals", "bytecodes"])
def test_a_loop_that_is_interrupted_reads_on_at_the_same_position(how: str) -> None:
    with ServedNode() as served:
        found = interrupted(served.address, how, COUNT // 5, "--ahead", "--stride", 15)

    assert found["wrong"] is None, found
    assert found["interrupts"] >= COUNT // 5
    assert found["close_s"] < 5
