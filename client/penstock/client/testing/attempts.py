"""What the attempts of a training run were given, as an account that can fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Generation:
    """What one attempt of a group did.

    Attributes:
        start_step: Where it began.
        world_size: Its ranks.
        delivered: Rank -> positions that it was given, in order.
        answered: Rank -> the highest row that a commit of it was answered with.
    """

    start_step: int
    world_size: int
    delivered: dict[int, list[int]] = field(default_factory=dict)
    answered: dict[int, int] = field(default_factory=dict)


@dataclass
class Account:
    """What became of the positions that the attempts of a group were to be given.

    Attributes:
        lost: Positions of finished steps that no rank of their attempt got.
        repeated: Positions of finished steps that came twice.
        problems: What else is wrong, one sentence each.
    """

    lost: list[int] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass
class Attempts:
    """Every attempt of one group, in order.

    An attempt answers for the steps from its start to the start of the next one. What it was given
    beyond was of steps that it had not finished, and the next one reads them again.

    Attributes:
        batches_per_step: G of the group.
        generations: The attempts, the first one first.
    """

    batches_per_step: int
    generations: list[Generation] = field(default_factory=list)

    def account(self, cursor: int) -> Account:
        """Return what became of every position.

        Args:
            cursor: The group's cursor as the store has it now.
        """
        size, found = self.batches_per_step, Account()
        ends = [later.start_step for later in self.generations[1:]] + [cursor]
        for number, (one, end) in enumerate(zip(self.generations, ends, strict=True), 1):
            found.problems += self._problems(number, one, end)
            finished = Counter(
                position
                for positions in one.delivered.values()
                for position in positions
                if position < end * size
            )
            found.lost += [p for p in range(one.start_step * size, end * size) if not finished[p]]
            found.repeated += sorted(p for p, count in finished.items() if count > 1)
        return found

    def _problems(self, number: int, one: Generation, end: int) -> Iterator[str]:
        answered = [one.answered.get(rank, one.start_step) for rank in range(one.world_size)]
        if end < min(answered):
            yield f"generation {number}: answered commits were lost: {min(answered)} became {end}"
        first, size = one.start_step * self.batches_per_step, self.batches_per_step
        for rank, positions in sorted(one.delivered.items()):
            who = f"generation {number}, rank {rank} of {one.world_size}"
            if positions != sorted(set(positions)):
                yield f"{who}: a position came twice or out of order"
            wrong = [p for p in positions if p % size % one.world_size != rank or p < first]
            if wrong:
                yield f"{who} was given positions {wrong[:5]}, which are not for it"

    def check(self, cursor: int) -> None:
        """Check all attempts, and that the group's cursor is where answers left it.

        Raises:
            AssertionError: A position was lost or came twice, or anything else is wrong.
        """
        found = self.account(cursor)
        for what, positions in (("lost", found.lost), ("repeated", found.repeated)):
            if positions:
                found.problems.append(f"{what} positions: {positions[:5]}")
        if found.problems:
            raise AssertionError("; ".join(found.problems))


__all__ = ["Account", "Attempts", "Generation"]
