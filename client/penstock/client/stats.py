"""What a Loader did, in numbers: the share of time that training waited for data above all."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any


class Stats:
    """Counts of one Loader. The time before its first batch is no part of the waiting share."""

    def __init__(self) -> None:
        self.batches = 0
        self.padding_batches = 0
        self.skipped_batches = 0
        self.bytes = 0
        self.tokens = 0
        self.reconnects = 0
        self.first_batch_s: float | None = None
        self.wait_s = 0.0
        self._first_at = 0.0
        self._last_at = 0.0

    def waited(self, seconds: float) -> None:
        """Count time that the training loop spent waiting."""
        if self.first_batch_s is None:
            self.first_batch_s = seconds
        else:
            self.wait_s += seconds

    def yielded(self, nbytes: int, counts: Mapping[str, int], is_padding: bool) -> None:
        """Count a batch that goes to the training loop now."""
        self._last_at = time.monotonic()
        if self.batches == 0:
            self._first_at = self._last_at
        self.batches += 1
        self.padding_batches += is_padding
        self.bytes += nbytes
        self.tokens += counts.get("tokens", 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the counts, and the rates since the first batch."""
        elapsed = self._last_at - self._first_at
        later = max(0, self.batches - 1)

        def rate(amount: float) -> float:
            return amount / elapsed if elapsed > 0 else 0.0

        return {
            "batches": self.batches,
            "padding_batches": self.padding_batches,
            "skipped_batches": self.skipped_batches,
            "bytes": self.bytes,
            "tokens": self.tokens,
            "reconnects": self.reconnects,
            "first_batch_s": self.first_batch_s or 0.0,
            "wait_s": self.wait_s,
            "wait_share": min(1.0, rate(self.wait_s)),
            "batches_per_s": rate(later),
            "bytes_per_s": rate(self.bytes * later / self.batches) if self.batches else 0.0,
            "tokens_per_s": rate(self.tokens * later / self.batches) if self.batches else 0.0,
        }


__all__ = ["Stats"]
