"""Which job is set up in which worker before anybody reads it: the ledger alone, no processes.

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
        at: By worker, the log whose job it is setting up now.
    """

    def __init__(self) -> None:
        self.at: dict[int, bytes] = {}
        self._proven: set[bytes] = set()
        self._left: set[bytes] = set()

    def begin(self, worker: int, logs: Iterable[bytes], known: Collection[bytes]) -> bytes | None:
        """Return the log whose job a worker sets up from now on; None = none.

        Args:
            worker: Its slot.
            logs: The node's logs, in order.
            known: Those whose jobs it knows already.
        """
        if worker in self.at:
            return None
        for log_id in logs:
            tried = log_id in self._proven or log_id not in self.at.values()
            if log_id not in known and log_id not in self._left and tried:
                self.at[worker] = log_id
                return log_id
        return None

    def done(self, worker: int) -> None:
        """Note that a worker has set up its job: others may, too."""
        self._proven.add(self.at.pop(worker))

    def failed(self, worker: int) -> bytes | None:
        """Note that it could not, or has ended; return the log: its readers have it set up now."""
        log_id = self.at.pop(worker, None)
        if log_id is not None:
            self._left.add(log_id)
        return log_id
