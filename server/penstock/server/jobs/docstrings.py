"""What a docstring says of each argument: the reference, the schema and `--help` show the same."""

from __future__ import annotations

import re


def argument_docs(docstring: str | None) -> dict[str, str]:
    """Return the `Args:` of a Google-style docstring, by name, each on one line.

    Args:
        docstring: What `inspect.getdoc` returns; None (`python -OO`) has no arguments.
    """
    _, found, rest = (docstring or "").partition("Args:\n")
    if not found:
        return {}
    meanings: dict[str, list[str]] = {}
    name = ""
    for line in rest.splitlines():
        if line and not line.startswith(" "):  # the next section
            break
        if match := re.fullmatch(r" {4}\*{0,2}(\w+)(?: \([^)]*\))?: *(.*)", line):
            name = match[1]
            meanings[name] = [match[2]]
        elif name and line.strip():
            meanings[name].append(line.strip())
    return {key: " ".join(parts) for key, parts in meanings.items()}
