"""How many decoded blocks a process needs, for the groups and positions that its lines read."""

from __future__ import annotations

from collections import Counter

from penstock.server.roles.reading import Reading

IDLE_ROUNDS = 8
"""A line that was not asked for while all others were, so many times, keeps no blocks: its reader
may be gone. If it is not, its blocks are read again."""


class BlockNeeds:
    """Counts the decoded blocks that one job's lines in this process need.

    Lines of one group read the same blocks, unless they serve readers that are far apart: then a
    lane has several lines, and each of them counts.

    Args:
        reading: How the job's source is read.
    """

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self._lines: dict[int, tuple[int, int]] = {}  # by number: its lane, and when it was used
        self._now = 0

    def use(self, line: int, lane: int) -> bool:
        """Note that a line goes on; tell whether `blocks` may be another number now."""
        if not self.reading.draws(lane):
            return False
        new = line not in self._lines
        self._now += 1
        self._lines[line] = lane, self._now
        return new or self._now % len(self._lines) == 0

    def close(self, line: int) -> bool:
        """Note that a line is closed; tell whether it was one of these."""
        return self._lines.pop(line, None) is not None

    def blocks(self) -> int | None:
        """Return how many decoded blocks are needed at a time; None = not known."""
        if self.reading.blocks is None:
            return None
        since = self._now - IDLE_ROUNDS * len(self._lines)
        per_lane = Counter(lane for lane, used in self._lines.values() if used > since)
        if self.reading.groups is None:
            needed = self.reading.blocks * max(per_lane.values(), default=1)
            return min(needed, self.reading.all_blocks)
        per_group: dict[int | None, int] = {}
        for lane, lines in per_lane.items():
            group = self.reading.group(lane)
            per_group[group] = max(lines, per_group.get(group, 0))
        return self.reading.blocks * max(1, sum(per_group.values()))
