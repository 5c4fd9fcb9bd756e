"""How often episodes are drawn in an epoch: weights by task, and by the episodes' own numbers."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from penstock.common.nearest import hint
from penstock.server.core.shares import MAX_RATIO, exact
from penstock.server.roles.episode_table import EpisodeTable
from penstock.wire.errors import InvalidJob

_KEY = "distributor.weights"


class EpisodeWeights:
    """Weights as they were asked for.

    Args:
        asked: `tasks`: weights by the task's text. `episodes`: by the number that the data give an
            episode; it is taken before that of a task. None = all weigh 1.

    Raises:
        InvalidJob: It has another form, or a weight is not a number that can be.
    """

    def __init__(self, asked: Mapping[str, Any] | None) -> None:
        given = {} if asked is None else asked
        if not isinstance(given, Mapping) or not all(
            key in ("tasks", "episodes") and isinstance(part, Mapping)
            for key, part in given.items()
        ):
            raise InvalidJob(
                f"weights is {asked!r}: give weights by task, by episode, or both, such as "
                "{tasks: {open the drawer: 2}, episodes: {'17': 0}}",
                key=_KEY,
            )
        tasks, episodes = given.get("tasks", {}), given.get("episodes", {})
        self._tasks = {str(task): _weight(each, f"tasks.{task}") for task, each in tasks.items()}
        self._episodes = {
            _number(number): _weight(each, f"episodes.{number}")
            for number, each in episodes.items()
        }

    def of(self, tables: Mapping[str, EpisodeTable]) -> list[Fraction]:
        """Return the weight of each episode of some sources, one after another.

        Of an episode with several tasks that of the task that weighs most. What is not named weighs
        1.

        Raises:
            InvalidJob: There is no such task or episode, or no episode weighs more than 0.
        """
        self._check_known(tables)
        found = [
            self._weight_of(number, tasks)
            for table in tables.values()
            for number, tasks in zip(table.numbers.tolist(), table.tasks, strict=True)
        ]
        if not any(found):
            raise InvalidJob("weights leaves no episode: give one a weight above 0", key=_KEY)
        return found

    def _weight_of(self, number: int, tasks: tuple[str, ...]) -> Fraction:
        if number in self._episodes:
            return self._episodes[number]
        return max((self._tasks.get(task, _ONE) for task in tasks), default=_ONE)

    def _check_known(self, tables: Mapping[str, EpisodeTable]) -> None:
        if self._episodes and len(tables) > 1:
            raise InvalidJob(
                f"weights names episodes by their numbers, and sources "
                f"{', '.join(map(repr, tables))} number their own each: name one with source, or "
                "weigh tasks",
                key=f"{_KEY}.episodes",
            )
        numbers = {number for table in tables.values() for number in table.numbers.tolist()}
        if unknown := self._episodes.keys() - numbers:
            raise InvalidJob(
                f"weights names episode {min(unknown)}, and the {len(numbers):,} episodes of the "
                f"data have numbers from {min(numbers)} to {max(numbers)}",
                key=f"{_KEY}.episodes.{min(unknown)}",
            )
        known = {task for table in tables.values() for tasks in table.tasks for task in tasks}
        for task in self._tasks:
            if task not in known:
                raise InvalidJob(
                    f"weights names a task {task!r} that no episode has: {hint(task, known)}",
                    key=f"{_KEY}.tasks.{task}",
                )

    def parameters(self) -> dict[str, Any]:
        """Return what decides draws, with weights as exact numbers; empty = all weigh 1."""
        found = {
            "tasks": {task: str(weight) for task, weight in sorted(self._tasks.items())},
            "episodes": {str(n): str(weight) for n, weight in sorted(self._episodes.items())},
        }
        return {key: part for key, part in found.items() if part}


_ONE = Fraction(1)


def _weight(asked: Any, name: str) -> Fraction:
    found = exact(asked)
    if found is None or not 0 <= found <= MAX_RATIO:
        raise InvalidJob(
            f"the weight {name} is {asked!r}: give a number from 0 to {MAX_RATIO:,}; 0 leaves "
            "episodes out, 2 draws each of their frames twice in an epoch",
            key=f"{_KEY}.{name}",
        )
    return found


def _number(asked: Any) -> int:
    if isinstance(asked, str) and asked.isdecimal():
        return int(asked)
    if isinstance(asked, bool) or not isinstance(asked, int):
        raise InvalidJob(
            f"weights names an episode {asked!r}: give the number that the data give it",
            key=f"{_KEY}.episodes",
        )
    return asked
