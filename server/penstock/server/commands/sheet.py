"""What a command says about a job, or an index, for people: every such result has this form."""

from __future__ import annotations

from collections.abc import Iterable

import click

from penstock.wire.table import Table
from penstock.wire.terminal import plain


def sheet(
    title: str,
    figures: Iterable[tuple[str, str]],
    *,
    more: str = "",
    about: Iterable[str] = (),
    blocks: Iterable[str] = (),
    notes: Iterable[str] = (),
) -> str:
    """Return lines.

    Args:
        title: What it is about.
        figures: Each with its name.
        more: What follows the title.
        about: Lines before the figures.
        blocks: Lines after them, indented already.
        notes: Sentences at the end: what may surprise.
    """
    return "\n".join(
        [
            f"{click.style(plain(title), bold=True)}{more}",
            *(f"  {line}" for line in about),
            *Table(list(figures)).lines(indent=2),
            *blocks,
            *(f"  {click.style('note', fg='yellow')} {plain(note)}" for note in notes),
        ]
    )


def block(title: str, lines: Iterable[str]) -> list[str]:
    """Return lines below a title; nothing where there are none."""
    found = list(lines)
    return [click.style(f"  {title}", bold=True), *found] if found else []


def counted(number: int, noun: str) -> str:
    """Return `1 lane`, `4 batches`."""
    plural = "" if number == 1 else "es" if noun.endswith("batch") else "s"
    return f"{number:,} {noun}{plural}"


__all__ = ["block", "counted", "sheet"]
