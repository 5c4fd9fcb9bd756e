"""Errors of users' code as text: only the users' frames, and no more than people can read."""

from __future__ import annotations

import contextlib
import re
import sysconfig
import traceback
from itertools import groupby
from pathlib import Path

from penstock.wire.plain import clean_text

MAX_TEXT, MAX_FRAMES_TEXT = 2000, 12000
"""Characters of an error's own words, and of the frames above it: a library may put a whole file
into its message, and every text is copied to the server process, its output and each reader."""

_ADDRESS = re.compile(r" at 0x[0-9a-f]{6,16}\b")

_OWN = (str(Path(__file__).resolve().parent.parent), "<frozen importlib")
_PASSED_ON = (*_OWN, contextlib.__file__)
"""Where an error only comes by: a `with` of penstock has a frame of contextlib between its own."""

_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def user_traceback(error: BaseException) -> str:
    """Return the traceback of an error with the user's frames alone, error line last.

    Frames of libraries are counted and not shown: a deep one would hide the user's line, which is
    where the remedy is. If there are no others (a role that is installed) they are shown.
    An error that was raised by penstock's own code has no frame: then the line of the error is all
    there is.
    """
    frames = traceback.extract_tb(error.__traceback__)
    while frames and frames[0].filename.startswith(_PASSED_ON):
        del frames[0]
    whose = "in libraries" if all(map(_is_library, frames)) else "of your code"
    head = [f"Traceback {whose} (most recent call last):\n"] if frames else []
    shown = clean_text("".join([*head, *_without_libraries(frames)]), MAX_FRAMES_TEXT)
    return f"{shown}{_last_lines(error)}"


def _last_lines(error: BaseException) -> str:
    """Return what is below the frames: type and text, and where a file is not Python."""
    if isinstance(error, SyntaxError):
        return clean_text("".join(traceback.format_exception_only(error)).rstrip("\n"), MAX_TEXT)
    text = error_text(error)
    notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
    named = f"{_type_name(error)}: {text}" if text else _type_name(error)
    return clean_text("\n".join([named, *(note[:MAX_TEXT] for note in notes[:9])]), MAX_TEXT + 99)


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


def user_line(error: BaseException) -> str:
    """Return `file:line` of the user's innermost frame, or an empty string where there is none."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_PASSED_ON)
    ]
    own = [frame for frame in own if not _is_library(frame)] or own
    return f"{own[-1].filename}:{own[-1].lineno}" if own else ""


def error_text(error: BaseException, limit: int = MAX_TEXT) -> str:
    """Return what an error says: whole Unicode of bounded length, even where its `str()` fails.

    Addresses of objects in it are left out: every process says the same of the same bytes.
    """
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as broken:  # sys.exit() too: this is a user's code like any other
        return f"(it has no text: its str() raises {type(broken).__name__})"
    return clean_text(_ADDRESS.sub("", text), limit)


def error_line(error: BaseException, limit: int = MAX_TEXT) -> str:
    """Return `Type: message` on one line, with so many characters of the message."""
    text = error_text(error, limit).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _type_name(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__name__}"
