"""How fast the tokens of a pre-tokenized job came, once all is warm."""

from __future__ import annotations

from collections.abc import Iterator

from clock import Stopwatch

WARM_TOKENS, TOKENS = 20_000_000, 60_000_000
"""How many are read before the clock starts, and after that, at least."""


def rates(counts: Iterator[int], servers: int) -> dict[str, float]:
    """Read batches and return how fast their tokens came.

    Args:
        counts: The tokens of each batch, as it comes.
        servers: The process whose tree serves this one; 0 where children of this one do.
    """
    seen = warm = 0
    watch: Stopwatch | None = None
    for count in counts:
        seen += count
        if watch is None and seen >= WARM_TOKENS:
            warm, watch = seen, Stopwatch(servers)
        elif watch is not None and seen - warm >= TOKENS:
            found = watch.per_million(seen - warm)
            return {**found, "m_tokens_per_s": found["tokens_per_s"] / 1e6}
    raise RuntimeError(f"the data ended after {seen} tokens")


__all__ = ["rates"]
