"""Credentials stay out of what people, logs and stores are told: URLs are shown without them."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***"

_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]{0,30}:/"
_URL = re.compile(_SCHEME + r"/)([^\s'\"<>|\\]*)")
_PASSWORD = re.compile(_SCHEME + r"/?)[^\s/?#@:'\"]*:(?!\d+(?:[^\w@]|$))[^\s@]{0,1000}@")
"""A user and a password as people write them, a `/`, `?` or quote in it: keys of S3 have such. What
has digits alone after the colon is a port. Where a URL was taken for a path, one slash is left."""
_USER = re.compile(r"^[^/?#]*@")
_VALUE = re.compile(r"(?<=[?&#])([^=&#?]*)=[^&#]*?(?=[,.:;)\]}]{0,3}(?:[&#]|$))")
_BARE = re.compile(r"(?<=[?&])\w[^=&#?]*(?=[?&#]|$)")
"""A query without names, which is a signature where it is no glob's `?`, so with web servers."""


def without_credentials(text: str) -> str:
    """Return a text with the users, the passwords and the queries' values in its URLs hidden.

    `https://me:word@host/a?sig=x` becomes `https://***@host/a?sig=***`: which value of a query is a
    signature, only its server knows.
    """
    if ":/" not in text:
        return text
    return _URL.sub(_hidden, _PASSWORD.sub(rf"\1{HIDDEN}@", text))


_CONTAINERS = frozenset(("abfs://", "abfss://", "az://", "wasb://", "wasbs://"))
"""Their URLs name a container before the @, and not a user, unless there is a password."""


def _hidden(url: re.Match[str]) -> str:
    user = _USER.match(url[2])
    rest = url[2]
    if user is not None and (url[1].lower() not in _CONTAINERS or ":" in user[0]):
        rest = f"{HIDDEN}@{rest[user.end() :]}"
    if url[1].lower() in ("http://", "https://"):
        rest = _BARE.sub(HIDDEN, rest)
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
