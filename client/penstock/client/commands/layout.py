"""Tables that fit a terminal: the least important columns are left out first."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from penstock.wire.plain import plain

GAP = "  "
MORE = "…"


class Column(NamedTuple):
    """A column of a table.

    Attributes:
        name: Its heading.
        cells: Its cells, from the first row to the last.
        right: Its cells are flush right.
        keep: The column with the lowest number is left out first if the table is too wide; 0 = it
            always stays.
        least: How many cells of the terminal it keeps at least when it is cut; None = it is never
            cut.
    """

    name: str
    cells: Sequence[str]
    right: bool = False
    keep: int = 0
    least: int | None = None


def screen() -> tuple[int, int] | None:
    """Return the columns and lines of the terminal that output goes to; None = it is not one."""
    if not sys.stdout.isatty():
        return None
    size = shutil.get_terminal_size((80, 24))  # COLUMNS and LINES, where they are set, hold
    return max(20, size.columns), max(5, size.lines)


def width_of(text: str) -> int:
    """Return how many cells of a terminal a text takes: a wide character two, a mark none."""
    if text.isascii():
        return len(text)
    wide = ("W", "F")
    return sum(
        0
        if unicodedata.combining(character)
        else 2
        if unicodedata.east_asian_width(character) in wide
        else 1
        for character in text
    )


def cut(text: str, width: int) -> str:
    """Return a text of at most `width` cells; one that was longer ends with `…`."""
    if width_of(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += width_of(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept) + MORE if width > 0 else ""


def shortened(text: str, width: int) -> str:
    """Return a name of at most `width` cells, cut in its middle: names often differ at the end."""
    if width_of(text) <= width or width < 8:
        return cut(text, width)
    tail = ""
    for character in reversed(text):
        if width_of(character + tail) > (width - 1) // 2:
            break
        tail = character + tail
    return cut(text, width - width_of(tail)) + tail


def fitted(columns: Sequence[Column], width: int | None) -> list[str]:
    """Return the lines of a table, its head first, none wider than `width` cells.

    First columns are left out, the least important first; then columns that may be cut are cut, the
    widest first; then lines end with `…`.

    Args:
        columns: As many cells in each.
        width: None = no limit, for files and pipes.
    """
    shown = [(column, [plain(cell) for cell in (column.name, *column.cells)]) for column in columns]
    widths = [max(map(width_of, cells)) for _, cells in shown]
    while width is not None and _total(widths) > width:
        # A column that may be cut is as narrow as that before another one is left out.
        least = [
            size if column.least is None else min(size, max(column.least, width_of(column.name)))
            for size, (column, _) in zip(widths, shown, strict=True)
        ]
        spare = [index for index, (column, _) in enumerate(shown) if column.keep]
        if _total(least) <= width or not spare:
            _shrink(widths, least, width)
            break
        gone = min(spare, key=lambda index: shown[index][0].keep)
        del shown[gone], widths[gone]
    lines = []
    for row in zip(*(cells for _, cells in shown), strict=True):
        line = GAP.join(
            _padded(shortened(cell, size), size, column.right)
            for cell, size, (column, _) in zip(row, widths, shown, strict=True)
        ).rstrip()
        lines.append(line if width is None else cut(line, width))
    return lines


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shrink(widths: list[int], least: Sequence[int], width: int) -> None:
    """Cut the widest column again and again, until the table fits or no column can be cut."""
    while _total(widths) > width:
        able = [index for index, size in enumerate(widths) if size > least[index]]
        if not able:
            return
        widths[max(able, key=lambda index: widths[index])] -= 1


def _padded(text: str, width: int, right: bool) -> str:
    blanks = " " * max(0, width - width_of(text))
    return blanks + text if right else text + blanks


def wrapped(parts: Sequence[str], width: int | None) -> list[str]:
    """Return parts of a sentence on as few lines as fit, none wider than `width` cells."""
    if width is None:
        return [GAP.join(map(plain, parts))]
    lines = [""]
    for part in map(plain, parts):
        longer = f"{lines[-1]}{GAP}{part}" if lines[-1] else part
        if lines[-1] and width_of(longer) > width:
            lines.append(f"    {part}")
        else:
            lines[-1] = longer
    return [cut(line, width) for line in lines]


def short_number(value: float) -> str:
    """Return a rate in at most five characters: 0, 0.04, 8.4, 840, 9.80k, 84.0k, 8.40M.

    Only what is 0 is shown as 0: what moves slowly is not taken for what stands.
    """
    if value <= 0:
        return "0"
    if value < 0.095:
        return f"{value:.2f}" if value >= 0.005 else "<0.01"
    if value < 99.95:
        return f"{value:.1f}"
    if value < 999.5:
        return f"{value:.0f}"
    for unit in ("k", "M", "G", "T"):
        value /= 1000
        if value < 999.5 or unit == "T":
            break
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{unit}"
