"""Tables for people: the same cells on a terminal and as HTML."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from penstock.wire.plain import plain


class Table(NamedTuple):
    """Cells in columns.

    Attributes:
        rows: The cells. The last one of a row that has fewer than others may be as long as it is.
        heads: What stands above the columns; empty = nothing.
        right: Columns that are flush right.
    """

    rows: Sequence[Sequence[str]]
    heads: Sequence[str] = ()
    right: frozenset[int] = frozenset()

    def lines(self, indent: int = 0) -> list[str]:
        """Return it as lines of a terminal, without control characters."""
        rows = [[plain(cell) for cell in row] for row in (self.heads, *self.rows) if row]
        count = max(map(len, rows), default=0)
        widths = [
            max(len(row[at]) for row in rows if at + 1 < len(row) or len(row) == count)
            for at in range(count)
        ]
        lines = []
        for row in rows:
            cells = [
                cell.rjust(width) if at in self.right else cell.ljust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=False))
            ]
            if len(row) < count:
                cells[-1] = row[-1]
            lines.append((" " * indent + "  ".join(cells)).rstrip())
        return lines

    def html(self, name: str = "") -> str:
        """Return it as HTML, of a class of that name."""
        heads = "".join(f"<th>{escape(head)}</th>" for head in self.heads)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows
        )
        top = f"<thead><tr>{heads}</tr></thead>" if heads else ""
        return f'<table class="{name}">{top}<tbody>{body}</tbody></table>'
