"""How long to wait before trying again."""

from __future__ import annotations

import random


class Backoff:
    """Waits that double up to a bound, half of each at random.

    The first wait is short: most breaks are a server that restarts or a connection that was moved.
    The jitter keeps thousands of ranks, which all notice the same break, from coming back at the
    same instant.

    Args:
        first_s: The bound of the first wait, in seconds.
        longest_s: The bound that the waits grow to, in seconds.
        rng: Where the jitter comes from: a generator of our own, never the trainer's global one.
    """

    def __init__(
        self, first_s: float = 0.05, longest_s: float = 2.0, rng: random.Random | None = None
    ) -> None:
        self.first_s, self.longest_s = first_s, longest_s
        self._rng = rng or random.Random()  # seeded by the system: ranks must not wait in step
        self._bound_s = first_s

    def next_s(self) -> float:
        """Return the next wait in seconds, between half of the bound and the bound."""
        bound = self._bound_s
        self._bound_s = min(self.longest_s, bound * 2)
        return bound * (0.5 + 0.5 * self._rng.random())

    def reset(self) -> None:
        """Start over with the first wait: something worked."""
        self._bound_s = self.first_s
