"""Credentials stay out of what people, logs and stores are told: URLs are shown without them."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://)([^\s'\"<>|\\]*)")
_USER = re.compile(r"^[^/?#]*@")
_VALUE = re.compile(r"(?<=[?&])([^=&#]*)=[^&#,;)\]}]*")


def without_credentials(text: str) -> str:
    """Return a text with the users, the passwords and the queries' values in its URLs hidden.

    `https://me:word@host/a?sig=x` becomes `https://***@host/a?sig=***`: which value of a query is a
    signature, only its server knows.
    """
    return _URL.sub(_hidden, text) if "://" in text else text


_CONTAINERS = frozenset(("abfs://", "abfss://", "az://", "wasb://", "wasbs://"))
"""Their URLs name a container before the @, and not a user, unless there is a password."""


def _hidden(url: re.Match[str]) -> str:
    user = _USER.match(url[2])
    rest = url[2]
    if user is not None and (url[1].lower() not in _CONTAINERS or ":" in user[0]):
        rest = f"{HIDDEN}@{rest[user.end() :]}"
    return url[1] + _VALUE.sub(rf"\1={HIDDEN}", rest)


def value_without_credentials(value: Any) -> Any:
    """Return a value of JSON whose every text, keys as well, is without them."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {
            without_credentials(key) if isinstance(key, str) else key: value_without_credentials(
                inner
            )
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [value_without_credentials(inner) for inner in value]
    return value


__all__ = ["HIDDEN", "value_without_credentials", "without_credentials"]
