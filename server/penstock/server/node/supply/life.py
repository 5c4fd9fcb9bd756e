"""A node's event loop: its tasks, and whether it still gives out work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

logger = structlog.get_logger("penstock.node")


class Life:
    """What all parts of a node share of its life.

    Attributes:
        loop: The event loop in which everything of the node runs; set by `begin`.
        draining: It gives out no more work.
        on_fatal: Called where a bug has ended the node.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop
        self.draining = False
        self.on_fatal: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        """Take the running event loop."""
        self.loop = asyncio.get_running_loop()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run something beside all else; a bug in it ends the node."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self.fatal(error)

    def fatal(self, error: Exception) -> None:
        """End the node after a bug in its bookkeeping: readers go elsewhere, or wait for a restart.

        Going on would leave them waiting for tickets that nobody gives out any more.
        """
        logger.exception("a bug in the node; it ends", exc_info=error)
        self.draining = True
        self.on_fatal()

    async def end(self) -> None:
        """Cancel what runs, and wait for it."""
        self.draining = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
