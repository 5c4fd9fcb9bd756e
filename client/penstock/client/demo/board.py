"""What is known about a run while it runs: the play writes it, and displays read it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

WINDOW_S = 3.0
"""Seconds: rates are averages over the last so many."""

QUIET_S = 0.7
"""A rank without a message for this long is shown as waiting."""


@dataclass
class RankRow:
    """One rank process, as it is shown."""

    rank: int
    world_size: int
    pid: int
    step: int = 0
    batches: int = 0
    tokens_per_s: float = 0.0
    wait_share: float = 0.0
    reconnects: int = 0
    heard_at: float = 0.0
    state: str = "starting"


@dataclass
class ServerRow:
    """The loader node, as it is shown."""

    address: str = ""
    pid: int = 0
    state: str = "not started"
    starts: int = 0
    workers: int = 0
    busy: int = 0
    ready_batches: int = 0
    ready_bytes: int = 0


@dataclass
class Board:
    """A run in numbers.

    Attributes:
        title: What is read.
        until_step: How many steps the run has.
        batches_per_step: G.
        compared: How many batches were compared; None = the ranks still read.
    """

    title: str
    until_step: int
    batches_per_step: int
    server: ServerRow = field(default_factory=ServerRow)
    ranks: list[RankRow] = field(default_factory=list)
    finished_steps: int = 0
    batches: int = 0
    tokens: int = 0
    padding: int = 0
    compared: int | None = None
    phase: str = ""
    story: list[tuple[float, str]] = field(default_factory=list)
    began_at: float = field(default_factory=time.monotonic)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)
    _first_at: float | None = None
    _last_at: float = 0.0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the demo began."""
        return time.monotonic() - self.began_at

    @property
    def efficiency(self) -> float | None:
        """Tokens divided by tokens and padding, so far."""
        total = self.tokens + self.padding
        return self.tokens / total if total else None

    @property
    def wanted(self) -> int:
        """How many batches the run has."""
        return self.until_step * self.batches_per_step

    def mean_tokens_per_s(self) -> float:
        """Return the rate from the first batch to the last, over all ranks, outages included."""
        span = self._last_at - (self._first_at or 0.0)
        return self.tokens / span if self._first_at is not None and span > 0 else 0.0

    def tokens_per_s(self) -> float:
        """Return the rate of the last seconds, over all ranks."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        span = min(WINDOW_S, now - self._recent[0][0]) if self._recent else 0.0
        return sum(tokens for _, tokens in self._recent) / max(span, 0.25)

    def batch(self, row: RankRow, record: Any) -> None:
        """Take in a batch that a rank has got."""
        tokens = int(record["counts"].get("tokens", 0))
        self.batches += 1
        self.tokens += tokens
        self.padding += int(record["counts"].get("padding_tokens", 0))
        now = time.monotonic()
        self._recent.append((now, tokens))
        self._first_at = self._first_at or now
        self._last_at = now
        row.batches += 1
        row.step, row.heard_at, row.state = int(record["step"]), now, "reading"
        row.tokens_per_s = float(record["tokens_per_s"])
        row.wait_share, row.reconnects = float(record["wait_share"]), int(record["reconnects"])

    def rank_state(self, row: RankRow) -> str:
        """Return what a rank is doing, as far as one can tell from outside."""
        if row.state == "reading" and time.monotonic() - row.heard_at > QUIET_S:
            return "no server" if self.server.state != "serving" else "waiting"
        return row.state


__all__ = ["Board", "RankRow", "ServerRow"]
