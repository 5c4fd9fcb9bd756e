"""What a Loader holds open: the ways to its nodes, and its streams."""

from __future__ import annotations

import atexit
import contextlib
import threading
from collections.abc import Iterable

from penstock.client.calls.background_thread import Patience, in_background
from penstock.client.nodes.target_nodes import LoaderNodes, open_nodes
from penstock.client.reading.feed import Feed
from penstock.client.run.guard import ProcessGuard
from penstock.client.run.options import Options


class Resources:
    """What must be closed, apart from the Loader: its finalizer must not keep it alive.

    All of it takes locks of gRPC or of our own, so it is done in the background, where no signal
    interrupts it.
    """

    def __init__(self) -> None:
        self.guard = ProcessGuard()
        self.nodes: LoaderNodes | None = None
        self.feeds: set[Feed] = set()
        self._lock = threading.Lock()  # taken in the background only

    def connect(self, options: Options) -> LoaderNodes:
        """Return the nodes; open them first if necessary.

        Raises:
            PenstockError: See `open_nodes`.
        """

        def open_once(_: Patience) -> LoaderNodes:
            with self._lock:
                if self.nodes is None:
                    self.nodes = open_nodes(
                        options.address, options.job, grouped=options.group is not None
                    )
                return self.nodes

        if self.nodes is not None:
            return self.nodes
        _OPEN.add(self)
        return in_background(open_once)

    def close_feeds(self, but: Feed | None = None) -> None:
        """End every stream except one; idempotent."""
        ending = {feed for feed in tuple(self.feeds) if feed is not but}
        if not ending:
            return
        if self.guard.at_home:
            with contextlib.suppress(TimeoutError):
                in_background(lambda _: _end_all(ending), patience_s=JOIN_S)
        self.feeds.difference_update(ending)

    def close(self, *, waits: bool = True) -> None:
        """End the streams and the connection; idempotent. In a fork they are left to the parent.

        Args:
            waits: Return when it is done. The garbage collector must not wait: it may run on a
                thread that would then wait for itself.
        """
        if self.guard.at_home:
            with contextlib.suppress(TimeoutError):
                in_background(lambda _: self._close(), patience_s=-1 if waits else 0)

    def _close(self) -> None:
        feeds = tuple(self.feeds)
        _end_all(feeds)
        self.feeds.difference_update(feeds)
        with self._lock:
            nodes, self.nodes = self.nodes, None
            if nodes is not None:
                nodes.close()
        _OPEN.discard(self)


JOIN_S = 5.0
"""How long the end of a stream is waited for: it takes milliseconds."""

_OPEN: set[Resources] = set()


def _end_all(feeds: Iterable[Feed]) -> None:
    for feed in feeds:
        feed.cancel()
    for feed in feeds:
        feed.join(JOIN_S)


def _close_at_exit() -> None:
    """Close what is open: a thread of gRPC that still reads could keep the process from ending."""
    for resources in tuple(_OPEN):
        resources.close()


atexit.register(_close_at_exit)
