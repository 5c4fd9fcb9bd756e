"""Structured logs on standard error: coloured lines for people, JSON for collectors."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

import structlog
import structlog.tracebacks

from penstock.wire.terminal import columns_of, folded

# Without the values of variables: tokens and storage options are among them.
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


def configure(log_format: str, level: str) -> None:
    """Set up logging for the whole process.

    Args:
        log_format: `console`, `json`, or `auto`: console on a terminal.
        level: `debug`, `info`, `warning` or `error`.
    """
    console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    renderer: Any = (
        _Console(
            colors=sys.stderr.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
            pad_level=False,
        )
        if console
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(
                fmt="%Y-%m-%dT%H:%M:%SZ" if console else "iso", utc=True
            ),
            _TRACEBACKS if not console else _keep,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


_PADDING = re.compile(r" {2,}")


class _Console(structlog.dev.ConsoleRenderer):
    """Lines for people, without columns; broken between words where the terminal is narrower."""

    def __call__(self, logger: Any, name: str, event_dict: Any) -> str:
        """Return the line of an event."""
        line, newline, more = super().__call__(logger, name, event_dict).partition("\n")
        line = _PADDING.sub(" ", line)
        return folded(line + newline + more, columns_of(sys.stderr))


def _keep(_logger: Any, _name: str, event: Any) -> Any:
    return event


__all__ = ["configure"]
