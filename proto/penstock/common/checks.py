"""Checks of what people give: a whole number, true or false, one of a few words, a name, seconds.

Parameters of a job may be text, a list or anything else, as they come from a file: what is wrong
with one is an `InvalidJob`. Arguments of a call come from Python, where a whole number may be one
of NumPy: what is wrong with one is an `InvalidRequest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from operator import index
from typing import Any

from penstock.common.nearest import nearest
from penstock.wire.errors import InvalidJob, InvalidRequest
from penstock.wire.order import MAX_POSITION
from penstock.wire.plain import clean_text

# --- parameters of a job ---


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


def check_flag(name: str, value: Any, *, key: str = "") -> bool:
    """Return a parameter that must be true or false.

    Args:
        name: The parameter.
        value: What was given.
        key: Where it is in the job file; empty = by its name.

    Raises:
        InvalidJob: It is neither.
    """
    if not isinstance(value, bool):
        raise InvalidJob(f"{name} is {value!r}: write true or false", key=key or name)
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
            f"{name} is {clean_text(repr(value), 100)}: choose one of {', '.join(choices)}{meant}",
            key=key or name,
        )
    return value


# --- arguments of a call ---


def count_argument(name: str, value: Any) -> int:
    """Return an argument that must be a whole number from 1 to `MAX_POSITION`; 64.0 is one.

    Raises:
        InvalidRequest: It is not.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or value != value // 1 or value < 1:
        raise InvalidRequest(f"{name}={value!r}: use an integer of at least 1")
    if value > MAX_POSITION:
        raise InvalidRequest(f"{name}={value!r}: use an integer of at most {MAX_POSITION}")
    return int(value)


def integer_argument(name: str, value: Any) -> int:
    """Return an argument that must be an integer, of Python or of NumPy; True is none.

    Raises:
        InvalidRequest: It is not.
    """
    number = as_integer(value)
    if number is None:
        raise InvalidRequest(f"{name}={value!r}: use an integer")
    return number


def as_integer(value: Any) -> int | None:
    """Return an integer, of Python or of NumPy; None = it is none, as True and 2.0 are."""
    if isinstance(value, bool):
        return None
    try:
        return index(value)
    except TypeError:
        return None


def step_argument(call: str, value: Any) -> int:
    """Return a step, or a position, that a call was given.

    Args:
        call: What was called.
        value: What was given.

    Raises:
        InvalidRequest: It is not an integer, or not from 0 to `MAX_POSITION`.
    """
    number = as_integer(value)
    if number is None:
        raise InvalidRequest(f"{call}({value!r}): pass an integer", field="step", value=repr(value))
    if not 0 <= number <= MAX_POSITION:
        raise InvalidRequest(
            f"{call}({number}): steps and positions go from 0 to {MAX_POSITION}",
            field="step",
            value=number,
        )
    return number


def choice_argument(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return an argument that must be one of a few words.

    Raises:
        InvalidRequest: It is not one of them.
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidRequest(f"{name}={value!r}: use {' or '.join(map(repr, choices))}")
    return value


def flag_argument(name: str, value: Any) -> bool:
    """Return an argument that must be True or False: "no" would count as True.

    Raises:
        InvalidRequest: It is neither.
    """
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name}={value!r}: use True or False")
    return value


def seconds_argument(name: str, value: Any) -> float:
    """Return an argument that must be a number of seconds above 0.

    Raises:
        InvalidRequest: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0:
        raise InvalidRequest(f"{name}={value!r}: use seconds above 0")
    return float(value)


def name_argument(name: str, value: Any, otherwise: str) -> str:
    """Return an argument that must be a name: what cannot be printed cannot be typed again.

    Nor can half a surrogate pair be sent.

    Args:
        name: The argument.
        value: What was given.
        otherwise: What to pass instead of a name.

    Raises:
        InvalidRequest: It is empty, holds other characters, or is not text.
    """
    if not (isinstance(value, str) and value and value.isprintable()):
        raise InvalidRequest(
            f"{name}={value!r}: pass a name of printable characters, or {otherwise}"
        )
    return value
