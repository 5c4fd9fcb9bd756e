"""docs/glossary.md, made of what docstrings say: `python tests/glossary.py` writes it.

A word of the glossary is defined where the thing is: in the docstring of its class, or of its file
where it has no class, in a section `Glossary:`. No word is defined twice.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "glossary.md"
HEAD = """\
# Glossary

The words that code, docs, errors and metrics use, and no others.
Each is defined in the docstring of what it names; `python tests/glossary.py` writes this page.

| Word | Meaning |
|---|---|
"""


def sections() -> list[str]:
    """Return the glossary sections of all docstrings of the product."""
    found = []
    for folder in ("proto", "server", "client"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            text = file.read_text()
            if "Glossary:\n" not in text:
                continue
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Module | ast.ClassDef):
                    _, here, section = (ast.get_docstring(node) or "").partition("Glossary:\n")
                    if here:
                        found.append(re.split(r"\n(?=\S)", section)[0])
    return found


def words() -> list[tuple[str, str]]:
    """Return each word with its meaning, as often as it is defined."""
    found = []
    for section in sections():
        for entry in re.split(r"\n(?=    \S)", section.rstrip()):
            word, _, meaning = " ".join(entry.split()).partition(": ")
            found.append((word, meaning))
    return sorted(found, key=lambda entry: entry[0].casefold())


def page() -> str:
    """Return the page."""
    return HEAD + "".join(f"| **{word}** | {meaning} |\n" for word, meaning in words())


if __name__ == "__main__":
    PAGE.write_text(page())
