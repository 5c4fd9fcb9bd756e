"""What every job guarantees: a lane goes on from any offset as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.testing.compare import holds


class LaneStep(NamedTuple):
    """One batch of a lane, and the snapshot from which it follows."""

    snapshot: bytes
    header: bytes
    body: bytes


def step(line: Line) -> LaneStep:
    """Return a line's next batch."""
    snapshot = line.planner.snapshot()
    made = line.make(line.advance())
    body = bytearray(made.nbytes)
    header = made.write(memoryview(body))
    return LaneStep(snapshot, header, bytes(body))


def check_job(make: Callable[[], Job], *, lane: int = 0, batches: int = 41) -> list[LaneStep]:
    """Test that a job resumes exactly: at every offset with the bytes of an uninterrupted run.

    A line restored from a restored line is no different: at every offset the next one starts from
    the snapshot that the previous one gave.

    Args:
        make: Makes the job; called for every offset, as every restart of a worker builds it anew.
        lane: The lane that is read.
        batches: How many of its batches; let them be several epochs of a small source, so that the
            border of an epoch lies within what the batcher holds.

    Returns:
        The batches.

    Raises:
        AssertionError: A lane goes on in another way; names the offset.
        PastEnd: The lane is shorter.
    """
    line = Line(make(), lane)
    truth = [step(line) for _ in range(batches)]
    job, snapshot = make(), truth[0].snapshot
    for offset in range(batches - 1):
        restored = Line(make(), lane, snapshot=snapshot)
        where = f"lane {lane}, restored at offset {offset},"
        holds(restored.offset == offset, f"{where} goes on at offset {restored.offset}")
        holds(step(restored) == truth[offset], f"{where} gives another batch there")
        holds(step(restored) == truth[offset + 1], f"{where} gives another batch after it")
        again = Line(job, lane, snapshot=snapshot)
        again.advance()
        snapshot = again.planner.snapshot()
        holds(snapshot == truth[offset + 1].snapshot, f"{where} gives another snapshot after it")
    return truth
