"""When a simulated device does what was queued: at random, at last, or in every order there is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Protocol


class Schedule(Protocol):
    """Decides, whenever the device could do something, what it does."""

    def choose(self, count: int, *, must: bool) -> int:
        """Return the number of a stream whose next work is done now, or -1 for none.

        Args:
            count: How many streams have work that events allow; at least 1.
            must: Somebody waits: it must be one of them.
        """
        ...


class Eager:
    """Everything is done as soon as it is queued."""

    def choose(self, count: int, *, must: bool) -> int:
        """Return the first."""
        return 0


class Lazy:
    """Nothing is done before somebody waits for it."""

    def choose(self, count: int, *, must: bool) -> int:
        """Return none, or the first."""
        return 0 if must else -1


class Random:
    """Anything is done at any time.

    Args:
        seed: The same seed and calls give the same order.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, count: int, *, must: bool) -> int:
        """Return one of them, or none."""
        return self._random.randrange(0 if must else -1, count)


class Tape:
    """What a list of numbers says; none is left = as `Lazy`. So a search can shrink a schedule.

    Args:
        numbers: Not negative; each is taken modulo the number of choices.
    """

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers

    def choose(self, count: int, *, must: bool) -> int:
        """Return what the next number says."""
        least = 0 if must else -1
        number = next(self._numbers, 0)
        return least + number % (count - least)


class _Replay:
    """The choices that are given, and the first one after them; notes how many there were."""

    def __init__(self, given: list[int]) -> None:
        self._given = given
        self.taken: list[tuple[int, int]] = []  # the choice, and of how many

    def choose(self, count: int, *, must: bool) -> int:
        """Return the given choice."""
        least = 0 if must else -1
        at = len(self.taken)
        choice = self._given[at] if at < len(self._given) else 0
        self.taken.append((choice, count - least))
        return least + choice


def every_schedule(scenario: Callable[[Schedule], None]) -> int:
    """Run a scenario once for every order in which the device can do its work; return how many.

    Args:
        scenario: Makes a device with the schedule, and uses it: the same calls whenever the
            schedule makes the same choices.
    """
    given: list[int] = []
    count = 0
    while True:
        replay = _Replay(given)
        scenario(replay)
        count += 1
        taken = replay.taken
        while taken and taken[-1][0] == taken[-1][1] - 1:
            taken.pop()
        if not taken:
            return count
        given = [choice for choice, _ in taken[:-1]] + [taken[-1][0] + 1]
