"""Tracebacks cut to the user's frames: what a role of theirs did, without what called it."""

from __future__ import annotations

import sysconfig
import traceback
from itertools import groupby
from pathlib import Path

_OWN = (str(Path(__file__).resolve().parent.parent), "<frozen importlib")
_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an error with the user's frames alone, error line last.

    Frames of libraries are counted and not shown: a deep one would hide the user's line, which is
    where the remedy is. Where there are none but those (a role that is installed) they are shown.
    An error that was raised by penstock's own code has no frame: then the line of the error is all
    there is.
    """
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith(_OWN):
        del frames[0]
    head = ["Traceback of your code (most recent call last):\n"] if frames else []
    last = traceback.format_exception_only(error)
    return "".join([*head, *_without_libraries(frames), *last]).rstrip("\n")


def _is_library(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((*_LIBRARIES, *_OWN))


def _without_libraries(frames: traceback.StackSummary) -> list[str]:
    if all(map(_is_library, frames)):
        return traceback.format_list(frames)
    lines: list[str] = []
    for foreign, group in groupby(frames, _is_library):
        run = list(group)
        if foreign:
            where = f"{Path(run[-1].filename).name}, line {run[-1].lineno}, in {run[-1].name}"
            lines.append(f"  ... in libraries, {len(run)} deep, at last {where}\n")
        else:
            lines += traceback.format_list(run)
    return lines


def user_place(error: BaseException) -> str:
    """Return `file:line` of the user's innermost frame, or an empty string where there is none."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OWN)
    ]
    own = [frame for frame in own if not _is_library(frame)] or own
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def error_line(error: BaseException) -> str:
    """Return `Type: message` on one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


__all__ = ["error_line", "user_place", "user_traceback"]
