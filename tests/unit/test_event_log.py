"""What the log tells of readers and groups: each event, and never a flood."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.server.rpc import event_log
from penstock.server.rpc.event_log import (
    BEGAN,
    JOINED,
    LEFT,
    LINES,
    MAX_LINES,
    MAX_PLACES,
    EventLog,
    ranges,
)


class Clock:
    """Time that a test lets pass, and what is to be called in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def later(self, wait_s: float, call: Callable[[], None]) -> None:
        """Call a function after so many seconds."""
        heapq.heappush(self._calls, (self.now + wait_s, next(self._numbers), call))

    def run_to(self, end: float) -> None:
        """Let time pass."""
        while self._calls and self._calls[0][0] <= end:
            self.now, _, call = heapq.heappop(self._calls)
            call()
        self.now = end


def told(run: Callable[[EventLog, Clock], None]) -> list[dict[str, Any]]:
    clock = Clock()
    with capture_logs() as lines:
        run(EventLog(lambda: clock.now, clock.later), clock)
    return [dict(line) for line in lines]


def test_a_thousand_ranks_that_join_are_some_lines() -> None:
    """The first are named one by one, the others in one line, and nobody is lost."""

    def join(tale: EventLog, clock: Clock) -> None:
        for rank in range(1000):
            tale.tell(JOINED, job="code", group="run", rank=rank, world_size=1000, peer="a")
        clock.run_to(60.0)

    lines = told(join)

    assert [line["rank"] for line in lines[:LINES]] == list(range(LINES))
    [sums] = lines[LINES:]
    assert (sums["event"], sums["count"], sums["ranks"]) == ("readers joined", 992, "8-999")
    assert (sums["job"], sums["group"], sums["world_size"]) == ("code", "run", 1000)
    assert not {"rank", "peer"} & sums.keys()


def test_a_reader_that_comes_and_goes_all_day_costs_a_line_in_five_minutes() -> None:
    """As long as it goes on the lines get rarer; when it has stopped it is told as before."""

    def flap(tale: EventLog, clock: Clock) -> None:
        for second in range(24 * 3600):
            clock.run_to(float(second))
            tale.tell(LEFT, job="code", group="run", rank=3, why="hung up")
        clock.run_to(clock.now + 1000)
        tale.tell(LEFT, job="code", group="run", rank=4, why="fenced")

    lines = told(flap)

    assert len(lines) < LINES + 24 * 3600 / event_log.MAX_WINDOW_S + 10
    assert sum(line.get("count", 1) for line in lines) == 24 * 3600 + 1
    assert lines[LINES]["why"] == "2 hung up"
    assert lines[-1]["event"] == "reader left"
    assert (lines[-1]["rank"], lines[-1]["why"]) == (4, "fenced")


def test_one_group_does_not_hide_another() -> None:
    """Also after more groups than are counted one by one."""

    def many(tale: EventLog, clock: Clock) -> None:
        for rank in range(100):
            tale.tell(JOINED, job="code", group="loud", rank=rank)
        tale.tell(JOINED, job="code", group="quiet", rank=0)
        for number in range(10 * MAX_PLACES):
            tale.tell(JOINED, job="code", group=f"g{number}", rank=0)
        clock.run_to(11.0)
        tale.tell(JOINED, job="code", group="late", rank=0)

    lines = told(many)

    assert [line for line in lines if line["group"] == "quiet" and line["rank"] == 0]
    assert [line for line in lines if line["group"] == "late" and line["rank"] == 0]
    assert len(lines) < 2 * LINES + MAX_PLACES + 10
    assert sum(line.get("count", 1) for line in lines) == 100 + 2 + 10 * MAX_PLACES


def test_groups_that_somebody_invents_do_not_fill_the_log() -> None:
    """Whoever may call names a new one each time, for an hour; nobody is lost."""

    def flood(tale: EventLog, clock: Clock) -> None:
        for number in range(36_000):
            clock.run_to(number / 10)
            tale.tell(BEGAN, job=f"j{number}", group=f"g{number}", rank=0)
            tale.tell(JOINED, job="code", group=f"g{number}", rank=0)
        clock.run_to(4000.0)

    lines = told(flood)

    assert len(lines) < 2 * 360 * (MAX_LINES + 1)
    assert sum(line.get("count", 1) for line in lines) == 2 * 36_000


def test_what_was_only_counted_is_told_at_the_end() -> None:
    """A node that ends in a flood says what there was, and a reader without a group has none."""

    def end(tale: EventLog, _: Clock) -> None:
        for rank in range(LINES + 2):
            tale.tell(LEFT, job="code", group="", rank=rank, why="the node shuts down", step=rank)
        tale.close()

    lines = told(end)

    assert (lines[-1]["event"], lines[-1]["count"]) == ("readers left", 2)
    assert lines[-1]["why"] == "2 the node shuts down"
    assert not any("group" in line for line in lines)


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [
        ([], ""),
        ([3], "3"),
        ([2, 1, 0, 5], "0-2, 5"),
        (range(0, 30, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18 and 5 more"),
    ],
)
def test_ranks_are_named_in_runs(numbers: list[int], shown: str) -> None:
    assert ranges(numbers) == shown
