"""What an attempt of a group is called after it has gone elsewhere.

A seek, or a state that is loaded while a run reads, makes a new generation, and all ranks must name
it alike without talking to each other: the token of the attempt, `#`, and how often it has moved.
A rank that is started again alone knows the token and nothing of the moves: it joins under the
token alone, and the reply says what the attempt is called now.
"""

from __future__ import annotations


def moved(token: str, moves: int) -> str:
    """Return what the attempt `token` is called after so many moves."""
    return f"{token}#{moves}" if moves else token


def moves_between(token: str, now: str) -> int | None:
    """Return how often the attempt `token` has moved if it is called `now`; None = it is another.

    Args:
        token: What the attempt was called when it began.
        now: What some attempt is called now.
    """
    if token == now:
        return 0
    base, mark, moves = now.rpartition("#")
    is_count = moves.isascii() and moves.isdigit() and not moves.startswith("0")
    return int(moves) if mark and base == token and is_count else None


__all__ = ["moved", "moves_between"]
