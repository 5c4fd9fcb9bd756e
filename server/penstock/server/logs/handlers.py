"""Structured logs on standard error: coloured lines for people, JSON for collectors."""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

from penstock.common.terminal import columns_of, folded
from penstock.server.logs.captured import is_console, log_stream, say_all
from penstock.server.process.hidden import hidden
from penstock.wire.credentials import value_without_credentials, without_credentials
from penstock.wire.plain import plain_lines

with hidden("rich"):  # for tracebacks that no log here has, a tenth of a node's start
    import structlog
    import structlog.stdlib
    import structlog.tracebacks

# Without the values of variables: tokens and storage options are among them.
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
)


def configure(log_format: str, level: str) -> None:
    """Set up logging for the whole process, which is one of penstockd's own.

    What structlog is told and what loggers of Python's `logging` are told, ours and those of
    libraries and roles, goes the same way: through one handler, with the same fields.

    Args:
        log_format: `console`, `json`, or `auto`: console on a terminal.
        level: `debug`, `info`, `warning` or `error`; of other loggers than ours, warnings at least.
    """
    stream, console = log_stream(), is_console(log_format)
    renderer: Any = (
        _Console(
            colors=stream.isatty(),
            exception_formatter=structlog.dev.plain_traceback,
            pad_level=False,
        )
        if console
        else structlog.processors.JSONRenderer(default=str)
    )
    chain: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="%Y-%m-%dT%H:%M:%SZ" if console else "iso", utc=True),
    ]
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_named, *chain],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *([] if console else [_TRACEBACKS]),
                _shown,
                renderer,
            ],
        )
    )
    logging.getLogger().handlers = [handler]
    structlog.configure(
        processors=[*chain, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    say_all("console" if console else "json", level)


def _named(_logger: Any, _name: str, event: Any) -> Any:
    """Say which logger said something, where it is not one of ours."""
    name = event["_record"].name
    return event if name.split(".")[0] == "penstock" else {**event, "logger": name}


_PADDING = re.compile(r" {2,}")


class _Console(structlog.dev.ConsoleRenderer):
    """Lines for people, without columns; broken between words where the terminal is narrower."""

    def __call__(self, logger: Any, name: str, event_dict: Any) -> str:
        """Return the line of an event."""
        line, newline, more = super().__call__(logger, name, event_dict).partition("\n")
        line = _PADDING.sub(" ", line)
        return folded(line + newline + without_credentials(more), columns_of(sys.stderr))


def _shown(_logger: Any, _name: str, event: Any) -> Any:
    """Return an event whose texts have no credentials, and nothing that a terminal obeys."""
    error = {"exc_info": event["exc_info"]} if "exc_info" in event else {}  # for the renderer
    said = value_without_credentials({key: event[key] for key in event if key not in error})
    return {
        **{
            key: plain_lines(value) if isinstance(value, str) else value
            for key, value in said.items()
        },
        **error,
    }
