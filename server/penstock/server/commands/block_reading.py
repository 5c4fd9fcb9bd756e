"""What `penstockd check` finds out about reading: a window of blocks, read as a worker does.

Glossary:
    read amplification: Bytes read from the source divided by bytes that the drawn items take there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from penstock.server.commands.progress import Say
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.job.role_set import RoleSet
from penstock.server.pipeline.draws_ahead import LOOK_AHEAD
from penstock.server.pipeline.items import Items
from penstock.server.planning.log.planned_log import PlannedLog, planned_log
from penstock.server.roles.reading import Reading
from penstock.wire.errors import BadItem

MAX_ITEMS = 4096
"""Items fetched of a window: where it has more, these are taken from all over it."""


@dataclass(frozen=True)
class WindowRead:
    """How a source of storage blocks is read.

    Attributes:
        groups: Reading groups, each read by one worker; 1 = all lanes draw from the same blocks.
        blocks_in_memory: Decoded blocks that a node holds for one reader, by all of its workers;
            where `groups` is 1, by each.
        mib_in_memory: Their size, about.
        blocks_read: Blocks that a window of one group was read from.
        amplification: Bytes read for it, divided by the bytes of these blocks: 1 = each once.
    """

    groups: int
    blocks_in_memory: int
    mib_in_memory: float
    blocks_read: int
    amplification: float

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def read_window(job: Job, items: Items, say: Say) -> WindowRead | None:
    """Read a window of blocks, as the lanes of one group draw from it, and count.

    It is taken from the middle of an epoch, and the source begins with nothing in memory.

    Args:
        job: The job.
        items: What fetches.
        say: Told how far it is.

    Returns:
        The counts, over all sets of roles that read blocks; None if no source has blocks, or none
        says how many bytes they have in storage.

    Raises:
        BadItem: An item cannot be read, and the job's policy is to stop.
        SourceUnavailable: A read failed to the deadline.
    """
    found = [_read_window(job, roles, items, say) for roles in job.role_sets]
    counts = [each for each in found if each is not None]
    if not counts:
        return None
    needed, read = sum(each.needed for each in counts), sum(each.read for each in counts)
    readings = [each.reading for each in counts]
    return WindowRead(
        groups=sum(reading.groups or 1 for reading in readings),
        blocks_in_memory=sum(reading.held for reading in readings),
        mib_in_memory=sum(reading.held * reading.block_bytes for reading in readings) / 2**20,
        blocks_read=sum(each.blocks for each in counts),
        amplification=read / needed if needed else 1.0,
    )


class _BlocksRead(NamedTuple):
    """What was read of a window of one set of roles: blocks, their bytes, and all that was read."""

    reading: Reading
    blocks: int
    needed: int
    read: int


def _read_window(job: Job, roles: RoleSet, items: Items, say: Say) -> _BlocksRead | None:
    if len(roles.readings) != 1:  # of several parts no window is read at once
        return None
    [reading] = roles.readings
    if reading.blocks is None or not reading.stored_bytes:
        return None
    sources = roles.blocked_sources(reading)
    stored: dict[str, Sequence[int]] = {}
    ends: dict[str, list[int]] = {}
    for name, source in zip(reading.sources, sources, strict=True):
        blocks = source.blocks()
        if blocks is None or blocks.stored is None:
            return None
        stored[name], ends[name] = blocks.stored, list(accumulate(blocks.items))
    refs = _draws_of_window(roles, reading)
    if not refs:
        return None
    roles.keep_blocks(reading, 0)
    roles.keep_blocks(reading, reading.blocks)
    for source in sources:
        source.read_bytes()
    for start in range(0, len(refs), LOOK_AHEAD):
        say(f"job {job.name}: a window of {reading.blocks} blocks, item {start} of {len(refs)}")
        _fetch(items, refs[start : start + LOOK_AHEAD])
    read = sum(source.read_bytes() for source in sources)
    roles.keep_blocks(reading, reading.held)
    touched = {
        (ref.source, bisect_right(ends[ref.source], ref.index))
        for ref in refs
        if ref.source in ends
    }
    needed = sum(stored[name][block] for name, block in touched)
    return _BlocksRead(reading, len(touched), needed, read)


def _draws_of_window(roles: RoleSet, reading: Reading) -> list[ItemRef]:
    """Return the draws in which a group goes on by as many blocks as it holds, or a part of them.

    Of a planned job, the items of its first batches.

    A part keeps their order, and is spread over all of them. None if the draws of a lane cannot
    begin in the middle of an epoch.
    """
    assert reading.blocks is not None
    if roles.planned is not None:
        return _draws_of_plan(planned_log(roles))
    lanes = range(0, roles.lanes, reading.groups or roles.lanes + 1)
    if reading.lanes is not None:
        return []
    if reading.groups is None:
        lanes = range(roles.lanes)
    count = reading.blocks * (roles.distributor.epoch_draws(1) or 0) // reading.all_blocks
    step = max(1, -(-count // MAX_ITEMS))
    first = (roles.distributor.epoch_draws(roles.lanes) or 0) // 2 if reading.groups else 0
    rounds = -(-count // len(lanes))
    opened = {lane: roles.distributor.open(lane, roles.lanes) for lane in lanes}
    if not all(draws.can_seek() for draws in opened.values()):
        return []
    found: list[ItemRef] = []
    for number in range(0, rounds * len(lanes), step):
        turn, index = divmod(number, len(lanes))
        draws = opened[lanes[index]]
        draws.seek(first + turn)
        if (item := draws.next()) is not None:
            found.append(item)
    return found


def _draws_of_plan(log: PlannedLog) -> list[ItemRef]:
    """Return the items of the first batches of a reading group, as its lanes take them in turn."""
    lanes, offset = log.lanes_of(0), 0
    found: list[ItemRef] = []
    while len(found) < MAX_ITEMS:
        plans = [
            log.plan(lane, offset)
            for lane in lanes
            if (end := log.known_end(lane)) is None or offset < end
        ]
        refs = [ref.item for plan in plans if plan for row in plan.rows for ref in row]
        if not refs:
            break
        found += dict.fromkeys(refs)
        offset += 1
    return found


def _fetch(items: Items, refs: list[ItemRef]) -> None:
    try:
        items.raws(refs)
    except BadItem:
        if items.job.on_item_error == "stop":
            raise
        for ref in refs if len(refs) > 1 else ():
            _fetch(items, [ref])
