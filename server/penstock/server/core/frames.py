"""Tracebacks cut to the user's frames: what a role of theirs did, without what called it."""

from __future__ import annotations

import traceback
from pathlib import Path

_OWN = (str(Path(__file__).resolve().parent.parent), "<frozen importlib")


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an error from the first frame outside penstock on, error line last.

    An error that was raised by penstock's own code has no such frame: then the line of the error is
    all there is.
    """
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith(_OWN):
        del frames[0]
    head = ["Traceback of your code (most recent call last):\n"] if frames else []
    last = traceback.format_exception_only(error)
    return "".join([*head, *traceback.format_list(frames), *last]).rstrip("\n")


def user_place(error: BaseException) -> str:
    """Return `file:line` of the user's innermost frame, or an empty string where there is none."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OWN)
    ]
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def error_line(error: BaseException) -> str:
    """Return `Type: message` on one line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


__all__ = ["error_line", "user_place", "user_traceback"]
