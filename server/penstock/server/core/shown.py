"""A value of a job file, as an error shows it."""

from __future__ import annotations

from typing import Any

from penstock.wire.credentials import HIDDEN

_SHOWN_CHARS = 80


def shown(value: Any) -> str:
    """Return a value as an error message shows it: as in the file, shortened if it is long."""
    text = {None: "null", True: "true", False: "false"}.get(value) if _is_constant(value) else None
    text = text or repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 4] + " ..."


def shown_at(key: str, value: Any) -> str:
    """Return the value of a key as `shown`, but nothing of one that may hold credentials."""
    if key.rpartition(".")[2] == "storage_options":
        return f"{HIDDEN} (hidden, as it may hold credentials)"
    return shown(value)


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, bool)
