"""Spans of OpenTelemetry: one for each stream, begin and commit, none for a batch.

They are recorded where the process has imported OpenTelemetry, as whoever wants spans has; nothing
here imports it, so all is off in any other process. Without an SDK its API drops them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

PREFIX = "penstock"


def is_on() -> bool:
    """Tell whether spans may be wanted: the process has imported OpenTelemetry."""
    return "opentelemetry.trace" in sys.modules


def here() -> Any:
    """Return what a span that is recorded later, or on another thread, is part of."""
    if not is_on():
        return None
    from opentelemetry import context

    return context.get_current()


def record(
    name: str,
    began_ns: int,
    attributes: Mapping[str, str | int],
    *,
    error: BaseException | None = None,
    within: Any = None,
) -> None:
    """Record what has ended now. It may take locks, so a Loader calls it in `aside`.

    Args:
        name: What it was, such as `commit`.
        began_ns: When it began, in nanoseconds since 1970.
        attributes: What it was about, by name.
        error: What it ended with.
        within: What `here` said as it began.
    """
    if not is_on():
        return
    from opentelemetry import trace

    span = trace.get_tracer(PREFIX).start_span(
        f"{PREFIX}.{name}",
        context=within,
        start_time=began_ns,
        attributes={f"{PREFIX}.{key}": value for key, value in attributes.items()},
    )
    if error is not None:
        code = getattr(error, "code", type(error).__name__)
        span.set_status(trace.StatusCode.ERROR, str(code))
    span.end(time.time_ns())
