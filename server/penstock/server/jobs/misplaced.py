"""Keys in the wrong place of a job file: which section or role has them, or what was meant."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping

from penstock.common.elsewhere import ELSEWHERE, RENAMED
from penstock.common.nearest import hint, nearest
from penstock.server.jobs.settings import JobFile, JobSettings, ServerSettings
from penstock.server.roles.batchers import BUILTIN_BATCHERS
from penstock.server.roles.collators import BUILTIN_COLLATORS
from penstock.server.roles.distributors import BUILTIN_DISTRIBUTORS
from penstock.server.roles.processors import BUILTIN_PROCESSORS
from penstock.server.roles.role import Role
from penstock.server.sources import BUILTIN_SOURCES

_ROLES: Mapping[str, tuple[Mapping[str, type[Role]], tuple[str, ...]]] = {
    "source": (BUILTIN_SOURCES, ("parquet", "jsonl")),
    "distributor": (BUILTIN_DISTRIBUTORS, ("map",)),
    "processor": (BUILTIN_PROCESSORS, ("tokenize", "chat")),
    "batcher": (BUILTIN_BATCHERS, ("best_fit",)),
    "collator": (BUILTIN_COLLATORS, ("packed",)),
}
"""By kind: the built-in roles, and which of them is named first where several have a parameter."""


_FILES = frozenset(("path", "paths", "data_files", "data_dir", "pattern", "urls", "url", "glob"))
"""What the files of a source are called elsewhere."""


def remedy(word: str, known: Collection[str]) -> str:
    """Return the end of a sentence about a key that a section has not.

    Args:
        word: The key.
        known: The section's own keys.
    """
    if word in RENAMED or (word in ELSEWHERE and not nearest(word, known)):
        return ELSEWHERE[word]
    return _section_of(word) or _role_of(word) or hint(word, known)


def remedy_in_role(word: str, known: Collection[str]) -> str:
    """Return the end of a sentence about a parameter that a role has not; as `remedy`.

    Names of the role itself come before all but `RENAMED`: they are more, and often typed wrong.
    """
    if word not in RENAMED and nearest(word, known):
        return hint(word, known)
    if word in _FILES and "files" in known:
        return "did you mean files?"
    return ELSEWHERE.get(word) or _section_of(word) or _role_of(word) or hint(word, known)


def _section_of(word: str) -> str:
    """Say which section has a key; empty if none has."""
    if word in ServerSettings.model_fields:
        return f"it is a key of the node: server: {{{word}: ...}}"
    if word in JobSettings.model_fields:
        return f"it is a key of a job: jobs: {{NAME: {{{word}: ...}}}}"
    if word in JobFile.model_fields:
        return f"{word}: is a section of its own, at the left margin of the file"
    return ""


def _role_of(word: str) -> str:
    """Say which role has a parameter; empty if none has."""
    for kind, (builtins, first) in _ROLES.items():
        for name in (*first, *builtins):
            if word in inspect.signature(builtins[name]).parameters:
                return (
                    f"it is a parameter of the {kind} {name}: {kind}: {{type: {name}, {word}: ...}}"
                )
    return ""
