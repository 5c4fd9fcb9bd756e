"""Where the lanes of a finite job end, found by one pass over its items.

A processor may filter an item or make several samples of it, so how many batches a lane has is
known only when all of its items were processed. Plans are made, and no batch: samples are dropped
as they come.

It is started as `python -m penstock.server.node.count ... LOG PART PARTS CAREFUL`, see
`penstock.server.node.aside`, to count the lanes of part PART of PARTS.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from penstock.server.core.refs import ItemRef
from penstock.server.job import Job
from penstock.server.jobs.definition import decode, rebuild
from penstock.server.node.homes import Homes
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_order import KnownOrder
from penstock.server.pipeline.planner import open_planner
from penstock.wire.errors import Internal, PenstockError, clean_text

TELL_S = 1.0
"""Seconds between two reports of a count."""

YIELDS = 10
"""Readers of the same job go first: nobody waits for the count."""

MAX_TEXT = 4000


def count_lanes(
    job: Job, lanes: Iterable[int], items: Items, tell: Callable[[int], None]
) -> dict[int, int]:
    """Return how many batches each of some lanes has.

    The lanes go on side by side, as their readers' do, so that a block of storage is decoded for
    all of them at once.

    Args:
        job: A finite job.
        lanes: Which lanes.
        items: Fetches and processes; its verdicts are found again when the lanes are read.
        tell: Told now and then how many items were drawn.

    Raises:
        BadItem: An item fails and the job's policy is to stop.
        SourceUnavailable: A read failed to the deadline.
    """
    planners = {lane: open_planner(job, lane, items) for lane in lanes}
    ends: dict[int, int] = {}
    told_s = time.monotonic()
    while len(ends) < len(planners):
        for lane, planner in planners.items():
            if lane not in ends and planner.next() is None:
                ends[lane] = planner.offset
            planner.forget()
        if time.monotonic() - told_s >= TELL_S:
            told_s = time.monotonic()
            tell(sum(planner.drawn for planner in planners.values()))
    return ends


def ensure_counted(job: Job) -> None:
    """Count a job's batches in this process, if that is needed and was not done.

    Raises:
        PenstockError: As `count_lanes`.
    """
    KnownOrder(job).count()


def part_of_lanes(job: Job, part: int, parts: int) -> list[int]:
    """Return the lanes of one of several processes; those of a reading group go into one.

    The source keeps what their groups draw from.
    """
    groups = job.lanes_together()
    homes = Homes(len(groups))
    homes.settle(range(parts))
    here = [lanes for number, lanes in enumerate(groups) if homes.of(number) == part]
    for roles in job.role_sets:
        mine = [
            part.lane
            for lanes in here
            for lane in lanes
            for part in job.lane_roles(lane)
            if part.roles is roles
        ]
        for reading in roles.readings:
            if reading.groups is not None and reading.blocks is not None:
                own_groups = {reading.group(inner) for inner in mine} - {None}
                roles.keep_blocks(reading, max(1, len(own_groups)) * reading.blocks)
    return sorted(lane for lanes in here for lane in lanes)


def expected_draws(job: Job) -> int | None:
    """Return how many draws all lanes of a finite job have; None = not known before they end."""
    every = map(job.lane_roles, range(job.lanes))
    # A lane of several sets is over where one of them is.
    found = [parts[0].draws if len(parts) == 1 else None for parts in every]
    known = [draws for draws in found if draws is not None]
    return sum(known) if len(known) == len(found) else None


def main(argv: list[str]) -> None:
    """Count some lanes and write JSON lines to the pipe that was inherited."""
    from penstock.server.node.aside import began

    if (start := began(argv)) is None:
        return
    log_id, part, parts, careful = start.arguments
    os.nice(YIELDS)
    page, definition = start.page, start.definition
    name = decode(definition).name
    with start.socket, start.socket.makefile("w") as out:

        def write(message: dict[str, Any]) -> None:
            out.write(json.dumps(message) + "\n")
            out.flush()

        def progress(stage: str, item: ItemRef | None) -> None:
            page.note(stage, name, None, item)

        try:
            page.note("build", name)
            job = rebuild(definition, bytes.fromhex(log_id))
            items = Items(job, progress=progress)
            items.careful = careful == "1"
            lanes = part_of_lanes(job, int(part), int(parts))
            ends = count_lanes(job, lanes, items, lambda drawn: write({"drawn": drawn}))
            write({"ends": list(ends.items())})
        except PenstockError as error:
            write({"code": error.code, "message": clean_text(error.message, MAX_TEXT)})
        except Exception as error:
            bug = Internal(f"a bug in penstock: {type(error).__name__}")
            write({"code": bug.code, "message": bug.message})
            raise


if __name__ == "__main__":
    main(sys.argv[1:])


__all__ = ["count_lanes", "ensure_counted", "expected_draws", "part_of_lanes"]
