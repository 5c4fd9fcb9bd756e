"""From what one core gives to what a run needs: arithmetic, without a clock or a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.server.commands.memory_formula import MIB, NodeMemory
from penstock.server.metrics.wanted_nodes import HEAD_ROOM
from penstock.wire.errors import InvalidRequest
from penstock.wire.order import MAX_LANES

SERVER_CORES = 1
"""Cores of a node that are left to the server process, which sends, and to the system."""

SERVER_BYTES_PER_S = 500_000_000
"""What one server process is trusted with: half of what 8 MB batches reach over TCP on 2 cores
(`make bench NAMES=transfer`)."""

UNEVEN = 1.2
"""How much more than the mean the busiest worker may have: readers wait for its lanes, and the head
room is still a little more."""

SMALL_LANES = (1, 2, 3, 4, 6, 8)
LANES_STEP = 12
"""Numbers of lanes that are proposed: these, and multiples of this."""

BUSY = 1.1
"""Processor time by time from which on a worker counts as more than one core."""

PAGE_BYTES = 4096
"""A snapshot takes whole pages of the store."""


class Needed(NamedTuple):
    """What the ranks train.

    Attributes:
        unit: `tokens` or `samples`.
        ranks: Readers: data-parallel ranks.
        per_rank: How many each trains in a second.
    """

    unit: str
    ranks: int
    per_rank: float

    @property
    def per_s(self) -> float:
        """Return how many all of them train in a second."""
        return self.ranks * self.per_rank


@dataclass(frozen=True)
class OneCore:
    """What one worker gives, per second.

    Attributes:
        rate: What may be relied on.
        low, high: How far it varied.
        planned: How many one lane gives, if nothing is done but planning it.
        together: How much of that each worker gives where a node is full of them: 1 = all of it.
        cores: Cores that a worker keeps busy.
        batches: Batches, for each of the unit.
        wire_bytes: Bytes that are sent, for each of the unit.
    """

    rate: float
    low: float
    high: float
    planned: float
    together: float
    cores: float
    batches: float
    wire_bytes: float


class Machine(NamedTuple):
    """A machine for a node."""

    cores: int
    memory_bytes: int

    def most_workers(self, cores_each: float) -> int:
        """Return how many workers it has room for, beside the server process."""
        return max(1, int((self.cores - SERVER_CORES) / cores_each))


@dataclass(frozen=True)
class Lanes:
    """Lanes, and reading groups of them.

    Attributes:
        lanes: Lanes.
        groups: Reading groups, each read by one worker; None = there are none, any worker may have
            any lane.
    """

    lanes: int
    groups: int | None


@dataclass(frozen=True)
class Size:
    """What a run needs.

    Attributes:
        workers_low, workers_high: Workers that give exactly what is needed, at the highest and at
            the lowest rate that was seen.
        cores: Cores for workers, with head room.
        nodes: Nodes.
        workers_per_node: Workers of each.
        limit: What decides the number of nodes: `cores`, `memory` or `network`.
        lanes_for_planning: Lanes that are planned fast enough together, with head room.
        lanes: The least that suit.
        memory: What a node takes.
    """

    workers_low: float
    workers_high: float
    cores: int
    nodes: int
    workers_per_node: int
    limit: str
    lanes_for_planning: int
    lanes: Lanes
    memory: NodeMemory

    @property
    def workers(self) -> int:
        """Return the workers of all nodes."""
        return self.nodes * self.workers_per_node


MemoryOf = Callable[[int, float, float], NodeMemory]
"""`(workers, lanes, groups) -> memory` of a node that has so many of each."""


def size_of(needed: Needed, core: OneCore, machine: Machine, has: Lanes, memory: MemoryOf) -> Size:
    """Return what a run needs.

    The fewest nodes whose workers, memory and network suffice (where memory decides, up to a tenth
    more); their lanes are those of the job if these suit.

    Args:
        needed: What the ranks train.
        core: What one worker gives.
        machine: What a node runs on.
        has: The lanes that the job has.
        memory: What a node takes.

    Raises:
        InvalidRequest: No job has as many lanes as this needs workers, or lanes for planning.
    """
    each = core.rate * core.together
    wanted = math.ceil(_up(HEAD_ROOM * needed.per_s / each))
    planning = math.ceil(_up(HEAD_ROOM * needed.per_s / (core.planned * core.together)))
    for count, what in ((wanted, "workers"), (planning, "lanes for planning")):
        if count > MAX_LANES:
            raise InvalidRequest(
                f"{needed.ranks:,} ranks of {needed.per_rank:,.0f} {needed.unit}/s need {count:,} "
                f"{what}, and a job has at most {MAX_LANES:,} lanes: let the ranks read from "
                "several jobs, or make the roles cheaper (`penstockd check` says where time goes)",
                field="--ranks",
                value=needed.ranks,
            )
    most = machine.most_workers(core.cores)
    by_cores = -(-wanted // most)
    by_network = math.ceil(_up(needed.per_s * core.wire_bytes / SERVER_BYTES_PER_S))
    nodes = max(by_cores, by_network)
    limit = "network" if by_network > by_cores else "cores"
    while True:
        workers = -(-wanted // nodes)
        lanes = lanes_for(nodes, workers, planning, has)
        takes = memory(workers, lanes.lanes / nodes, (lanes.groups or 0) / nodes)
        # With one worker left, more nodes hold no less.
        if takes.stalled * MIB <= machine.memory_bytes or workers == 1:
            break
        nodes, limit = nodes + max(1, nodes // 10), "memory"
    # The rate of a whole measurement may lie outside of those of most of its windows.
    low, high = min(core.low, core.rate), max(core.high, core.rate)
    return Size(
        workers_low=needed.per_s / (high * core.together),
        workers_high=needed.per_s / (low * core.together),
        cores=math.ceil(_up(wanted * core.cores)),
        nodes=nodes,
        workers_per_node=workers,
        limit=limit,
        lanes_for_planning=planning,
        lanes=lanes,
        memory=takes,
    )


def _up(number: float) -> float:
    """Return a number to be rounded up, without what floats added to it: 3.0000000000000004."""
    return round(number, 9) or 1e-9


def lanes_for(nodes: int, workers: int, planning: int, has: Lanes) -> Lanes:
    """Return the lanes of a job if they suit, else the least number that does and divides well.

    Args:
        nodes: Nodes.
        workers: Workers of each.
        planning: Lanes that planning needs.
        has: The lanes of the job.
    """
    least = max(planning, nodes * workers)
    if has.lanes >= least and _is_even(has.groups or has.lanes, nodes, workers):
        return has
    steps = range(LANES_STEP, MAX_LANES + 1, LANES_STEP)
    fitting = [lanes for lanes in (*SMALL_LANES, *steps) if lanes >= least] or [MAX_LANES]
    lanes = has.lanes
    if has.lanes < least or not (has.groups or _is_even(has.lanes, nodes, workers)):
        even = (lanes for lanes in fitting if _is_even(lanes, nodes, workers))
        lanes = next(even, fitting[-1])
    if has.groups is None:
        return Lanes(lanes, None)
    return _with_groups(lanes, fitting, nodes, workers)


def _with_groups(lanes: int, fitting: Sequence[int], nodes: int, workers: int) -> Lanes:
    """Return the least even number of groups that divides the lanes, or more lanes if none does."""
    for number in (lanes, *fitting):
        for lanes_each in range(number // (nodes * workers), 0, -1):
            groups = number // lanes_each
            if number % lanes_each == 0 and _is_even(groups, nodes, workers):
                return Lanes(number, groups)
    return Lanes(fitting[-1], fitting[-1])


def _is_even(parts: int, nodes: int, workers: int) -> bool:
    """Tell whether the busiest worker has little more than the others, and all of them have some.

    Args:
        parts: Lanes, or reading groups.
        nodes: They are dealt to so many nodes first,
        workers: and on each of these to so many workers.
    """
    if parts < nodes * workers:
        return False
    of_node = -(-parts // nodes)
    return -(-of_node // workers) * nodes * workers <= UNEVEN * parts


class Writes(NamedTuple):
    """What the nodes write into stores while a run goes on.

    Attributes:
        snapshots_per_s: Snapshots, at most.
        bytes_per_s: Bytes of them, at most.
    """

    snapshots_per_s: float
    bytes_per_s: float


def store_writes(
    batches_per_s: float, lanes: int, snapshot_bytes: int, every: int, seconds: float
) -> Writes:
    """Return what is written of lanes that restart from snapshots.

    Args:
        batches_per_s: Batches of all lanes.
        lanes: Lanes.
        snapshot_bytes: Bytes of a snapshot; 0 = none is written.
        every: Batches of a lane between two of them.
        seconds: Seconds between two writes; 0 = each at once.
    """
    if not snapshot_bytes:
        return Writes(0.0, 0.0)
    count = batches_per_s / every
    if seconds:
        count = min(count, lanes / seconds)
    return Writes(count, count * -(-snapshot_bytes // PAGE_BYTES) * PAGE_BYTES)
