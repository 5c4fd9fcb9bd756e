"""The two commands and what each of them does, so that either can say where the other's lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.common.nearest import hint, nearest

COMMANDS: Mapping[str, Sequence[str]] = {
    "penstock": ("ping", "nodes", "cat", "cursors", "quarantine", "top", "demo", "bench"),
    "penstockd": (
        "serve",
        "init",
        "check",
        "show",
        "index",
        "plan",
        "size",
        "bench",
        "validate",
        "reshard",
        "token",
        "store",
        "ray",
        "schema",
    ),
}
"""By program, in the order of its help."""


def unknown_command(program: str, word: str, rest: Sequence[str] = ()) -> str:
    """Return the sentence for a command that a program has not: where it is, or what was meant.

    Args:
        program: The program that was called.
        word: What was written as its command.
        rest: The arguments after it.
    """
    for other, commands in COMMANDS.items():
        if other != program and word in commands:
            return f"{word} is a command of {other}: write {' '.join([other, word, *rest])}"
    own = COMMANDS[program]
    if not nearest(word, own):
        for other, commands in COMMANDS.items():
            if near := nearest(word, commands, 1):
                return f"there is no command {word!r}: did you mean {other} {near[0]}?"
    return f"there is no command {word!r}: {hint(word, own)}"
