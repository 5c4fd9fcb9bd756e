"""What others have done in a shared store: new generations, verdicts and halts, asked for in turn.

A node that shares its store with others ends readers of attempts that were fenced elsewhere, obeys
verdicts that were made elsewhere, and hears of lanes that stopped elsewhere. Polling is enough: a
fenced attempt cannot commit whether it has heard of it or not, so news that comes a second late
costs wasted work, never a wrong cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from penstock.server.core.verdict import Verdict
from penstock.server.store.base import Halt, Latest, Store
from penstock.wire.errors import StoreUnavailable

EVERY_S = 1.0
"""Seconds between two queries: fewer bring news sooner, and cost a query per log each time."""


class Listener:
    """Is told what has changed, in the event loop, including what this node did itself."""

    def verdicts(self, log_id: bytes, verdicts: Sequence[Verdict]) -> None:
        """Verdicts of a log were made or released; they come as they are now, by number."""

    def halted(self, log_id: bytes, halt: Halt) -> None:
        """A lane of a log has stopped at a node."""

    def moved_on(self, job: str, group: str, latest: Latest | None) -> None:
        """A group has another generation than the one that was followed; None = it is gone."""


class News:
    """Asks a store what is new in some logs and groups, and tells a listener.

    Every change is told once, in order, even if the store was away in between.

    Args:
        store: Open.
        listener: Told in the event loop that `look` or `start` was called in.
        every_s: How long `start` waits from one look to the next.
    """

    def __init__(self, store: Store, listener: Listener, *, every_s: float = EVERY_S) -> None:
        self._store, self._listener, self._every_s = store, listener, every_s
        self._logs: dict[bytes, int] = {}  # by log, the last change that was told
        self._groups: dict[tuple[str, str], int] = {}  # by group, the generation that is known
        self._task: asyncio.Task[None] | None = None

    async def follow_log(self, log_id: bytes, after: int | None = None) -> None:
        """Tell of a log's changes from now on.

        Args:
            log_id: The log.
            after: The number of the last change that is known; None = all until now are.
        """
        if after is None:
            after = (await self._store.news(log_id, None)).change
        self._logs[log_id] = after

    def follow_group(self, job: str, group: str, generation: int) -> None:
        """Tell when a group has another generation than this one."""
        self._groups[job, group] = generation

    def leave_group(self, job: str, group: str) -> None:
        """Stop following a group; idempotent."""
        self._groups.pop((job, group), None)

    async def look(self) -> None:
        """Query once, and tell what is new.

        Raises:
            StoreUnavailable: The store does not answer; the next look tells what this one missed.
        """
        for log_id, known in list(self._logs.items()):
            news = await self._store.news(log_id, known)
            self._logs[log_id] = news.change
            if news.verdicts:
                self._listener.verdicts(log_id, news.verdicts)
            for halt in news.halts:
                self._listener.halted(log_id, halt)
        followed = dict(self._groups)
        found = await self._store.latest(list(followed)) if followed else []
        for group, latest in zip(followed, found, strict=True):
            if self._groups.get(group) != followed[group]:
                continue  # it was left, or followed anew, during the query
            if latest is None:
                del self._groups[group]
            elif latest.generation != followed[group]:
                self._groups[group] = latest.generation
            else:
                continue
            self._listener.moved_on(*group, latest)

    def start(self) -> None:
        """Query at intervals, until `close`."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Stop; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(StoreUnavailable):  # the store's own watch reports it, once
                await self.look()
            await asyncio.sleep(self._every_s)


__all__ = ["EVERY_S", "Listener", "News"]
