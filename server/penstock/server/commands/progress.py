"""One line on a terminal that says what a command is doing, and for how long already."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from penstock.wire.plain import plain

Say = Callable[[str], None]
"""Takes what is being done; each call replaces what the one before said."""

REDRAWN_PER_S = 4
"""Often enough that seconds pass smoothly, and too rarely to affect a measurement."""


def silent(doing: str) -> None:
    """Print nothing: the `Say` for output that is not a terminal."""


class Progress:
    """A line on stderr while a command works, removed at its end; nothing where output is piped.

    It is drawn where stdout and stderr are both terminals, so that neither a file nor a pager nor
    the output of a build gets any of it. What is printed meanwhile, by a user's code too, appears
    above it. A thread redraws it, so seconds pass even while one call takes long.

    Use it as a context manager; `say` is what measuring code is given.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._doing, self._since = "", clock()
        self._live: Live | None = None

    def say(self, doing: str) -> None:
        """Show what is being done, such as `items, 12 of 32`; the seconds count from the start."""
        self._doing = doing

    def __enter__(self) -> Progress:
        """Begin to show the line, if there is a terminal."""
        if watched():
            self._since = self._clock()
            self._live = Live(
                get_renderable=self._line,
                console=Console(stderr=True, highlight=False),
                refresh_per_second=REDRAWN_PER_S,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the line, before results or an error are printed."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self) -> Text:
        line = f"{plain(self._doing)}, {self._clock() - self._since:.0f} s"
        return Text(line if self._doing else "", style="dim", no_wrap=True, overflow="ellipsis")


def watched() -> bool:
    """Tell whether a person sees what this process prints: a terminal that can redraw a line."""
    return sys.stdout.isatty() and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
