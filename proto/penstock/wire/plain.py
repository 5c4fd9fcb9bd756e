"""Texts that come from elsewhere, as a terminal shows them and does not obey them."""

from __future__ import annotations


def plain(text: str) -> str:
    r"""Return a text as one line that is safe in a terminal: `\x1b` in place of that character."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def plain_lines(text: str) -> str:
    """Return a text of several lines, each as `plain`; tabs stay as well."""
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


__all__ = ["plain", "plain_lines"]
