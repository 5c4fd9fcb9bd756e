"""The one JSON text of a value: what is hashed, and compared to the byte."""

from __future__ import annotations

import json
from typing import Any

from penstock.wire.errors import InvalidJob


def canonical(plan: Any) -> bytes:
    """Return the one JSON text of a plan: sorted keys, no spaces, exact numbers, UTF-8.

    Raises:
        InvalidJob: A value has no JSON form; names where it stands.
    """
    _refuse_foreign(plan, "")
    return json.dumps(
        plan, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _refuse_foreign(value: Any, where: str) -> None:
    if value is None or isinstance(value, str | int | float | bool):
        return
    if isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            _refuse_foreign(inner, f"{where}[{index}]")
        return
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for key, inner in value.items():
            _refuse_foreign(inner, f"{where}.{key}" if where else key)
        return
    raise InvalidJob(
        f"{where} is of type {type(value).__name__}, which has no canonical JSON form: give "
        "numbers, strings, lists or dicts, or give the role a `version` and override parameters()",
        key=where,
    )
