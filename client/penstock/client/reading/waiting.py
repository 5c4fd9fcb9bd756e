"""A consumer waits for one batch: what it tells the nodes meanwhile, and when it gives up."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from penstock.client.calls.background_thread import log_in_background
from penstock.wire.errors import DataTimeout, PenstockError

logger = logging.getLogger("penstock")

LOG_EVERY_S = 30.0
"""A waiting consumer says so, with the reason, this often."""

PAUSE_S = 0.5
"""A waiting consumer looks up this often: a signal handler runs soon on every platform."""

REPORT_S = 0.005
"""A consumer that waits longer tells the server where it is, in case that holds a batch back for
want of room. What is made as fast as it is read comes sooner, and a message for each would cost
both sides."""


class Supply(Protocol):
    """Who fills slots, as a waiting consumer sees it; called on the consumer's thread."""

    def may_send(self, position: int) -> bool:
        """Tell whether every node knows that it may send `position`, as far as that is known."""
        ...

    def report(self, position: int, waited_s: float) -> None:
        """Send what the nodes must know so that `position` can come, and was held back so far."""
        ...

    def why(self) -> str:
        """Return what is waited for, in words."""
        ...

    def blocked(self, waited_s: float) -> PenstockError | None:
        """Return what keeps batches from coming, such as a node that is away; None = nothing."""
        ...


class BatchWait:
    """One wait, from now on.

    Args:
        job: The job's name, for messages.
        position: What is waited for.
        deadline_s: For how long.
        supply: Who brings it.
    """

    def __init__(self, job: str, position: int, deadline_s: float, supply: Supply) -> None:
        self._job, self._position, self._deadline_s = job, position, deadline_s
        self._supply, self._log_at = supply, LOG_EVERY_S
        self._began = time.monotonic()

    def so_far_s(self) -> float:
        """Return how long it has been."""
        return time.monotonic() - self._began

    def next_pause_s(self) -> float:
        """Tell the nodes and people what they must know; return how long to sleep until then.

        Raises:
            DataTimeout: It has been too long; says what is waited for.
            PenstockError: It has been too long, and this keeps batches from coming.
        """
        position, supply, waited = self._position, self._supply, self.so_far_s()
        may_come = supply.may_send(position)
        supply.report(position, waited)
        if waited >= self._deadline_s:
            raise supply.blocked(waited) or self._late(waited, supply.why())
        if waited >= self._log_at:
            self._log_at += LOG_EVERY_S
            log_in_background(
                logger.warning,
                "job %r: waiting %.0f s for the batch at position %d: %s",
                self._job,
                waited,
                position,
                supply.why(),
            )
        pause_s = PAUSE_S if may_come or waited >= REPORT_S else REPORT_S
        return max(0.0, min(pause_s, self._deadline_s - waited))

    def _late(self, waited: float, reason: str) -> PenstockError:
        return DataTimeout(
            f"the batch at position {self._position} of job {self._job!r} did not come within "
            f"{waited:.0f} s: {reason}; raise deadline_s= if that is to be expected",
            position=self._position,
            waited_s=round(waited, 3),
            reason=reason,
        )
