"""Texts for a terminal: what nodes, data and users' code say is shown there, never obeyed."""

from __future__ import annotations


def plain(text: str) -> str:
    r"""Return a text as one line that is safe in a terminal: `\x1b` in place of the real one."""
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


def plain_lines(text: str) -> str:
    """Return a text of several lines, each as `plain`; tabs stay as well."""
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


__all__ = ["plain", "plain_lines"]
