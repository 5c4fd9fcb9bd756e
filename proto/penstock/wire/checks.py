"""Checks of parameters: a whole number, true or false, one of a few words.

Where a value comes from a job file it may be text, a list or anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.server.core.nearest import nearest
from penstock.wire.errors import InvalidJob


def check_whole(
    name: str, value: Any, least: int, meaning: str = "", *, optional: bool = False, key: str = ""
) -> int:
    """Return a parameter that must be a whole number of at least `least`.

    Args:
        name: The parameter.
        value: What was given.
        least: The smallest number that makes sense.
        meaning: What the number means, for the error's sentence; empty = its name says it.
        optional: It may be left out, which the error's sentence then says.
        key: Where it is in the job file; empty = by its name.

    Raises:
        InvalidJob: It is not a whole number, or too small.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        what = f"{meaning} as a whole number" if meaning else "a whole number"
        raise InvalidJob(
            f"{name} is {value!r}: give {what} of at least {least}"
            f"{', or leave it out' if optional else ''}",
            key=key or name,
        )
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return a parameter that must be true or false.

    Raises:
        InvalidJob: It is neither.
    """
    if not isinstance(value, bool):
        raise InvalidJob(f"{name} is {value!r}: write true or false", key=name)
    return value


def check_choice(name: str, value: Any, choices: Sequence[str], *, key: str = "") -> str:
    """Return a parameter that must be one of a few words.

    Args:
        name: The parameter.
        value: What was given.
        choices: The words.
        key: Where it is in the job file; empty = by its name.

    Raises:
        InvalidJob: It is not one of them; says which was probably meant.
    """
    if not isinstance(value, str) or value not in choices:
        near = nearest(str(value), choices, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise InvalidJob(
            f"{name} is {value!r}: choose one of {', '.join(choices)}{meant}", key=key or name
        )
    return value


__all__ = ["check_choice", "check_flag", "check_whole"]
