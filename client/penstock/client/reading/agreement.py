"""What a node sends must agree with what its stream was opened with: nothing is mixed up silently.

The form of what comes was checked by `penstock.wire.frame`.
"""

from __future__ import annotations

from penstock.client.session.session import Session
from penstock.wire.errors import BadFrame, JobChanged
from penstock.wire.order import MAX_LANES, Order
from penstock.wire.v1 import feed_pb2


def check_opened(message: feed_pb2.Opened, session: Session, target: str) -> Order | None:
    """Return the order of an endless log; None = it is finite, and its lanes' ends are not known.

    Raises:
        JobChanged: The node serves another log.
        BadFrame: It says that the log has no lanes, or more than a log can have.
    """
    if message.log_id != session.log_id:
        raise JobChanged(
            f"job {session.job!r} at {target} is another log than the one "
            f"that was being read: {message.log_id.hex()[:12]}, not "
            f"{session.log_id.hex()[:12]}; serve the job as it was, or start a new group",
            log_id=message.log_id.hex(),
            expected=session.log_id.hex(),
        )
    if not 0 < message.lanes <= MAX_LANES:
        raise BadFrame(
            f"{target} says that job {session.job!r} has {message.lanes} lanes, and a log has from "
            f"1 to {MAX_LANES}; check that both sides run the same version"
        )
    # Where the lanes of a finite log end is the server's to know.
    is_finite = session.is_finite or message.HasField("batches")
    return None if is_finite else Order(message.lanes)


def check_batch(
    header: feed_pb2.BatchHeader, session: Session, horizon: int, order: Order | None
) -> None:
    """Refuse a batch that this rank did not ask for.

    Args:
        header: Its header, which is a header of a batch.
        session: What the stream was opened with.
        horizon: The first position that was not asked for.
        order: The order of an endless log.

    Raises:
        BadFrame: It is of another log, at another rank's position or beyond the horizon, or at
            another lane or offset than its position has.
    """
    position, share = header.position, session.share
    if header.log_id != session.log_id:
        raise BadFrame(
            f"the batch at position {position} is of log {header.log_id.hex()[:12]}, and the "
            f"stream of {session.log_id.hex()[:12]}: the node mixed up two jobs",
            position=position,
        )
    if not share.owns(position) or position >= horizon:
        raise BadFrame(
            f"position {position} was sent to rank {share.rank} of {share.world_size}, which did "
            f"not ask for it (horizon {horizon}); check that client and server are of the same "
            "version",
            position=position,
        )
    if share.is_filler(position) and not header.padding:
        raise BadFrame(
            f"the batch at position {position} belongs to another rank than {share.rank}, which "
            "was to get a blanked copy of it; check that client and server are of the same version",
            position=position,
        )
    if order is not None and order.lane_offset(position) != (header.lane, header.offset):
        raise BadFrame(
            f"the batch at position {position} says that it is offset {header.offset} of lane "
            f"{header.lane}, which is another position of {order.lanes} lanes; check "
            "that client and server are of the same version",
            position=position,
        )


def check_end(message: feed_pb2.End, session: Session, target: str) -> None:
    """Refuse an end where the log does not end.

    Raises:
        BadFrame: The node had described the log as longer or shorter.
    """
    is_unknown = session.is_finite and session.steps is None
    if not is_unknown and message.steps != session.steps:
        length = "endless" if session.steps is None else f"{session.steps} steps long"
        raise BadFrame(
            f"{target} ends job {session.job!r} after {message.steps} "
            f"steps, and described it as {length}: nothing is left "
            "out silently; check that both sides run the same version"
        )
