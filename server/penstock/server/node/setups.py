"""Which job is set up in which worker before anybody reads it: books alone, no processes.

To import what roles need, to load a tokenizer and to open the data takes a job's first reader up to
seconds, and nobody else: so idle workers do it ahead. What has failed, hung or ended a worker there
is left to the job's readers, who are told; and until one worker has done it no second one tries, so
that it costs one worker at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable


class Setups:
    """What is set up ahead, and what is not any more.

    Attributes:
        at: By worker, the job that it is setting up now.
    """

    def __init__(self) -> None:
        self.at: dict[int, str] = {}
        self._proven: set[str] = set()
        self._left: set[str] = set()

    def begin(self, worker: int, jobs: Iterable[str], known: Collection[str]) -> str | None:
        """Return the job that a worker sets up from now on; None = none.

        Args:
            worker: Its slot.
            jobs: The node's jobs, in order.
            known: Those that it knows already.
        """
        if worker in self.at:
            return None
        for job in jobs:
            tried = job in self._proven or job not in self.at.values()
            if job not in known and job not in self._left and tried:
                self.at[worker] = job
                return job
        return None

    def done(self, worker: int) -> None:
        """Note that a worker has set up its job: others may, too."""
        self._proven.add(self.at.pop(worker))

    def failed(self, worker: int) -> str | None:
        """Note that it could not, or has ended; return the job, which nobody sets up ahead now."""
        job = self.at.pop(worker, None)
        if job is not None:
            self._left.add(job)
        return job


__all__ = ["Setups"]
