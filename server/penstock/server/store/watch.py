"""What a node logs about its store: once when it fails, and once when it is back."""

from __future__ import annotations

import asyncio
import time

import structlog

from penstock.server.store.contract import Store
from penstock.wire.errors import PenstockError, StoreCorrupt, StoreUnavailable

logger = structlog.get_logger("penstock.store")

PROBE_S, QUIET_S = 1.0, 3.0
"""Seconds between two tries of a failing store, and for how long no call may fail before it counts
as back: on a full disk small writes succeed between large ones that fail, and reading always
works."""


class StoreWatch:
    """Logs once that the store fails, and once that it is back, and how long it was away.

    Every call that fails is retried or answered by name; the node's output needs neither each of
    them nor a line for each try.

    Args:
        store: What is watched.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._failed_at: float | None = None
        self._last = 0.0
        self._calls = 0
        self._damaged = False
        self._probing: asyncio.Task[None] | None = None

    def failed(self, error: PenstockError) -> None:
        """Take the error of a call; in the event loop."""
        if isinstance(error, StoreCorrupt):
            if not self._damaged:  # it will not recover by itself
                self._damaged = True
                logger.error("the store is damaged", store=self._store.where, error=error.message)
            return
        if not isinstance(error, StoreUnavailable):
            return
        self._last = time.monotonic()
        self._calls += 1
        if self._failed_at is None:
            self._failed_at, self._calls = self._last, 1
            logger.error("the store fails", store=self._store.where, error=error.message)
            self._probing = asyncio.get_running_loop().create_task(self._probe())

    def away_s(self) -> float:
        """Return for how long the store has failed without a break; 0 while it answers."""
        return 0.0 if self._failed_at is None else time.monotonic() - self._failed_at

    async def close(self) -> None:
        """Stop watching."""
        probing, self._probing = self._probing, None
        if probing is not None:
            probing.cancel()
            await asyncio.gather(probing, return_exceptions=True)

    async def _probe(self) -> None:
        assert self._failed_at is not None
        while True:
            await asyncio.sleep(PROBE_S)
            try:
                await self._store.probe()
            except StoreUnavailable:
                self._last = time.monotonic()
                continue
            except StoreCorrupt as error:
                self.failed(error)
                return
            now = time.monotonic()
            if now - self._last >= QUIET_S:
                break
        logger.info(
            "the store is back",
            store=self._store.where,
            after_s=round(now - self._failed_at, 1),
            failed_calls=self._calls,
        )
        self._failed_at = None
