"""Whether there is room for one more batch, and whose batches give way to it.

What is ready, lent, kept or being made is bounded in bytes. A reader that accepts far more than it
takes would fill that bound with its own batches, and keep all that is made for others beside them.
"""

from __future__ import annotations

import heapq
import operator
import time
from collections.abc import Collection, Iterator

import structlog

from penstock.server.node.demand.ledger import Log
from penstock.server.node.demand.wanted import BatchState, Demand, WantedBatch

logger = structlog.get_logger("penstock.node")

STALLED_S = 5.0
"""A reader that leaves what it is owed untaken for longer gives way to others, where memory is
short: half of a training step is not so long, and a checkpoint may be."""

MAX_PASSED = 16
"""Ready batches of one reader that are passed over in search of one that may be freed: what others
need sooner, too, may not."""

GAVE_WAY = (
    "a reader that takes less than it asks for gives way: what was ready for it is made again when "
    "it comes to it"
)


def is_urgent(entry: WantedBatch) -> bool:
    """Tell whether a batch is made in any case: a reader is owed it, or it is only planned."""
    return entry.is_asked or any(reader.next_pending is entry for reader in entry.readers)


def lacks(log: Log, entry: WantedBatch, busy_bytes: int) -> int:
    """Return how many bytes too many are in use for a batch to be made; 0 or less = none.

    Each reader may have one batch, which it is owed, above the bound. What is wanted only by
    readers that have stalled has half of the bound.

    Args:
        log: The ledger of its log.
        entry: The batch.
        busy_bytes: Bytes that are ready or reserved on the whole node.
    """
    bound, used_bytes = log.bound_bytes, busy_bytes + log.largest_bytes
    if is_urgent(entry):
        bound += len(log.readers) * log.largest_bytes
    elif used_bytes > bound // 2 and is_for_stalled(entry):
        bound //= 2
    return used_bytes - bound


def has_stalled(reader: Demand) -> bool:
    """Tell whether nothing but its consumer has kept a reader from taking a batch for long."""
    pending = reader.next_pending
    is_ready = pending is None or pending.state is BatchState.READY
    return is_ready and time.monotonic() - reader.moved_at > STALLED_S


def is_for_stalled(entry: WantedBatch) -> bool:
    """Tell whether nobody wants a batch but readers that have stalled."""
    return all(has_stalled(reader) for reader in entry.readers)


def find_room(log: Log, entry: WantedBatch, logs: Collection[Log]) -> bool:
    """Tell whether a batch may be made now; free what others need later, where that helps.

    Args:
        log: The ledger of its log.
        entry: The batch.
        logs: The ledger of all logs of the node.
    """
    if log.decodes_videos and not log.largest_bytes and not is_urgent(entry):
        return False  # windows of frames take 100 MB and more: the first batch tells how much room
    busy_bytes = sum(other.busy_bytes for other in logs)
    if busy_bytes + log.largest_bytes > log.bound_bytes:
        # Also for what is always admitted: it goes above the bound, what is only kept does not.
        for other in logs:
            other.cached.shed()
        busy_bytes = sum(other.busy_bytes for other in logs)
    lacking = lacks(log, entry, busy_bytes)
    if lacking <= 0 or entry.is_asked:
        return True
    found = spare(entry, logs)
    while lacking > 0 and (farthest := next(found, None)) is not None:
        _, ready, other = farthest
        lacking -= ready.nbytes
        _push_out(other, ready)
    return lacking <= 0 or is_urgent(entry)


def spare(entry: WantedBatch, logs: Collection[Log]) -> Iterator[tuple[int, WantedBatch, Log]]:
    """Yield what may be freed for a batch to be made, the farthest ahead of its readers first.

    It is ready for readers that need it later, never for the one that needs the batch soonest.
    Where nobody is owed the batch, only readers that have stalled give way. To find each costs
    about as much as there are readers, whatever they want.

    Args:
        entry: The batch.
        logs: The ledger of all logs of the node.

    Yields:
        How far ahead it is, what may be freed, and the ledger of its log.
    """
    waits = not is_urgent(entry)
    if waits and is_for_stalled(entry):
        return
    first = entry.nearest if entry.readers else None
    each = [
        _spare_of(log, reader, first, waits)
        for log in logs
        for reader in log.readers
        if reader is not first and (not waits or has_stalled(reader))
    ]
    yield from heapq.merge(*each, key=operator.itemgetter(0), reverse=True)


def _spare_of(
    log: Log, reader: Demand, first: Demand | None, waits: bool
) -> Iterator[tuple[int, WantedBatch, Log]]:
    """Yield what may be freed of what is ready for one reader, the farthest first."""
    passed = 0
    for entry in reader.ready.ascending():
        nearest = entry.nearest
        far = nearest.urgency(entry)
        stays = entry.pins or log.lanes[entry.key.lane].error is not None
        if far and not stays and nearest is not first and (not waits or is_for_stalled(entry)):
            yield far, entry, log
            continue
        passed += 1
        if passed > MAX_PASSED:
            return


def _push_out(log: Log, entry: WantedBatch) -> None:
    for reader in entry.readers:
        if not reader.gave_way:
            reader.gave_way = True
            logger.info(GAVE_WAY, job=log.job.name, position=reader.head, horizon=reader.horizon)
    log.push_out(entry)
