"""The arguments of a Loader: refused early, with the value and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from penstock.wire.errors import InvalidRequest


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
        isinstance(start, bool) or not isinstance(start, int) or start < 0
    ):
        refuse(f'start={start!r}: use "cursor", "state" or a step from 0')
    for name in ("batches_per_step", "prefetch", "max_steps", "max_body_bytes"):
        value = given[name]
        if value is not None and (isinstance(value, bool) or int(value) != value or value < 1):
            refuse(f"{name}={value!r}: use an integer of at least 1")
    if given["deadline_s"] <= 0:
        refuse(f"deadline_s={given['deadline_s']!r}: use seconds above 0")
    if not given["job"] or not isinstance(given["job"], str):
        refuse(f"job={given['job']!r}: pass the name of a job of the server")
    if given["group"] == "":
        refuse('group="": pass a name, or None for an ephemeral reader')
    if given["mode"] == "eval":
        if given["group"] is not None:
            refuse(f'group={given["group"]!r}: mode="eval" is ephemeral; leave group out')
        if start not in ("cursor", 0):
            refuse(f'start={start!r}: with mode="eval" every pass starts at step 0; leave it out')
    elif given["max_steps"] is not None:
        refuse(f'max_steps={given["max_steps"]}: it cuts passes of mode="eval"; leave it out')


__all__ = ["check_arguments"]
