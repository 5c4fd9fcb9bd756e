"""How fast tokens came, from the very first batch on and once all is warm."""

from __future__ import annotations

import time
from collections.abc import Iterator

COLD_BATCHES = 48
"""One batch of each lane of a job with the default number of lanes."""


def rates(counts: Iterator[int], began: float, tokens: int, warm: int) -> dict[str, float]:
    """Read batches and return how fast their tokens came.

    Args:
        counts: The tokens of each batch, as it comes.
        began: When reading was asked for, by `time.perf_counter`.
        tokens: How many tokens to read, at least, after the warm-up.
        warm: Batches of warm-up; 0 = the rate counts from `began` on.

    Returns:
        `tokens_per_s` after the warm-up; from `began` on `first_s`, the seconds to the first batch,
        `cold_s`, those to the last of `COLD_BATCHES`, and `cold_tokens_per_s` up to there.
    """
    found: dict[str, float] = {}
    seen, base, start = 0, 0, began
    for number, count in enumerate(counts, 1):
        seen += count
        now = time.perf_counter()
        if number == 1:
            found["first_s"] = now - began
        if number == COLD_BATCHES:
            found["cold_s"] = now - began
            found["cold_tokens_per_s"] = seen / (now - began)
        if number == warm:
            base, start = seen, now
        if number > max(warm, COLD_BATCHES) and seen - base >= tokens:
            break
    found["tokens_per_s"] = (seen - base) / (time.perf_counter() - start)
    return found


__all__ = ["COLD_BATCHES", "rates"]
