"""Which worker reads which group of lanes, and what others read of it; pure bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.server.roles.reading import Reading

ELSEWHERE_SHARE = 0.01
"""How much more may be read from storage so that batches are compared with another worker's."""


class GroupAssignment:
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
        """Deal the groups to these workers; if there are none they stay as they are."""
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
        for rank, worker in enumerate(
            sorted(workers, key=lambda worker: (-len(held[worker]), worker))
        ):
            quotas[worker] = least + (rank < more)
            free += held[worker][quotas[worker] :]
            del held[worker][quotas[worker] :]
        free.sort()
        for worker in sorted(workers):
            missing = quotas[worker] - len(held[worker])
            held[worker] += free[:missing]
            del free[:missing]
            for group in held[worker]:
                self._of[group] = worker

    def of(self, group: int) -> int | None:
        """Return the worker of a group; None before the first `settle`."""
        return self._of[group]


class LaneAssignment:
    """Which worker the lanes of one log belong to.

    Args:
        groups: The reading group of each lane, from 0 on without gaps; None = any worker may have
            the lane.
        readings: How the job's draws read its sources.
    """

    def __init__(self, groups: Sequence[int | None], readings: Sequence[Reading]) -> None:
        self._groups = groups
        highest = max((group for group in groups if group is not None), default=None)
        self._of_groups = None if highest is None else GroupAssignment(highest + 1)
        self._group_bytes = max(
            ((reading.blocks or 0) * reading.stored_bytes for reading in readings), default=0
        )
        self._read_bytes = 0  # since a batch was last made by a worker that is not its group's

    def settle(self, workers: Sequence[int]) -> None:
        """Deal the reading groups to these workers; if there are none they stay as they are."""
        if self._of_groups is not None:
            self._of_groups.settle(workers)

    def of(self, lane: int) -> int | None:
        """Return the worker that the lanes of this lane's reading group belong to.

        None = any worker may have any lane.
        """
        group = self._groups[lane]
        return None if self._of_groups is None or group is None else self._of_groups.of(group)

    def note_read(self, nbytes: int) -> None:
        """Note what a worker has read from storage."""
        self._read_bytes += nbytes

    def may_read_elsewhere(self) -> bool:
        """Tell whether a worker may make a batch of another one's group: it reads its blocks.

        Where that adds no more than `ELSEWHERE_SHARE` to what is read, as far as that is known;
        then it counts from here.
        """
        if self._of_groups is None:
            return True
        needed = self._group_bytes
        if not needed or self._read_bytes * ELSEWHERE_SHARE < needed:
            return False
        self._read_bytes = 0
        return True
