"""What a node logs about readers and groups: every event, but never a flood of messages."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog

logger = structlog.get_logger("penstock.rpc")

LINES, WINDOW_S = 8, 10.0
"""This many events of a kind about a group are logged one by one within this many seconds."""

MAX_WINDOW_S = 300.0
"""Further events are summed up in a message after 10, 20, 40, ... seconds, and then at this
interval: a reader that reconnects all day costs a message in five minutes."""

MAX_LINES = 64
"""This many events of a kind are logged one by one within `WINDOW_S`, whatever groups they are
about: who may call may invent the names of groups."""

MAX_PLACES = 256
"""Groups that are counted each on its own; further ones share their messages."""

MAX_RANKS = 10
"""Runs of ranks that a message names."""


class EventKind(NamedTuple):
    """A kind of event: the message about a single one, and that about several."""

    single: str
    many: str


JOINED = EventKind("reader joined", "readers joined")
LEFT = EventKind("reader left", "readers left")
BEGAN = EventKind("generation began", "generations began")
MOVED = EventKind("cursor moved", "cursors moved")
NAMED = EventKind("checkpoint named", "checkpoints named")
DELETED = EventKind("group deleted", "groups deleted")
FENCED = EventKind("readers fenced", "readers fenced several times")
REFUSED = EventKind("an attempt was refused: a newer one has taken over", "attempts were refused")
TURNED_AWAY = EventKind("a run was refused", "runs were refused")
HOLDS = EventKind("a reader holds its share of what may be lent", "readers hold their share")
UNCHECKED = EventKind("a reader was not checked", "readers were not checked")


@dataclass
class _RecentEvents:
    """Recent events of a kind about a group.

    Attributes:
        ends_s: When the window ends.
        length_s: How long it is.
        told: Messages that were logged in it; LINES or more = further events are only counted.
        last: The fields of the last event without a message.
    """

    ends_s: float
    length_s: float = WINDOW_S
    told: int = 0
    count: int = 0
    ranks: set[int] = field(default_factory=set)
    whys: Counter[str] = field(default_factory=Counter)
    last: dict[str, Any] = field(default_factory=dict)


_Key = tuple[EventKind, str, str]  # kind, job, group

Later = Callable[[float, Callable[[], None]], Any]
"""Calls a function after so many seconds."""


class EventLog:
    """Logs events about groups.

    Each is a message as long as there are few; events beyond `LINES` within `WINDOW_S` are counted
    and summed up, so that 1,000 ranks that join are a few messages, too.

    Args:
        clock: A monotonic clock, in seconds.
        later: How to be called at a window's end; None = by the running event loop.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, later: Later | None = None
    ) -> None:
        self._clock, self._later = clock, later
        self._windows: dict[_Key, _RecentEvents] = {}
        self._single: dict[EventKind, tuple[float, int]] = {}  # until when, and how many since

    def tell(
        self, event: EventKind, *, job: str, group: str, level: str = "info", **fields: Any
    ) -> None:
        """Write an event, or count it.

        Args:
            event: Its kind.
            job: The job's name.
            group: The group's name; empty = the readers without one.
            level: `info` or `warning`.
            fields: Further fields. `rank` and `why` are summed up if there are many.
        """
        now = self._clock()
        key = self._key(event, job, group, now)
        window = self._window(key, now)
        if (window is None or window.told < LINES) and self._may_be_single(event, now):
            if window is None:
                window = self._windows[key] = _RecentEvents(now + WINDOW_S)
            window.told += 1
            _write(level, event.single, {"job": job, "group": group, **fields})
            return
        if window is None:
            key = event, "", ""
            window = self._window(key, now)
            if window is None:
                window = self._windows[key] = _RecentEvents(now + WINDOW_S, told=LINES)
        if not window.count and window.length_s == WINDOW_S:
            self._at_the_end(key, window, window.ends_s - now)
        window.count += 1
        window.last = {"job": job, "group": group, "level": level, **fields}
        if "rank" in fields:
            window.ranks.add(fields["rank"])
        if "why" in fields:
            window.whys[fields["why"]] += 1

    def close(self) -> None:
        """Log what was only counted so far: the node ends."""
        for key, window in self._windows.items():
            self._sum_up(key[0], window)
        self._windows.clear()

    def _window(self, key: _Key, now: float) -> _RecentEvents | None:
        """Return what is counted at a place; None = nothing, and it was quiet for a while."""
        window = self._windows.get(key)
        return None if window is None or (window.ends_s <= now and not window.count) else window

    def _may_be_single(self, event: EventKind, now: float) -> bool:
        """Tell whether one more event of a kind gets a message of its own, and count it."""
        ends_s, count = self._single.get(event, (now, 0))
        if ends_s <= now:
            ends_s, count = now + WINDOW_S, 0
        self._single[event] = ends_s, count + 1
        return count < MAX_LINES

    def _key(self, event: EventKind, job: str, group: str, now: float) -> _Key:
        key = event, job, group
        if key in self._windows or len(self._windows) < MAX_PLACES:
            return key
        for old in [k for k, w in self._windows.items() if w.ends_s <= now and not w.count]:
            del self._windows[old]
        return key if len(self._windows) < MAX_PLACES else (event, "", "")

    def _at_the_end(self, key: _Key, window: _RecentEvents, wait_s: float) -> None:
        later = self._later or asyncio.get_running_loop().call_later
        later(max(0.0, wait_s), lambda: self._end(key, window))

    def _end(self, key: _Key, window: _RecentEvents) -> None:
        """End a window with too much in it, and begin a longer one in which all is counted."""
        if self._windows.get(key) is not window:
            return
        del self._windows[key]
        if not window.count:
            return  # it was quiet: the next event gets a message of its own again
        self._sum_up(key[0], window)
        length_s = min(2 * window.length_s, MAX_WINDOW_S)
        longer = _RecentEvents(self._clock() + length_s, length_s, told=LINES)
        self._windows[key] = longer
        self._at_the_end(key, longer, length_s)

    def _sum_up(self, event: EventKind, window: _RecentEvents) -> None:
        if not window.count:
            return
        fields = dict(window.last)
        level = fields.pop("level")
        if window.ranks:
            fields.pop("rank", None)
            fields["ranks"] = ranges(window.ranks)
        if window.whys:
            fields["why"] = ", ".join(f"{n} {why}" for why, n in window.whys.most_common(5))
        for name in ("peer", "position", "step", "sent_batches", "after_s"):
            fields.pop(name, None)  # of one of them alone
        _write(level, event.many, {**fields, "count": window.count, "within_s": window.length_s})


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as `0-3, 7`; after some runs how many more there are."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    shown = ["-".join(map(str, run)) for run in runs[:MAX_RANKS]]
    more = sum(run[-1] - run[0] + 1 for run in runs[MAX_RANKS:])
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _write(level: str, event: str, fields: dict[str, Any]) -> None:
    told = {name: value for name, value in fields.items() if value != ""}  # as of no group
    (logger.warning if level == "warning" else logger.info)(event, **told)
