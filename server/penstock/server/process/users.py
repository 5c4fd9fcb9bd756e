"""Who uses a node that was started for them: it ends when nobody does any more."""

from __future__ import annotations

import asyncio
import fcntl
from types import TracebackType
from typing import Protocol, TextIO


class Users(Protocol):
    """Who a node was started for: a context, which is left when all of the node has ended."""

    def __enter__(self) -> Users:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let those who wait for the node's end go on."""

    def ready(self) -> None:
        """Tell them that the node can be called."""

    async def gone(self) -> None:
        """Return when nobody uses the node any more."""


class Lockers:
    """All processes that hold a lock on a file, as those that read from `spawn:` do.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: TextIO

    def __enter__(self) -> Lockers:
        """Open the file."""
        self._file = open(self._path, "w")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it, and so release its lock."""
        self._file.close()

    def ready(self) -> None:
        """Do nothing: they look for the node's socket."""

    async def gone(self) -> None:
        """Return once nobody holds a lock; the node's is kept until all of it has ended."""
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(0.1)
            else:
                return
