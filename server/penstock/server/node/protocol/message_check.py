"""What a worker may send: every message is checked against its tickets as it is received.

A role is foreign code in the worker's process: it may write to any file descriptor, fork, or damage
memory. So whatever none of our workers would send is refused here, before the node's ledger is
changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from penstock.server.core.reasons import RETRIES
from penstock.server.core.verdict import Verdict
from penstock.server.media.media_cpu import MEDIA_STAGES
from penstock.server.media.video.frame_counts import FRAMES, OPENS
from penstock.server.node.protocol.channel import ProtocolError
from penstock.server.node.protocol.messages import (
    Body,
    Cost,
    CountsSaid,
    Done,
    Failed,
    FromWorker,
    GoneArena,
    JobFailed,
    LaneEnds,
    Libraries,
    LineFailed,
    NewArena,
    Planned,
    QuarantineItem,
    Snapshots,
    SnapshotsFailed,
    TicketFailed,
    VerifyFailed,
    Warned,
)
from penstock.server.processes.page import STAGES
from penstock.wire.plain import clean_json, clean_text

MAX_TEXT = 8000
"""How many characters of a text are kept: an error's sentence, its fields, a warning."""


class AskedTicket(Protocol):
    """What the check asks of a ticket: whether plans answer it, or a batch does."""

    plans: bool


class Arena(Protocol):
    """What the check asks of an arena: how long it is, and where batches lie in it."""

    size_bytes: int
    starts: set[int]


def check(
    message: FromWorker,
    tickets: Mapping[int, AskedTicket],
    arenas: Mapping[int, Arena],
    logs: Collection[bytes],
) -> None:
    """Refuse a message that does not fit what was asked; clean and cut the texts of one that does.

    Args:
        message: What came, of the right types and within their bounds.
        tickets: What this worker was asked and has not answered.
        arenas: What it has announced.
        logs: The logs whose jobs it was told of.

    Raises:
        ProtocolError: None of our workers sends this.
    """
    match message:
        case Done():
            _ticket(message.ticket, tickets, plans=False)
            if message.body is not None:
                _body(message.body, arenas)
        case Cost():
            _known(message.log_id, logs)
            _need(set(message.retries) <= set(RETRIES), "retries", message.retries)
            _need(set(message.stages_s) <= set(STAGES), "seconds by stage", message.stages_s)
            frames, cpu_s = message.video_frames, message.media_cpu_s
            _need(set(frames) <= {*OPENS, *FRAMES}, "counts of frames", frames)
            _need(all(count >= 0 for count in frames.values()), "counts of frames", frames)
            _need(set(cpu_s) <= set(MEDIA_STAGES), "processor seconds by stage", cpu_s)
        case Planned():
            _ticket(message.ticket, tickets, plans=True)
        case CountsSaid() | LaneEnds():
            _known(message.log_id, logs)
        case TicketFailed():
            _need(message.ticket in tickets, "ticket", message.ticket)
            _clean(message)
        case LineFailed() | JobFailed() | VerifyFailed():
            _known(message.log_id, logs)
            _clean(message)
        case SnapshotsFailed():
            _clean(message)
        case Libraries():
            _known(message.log_id, logs)
            message.versions = {
                clean_text(name, 100): clean_text(version, 100)
                for name, version in message.versions.items()
            }
        case QuarantineItem():
            _known(message.log_id, logs)
            _check_verdict(message)
        case Warned():
            message.text = clean_text(message.text, MAX_TEXT)
        case NewArena():
            lowest = next(n for n in range(len(arenas) + 1) if n not in arenas)
            _need(message.number == lowest, "number of an arena", message.number)
        case GoneArena():
            gone = arenas.get(message.number)
            _need(gone is not None and not gone.starts, "number of an arena", message.number)
        case Snapshots():
            lines = [row.line for row in message.lines]
            _need(len(set(lines)) == len(lines), "list of lines", lines)


def _clean(message: Failed) -> None:
    """Let an error's texts have no control characters, and an end."""
    message.message = clean_text(message.message, MAX_TEXT)
    message.fields = clean_json(message.fields, MAX_TEXT)


def _need(holds: bool, what: str, value: Any) -> None:
    if not holds:
        raise ProtocolError(f"its {what} is {clean_text(repr(value), 100)}")


def _known(log_id: bytes, logs: Collection[bytes]) -> None:
    _need(log_id in logs, "log", log_id)


def _ticket(number: int, tickets: Mapping[int, AskedTicket], *, plans: bool) -> None:
    ticket = tickets.get(number)
    if ticket is None:
        raise ProtocolError(f"its ticket is {number}")
    _need(ticket.plans is plans, "kind of answer to ticket", number)


def _body(body: Body, arenas: Mapping[int, Arena]) -> None:
    arena = arenas.get(body.arena)
    if arena is None:
        raise ProtocolError(f"its arena is {body.arena}")
    _need(body.start not in arena.starts, "start of a batch", body.start)
    _need(body.nbytes <= arena.size_bytes - body.start, "number of bytes", body.nbytes)


def _check_verdict(message: QuarantineItem) -> None:
    verdict = message.verdict
    texts = (verdict.item.source, verdict.content_hash, verdict.reason)
    _need(all(len(text) <= MAX_TEXT for text in texts), "verdict", verdict)
    # Its store gives it a number, and people release it.
    _need((verdict.number, verdict.released) == (0, None), "verdict", verdict)
    try:
        Verdict.decode(verdict.encode())
    except ValueError as error:
        raise ProtocolError(f"its verdict is {clean_text(repr(verdict), 100)}: {error}") from None
    message.verdict = verdict._replace(reason=clean_text(verdict.reason, MAX_TEXT))
