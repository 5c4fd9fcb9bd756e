"""How far ahead of its readers a node makes batches."""

from __future__ import annotations

CHEAP_S = 0.001
"""A ticket of a job that takes less is cheap. To wake another process costs as much, so cheap
tickets go to one worker whole, many at a time, and further ahead of readers."""

FAR_AHEAD, CHEAP_AHEAD = 2, 8
"""So many times as many positions are made ahead of readers where batches are small: the second
where they are cheap, too. A worker, the node and its reader then work on groups of 20 batches in
turn, and what one of them makes while the others come to their turn is needed."""

AHEAD_PER_WORKER = 4
"""Positions beyond a reader's horizon that are made, for each worker. Batches take unlike times, so
a reader that accepts four ahead of a slow one left workers without work: text went 1.2 times as
fast with this."""

AHEAD_BYTES = 4 << 20
"""Where batches are small, several times as many positions are made ahead for each worker, as long
as they take no more than this: half of the batches of a text job take 0.5 ms, and others, which
draw long documents, 100 ms. With 4 positions a text job with two workers and its reader kept 1.7 of
two cores busy, with 8 and with 16 1.9."""


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


def batches_beyond(workers: int, batch_bytes: float) -> int:
    """Return how many batches so many workers make beyond a reader's horizon, where it is most."""
    nbytes = AHEAD_BYTES * workers
    return made_ahead(AHEAD_PER_WORKER * workers, nbytes, batch_bytes, ticket_s=CHEAP_S / 2)
