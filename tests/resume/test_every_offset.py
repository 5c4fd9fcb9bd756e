"""A line that restarts anywhere goes on exactly as the one that was never interrupted."""

from __future__ import annotations

import pytest

from penstock.server.pipeline.line import Line
from penstock.server.testing import check_job
from penstock.server.testing.job_contract import step
from resume.plans import LENGTHS, every_plan, make_job

OFFSETS = 41
"""For most of the jobs this is several epochs of the 23 items, so borders lie inside pools."""


PLANS = list(every_plan())


@pytest.mark.parametrize(
    ("batcher", "shuffle", "processor", "lanes"), PLANS, ids=["-".join(map(str, p)) for p in PLANS]
)
def test_every_offset_restores_exactly(
    batcher: str, shuffle: str, processor: str, lanes: int
) -> None:
    """From every offset on, bytes and snapshots are those of the uninterrupted line.

    A line restored from a restored line is no different: at every offset the next one starts from
    the snapshot that the previous one gave.
    """
    lane = lanes - 1
    line = Line(make_job(batcher, shuffle, processor, lanes), lane)

    truth = check_job(
        lambda: make_job(batcher, shuffle, processor, lanes), lane=lane, batches=OFFSETS
    )

    line.skip_to(OFFSETS)
    drawn = line.planner.drawn
    assert drawn * lanes > 2 * len(LENGTHS), "the proof must cross the border of an epoch"
    assert len(truth) == OFFSETS


@pytest.mark.parametrize("processor", ["identity", "sized", "choosy"])
def test_a_restored_line_never_drifts(processor: str) -> None:
    """Many batches after a restart in the middle of everything are still the same."""
    job = make_job("best_fit_split", "blocks", processor, 3)
    line = Line(job, 1)
    truth = [step(line) for _ in range(200)]

    for offset in (1, 37, 100):
        restored = Line(job, 1, snapshot=truth[offset].snapshot)
        assert [step(restored) for _ in range(200 - offset)] == truth[offset:]
