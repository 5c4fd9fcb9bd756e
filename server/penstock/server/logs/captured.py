"""What a process of penstockd says beside its own log, and how its children say the same.

Warnings, what code prints to standard error, and errors that end a thread or the process become
records of Python's `logging`, so that each line of standard error is one of the log
(`penstock.server.logs.handlers`). Only processes that penstockd has started do this; in all others
loggers, warnings and hooks are the user's.
"""

from __future__ import annotations

import atexit
import datetime
import io
import json
import logging
import os
import sys
import threading
from typing import Any, BinaryIO, TextIO

VARIABLE = "PENSTOCKD_LOG"
"""Tells a process of penstockd how its parent logs; taken out of the environment at its start."""

CONSOLE, JSON = "console", "json"

EVENT = '{"'
"""How each event begins."""

MAX_LINE_BYTES = 1 << 20
"""Of a child's line; a longer one is several."""

END_S = 1.0
"""How long the end of this process waits for the last words of its children."""

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


class _Heard:
    """What children write to standard error: each line becomes one of the log.

    Their own logs write events there, which are passed on. Whatever else stands there is of native
    code and of programs that roles start, which know nothing of a log; it may lack its end, so that
    an event comes after it on the same line.

    Attributes:
        fd: The standard error of children.
    """

    def __init__(self) -> None:
        read, self.fd = os.pipe()
        self._lines = os.fdopen(read, "rb")
        self._thread = threading.Thread(target=self._hear, daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _hear(self) -> None:
        with self._lines:
            while line := self._lines.readline(MAX_LINE_BYTES):
                text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
                at = _event_in(text)
                raw, event = text[:at], text[at:]
                if raw.strip():
                    _log_raw(raw)
                if event:
                    _pass_on(event)

    def _end(self) -> None:
        os.close(self.fd)  # children have ended, or are about to
        self._thread.join(END_S)


def stderr_of_children() -> int | None:
    """Return the descriptor for the standard error of a child; None = that of this process.

    With a log of JSON it is a pipe, read here: what a child's native code writes, its last words
    too, are events then. This process's own native code goes on writing where it likes: to wait
    for itself could hold it up for ever.
    """
    if told[:1] != [JSON]:
        return None
    if not _heard:
        _heard.append(_Heard())
    return _heard[0].fd


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


_heard: list[_Heard] = []
"""One for all children, from the first on."""


def _event_in(text: str) -> int:
    """Return where an event begins, which goes on to the end of a line; its length = nowhere."""
    at = text.find(EVENT)
    while at >= 0:
        try:
            json.loads(text[at:])
            return at
        except (ValueError, RecursionError):
            at = text.find(EVENT, at + 1)
    return len(text)


def _log_raw(line: str) -> None:
    if logging.getLogger().handlers:
        logging.getLogger("stderr").warning("%s", line)
    else:  # of a worker that was started before the log is set up
        os.write(2, raw_line(line))


def _pass_on(event: str) -> None:
    """Write a line between those of this process."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and handler.lock is not None:
            with handler.lock:
                handler.stream.write(f"{event}\n")
                handler.flush()
            return
    os.write(2, f"{event}\n".encode("utf-8", "backslashreplace"))


def _ended_by(kind: type[BaseException], error: BaseException | None, trace: Any) -> None:
    """Log an error that nothing has caught."""
    if issubclass(kind, SystemExit | KeyboardInterrupt) or error is None:
        return
    logging.getLogger("penstock").critical("a bug", exc_info=(kind, error, trace))
