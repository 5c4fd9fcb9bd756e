"""Texts that come from elsewhere, as a terminal shows them and does not obey them."""

from __future__ import annotations

from typing import Any


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


def clean_text(text: str, limit: int) -> str:
    r"""Return a text that any wire, terminal and store can hold: whole Unicode, of bounded length.

    Half surrogate pairs (a file's name that is not UTF-8 has them) become `\udcff`, as Python
    writes them. What is longer than the limit keeps its beginning and says how much is missing.

    Args:
        text: A text of any length: it is never copied as a whole.
        limit: Characters that the result has at most, with the note of what was cut; 64 or more.
    """
    length = len(text)
    kept = str.__getitem__(text, slice(limit)).encode("utf-8", "backslashreplace").decode("utf-8")
    if length <= limit and len(kept) <= limit:
        return kept
    room = limit - len(f"... ({length} more characters)")
    # A character may be escaped as six or more: those before the cut are found again in the text.
    begin = str.__getitem__(text, slice(room))
    kept = begin.encode("utf-8", "backslashreplace").decode("utf-8")
    while len(kept) > room:
        begin = begin[: -max(1, (len(kept) - room) // 6)]
        kept = begin.encode("utf-8", "backslashreplace").decode("utf-8")
    return f"{kept}... ({length - len(begin)} more characters)"


def clean_json(value: Any, limit: int) -> Any:
    """Return a JSON-able value whose every text is clean, as `clean_text` does it.

    Args:
        value: Made of dict, list, tuple, str, numbers, bool and None; anything else becomes text.
        limit: Characters that each text has at most; 64 or more.
    """
    if isinstance(value, str):
        return clean_text(value, limit)
    if isinstance(value, dict):
        return {
            clean_text(str(key), limit): clean_json(element, limit)
            for key, element in value.items()
        }
    if isinstance(value, list | tuple):
        return [clean_json(element, limit) for element in value]
    if value is None or isinstance(value, bool | int | float):
        return value
    return clean_text(str(value), limit)
