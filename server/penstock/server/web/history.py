"""A quarter of an hour of a node's rates, in memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from penstock.server.web.strip import strip

EVERY_S, KEPT_S = 5, 900

FRESH_S = 0.5
"""A status that is younger than this is shown again: ten viewers cost as much as one."""


class History:
    """The statuses of a node over time. Used by one thread.

    Args:
        status: Returns the node's status.
        clock: Seconds of a monotonic clock.
    """

    def __init__(
        self, status: Callable[[], dict[str, Any]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._status, self._clock = status, clock
        self._samples: deque[dict[str, Any]] = deque(maxlen=KEPT_S // EVERY_S)
        self._past: deque[dict[str, Any]] = deque(maxlen=2)
        self._now: tuple[float, dict[str, Any]] | None = None
        self._shown: dict[str, Any] | None = None

    def sample(self) -> None:
        """Take a sample; called every `EVERY_S` seconds."""
        status = self._status()
        if self._past:
            flows = strip(self._past[-1], status)
            jobs = {name: _short(flow) for name, flow in flows.items()}
            self._samples.append({"at": round(time.time(), 1), "jobs": jobs})
            self._shown = None
        self._past.append(status)

    def now(self) -> dict[str, Any]:
        """Return the status as it is now, and the strip of each job over the last seconds.

        It is the same object for all who ask within `FRESH_S`.
        """
        at = self._clock()
        if self._now is None or at - self._now[0] > FRESH_S:
            status = self._status()
            flows = strip(self._past[0], status) if self._past else {}
            self._now = at, {"status": status, "strip": flows, "at": round(time.time(), 1)}
        return self._now[1]

    def samples(self) -> dict[str, Any]:
        """Return what was sampled, the oldest first; the same object until the next sample."""
        if self._shown is None:
            self._shown = {"every_s": EVERY_S, "samples": list(self._samples)}
        return self._shown


def _short(flow: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what is kept of a strip: 180 of them are sent at once."""
    return {
        "tokens": flow["sent"]["tokens_per_s"],
        "batches": flow["sent"]["batches_per_s"],
        "ready": flow["ready"]["batches"],
        "wait": flow["wait_share"],
        "fill": flow["pack"]["fill"],
        "lag": flow["committed"]["lag_batches"],
    }
