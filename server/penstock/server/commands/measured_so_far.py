"""How far `penstockd index` is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from penstock.server.commands.progress import REDRAWN_PER_S, watched
from penstock.server.commands.say import say
from penstock.server.planning.make.making import MakingProgress

LINE_EVERY_S = 10.0
"""Seconds between two lines in a log."""

RATE_OVER_S = 30.0
"""Rates are of the last so many seconds: items differ."""


class _Rate(ProgressColumn):
    """How many items a second were measured of late."""

    def render(self, task: Task) -> Text:
        """Return the column."""
        return Text("" if task.speed is None else f"{task.speed:,.0f} items/s")


class Watched:
    """Shows how far the making of an index is; use it as a context manager.

    Args:
        clock: Seconds, for the lines.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._bar: Progress | None = None
        self._said_s = self._began_s = clock()
        self._at_first = -1

    def __enter__(self) -> Watched:
        """Begin to show it."""
        if watched():
            self._bar = Progress(
                BarColumn(),
                TextColumn("{task.completed:,} of {task.total:,} items"),
                _Rate(),
                TimeRemainingColumn(),
                console=Console(stderr=True, highlight=False),
                speed_estimate_period=RATE_OVER_S,
                refresh_per_second=REDRAWN_PER_S,
                transient=True,
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bar, before results or an error are printed."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def watch(self, done: MakingProgress) -> None:
        """Take how far it is."""
        if self._bar is not None:
            if self._at_first < 0:  # what earlier commands have found is no part of the rate
                self._bar.reset(self._task, total=done.items, completed=done.measured)
                self._at_first = done.measured
            self._bar.update(self._task, completed=done.measured)
            return
        now = self._clock()
        if self._at_first < 0:
            self._at_first, self._began_s, self._said_s = done.measured, now, now
        if now - self._said_s >= LINE_EVERY_S and done.measured < done.items:
            self._said_s = now
            say(line(done, self._at_first, now - self._began_s), error=True)

    def warn(self, sentence: str) -> None:
        """Print a sentence."""
        say(f"penstockd: {sentence}", error=True)


def line(done: MakingProgress, at_first: int, seconds: float) -> str:
    """Return how far it is as a line of a log.

    Args:
        done: How far it is.
        at_first: How many items were measured when the command began.
        seconds: How long ago that was.
    """
    share = f"{100 * done.measured // max(1, done.items)} %"
    said = f"indexed {done.measured:,} of {done.items:,} items ({share})"
    rate = (done.measured - at_first) / seconds
    if rate <= 0:
        return said
    left_s = (done.items - done.measured) / rate
    return f"{said}, {rate:,.0f} items/s, {_time(left_s)} left"


def _time(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
