"""What `penstockd size` says: for people with ranges and round numbers, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock.server.commands.core_rate import CoreRate
from penstock.server.commands.meter import Metered, Rate
from penstock.server.commands.sheet import Sheet
from penstock.server.commands.side_by_side import SideBySide
from penstock.server.commands.sizing import Lanes, Machine, Needed, OneCore, Size, Writes
from penstock.server.metrics.wanted_nodes import HEAD_ROOM

IDLE = 0.7
"""Processor time by time below which a worker counts as one that waits."""


BUSY = 0.1
"""A share of the time in which others had the core, above which rates are told to be too low."""


@dataclass(frozen=True)
class Found:
    """All that the command prints.

    Attributes:
        job: The job's name.
        log_id: Hex.
        needed: What the ranks train.
        machine: What a node runs on.
        measured: What one core gave.
        rate: The same, of what is counted.
        core: The same, as it is reckoned with.
        together: What several processes gave.
        has: The lanes of the job.
        size: What the run needs.
        ready_bytes: The bound on ready batches of a node.
        writes: What all nodes write into their stores.
        notes: Sentences about what may surprise.
    """

    job: str
    log_id: str
    needed: Needed
    machine: Machine
    measured: CoreRate
    rate: Rate
    core: OneCore
    together: SideBySide
    has: Lanes
    size: Size
    ready_bytes: int
    writes: Writes
    notes: list[str]

    @property
    def memory_mib(self) -> float:
        """Return what a node takes while the ranks keep up; they never take more than stalled."""
        memory = self.size.memory
        return min(memory.keeping_up + self.needed.ranks * memory.reader, memory.stalled)

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        core, size, per_s = self.measured, self.size, self.needed.per_s
        measured = core.metered
        rank_bytes = self.needed.per_rank * self.core.wire_bytes
        return {
            "job": self.job,
            "log_id": self.log_id,
            "unit": self.needed.unit,
            "ranks": self.needed.ranks,
            "per_s_per_rank": self.needed.per_rank,
            "per_s": per_s,
            "measured": {
                "seconds": round(measured.seconds, 2),
                "left_out_s": round(core.left_out_s, 2),
                "windows": len(measured.windows),
                "batches": measured.batches,
                "lanes": measured.lanes,
                "whole_lanes": core.whole_lanes,
                "pools_filled": core.filled,
                "cpu_s": round(measured.cpu_s, 2),
                "queued_s": round(measured.queued_s, 2),
            },
            "core": {
                **{f"{name}_per_s": round(value, 3) for name, value in self.rate._asdict().items()},
                "planned_per_s": round(self.core.planned, 3),
                "cores_per_worker": round(self.core.cores, 2),
                "together": {
                    "processes": self.together.processes,
                    "share": round(self.core.together, 3),
                },
            },
            "head_room": HEAD_ROOM,
            "cores": {
                "low": round(size.workers_low * self.core.cores, 3),
                "high": round(size.workers_high * self.core.cores, 3),
                "with_head_room": size.cores,
            },
            "nodes": {
                "count": size.nodes,
                "decided_by": size.limit,
                "workers_each": size.workers_per_node,
                "cores_each": self.machine.cores,
                "memory_bytes_each": self.machine.memory_bytes,
            },
            "lanes": {
                "job": self.has.lanes,
                "job_reading_groups": self.has.groups,
                "for_planning": size.lanes_for_planning,
                "lanes": size.lanes.lanes,
                "reading_groups": size.lanes.groups,
            },
            "network": {
                f"bytes_per_{self.needed.unit.removesuffix('s')}": round(self.core.wire_bytes, 3),
                "rank_bytes_per_s": round(rank_bytes),
                "node_bytes_per_s": round(per_s * self.core.wire_bytes / size.nodes),
                "bytes_per_s": round(per_s * self.core.wire_bytes),
            },
            "memory": {
                **size.memory.to_json(),
                "ranks_keep_up": round(self.memory_mib, 1),
                "ready_bytes": self.ready_bytes,
            },
            "store": {name: round(value, 3) for name, value in self.writes._asdict().items()},
            "notes": self.notes,
        }


UNEVEN = 1.1
"""How much more than its part the busiest node may have before that is said."""


def notes_of(found: Found) -> Iterator[str]:
    """Yield sentences about what may surprise."""
    measured, size, machine = found.measured, found.size, found.machine
    if measured.filled is False:
        yield (
            f"pools were not full after {measured.left_out_s:.0f} s, so the rate is that of lanes "
            "that have just begun"
        )
    if found.rate.mean < 0.9 * found.rate.median:
        yield (
            f"some batches are much slower: the mean, {_rounded(found.rate.mean)} "
            f"{found.needed.unit}/s, is reckoned with in place of the median"
        )
    if found.core.cores > 1:
        yield (
            f"a worker keeps {found.core.cores:.1f} cores busy: roles or libraries start threads "
            "of their own"
        )
    yield from notes_of_core(measured.metered)
    if found.together.why_not:
        yield f"what workers give together was not measured: {found.together.why_not}"
    elif not found.together.processes:
        yield "one process was measured alone: cores that share caches and memory give less"
    if size.memory.stalled * 2**20 > machine.memory_bytes:
        yield (
            f"a node of {_gib(machine.memory_bytes)} is too small even with one worker: lower "
            f"ready_bytes ({_gib(found.ready_bytes)}), pools or windows"
        )
    if size.lanes != found.has:
        yield "lanes and reading groups are part of the log id: set them before a run begins"


def notes_of_units(has: Lanes, nodes: int) -> Iterator[str]:
    """Yield sentences about nodes that have no part of a run, or a smaller one than others.

    Args:
        has: The lanes of the job; those of a reading group are one node's.
        nodes: How many nodes there are.
    """
    units, unit, key = has.lanes, "lane", "lanes"
    if has.groups is not None:
        units, unit, key = has.groups, "reading group", "reading_groups"
    said = f"{units:,} {unit}{'' if units == 1 else 's'} for {nodes:,} nodes"
    if nodes > units:
        idle = nodes - units
        yield (
            f"{said}: {idle:,} of them get{'s' if idle == 1 else ''} nothing to do, since a {unit} "
            f"is made by one node; give the job {key}: {nodes:,} or a multiple of it, or take "
            f"{units:,} node{'' if units == 1 else 's'}"
        )
    elif nodes > 1 and -(-units // nodes) * nodes > UNEVEN * units:
        yield (
            f"{said}: some nodes get {-(-units // nodes):,} of them and others {units // nodes:,}, "
            f"and the run is as fast as the former; a multiple of {nodes:,} {key} is dealt evenly"
        )


def notes_of_core(measured: Metered) -> Iterator[str]:
    """Yield sentences about a core that waited, or that other programs used.

    A process that is ready to run and does not get a processor uses no processor time either, and
    more workers would only make it wait longer.
    """
    used_s = measured.cpu_s + measured.queued_s
    if used_s < IDLE * measured.seconds:
        yield (
            f"the core was idle {1 - used_s / measured.seconds:.0%} of the time, waiting for the "
            "source or for a role: more workers than cores make use of that"
        )
    if measured.queued_s > BUSY * measured.seconds:
        yield (
            f"other programs had the core {measured.queued_s / measured.seconds:.0%} of the time, "
            "so these rates are too low: measure on a machine that does nothing else"
        )


# --- for people -----------------------------------------------------------------------------------


def render(found: Found) -> str:
    """Return it as lines."""
    return Sheet(
        f"job {found.job}",
        list(_rows(found)),
        more=f"  log id {found.log_id[:16]}",
        notes=found.notes,
    ).text()


def _rows(found: Found) -> Iterator[tuple[str, str]]:
    needed, core, size, measured = found.needed, found.core, found.size, found.measured
    metered = measured.metered
    unit = needed.unit
    left_out = f"after the first {measured.left_out_s:.1f} s, in which pools fill"
    if measured.whole_lanes:
        left_out = "of whole lanes, from their first batch to their last"
    yield "measured", f"{metered.seconds:.0f} s on one core, {left_out}"
    if len(metered.windows) > 1:
        each = metered.seconds / len(metered.windows)
        yield (
            "one core",
            f"{_rounded(found.rate.median)} {unit}/s, the median of {len(metered.windows)} "
            f"windows of {each:.2g} s; {_rounded(core.low)} to {_rounded(core.high)} without the "
            "slowest and the fastest tenth",
        )
    else:
        yield "one core", f"{_rounded(found.rate.median)} {unit}/s; too few batches for a spread"
    if found.together.processes:
        count = found.together.processes
        yield f"{count} at once", f"each gives {core.together:.0%} of that"
    ranks = f"{needed.ranks:,} rank{'s' if needed.ranks > 1 else ''}"
    yield "needed", f"{_rounded(needed.per_s)} {unit}/s by {ranks}"
    low, high = (
        f"{_rounded(workers * core.cores, 2)}" for workers in (size.workers_low, size.workers_high)
    )
    between = low if low == high else f"{low} to {high}"
    yield "cores", f"{size.cores:,}: {between}, and {HEAD_ROOM - 1:.0%} of head room"
    yield "nodes", _nodes(found)
    yield "lanes", _lanes(found)
    sent = needed.per_s * core.wire_bytes
    yield (
        "network",
        f"{_rounded(core.wire_bytes)} bytes a {unit.removesuffix('s')}: "
        f"{_mb(needed.per_rank * core.wire_bytes)} to each rank, "
        f"{_mb(sent / size.nodes)} from each node, {_mb(sent)} in all",
    )
    yield (
        "memory of a node",
        f"{_gib(found.memory_mib * 2**20)} while ranks keep up, "
        f"{_gib(size.memory.stalled * 2**20)} where they do not "
        f"(ready_bytes: {_gib(found.ready_bytes)})",
    )
    if found.writes.snapshots_per_s:
        yield (
            "store",
            f"up to {_rounded(found.writes.snapshots_per_s, 2)} snapshots/s of all lanes, "
            f"{_rounded(found.writes.bytes_per_s / 1000, 2)} KB/s; and a write for each commit",
        )
    else:
        yield "store", "no snapshots; a write for each commit"


def _nodes(found: Found) -> str:
    size, machine = found.size, found.machine
    kind = f"{machine.cores} core{'s' if machine.cores > 1 else ''}"
    why = {
        "cores": "",
        "memory": "; memory decides",
        "network": "; what one server process sends decides",
    }[size.limit]
    return (
        f"{size.nodes:,} of {kind} and {_gib(machine.memory_bytes)}, with workers: "
        f"{size.workers_per_node}{why}"
    )


def _lanes(found: Found) -> str:
    size, has = found.size, found.has
    groups = "" if size.lanes.groups is None else f", reading_groups: {size.lanes.groups:,}"
    given = f"lanes: {size.lanes.lanes:,}{groups}"
    planned = _rounded(found.core.planned)
    why = (
        f"workers need {size.workers:,} at least, planning {size.lanes_for_planning:,} (one lane "
        f"is planned at {planned} {found.needed.unit}/s)"
    )
    if size.lanes == has:
        return f"{given}, as the job has: {why}"
    now = "" if has.groups is None else f" in {has.groups:,} reading groups"
    return f"{given}, where the job has {has.lanes:,}{now}: {why}"


def _rounded(number: float, digits: int = 3) -> str:
    """Return a number of so many digits: 412,000, 5.3, 0.042."""
    if not number or not math.isfinite(number):
        return "any number of" if number else "0"
    places = digits - 1 - math.floor(math.log10(abs(number)))
    return f"{round(number, places):,.{max(0, places)}f}"


def _mb(bytes_per_s: float) -> str:
    """Return a rate of bytes, and of bits as networks have them."""
    return f"{_rounded(bytes_per_s / 1e6, 2)} MB/s ({_rounded(bytes_per_s * 8 / 1e9, 2)} Gbit/s)"


def _gib(nbytes: float) -> str:
    return f"{_rounded(nbytes / 2**30, 2)} GiB"
