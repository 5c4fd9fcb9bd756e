"""How fast a text job's tokens came: from the very first batch on, and once all is warm."""

from __future__ import annotations

import time
from collections.abc import Iterator

from clock import Stopwatch

COLD_TOKENS = 48 * 8192
"""A row of each lane of a job with the default number of lanes."""

WARM_TOKENS = 10 * COLD_TOKENS
"""From here on what starts a job no longer shows."""

TOKENS = 6_000_000
"""How many are read after that, at least."""


def rates(counts: Iterator[int], began: float, servers: int) -> dict[str, float]:
    """Read batches and return how fast their tokens came.

    Args:
        counts: The tokens of each batch, as it comes.
        began: When reading was asked for, by `time.perf_counter`.
        servers: The process whose tree serves this one; 0 where children of this one do.

    Returns:
        `first_s` from `began` to the first batch; `cold_tokens_per_s` from `began` until
        `COLD_TOKENS` are there; of those after `WARM_TOKENS` what `Stopwatch.per_million` returns.
    """
    found: dict[str, float] = {}
    seen = warm = 0
    watch: Stopwatch | None = None
    for number, count in enumerate(counts, 1):
        seen += count
        if number == 1:
            found["first_s"] = time.perf_counter() - began
        if "cold_tokens_per_s" not in found and seen >= COLD_TOKENS:
            found["cold_tokens_per_s"] = seen / (time.perf_counter() - began)
        if watch is None and seen >= WARM_TOKENS:
            warm, watch = seen, Stopwatch(servers)
        elif watch is not None and seen - warm >= TOKENS:
            return {**found, **watch.per_million(seen - warm)}
    raise RuntimeError(f"the data ended after {seen} tokens")


__all__ = ["COLD_TOKENS", "TOKENS", "WARM_TOKENS", "rates"]
