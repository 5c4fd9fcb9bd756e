"""Spans of what a Loader calls a node for, on a thread that no signal handler breaks off."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from penstock.client.calls.background_thread import in_background
from penstock.common import tracing

T = TypeVar("T")


def traced(name: str, call: Callable[[], T], **attributes: str | int) -> T:
    """Return what a call returns, and record a span of it where spans are wanted.

    Args:
        name: What the call is.
        call: The call.
        attributes: What it is about.
    """
    if not tracing.is_on():
        return call()
    began_ns, within = time.time_ns(), tracing.here()
    error: BaseException | None = None
    try:
        return call()
    except BaseException as failure:
        error = failure
        raise
    finally:
        in_background(
            lambda _: tracing.record(name, began_ns, attributes, error=error, within=within)
        )
