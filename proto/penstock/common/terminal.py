"""Texts for a terminal: control characters in them are shown and not obeyed."""

from __future__ import annotations

import os
import re
from typing import TextIO

MIN_COLUMNS = 40
"""On narrower terminals lines break where the terminal breaks them."""

HANGING = 2
"""How much further the rest of a folded line is indented."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def columns_of(stream: TextIO) -> int | None:
    """Return the width of the terminal behind a stream, in columns; None if it is not one."""
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    except (OSError, ValueError):  # a stream without a file, or a closed one
        return None
    return columns if columns >= MIN_COLUMNS else None


def folded(text: str, columns: int | None) -> str:
    """Return a text with its lines broken between words, as wide as a terminal.

    The rest of a folded line is indented a little more than its beginning. Words that are longer
    than a line, such as paths, stay whole, so they can be copied; whatever goes into a pipe or a
    file (`columns` is None) stays as it is.
    """
    if columns is None:
        return text
    return "\n".join(_folded(line, columns) for line in text.split("\n"))


def _folded(line: str, columns: int) -> str:
    if _width(line) <= columns:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    words = re.findall(r"\s*\S+", line[len(indent) :])
    lines = [indent + words[0]]
    for word in words[1:]:
        if _width(lines[-1]) + _width(word) <= columns:
            lines[-1] += word
        else:
            lines.append(indent + " " * HANGING + word.lstrip())
    return "\n".join(lines)


def _width(text: str) -> int:
    """Return how many visible characters a text has: colour codes are none."""
    return len(_COLOURS.sub("", text))
