"""The name of an attempt of a group after a seek or the load of a state.

A seek, or a state that is loaded while a run reads, makes a new generation, and all ranks must give
it the same name without talking to each other: the token of the attempt, `#`, and how many times it
has moved. A rank that is restarted alone knows the token and not the moves: it joins with the token
alone, and the reply has the attempt's present name.

Glossary:
    attempt: One start of a training run; all its ranks share a token.
"""

from __future__ import annotations


def moved(token: str, moves: int) -> str:
    """Return the name of the attempt `token` after so many moves."""
    return f"{token}#{moves}" if moves else token


def moves_between(token: str, now: str) -> int | None:
    """Return how many times the attempt `token` has moved to become `now`; None = it has not.

    Args:
        token: The attempt's name when it began.
        now: The present name of an attempt.
    """
    if token == now:
        return 0
    base, mark, moves = now.rpartition("#")
    is_count = moves.isascii() and moves.isdigit() and not moves.startswith("0")
    return int(moves) if mark and base == token and is_count else None
