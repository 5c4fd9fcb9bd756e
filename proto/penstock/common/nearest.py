"""Words near a mistyped one: every "unknown name" sentence ends with what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MAX_LISTED = 20
"""A hint lists at most this many names, and says how many more there are."""

MAX_SHOWN = 60
"""Characters of a name that are shown: a damaged file may have a name of megabytes."""


MAX_TYPED = 1000
"""Characters of a word that anybody may have meant to type: what is longer is near to nothing, and
is compared with nothing, as a megabyte would take a fifth of a second."""


def nearest(
    word: str,
    known: Iterable[str],
    count: int = 3,
    *,
    likeness: float = 0.6,
    folds_case: bool = True,
) -> list[str]:
    """Return up to `count` of the known names that look most like `word`, best first.

    Args:
        word: What was written.
        known: The existing names.
        count: How many at most.
        likeness: From 0 to 1: names that are less alike are left out.
        folds_case: Case does not count; it does for the names of Python.
    """
    if len(word) > MAX_TYPED:
        return []
    names = sorted(set(known))
    if not folds_case:
        return difflib.get_close_matches(word, names, n=count, cutoff=likeness)
    folded = {name.casefold(): name for name in reversed(names)}
    matches = difflib.get_close_matches(word.casefold(), sorted(folded), n=count, cutoff=likeness)
    return [folded[match] for match in matches]


def hint(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence: what was probably meant, else everything that is known."""
    names = sorted(set(known))
    if near := nearest(word, names):
        return f"did you mean {' or '.join(near)}?"
    if not names:
        return "there are none"
    return f"known are {listed(names)}"


def listed(names: Iterable[str]) -> str:
    """Return names in their order, each of bounded length: after `MAX_LISTED`, how many more."""
    every = [name if len(name) <= MAX_SHOWN else f"{name[:MAX_SHOWN]}..." for name in names]
    more = len(every) - MAX_LISTED
    return ", ".join(every[:MAX_LISTED]) + (f" and {more:,} more" if more > 0 else "")
