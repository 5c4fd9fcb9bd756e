"""Whether there is room for one more batch, and whose batches give way to it.

What is ready, lent, kept or being made is bounded in bytes. A reader that accepts far more than it
takes would fill that bound with its own batches, and keep all that is made for others beside them.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Collection

import structlog

from penstock.server.node.books import Log
from penstock.server.node.entry import Entry, State
from penstock.server.node.reader import Reader

logger = structlog.get_logger("penstock.node")

STALLED_S = 5.0
"""A reader that leaves what it is owed untaken for longer gives way to others, where memory is
short: half of a training step is not so long, and a checkpoint may be."""

GAVE_WAY = (
    "a reader that takes less than it asks for gives way: what was ready for it is made again when "
    "it comes to it"
)


def is_owed(entry: Entry) -> bool:
    """Tell whether a batch is made in any case: a reader is owed it, or it is only planned."""
    return entry.is_asked or any(reader.owed is entry for reader in entry.readers)


def lacks(log: Log, entry: Entry, busy_bytes: int) -> int:
    """Return how many bytes too many are in use for a batch to be made; 0 or less = none.

    Each reader may have one batch, which it is owed, above the bound. What is wanted only by
    readers that have stalled has half of the bound.

    Args:
        log: The books of its log.
        entry: The batch.
        busy_bytes: Bytes that are ready or reserved on the whole node.
    """
    bound, used_bytes = log.bound_bytes, busy_bytes + log.largest_bytes
    if is_owed(entry):
        bound += len(log.readers) * log.largest_bytes
    elif used_bytes > bound // 2 and _is_for_stalled(entry):
        bound //= 2
    return used_bytes - bound


def has_stalled(reader: Reader) -> bool:
    """Tell whether nothing but its consumer has kept a reader from taking a batch for long."""
    owed = reader.owed
    is_ready = owed is None or owed.state is State.READY
    return is_ready and time.monotonic() - reader.moved_at > STALLED_S


def _is_for_stalled(entry: Entry) -> bool:
    return all(has_stalled(reader) for reader in entry.readers)


def find_room(log: Log, entry: Entry, logs: Collection[Log]) -> bool:
    """Tell whether a batch may be made now; free what others need later, where that helps.

    Args:
        log: The books of its log.
        entry: The batch.
        logs: The books of all logs of the node.
    """
    busy_bytes = sum(other.busy_bytes for other in logs)
    if busy_bytes + log.largest_bytes > log.bound_bytes:
        # Also for what is always admitted: it goes above the bound, what is only kept does not.
        for other in logs:
            other.kept.shed()
        busy_bytes = sum(other.busy_bytes for other in logs)
    lacking = lacks(log, entry, busy_bytes)
    if lacking <= 0 or entry.is_asked:
        return True
    found = [(far, ready, other) for other in logs for far, ready in spare(other, entry)]
    found.sort(key=operator.itemgetter(0), reverse=True)
    for _, ready, other in found:
        if lacking <= 0:
            break
        lacking -= ready.nbytes
        _push_out(other, ready)
    return lacking <= 0 or is_owed(entry)


def spare(log: Log, entry: Entry) -> list[tuple[int, Entry]]:
    """Return what may be freed for a batch to be made: how far ahead it is, and what.

    It is ready for readers that need it later, never for the one that needs the batch soonest.
    Where nobody is owed the batch, only readers that have stalled give way.

    Args:
        log: The books of a log.
        entry: The batch, of this log or another.
    """
    waits = not is_owed(entry)
    stalled = {reader for reader in log.readers if has_stalled(reader)}
    if waits and (not stalled or _is_for_stalled(entry)):
        return []
    first = min(entry.readers, key=lambda reader: reader.urgency(entry), default=None)
    found = []
    for other in log.entries.values():
        if other.state is not State.READY or other.pins or not other.readers:
            continue
        if log.lanes[other.key.lane].error is not None:
            continue
        if waits and not other.readers <= stalled:
            continue
        nearest = min(other.readers, key=lambda reader: reader.urgency(other))
        far = nearest.urgency(other)
        if far and nearest is not first:
            found.append((far, other))
    return found


def _push_out(log: Log, entry: Entry) -> None:
    for reader in entry.readers:
        if not reader.gave_way:
            reader.gave_way = True
            logger.info(GAVE_WAY, job=log.job.name, position=reader.head, horizon=reader.horizon)
    log.push_out(entry)


__all__ = ["GAVE_WAY", "find_room", "has_stalled", "is_owed", "lacks", "spare"]
