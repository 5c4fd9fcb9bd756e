"""A Loader belongs to the process that made it."""

from __future__ import annotations

import os
import sys

from penstock.wire.errors import ForkedLoader


class _Forks:
    """How many forks lie between this process and the one that imported this module.

    Asked for every batch: a number in memory is much cheaper than the system call of `getpid`.
    """

    count = 0

    @classmethod
    def happened(cls) -> None:
        """Count a fork; runs in the child."""
        cls.count += 1


os.register_at_fork(after_in_child=_Forks.happened)


class ProcessGuard:
    """Remembers the process that made it and refuses to be used in any other.

    gRPC does not survive a fork: a child that used the connection would hang forever.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._forks = _Forks.count

    @property
    def at_home(self) -> bool:
        """Tell whether this is the process that made the Loader."""
        return _Forks.count == self._forks

    def check(self) -> None:
        """Refuse another process.

        Raises:
            ForkedLoader: This is a fork, or a worker of a torch DataLoader.
        """
        if in_dataloader_worker():
            raise ForkedLoader(
                "a penstock Loader was used inside a worker of a torch DataLoader: it prefetches "
                "in the background itself, so iterate it directly, or pass num_workers=0"
            )
        if not self.at_home:
            raise ForkedLoader(
                f"this Loader was opened in process {self.pid} and is used in its fork "
                f"{os.getpid()}, where its connection does not work: make the Loader after the "
                "fork",
                opened=self.pid,
                used=os.getpid(),
            )


def in_dataloader_worker() -> bool:
    """Tell whether this process is a worker of a torch DataLoader; never imports torch."""
    # A module that another thread is importing is already there, and has no functions yet.
    worker_info = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    return worker_info is not None and worker_info() is not None
