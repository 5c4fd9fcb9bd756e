"""Notes each line of penstock that runs while a switch is on, in whichever process this is.

Python imports a module of this name by itself, before anything else: with this folder on
PYTHONPATH, a node, its workers and a client are traced as they are started, without a word to them.
`WALKED` names a folder: `switch`, a byte, is 1 while lines are noted; `PID.lines` takes them.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(os.environ["WALKED"])
PRODUCT = ("/penstock/server/", "/penstock/client/", "/penstock/wire/")

with FOLDER.joinpath("switch").open("r+b") as _file:
    _switch = mmap.mmap(_file.fileno(), 1)
_notes = os.open(FOLDER / f"{os.getpid()}.lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
_noted: set[tuple[str, int]] = set()


def _called(frame: FrameType, event: str, argument: Any) -> Any:
    """Trace a call of penstock's."""
    if not _switch[0]:
        return None
    if not any(part in frame.f_code.co_filename for part in PRODUCT):
        return None
    return _line


def _line(frame: FrameType, event: str, argument: Any) -> Any:
    """Note a line, once."""
    if event == "line" and _switch[0]:
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place not in _noted:
            _noted.add(place)
            os.write(_notes, f"{place[0]}:{place[1]}\n".encode())
    return _line


threading.settrace(_called)
sys.settrace(_called)
