"""How the checks compare: by everything that decides bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.server.roles.role import Role


def as_bytes(value: Any) -> Any:
    """Return a value in a form in which equal means equal in every byte, type and order."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return [(name, as_bytes(inner)) for name, inner in value.items()]
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(as_bytes, value)]
    if hasattr(value, "__array__"):
        return [type(value).__name__, as_bytes(np.asarray(value))]
    return (type(value).__name__, value)


def holds(condition: object, sentence: str) -> None:
    """Refuse what does not hold.

    Raises:
        AssertionError: With the sentence.
    """
    if not condition:
        raise AssertionError(sentence)


def identity_of(role: Role) -> str:
    """Return a role's identity as the log id takes it."""
    return json.dumps(role.identity(), sort_keys=True, allow_nan=False)


def check_identity(role: Role) -> None:
    """Hold a role to an identity that can be hashed, and that its clones share."""
    name = type(role).__name__
    before = identity_of(role)
    holds(
        identity_of(role.clone()) == before,
        f"a clone of {name} has another identity: parameters() must follow from the arguments of "
        "the constructor alone",
    )
