"""Failures on their way from a worker to the server process: made there, and read here."""

from __future__ import annotations

from penstock.server.node.protocol.messages import (
    Failed,
    FromServer,
    FromWorker,
    JobFailed,
    KnowJob,
    Learn,
    LineFailed,
    Make,
    OpenLine,
    PlanAhead,
    Produce,
    SnapshotsFailed,
    TakeSnapshots,
    TicketFailed,
    Verify,
    VerifyFailed,
    Warned,
)
from penstock.server.processes.child import told
from penstock.wire.errors import ERRORS, Internal, PenstockError


def failure_of(message: FromServer, error: PenstockError) -> FromWorker:
    """Return the answer to a message that a worker has failed over."""
    said = told(error)
    match message:
        case Produce() | PlanAhead() | Make():
            return TicketFailed(message.ticket, **said)
        case OpenLine():
            return LineFailed(message.line, message.log_id, **said)
        case KnowJob() | Learn():
            return JobFailed(message.log_id, **said)
        case Verify():
            return VerifyFailed(message.log_id, **said)
        case TakeSnapshots():
            return SnapshotsFailed(**said)
        case _:  # nobody waits for an answer
            return Warned(said["message"])


def error_of(message: Failed) -> PenstockError:
    """Return the error that such an answer carries."""
    return ERRORS.get(message.code, Internal).with_fields(message.message, message.fields)
