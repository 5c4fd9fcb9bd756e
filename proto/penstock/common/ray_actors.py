"""How nodes on Ray are found: by the names of their actors, which both halves agree on."""

from __future__ import annotations

NAMESPACE = "penstock"
"""Of the actors, in Ray."""


def actor_name(fleet: str, number: int) -> str:
    """Return the name of the actor of one node, which is also the node's id.

    Args:
        fleet: The name that `penstockd ray up` was given.
        number: Which of its nodes, from 0 on.
    """
    return f"{fleet}.{number}"


def number_of(fleet: str, actor: str) -> int | None:
    """Return which node of a fleet an actor runs; None = it is of another one."""
    name, dot, number = actor.rpartition(".")
    is_ours = bool(dot) and name == fleet and number.isascii() and number.isdigit()
    return int(number) if is_ours else None
