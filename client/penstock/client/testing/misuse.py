"""What was done wrong with a device, and where: both places."""

from __future__ import annotations

import contextlib
import sys
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType

_ROOM = str(Path(__file__).parent)

MOST_FRAMES = 6


class Site:
    """A place in the code: every call of a simulated device notes one, and few are ever shown.

    Args:
        call: What was called there, or what happened.
        places: The code and its instruction, the innermost first.

    Attributes:
        call: What was called there, or what happened.
    """

    __slots__ = ("_places", "call")

    def __init__(self, call: str, places: tuple[tuple[CodeType, int], ...]) -> None:
        self.call, self._places = call, places

    @property
    def frames(self) -> tuple[tuple[str, int, str], ...]:
        """File, line and function, the innermost first, as far as they help."""
        return tuple(
            (code.co_filename, _line(code, instruction), code.co_name)
            for code, instruction in self._places
        )

    def __str__(self) -> str:
        way = "\n".join(f"      {file}:{line} in {name}" for file, line, name in self.frames)
        return f"{self.call}\n{way}"


_IS_OURS: dict[str, bool] = {}
"""By the files of code: whether it is of this room, or of what its calls go through."""


def site(call: str) -> Site:
    """Return the place from which this room was called."""
    places: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(places) < MOST_FRAMES:
        code = frame.f_code
        file = code.co_filename
        is_ours = _IS_OURS.get(file)
        if is_ours is None:
            is_ours = _IS_OURS[file] = file.startswith((_ROOM, contextlib.__file__))
        if not is_ours:
            places.append((code, frame.f_lasti))
        frame = frame.f_back
    return Site(call, tuple(places))


def _line(code: CodeType, instruction: int) -> int:
    positions = next(islice(code.co_positions(), max(0, instruction) // 2, None))
    return positions[0] or code.co_firstlineno


class Misuse(AssertionError):
    """A device would have given wrong bytes, now or on another day.

    Attributes:
        kind: What was wrong, in a few words that do not change.
        first: Where it began: the copy that was queued, the memory that was pinned.
        second: Where it went wrong. A misuse that is not a call, such as a write into an array,
            happened between the two calls that the message names.
    """

    def __init__(self, kind: str, first: Site, second: Site, between: Site | None = None) -> None:
        since = "" if between is None else f"\n  after    {between}\n  and before"
        super().__init__(f"{kind}\n  first    {first}{since}\n  second   {second}")
        self.kind, self.first, self.second, self._between = kind, first, second, between

    def again(self) -> Misuse:
        """Return a fresh one, to raise elsewhere later.

        The traceback of one that was raised keeps every frame of its thread, and what these use:
        the pinned memory of another Loader, where that one's thread has found it.
        """
        return Misuse(self.kind, self.first, self.second, self._between)
