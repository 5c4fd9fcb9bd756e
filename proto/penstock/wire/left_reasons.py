"""Why consumers leave nodes, by the names that both ends count it under."""

from __future__ import annotations

from penstock.wire.v1 import feed_pb2

LEFT_REASONS = {
    value: name.removeprefix("LEFT_").lower() for name, value in feed_pb2.LeftBecause.items()
}
"""The name of each value of `LeftBecause`."""


def left_reason(because: int) -> str:
    """Return the name of a reason; `other` for one of a later version."""
    return LEFT_REASONS.get(because, LEFT_REASONS[feed_pb2.LEFT_OTHER])
