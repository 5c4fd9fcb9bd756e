"""Which episodes of a folder a job reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.server.core.shown import shown
from penstock.wire.errors import InvalidJob


def chosen_episodes(given: Any, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of the episodes to read: int64 (k,), ascending.

    Args:
        given: The numbers that are asked for; None = all.
        numbers: int64 (n,): what the folder calls its episodes, ascending.

    Raises:
        InvalidJob: A number is negative, occurs twice or is no episode's, or none is given.
    """
    if given is None:
        return np.arange(len(numbers))
    if isinstance(given, str) or not isinstance(given, Sequence) or not given:
        raise _invalid(f"is {shown(given)}: give a list of numbers, or leave it out for all")
    seen: set[int] = set()
    for number in given:
        if isinstance(number, bool) or not isinstance(number, int):
            raise _invalid(f"has {shown(number)}: give whole numbers")
        if number < 0:
            raise _invalid(f"has {number}: episodes are counted from 0 on, and none from the end")
        if number in seen:
            raise _invalid(f"has {number} twice: each is read once in an epoch")
        seen.add(number)
    if unknown := seen.difference(numbers.tolist()):
        raise _invalid(
            f"has {min(unknown)}, and the folder has the {len(numbers)} episodes from {numbers[0]} "
            f"to {numbers[-1]}: leave it out"
        )
    return np.searchsorted(numbers, np.array(sorted(seen), np.int64))


def _invalid(said: str) -> InvalidJob:
    return InvalidJob(f"episodes {said}", key="source.episodes")
