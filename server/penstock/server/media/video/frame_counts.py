"""What was decoded of videos, what for, and which processor time that took."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass

OPENS = ("hits", "misses", "evictions")
"""Of `FrameCounts`, what is counted of videos."""

FRAMES = ("decoded", "delivered", "shared")
"""Of `FrameCounts`, what is counted of frames."""


@dataclass
class FrameCounts:
    """What was decoded, and what for, since a process began.

    Attributes:
        hits: Calls that found their video open.
        misses: Calls that opened it.
        evictions: Videos that were closed to make room.
        decoded: Frames that were decoded, wanted or not.
        delivered: Frames that were asked for.
        shared: Of these, such as were decoded for an earlier call.
    """

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    decoded: int = 0
    delivered: int = 0
    shared: int = 0

    def since(self, before: FrameCounts) -> Counter[str]:
        """Return by name what was counted after `before` was."""
        return Counter(asdict(self)) - Counter(asdict(before))
