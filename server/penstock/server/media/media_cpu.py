"""Processor time of this process's threads, by what they do with media.

A stage within another one counts for itself alone, so the stages add up. What a library's own
threads take, such as those in which fsspec speaks with a store, is in none of them.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

FETCH, DECODE, CONVERT, COPY = MEDIA_STAGES = ("fetch", "decode", "convert", "copy")
"""Bytes from where they lie; pictures of them; pixels of pictures; these into a batch."""

_own = threading.local()
_adding = threading.Lock()
_spent_ns: Counter[str] = Counter()  # since it was taken


@contextmanager
def spending(stage: str) -> Iterator[None]:
    """Count the processor time that this thread takes meanwhile, but for that of inner stages."""
    outer: str | None = getattr(_own, "stage", None)
    _turn(stage)
    try:
        yield
    finally:
        _turn(outer)


def _turn(stage: str | None) -> None:
    """Count what went by for the stage that this thread was at, and begin another one."""
    now_ns = time.thread_time_ns()
    before: str | None = getattr(_own, "stage", None)
    if before is not None:
        with _adding:
            _spent_ns[before] += now_ns - _own.since_ns
    _own.stage, _own.since_ns = stage, now_ns


def take_media_cpu() -> dict[str, float]:
    """Return seconds by stage since the last call, of all threads of this process."""
    with _adding:
        found = {stage: spent / 1e9 for stage, spent in _spent_ns.items()}
        _spent_ns.clear()
    return found
