"""How many batches a consumer fetches ahead by default: both halves use it."""

LEAST_AHEAD, MOST_AHEAD, AHEAD_BYTES = 4, 64, 8 << 20
"""Batches ahead of the one in use: the first number whatever their size, and as many more as the
bytes hold, up to the second. A message, a wake-up and a hand-over to another thread cost the same
for one batch and for many, so small ones must be able to come many at a time. With 4 a reader of
batches of 1 KB got 0.3 times as many in a second as with 64, of 200 KB on one host 0.4 times as
many as with 41; twice as many ahead gave no more (`make bench NAMES=prefetch`, 2 cores)."""


def fitting_ahead(batch_bytes: float) -> int:
    """Return how many batches are fetched ahead.

    Args:
        batch_bytes: What one of them takes; 0 = not known yet.
    """
    if not batch_bytes:
        return LEAST_AHEAD
    return max(LEAST_AHEAD, min(MOST_AHEAD, int(AHEAD_BYTES / batch_bytes)))
