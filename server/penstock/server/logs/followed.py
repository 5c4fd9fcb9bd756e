"""How a process that penstockd has started logs as its parent does.

A worker says nothing as a rule, so it imports what writes its log with its first record.
"""

from __future__ import annotations

import logging
import os

from penstock.server.logs.captured import VARIABLE, say_all


def follow() -> None:
    """Log as the process that has started this one does, if that was told how."""
    if how := os.environ.pop(VARIABLE, ""):
        log_format, level = how.split()
        logging.getLogger().handlers = [_First(log_format, level)]
        say_all(log_format, level)


class _First(logging.Handler):
    """Sets up what writes the log when there is something to write."""

    def __init__(self, log_format: str, level: str) -> None:
        super().__init__()
        self._how: tuple[str, str] | None = (log_format, level)

    def emit(self, record: logging.LogRecord) -> None:
        """Set up the log, once, and have it write the record."""
        if self._how is not None:
            from penstock.server.logs.handlers import configure

            how, self._how = self._how, None
            configure(*how)
        for handler in logging.getLogger().handlers:
            if handler is not self:
                handler.handle(record)
