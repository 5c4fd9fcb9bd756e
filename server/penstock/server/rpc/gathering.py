"""For how long small batches wait for each other, to share a message."""

from __future__ import annotations

GATHER_S = 0.03
"""How old a stream's last message is, at most, when a small batch waits for others to share the
next: 33 messages a second are nothing to either side, and no training step notices the delay."""


def gathers_until(wrote_at: float, gathered: int, missing: int) -> float:
    """Return until when small batches wait for others to share their message.

    A message costs as much as several of them, on both sides, and where batches come one by one
    each would have one of its own. So they wait for each other until half of what the consumer
    accepts is here: it works on one half while the other is made. The first batch after a pause
    waits for nothing.

    Args:
        wrote_at: When the stream's last message was sent, in seconds.
        gathered: How many batches are here.
        missing: How many more the consumer accepts, none of which can be sent yet.

    Returns:
        A time on the clock of `wrote_at`; one that has passed = send at once.
    """
    return wrote_at + GATHER_S if gathered < missing else wrote_at


__all__ = ["GATHER_S", "gathers_until"]
