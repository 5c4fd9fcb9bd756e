"""How far ahead of its readers a node makes batches."""

from __future__ import annotations

CHEAP_S = 0.001
"""A ticket of a job that takes less is cheap. To wake another process costs as much, so cheap
tickets go to one worker whole, many at a time, and further ahead of readers."""

FAR_AHEAD, CHEAP_AHEAD = 2, 8
"""So many times as many positions are made ahead of readers where batches are small: the second
where they are cheap, too. A worker, the node and its reader then work on groups of 20 batches in
turn, and what one of them makes while the others come to their turn is needed."""


def is_cheap(ticket_s: float) -> bool:
    """Tell whether tickets that take so many seconds are cheap; 0 = not known, so they are not."""
    return 0.0 < ticket_s < CHEAP_S


def made_ahead(least: int, nbytes: int, batch_bytes: float, ticket_s: float) -> int:
    """Return how many positions are made ahead of a reader.

    Args:
        least: So many in any case.
        nbytes: What those beyond `least` may take, together with these.
        batch_bytes: What one batch takes.
        ticket_s: How long a worker takes for it.
    """
    most = (CHEAP_AHEAD if is_cheap(ticket_s) else FAR_AHEAD) * least
    return max(least, min(most, int(nbytes / max(1.0, batch_bytes))))


__all__ = ["CHEAP_AHEAD", "CHEAP_S", "FAR_AHEAD", "is_cheap", "made_ahead"]
