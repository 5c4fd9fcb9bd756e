"""When a process of penstock's own looks for garbage: seldom while it starts.

What a start makes are modules, which stay. Looking through all of them again and again, as Python
does by default after every 700 new objects, took 7 % of a start's CPU time, and 15 % of
`import datasets`. Nothing here imports more than the standard library has in memory.
"""

from __future__ import annotations

import gc

SELDOM = (100_000, 50, 1000)
"""The thresholds while a process starts: what code of users leaves behind is found all the same."""

_usual = gc.get_threshold()


def collect_seldom() -> None:
    """Look for garbage seldom; `collect_as_usual` ends it. For processes of penstock's own."""
    gc.set_threshold(*SELDOM)


def collect_as_usual() -> None:
    """Look for garbage as usual, but not among what is there already: the start has made it."""
    gc.freeze()
    gc.set_threshold(*_usual)
