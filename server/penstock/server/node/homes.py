"""Which worker reads which group of lanes: books alone, no processes."""

from __future__ import annotations

from collections.abc import Sequence


class Homes:
    """Deals reading groups to the workers that take part, in equal numbers to within one.

    A group stays where it is unless its worker has gone, or has more than its part: what it has
    decoded lies there. Neighbouring groups go to one worker where that can be, for the blocks that
    they share.

    Args:
        groups: How many groups there are.
    """

    def __init__(self, groups: int) -> None:
        self._of: list[int | None] = [None] * groups
        self._workers: list[int] = []

    def settle(self, workers: Sequence[int]) -> None:
        """Deal the groups to these workers; where there is none they stay as they were."""
        if not workers or workers == self._workers:
            return
        self._workers = list(workers)
        held: dict[int, list[int]] = {worker: [] for worker in workers}
        free: list[int] = []
        for group, worker in enumerate(self._of):
            (free if worker is None else held.get(worker, free)).append(group)
        least, more = divmod(len(self._of), len(workers))
        quotas: dict[int, int] = {}
        # Those that have most keep the groups that go beyond the equal part.
        for rank, one in enumerate(sorted(workers, key=lambda one: (-len(held[one]), one))):
            quotas[one] = least + (rank < more)
            free += held[one][quotas[one] :]
            del held[one][quotas[one] :]
        free.sort()
        for one in sorted(workers):
            missing = quotas[one] - len(held[one])
            held[one] += free[:missing]
            del free[:missing]
            for group in held[one]:
                self._of[group] = one

    def of(self, group: int) -> int | None:
        """Return the worker of a group; None before the first `settle`."""
        return self._of[group]


__all__ = ["Homes"]
