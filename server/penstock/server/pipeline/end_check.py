"""A finite lane that ends elsewhere than where it was counted to end: two passes differed."""

from __future__ import annotations

from penstock.server.job.job import Job
from penstock.wire.errors import LogDiverged


def miscounted(job: Job, lane: int, counted: int, now: str) -> LogDiverged:
    """Return the error of a lane that holds another number of batches than were counted.

    Args:
        job: The job.
        lane: The lane.
        counted: How many.
        now: How many there are now; `more` = more than that.
    """
    return LogDiverged(
        f"lane {lane} of job {job.name!r} was counted to hold {counted} batches, and now holds "
        f"{now}: a role gives another number of samples than before, or an item fails or works "
        "that did not; run `penstockd check`",
        what=f"end of lane {lane}",
        ours=now,
        theirs=counted,
    )
