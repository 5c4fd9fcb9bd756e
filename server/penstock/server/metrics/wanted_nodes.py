"""How many nodes a job wants, by what one node sees of it: arithmetic, without a clock.

It is the arithmetic of `penstockd size` with what was measured in place of what was tried out: a
run needs the workers that its rate keeps busy, and `HEAD_ROOM` more. Over a part of a minute

    busy    = seconds that workers of this node spent on the job / seconds
    share   = units that readers asked this node for / all units of the job
    waited  = the part of the time that the reader that waited most has waited
    workers = HEAD_ROOM * busy / share / (1 - waited)
    nodes   = workers / workers of this node

A reader that waits 1/3 of its time would take 1.5 times as much if it waited never; and one node
that has a quarter of the units sees a quarter of the work. So each node reckons the nodes for the
whole job, whatever the others do, and the largest of their answers holds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

HEAD_ROOM = 1.25
"""Workers beyond what the rate needs: readers find batches ready, and after a restart a node
catches up, at a quarter more than what they take."""

PART_S, PARTS = 60.0, 5
"""The last five minutes, and the parts of it that have to agree before anything is changed."""

SLACK = 1.1
"""How far the load may lie beside the nodes that are wanted now before others are wanted: less than
the head room, so nobody waits meanwhile; and what varies by less than this changes nothing."""

MOST_WAITED = 0.9
"""A reader that waits more of its time hardly trains: how much it would take cannot be told. Ten
times as much is wanted at most."""

LEAST_READ = 0.5
"""A part of which less was read says nothing."""

WORK = ("build", "collate", "encode", "fetch", "plan", "process")
"""The stages of workers that more nodes would share. What was made before (`replay`), a start
(`setup`) and a storage that fails (`retrying`) are not the readers' load."""


class Sample(NamedTuple):
    """What a node knows of a job at a moment.

    Attributes:
        at_s: The time, of any clock that does not go back.
        busy_s: Seconds that its workers have spent on the job, since the node began.
        waited_s: Seconds that each open reader has waited, by its number.
        units: Units of the job that these readers ask this node for.
    """

    at_s: float
    busy_s: float
    waited_s: Mapping[int, float]
    units: int


def needed_workers(samples: Sequence[Sample], units: int) -> list[float | None]:
    """Return the workers that the whole job needs, by each part of the time, the latest first.

    None = nobody read during that part, or not for long enough to tell.

    Args:
        samples: What was seen; the time of the last one is now.
        units: All units of the job.
    """
    parts: list[list[tuple[Sample, Sample]]] = [[] for _ in range(PARTS)]
    for before, after in pairwise(samples):
        if (number := int((samples[-1].at_s - after.at_s) // PART_S)) < PARTS:
            parts[number].append((before, after))
    return [_needed(pairs, units) for pairs in parts]


def _needed(pairs: Sequence[tuple[Sample, Sample]], units: int) -> float | None:
    read_s = asked_s = busy_s = 0.0
    waited_s: dict[int, float] = {}
    for before, after in pairs:
        seconds = after.at_s - before.at_s
        if not (before.units and after.units):  # nobody reads, or has just begun or ended
            continue
        read_s += seconds
        asked_s += seconds * min(1.0, before.units / units)
        busy_s += max(0.0, after.busy_s - before.busy_s)
        for reader, waited in after.waited_s.items():
            more = max(0.0, waited - before.waited_s.get(reader, waited))
            waited_s[reader] = waited_s.get(reader, 0.0) + more
    if read_s < LEAST_READ * PART_S:
        return None
    waited = min(MOST_WAITED, max(waited_s.values(), default=0.0) / read_s)
    return HEAD_ROOM * busy_s / asked_s / (1 - waited)


def wanted_nodes(before: int, needed: Sequence[float | None], workers: int, units: int) -> int:
    """Return how many nodes are wanted now: 0 = nobody has read for all of the time.

    It changes only where all parts of the time agree that it must, and then goes to where they
    are: so one step of the load is one change, and what comes and goes within minutes is none.

    Args:
        before: How many were wanted until now.
        needed: What `needed_workers` returned.
        workers: Workers of a node.
        units: Units of the job: further nodes would have none.
    """
    loads = [each / workers for each in needed if each is not None]
    if not loads:
        return 0
    wanted = before
    if len(loads) == len(needed):
        if min(map(_nodes, (load / SLACK for load in loads))) > before:
            wanted = _nodes(max(loads))
        elif max(map(_nodes, (load * SLACK for load in loads))) < before:
            wanted = _nodes(median(loads))
    return min(wanted, units)


def _nodes(load: float) -> int:
    """Return the nodes for a load, without what floats added to it; 1 at least: somebody reads."""
    return max(1, math.ceil(round(load, 9)))
