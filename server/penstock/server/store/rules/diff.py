"""What differs between two canonical plans, in lines for people."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_ABSENT: Any = object()
_NAMES = ("path", "name", "file", "shard")


def differences(old: Any, new: Any) -> list[str]:
    """Return one line per difference, `key.path: old → new`, in the order of the keys.

    A role of another type is one difference: its parameters are not comparable. A list of named
    things (files with sizes and hashes) is told by counts: `source.files: 3 files added (a.parquet,
    ...), 1 changed (b.parquet)`.

    Args:
        old: A JSON-able plan.
        new: Another.
    """
    return list(_walk("", old, new))


def _walk(path: str, old: Any, new: Any) -> Iterable[str]:
    if _same(old, new):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        if "type" in old and "type" in new and not _same(old["type"], new["type"]):
            yield f"{_at(path)}: {_show(old['type'])} → {_show(new['type'])}"
            return
        for key in sorted({*old, *new}, key=str):
            below = f"{path}.{key}" if path else str(key)
            yield from _walk(below, old.get(key, _ABSENT), new.get(key, _ABSENT))
        return
    if isinstance(old, list) and isinstance(new, list):
        named_old, named_new = _by_name(old), _by_name(new)
        if named_old is not None and named_new is not None and (named_old or named_new):
            yield f"{_at(path)}: {_count(path, named_old, named_new)}"
            return
        if len(old) == len(new):
            for index, (ours, theirs) in enumerate(zip(old, new, strict=True)):
                yield from _walk(f"{path}[{index}]", ours, theirs)
            return
        if max(len(old), len(new)) > 8:
            yield f"{_at(path)}: {len(old)} entries → {len(new)} entries"
            return
    unset = "default" if "parameters" in path.split(".") else "absent"
    yield f"{_at(path)}: {_show(old, unset)} → {_show(new, unset)}"


def _same(old: Any, new: Any) -> bool:
    # 1, 1.0 and True are equal in Python and three values in a plan.
    return type(old) is type(new) and bool(old == new) and _text(old) == _text(new)


def _at(path: str) -> str:
    return path or "the plan"


def _by_name(entries: list[Any]) -> dict[str, Any] | None:
    """Return the entries by their name where every one has one of its own, else None."""
    named: dict[str, Any] = {}
    for entry in entries:
        name: Any = None
        if isinstance(entry, dict):
            name = next((entry[key] for key in _NAMES if key in entry), None)
        elif isinstance(entry, list) and len(entry) > 1:
            name = entry[0]
        if not isinstance(name, str) or name in named:
            return None
        named[name] = entry
    return named


def _count(path: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    noun = path.rpartition(".")[2].rstrip("s") or "entry"
    noun = noun if noun in ("file", "shard", "source") else "entry"
    parts: list[str] = []
    for verb, names in (
        ("added", sorted(new.keys() - old.keys())),
        ("removed", sorted(old.keys() - new.keys())),
        (
            "changed",
            sorted(name for name in old.keys() & new.keys() if not _same(old[name], new[name])),
        ),
    ):
        if names:
            plural = noun if len(names) == 1 else {"entry": "entries"}.get(noun, noun + "s")
            subject = f"{len(names)} {verb}" if parts else f"{len(names)} {plural} {verb}"
            parts.append(f"{subject} ({names[0]}{', ...' if len(names) > 1 else ''})")
    return ", ".join(parts) or "in another order"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def _show(value: Any, unset: str = "absent") -> str:
    if value is _ABSENT:
        return unset
    if isinstance(value, str) and len(value) >= 32 and all(c in "0123456789abcdef" for c in value):
        return value[:12] + "..."
    text = value if isinstance(value, str) and value.isprintable() and value else _text(value)
    return text if len(text) <= 60 else text[:57] + "..."
