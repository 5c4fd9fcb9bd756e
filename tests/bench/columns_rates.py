"""Batches of ready ids for loaders that leave packing to their users, and how fast tokens came.

Only the standard library and NumPy are imported: interpreters without penstock run this, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from clock import Stopwatch
from text_rows import POOL, ROW, Waiting

HEIGHT = 4
"""Rows of a batch."""

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


class Packing:
    """Documents to batches of 4 rows of 8,192 ids, by best fit from 64 pieces."""

    def __init__(self) -> None:
        self._waiting, self._rows = Waiting(), list[list[Any]]()

    def add(self, ids: Any) -> Iterator[dict[str, Any]]:
        """Take in a document; yield the batches that are full by it.

        Args:
            ids: Its tokens, int32.
        """
        for start in range(0, len(ids), ROW):
            piece = ids[start : start + ROW]
            self._waiting.add(len(piece), piece)
        while len(self._waiting) >= POOL:
            self._rows.append(self._waiting.row())
            if len(self._rows) == HEIGHT:
                yield _batch(self._rows)
                self._rows = []


def _batch(rows: list[list[Any]]) -> dict[str, Any]:
    ids = np.zeros((HEIGHT, ROW), np.int32)
    seams, tokens = [0], 0
    for row, taken in enumerate(rows):
        place = 0
        for piece in taken:
            ids[row, place : place + len(piece)] = piece
            place += len(piece)
            seams.append(row * ROW + place)
        tokens += place
        if place < ROW:
            seams.append((row + 1) * ROW)
    return {"input_ids": ids, "cu_seq_lens": np.array(seams, np.int32), "tokens": tokens}


__all__ = ["Packing", "rates"]
