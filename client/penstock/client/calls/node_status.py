"""What a node says of itself, for people: JSON, whose parts have the kinds that are counted on."""

from __future__ import annotations

import json
import math
from typing import Any

_READER = {
    "id": 0,
    "group": "",
    "rank": 0,
    "world_size": 0,
    "batches_per_step": 0,
    "next": 0,
    "horizon": 0,
    "sent_batches": 0,
    "sent_bytes": 0,
    "sent_tokens": 0,
    "waiting_s": 0,
}
_JOB = {
    "name": "",
    "log_id": "",
    "lanes": 0,
    "ready_batches": 0,
    "ready_bytes": 0,
    "produced": 0,
    "recomputed": 0,
    "groups": [_READER],
    "cursors": {...: 0},
}
_STATUS = {
    "version": "",
    "node": "",
    "uptime_s": 0,
    "draining": False,
    "workers": [{"busy": False, "stage": ""}],
    "jobs": [_JOB],
}
"""An example, as far as commands look: what is not in it may be anything, and any key may lack but
the name of a job. `...` stands for every key."""


def parse_status(text: str) -> dict[str, Any]:
    """Return the status that a node has sent as JSON.

    Raises:
        ValueError: It is not JSON, or one of its parts is of another kind than is counted on.
    """
    try:
        found = json.loads(text)
        if wrong := _misfit(found, _STATUS, ""):
            raise ValueError(wrong)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    status: dict[str, Any] = found
    return status


def _misfit(value: Any, like: Any, place: str) -> str:
    """Return in words where a value is not like an example; empty = nowhere."""
    if isinstance(like, dict) and isinstance(value, dict):
        if "name" in like and "name" not in value:
            return f"{place.lstrip('.')} has no name"
        wanted = like if ... not in like else dict.fromkeys(value, like[...])
        parts = [(value[key], wanted[key], f"{place}.{key}") for key in wanted if key in value]
    elif isinstance(like, list) and isinstance(value, list):
        parts = [(part, like[0], f"{place}[{number}]") for number, part in enumerate(value)]
    elif type(value) is type(like) or (_is_number(value) and _is_number(like)):
        return ""
    else:
        return f"{place.lstrip('.') or 'it'} is of type {type(value).__name__}, or not finite"
    return next(filter(None, (_misfit(*part) for part in parts)), "")


def _is_number(value: Any) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))
