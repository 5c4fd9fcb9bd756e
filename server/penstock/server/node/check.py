"""What a worker may send: every message is checked against its tickets as it is received.

A role is foreign code in the worker's process: it may write to any file descriptor, fork, or damage
memory. So whatever none of our workers would send is refused here, before the node's books are
changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from penstock.server.core.reasons import RETRIES
from penstock.server.node.channel import Misspoken
from penstock.server.node.messages import (
    Cost,
    Counted,
    Done,
    FromWorker,
    GoneArena,
    JobFailed,
    Judge,
    LaneEnds,
    Libraries,
    LineFailed,
    NewArena,
    Planned,
    Snapshots,
    SnapshotsFailed,
    TicketFailed,
    VerifyFailed,
    Warned,
)
from penstock.server.node.page import STAGES
from penstock.wire.frame import MAX_HEADER_BYTES
from penstock.wire.order import MAX_POSITION
from penstock.wire.plain import clean_json, clean_text

MAX_TEXT = 8000
"""How many characters of a text are kept: an error's sentence, its fields, a warning."""

MAX_LIBRARIES = 64
"""Libraries whose versions are recorded."""


class Ticket(Protocol):
    """What the check asks of a ticket: whether plans answer it, or a batch does."""

    plans: bool


class Arena(Protocol):
    """What the check asks of an arena: how long it is, and where batches lie in it."""

    size_bytes: int
    starts: set[int]


def check(
    message: FromWorker,
    tickets: Mapping[int, Ticket],
    arenas: Mapping[int, Arena],
    logs: Collection[bytes],
) -> FromWorker:
    """Return a message as it may be acted upon: it fits what was asked, its texts clean and cut.

    Args:
        message: What came, of the right types.
        tickets: What this worker was asked and has not answered.
        arenas: What it has announced.
        logs: The logs whose jobs it was told of.

    Raises:
        Misspoken: None of our workers sends this.
    """
    match message:
        case Done():
            _ticket(message.ticket, tickets, plans=False)
            _body(message, arenas)
            return message  # nothing of it is text, and there is one for every batch
        case Cost():
            _cost(message, logs)
        case Planned():
            _ticket(message.ticket, tickets, plans=True)
            _need(bool(message.plans), "number of plans", 0)
        case Counted():
            _known(message.log_id, logs)
            _count(message.lane, "lane")
            _counters(message.counters)
            _counters(message.before)
        case LaneEnds():
            _known(message.log_id, logs)
            _count(message.lane, "lane")
            _count(message.batches, "number of batches")
            _counters(message.in_vain)
        case TicketFailed():
            _need(message.ticket in tickets, "ticket", message.ticket)
        case LineFailed() | JobFailed() | VerifyFailed() | Libraries() | Judge():
            _known(message.log_id, logs)
        case NewArena():
            lowest = next(n for n in range(len(arenas) + 1) if n not in arenas)
            _need(message.number == lowest, "number of an arena", message.number)
            size = message.size_bytes
            _need(0 < size < 1 << 46, "size of an arena", size)
        case GoneArena():
            gone = arenas.get(message.number)
            _need(gone is not None and not gone.starts, "number of an arena", message.number)
        case Snapshots():
            lines = [row.line for row in message.lines]
            _need(len(set(lines)) == len(lines), "list of lines", lines)
    return _cleaned(message)


def _cleaned(message: FromWorker) -> FromWorker:
    """Return a message whose texts have no control characters, and an end."""
    match message:
        case TicketFailed() | LineFailed() | JobFailed() | VerifyFailed() | SnapshotsFailed():
            text, fields = (
                clean_text(message.message, MAX_TEXT),
                clean_json(message.fields, MAX_TEXT),
            )
            return replace(message, message=text, fields=fields)
        case Warned():
            return Warned(clean_text(message.text, MAX_TEXT))
        case Libraries():
            return Libraries(message.log_id, _libraries(message.versions))
        case Judge():
            return _judge(message)
    return message


def _need(holds: bool, what: str, value: Any) -> None:
    if not holds:
        raise Misspoken(f"its {what} is {clean_text(repr(value), 100)}")


def _count(value: int, what: str) -> None:
    _need(0 <= value <= MAX_POSITION, what, value)


def _counters(counters: Mapping[str, int]) -> None:
    fits = all(-(1 << 63) <= count < 1 << 63 for count in counters.values())
    _need(fits, "counts", counters)


def _known(log_id: bytes, logs: Collection[bytes]) -> None:
    _need(log_id in logs, "log", log_id)


def _ticket(number: int, tickets: Mapping[int, Ticket], *, plans: bool) -> None:
    ticket = tickets.get(number)
    if ticket is None:
        raise Misspoken(f"its ticket is {number}")
    _need(ticket.plans is plans, "kind of answer to ticket", number)


def _body(message: Done, arenas: Mapping[int, Arena]) -> None:
    if (body := message.body) is not None:
        arena = arenas.get(body.arena)
        if arena is None:
            raise Misspoken(f"its arena is {body.arena}")
        _need(body.start not in arena.starts, "start of a batch", body.start)
        room = arena.size_bytes - body.start
        _need(0 < body.nbytes <= room, "number of bytes", body.nbytes)
        _need(body.completed_bytes > 0, "number of completed bytes", body.completed_bytes)
    _need(len(message.header) <= MAX_HEADER_BYTES, "header", len(message.header))
    _counters(message.counts)
    _counters(message.exits)


def _libraries(versions: Mapping[str, str]) -> dict[str, str]:
    _need(len(versions) <= MAX_LIBRARIES, "libraries", versions)
    return {clean_text(name, 100): clean_text(version, 100) for name, version in versions.items()}


def _judge(message: Judge) -> Judge:
    verdict = message.verdict
    texts = (verdict.item.source, verdict.content_hash, verdict.reason)
    _need(all(len(text) <= MAX_TEXT for text in texts), "verdict", verdict)
    # Its store gives it a number, and people release it.
    _need((verdict.number, verdict.released) == (0, None), "verdict", verdict)
    reason = clean_text(verdict.reason, MAX_TEXT)
    return replace(message, verdict=verdict._replace(reason=reason))


def _cost(cost: Cost, logs: Collection[bytes]) -> None:
    _known(cost.log_id, logs)
    _count(cost.batches, "number of batches")
    _count(cost.read_bytes, "number of bytes")
    _counters(cost.retries)
    _need(set(cost.retries) <= set(RETRIES), "retries", cost.retries)
    _count(cost.drawn, "number of draws")
    fits = all(stage in STAGES and 0 <= spent < 1e12 for stage, spent in cost.stages_s.items())
    _need(fits, "seconds by stage", cost.stages_s)


__all__ = ["MAX_TEXT", "check"]
