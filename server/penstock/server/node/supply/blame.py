"""The ticket that the death of a worker is blamed on, by its last note."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.node.supply.worker_process import Ticket, WorkerProcess
from penstock.server.processes.page import Note
from penstock.wire.errors import WorkerCrashed


def blamed(
    worker: WorkerProcess, tickets: Sequence[Ticket], note: Note
) -> tuple[Ticket, str] | None:
    """Return the ticket that a worker's death is blamed on and what it was doing for it, in words.

    Args:
        worker: The worker, which is gone.
        tickets: The tickets that it had not answered, in their order.
        note: What it noted last.

    Returns:
        None if no ticket is to blame.
    """
    # Not the first: what is finished may not have been answered yet.
    guilty = next((ticket for ticket in tickets if ticket.is_of(note)), None)
    unsaid = note.stage in ("", "idle")
    if worker.fault is not None or (unsaid and worker.stuck_s is not None):
        # It answers in order: whatever was said amiss was said on behalf of the first one.
        guilty, unsaid = next(iter(tickets), None), True
    if guilty is None:
        return None
    if note.item is not None and guilty.is_of(note):
        return guilty, str(note.item)
    if not unsaid:
        return guilty, f"stage {note.stage}"
    if worker.fault is not None or worker.stuck_s is not None:
        return guilty, f"what was made for offset {guilty.offset}"
    return None


def sentence(ticket: Ticket, doing: str, deaths: int, how: str) -> WorkerCrashed:
    """Return the error of a lane that kills its workers.

    Args:
        ticket: What the last one was asked.
        doing: What it was doing.
        deaths: How many have ended over it.
        how: How the last one ended.
    """
    lane, name = ticket.lane.lane, ticket.log.job.name
    return WorkerCrashed(
        f"lane {lane} of job {name!r} stopped at offset {ticket.offset}: {doing} ended its worker "
        f"{deaths} times, at last {how}; remove or repair the item or the role, then restart the "
        "server",
        lane=lane,
        offset=ticket.offset,
        item=doing,
        deaths=deaths,
        how=how,
    )
