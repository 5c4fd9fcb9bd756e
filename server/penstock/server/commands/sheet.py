"""What a command says about a job, or an index: one value, as text and as HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import click

from penstock.common.text_table import Table
from penstock.wire.plain import plain


class Sheet(NamedTuple):
    """A result for people.

    Attributes:
        title: What it is about.
        figures: Each with its name.
        more: What follows the title on a terminal.
        about: Lines before the figures.
        blocks: Lines after them on a terminal, indented already.
        notes: Sentences at the end: what may surprise.
    """

    title: str
    figures: Sequence[tuple[str, str]]
    more: str = ""
    about: Sequence[str] = ()
    blocks: Sequence[str] = ()
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Return it as lines of a terminal."""
        return "\n".join(
            [
                f"{click.style(plain(self.title), bold=True)}{self.more}",
                *(f"  {line}" for line in self.about),
                *Table(self.figures).lines(indent=2),
                *self.blocks,
                *(f"  {click.style('note', fg='yellow')} {plain(note)}" for note in self.notes),
            ]
        )

    def html(self) -> str:
        """Return its figures and notes as HTML: what else a page has is around it."""
        notes = "".join(f"<p>Note: {escape(note)}.</p>" for note in self.notes)
        return f'<div class="scroll">{Table(self.figures).html("figures")}</div>\n{notes}'


def block(title: str, lines: Iterable[str]) -> list[str]:
    """Return lines below a title; nothing where there are none."""
    found = list(lines)
    return [click.style(f"  {title}", bold=True), *found] if found else []


def counted(number: int, noun: str) -> str:
    """Return `1 lane`, `4 batches`."""
    plural = "" if number == 1 else "es" if noun.endswith("batch") else "s"
    return f"{number:,} {noun}{plural}"
