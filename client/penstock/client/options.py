"""The arguments of a Loader: refused early, with the value and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from operator import index
from typing import Any, NoReturn

from penstock.wire.errors import InvalidRequest
from penstock.wire.order import MAX_POSITION


def check_arguments(given: Mapping[str, Any]) -> None:
    """Refuse arguments that cannot be, or do not go together.

    Args:
        given: The Loader's arguments by name.

    Raises:
        InvalidRequest: Names the argument, its value and what to pass instead.
    """

    def refuse(sentence: str) -> NoReturn:
        raise InvalidRequest(sentence)

    for name, choices in (("mode", ("stream", "eval")), ("tail", ("pad", "drop"))):
        if given[name] not in choices:
            refuse(f"{name}={given[name]!r}: use {' or '.join(map(repr, choices))}")
    start = given["start"]
    if start not in ("cursor", "state") and (
        isinstance(start, bool) or not isinstance(start, int) or not 0 <= start <= MAX_POSITION
    ):
        refuse(f'start={start!r}: use "cursor", "state" or a step from 0 to {MAX_POSITION}')
    for name in ("batches_per_step", "prefetch", "prefetch_bytes", "max_steps", "max_body_bytes"):
        value = given[name]
        if value is not None and (not _is_whole(value) or value < 1):
            refuse(f"{name}={value!r}: use an integer of at least 1")
        if value is not None and value > MAX_POSITION:
            refuse(f"{name}={value!r}: use an integer of at most {MAX_POSITION}")
    for name in ("rank", "world_size"):
        if given[name] is not None and not hasattr(given[name], "__index__"):
            refuse(f"{name}={given[name]!r}: use an integer")
    deadline_s = given["deadline_s"]
    if (
        isinstance(deadline_s, bool)
        or not isinstance(deadline_s, Real)
        or not float(deadline_s) > 0
    ):
        refuse(f"deadline_s={deadline_s!r}: use seconds above 0")
    if not given["job"] or not isinstance(given["job"], str):
        refuse(f"job={given['job']!r}: pass the name of a job of the server")
    for name, otherwise in (("group", "None for an ephemeral reader"), ("attempt", "leave it out")):
        value = given[name]
        # What cannot be printed cannot be typed again, and half a surrogate pair cannot be sent.
        if value is not None and not (isinstance(value, str) and value and value.isprintable()):
            refuse(f"{name}={value!r}: pass a name of printable characters, or {otherwise}")
    if given["mode"] == "eval":
        if given["group"] is not None:
            refuse(f'group={given["group"]!r}: mode="eval" is ephemeral; leave group out')
        if start not in ("cursor", 0):
            refuse(f'start={start!r}: with mode="eval" every pass starts at step 0; leave it out')
    elif given["max_steps"] is not None:
        refuse(f'max_steps={given["max_steps"]}: it cuts passes of mode="eval"; leave it out')


def _is_whole(value: Any) -> bool:
    """Tell whether a value is a whole number, also one of NumPy or 64.0."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return value == value // 1


def check_step(call: str, step: int) -> int:
    """Return a step, or a position, as the integer that it is.

    Args:
        call: What was called, for the message.
        step: What was given.

    Raises:
        InvalidRequest: It is not an integer, or out of range.
    """
    try:
        number = index(step)
    except TypeError:
        raise InvalidRequest(
            f"{call}({step!r}): pass an integer", field="step", value=repr(step)
        ) from None
    if not 0 <= number <= MAX_POSITION:
        raise InvalidRequest(
            f"{call}({number}): steps and positions go from 0 to {MAX_POSITION}",
            field="step",
            value=number,
        )
    return number


__all__ = ["check_arguments", "check_step"]
