"""What a process of penstockd says beside its own log, and how its children say the same.

Warnings, what code prints to standard error, and errors that end a thread or the process become
records of Python's `logging`, so that each line of standard error is one of the log
(`penstock.server.logs`). Only processes that penstockd has started do this; in all others loggers,
warnings and hooks are the user's.
"""

from __future__ import annotations

import datetime
import io
import json
import logging
import sys
import threading
from typing import Any, BinaryIO, TextIO

VARIABLE = "PENSTOCKD_LOG"
"""Tells a process of penstockd how its parent logs; taken out of the environment at its start."""

CONSOLE, JSON = "console", "json"

told: list[str] = []
"""Format and level of this process's log, once it was told."""


def decide(log_format: str, level: str) -> None:
    """Fix how this process logs, for children that it starts before it has set up its own log.

    Args:
        log_format: `console`, `json`, or `auto`: console on a terminal.
        level: As in `say_all`.
    """
    told[:] = [CONSOLE if is_console(log_format) else JSON, level]


def is_console(log_format: str) -> bool:
    """Tell whether the log is for people; see `decide`."""
    return log_format == CONSOLE or (log_format == "auto" and log_stream().isatty())


def log_stream() -> TextIO:
    """Return where the log goes: standard error, also where what is printed becomes records."""
    return sys.stderr.stream if isinstance(sys.stderr, Printed) else sys.stderr


def say_all(log_format: str, level: str) -> None:
    """Let all that this process says become records of the log.

    Args:
        log_format: `console` or `json`: with this one, what is printed, too.
        level: `debug`, `info`, `warning` or `error`: of our own loggers; others say warnings.
    """
    told[:] = [log_format, level]
    least = getattr(logging, level.upper())
    logging.getLogger("penstock").setLevel(least)
    logging.getLogger().setLevel(max(least, logging.WARNING))
    logging.captureWarnings(True)
    if log_format == JSON:
        if not isinstance(sys.stderr, Printed):
            sys.stderr = Printed(sys.stderr)
        sys.excepthook = _ended_by
        threading.excepthook = lambda ended: _ended_by(
            ended.exc_type, ended.exc_value, ended.exc_traceback
        )


def for_children() -> dict[str, str]:
    """Return the variables by which a child follows this process; empty = it was told nothing."""
    return {VARIABLE: " ".join(told)} if told else {}


def raw_line(text: str) -> bytes:
    """Return a line for standard error, for a process that must take no lock, such as a fork."""
    if told[:1] == [JSON]:
        at = datetime.datetime.now(datetime.UTC).isoformat()
        text = json.dumps({"event": text, "level": "error", "timestamp": at})
    return f"{text}\n".encode("utf-8", "backslashreplace")


class Printed(io.TextIOBase):
    """Standard error of which each line becomes a record.

    Args:
        stream: Where the log itself goes.

    Attributes:
        stream: The same.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._rest, self._lock = "", threading.Lock()
        self._here = threading.local()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of the stream."""
        return self.stream.encoding

    @property
    def buffer(self) -> BinaryIO:
        """Return what the stream writes bytes to: they are no lines of the log."""
        return self.stream.buffer

    def fileno(self) -> int:
        """Return the descriptor of the stream: children of roles write there as they like."""
        return self.stream.fileno()

    def isatty(self) -> bool:
        """Return False: whoever asks prints for a machine."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Log the lines that are whole."""
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
        # Not under the lock: what writes the log has one, too, and prints where it fails.
        for line in lines:
            self._log(line)
        return len(text)

    def flush(self) -> None:
        """Log what is there of a line, and flush the stream."""
        with self._lock:
            rest, self._rest = self._rest, ""
        self._log(rest)
        self.stream.flush()

    def _log(self, line: str) -> None:
        if not line.strip() or getattr(self._here, "is_busy", False):
            return  # what the failure of a record prints would fail again
        self._here.is_busy = True
        try:
            logging.getLogger("stderr").warning("%s", line)
        finally:
            self._here.is_busy = False


def _ended_by(kind: type[BaseException], error: BaseException | None, trace: Any) -> None:
    """Log an error that nothing has caught."""
    if issubclass(kind, SystemExit | KeyboardInterrupt) or error is None:
        return
    logging.getLogger("penstock").critical("a bug", exc_info=(kind, error, trace))


__all__ = [
    "VARIABLE",
    "Printed",
    "decide",
    "for_children",
    "is_console",
    "log_stream",
    "raw_line",
    "say_all",
    "told",
]
