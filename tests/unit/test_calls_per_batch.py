"""What every batch costs, whatever is in it: as many calls as it has, and no more.

Seconds say nothing on a busy machine; how many functions are called for a batch is the same on all.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.line import Line
from penstock.server.roles.processors import FunctionProcessor
from penstock.server.sources.item_list import ItemsSource

LANES, WARM, BATCHES = 8, 64, 400
ITEMS = [{"x": number} for number in range(64)]


def as_it_is(raw: dict[str, Any]) -> dict[str, Any]:
    """Return an item as it is."""
    return raw


def calls_per_batch(job: Job) -> float:
    """Return how many functions are called for a batch, Python's and others."""
    items = Items(job)
    lines = [Line(job, lane, items) for lane in range(job.lanes)]
    calls = 0

    def make(batches: int) -> None:
        for number in range(batches):
            line = lines[number % LANES]
            made = line.make(line.advance())
            made.write(memoryview(bytearray(made.nbytes)))

    def count(_frame: FrameType, event: str, _of: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    make(WARM)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        make(BATCHES)
    finally:
        sys.setprofile(before)
    return calls / BATCHES


@pytest.mark.parametrize(("function", "most"), [(None, 184), (as_it_is, 230)])
def test_a_batch_takes_few_calls(function: Any, most: int) -> None:
    """Of items as they are, and behind a function; where nothing is left out or cut.

    A few more than now are allowed. What raises this costs every batch of every job: look whether
    it can be done once for a lane, or only where something has changed.
    """
    processor = {} if function is None else {"processor": FunctionProcessor(function)}
    job = Job(ItemsSource(items=ITEMS), lanes=LANES, batch_size=1, **processor)

    assert calls_per_batch(job) <= most
