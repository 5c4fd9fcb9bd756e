"""The readable difference of two plans."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.server.store.rules.diff import differences

HASH = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"seed": 7}, {"seed": 8}, ["seed: 7 → 8"]),
        ({"a": 1, "b": 2}, {"b": 2}, ["a: 1 → absent"]),
        ({}, {"a": None}, ["a: absent → null"]),
        ({"a": 1}, {"a": True}, ["a: 1 → true"]),
        ({"a": 1}, {"a": 1.0}, ["a: 1 → 1.0"]),
        ({"a": [1]}, {"a": [True]}, ["a[0]: 1 → true"]),
        ({"a": "x"}, {"a": "<eos>"}, ["a: x → <eos>"]),
        ({"a": ""}, {"a": "\n"}, ['a: "" → "\\n"']),
        ({"a": HASH}, {"a": HASH[::-1]}, ["a: 0123456789ab... → fedcba987654..."]),
        (
            {"p": {"type": "tokenize", "parameters": {"column": "text"}}},
            {"p": {"type": "function", "parameters": {"function": "f"}}},
            ["p: tokenize → function"],
        ),
        (
            {"p": {"type": "t", "parameters": {}}},
            {"p": {"type": "t", "parameters": {"append": "<eos>"}}},
            ["p.parameters.append: default → <eos>"],
        ),
        ({"a": [1, 2]}, {"a": [1, 2, 3]}, ["a: [1, 2] → [1, 2, 3]"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a[1]: 2 → 3"]),
        ({"a": list(range(9))}, {"a": list(range(12))}, ["a: 9 entries → 12 entries"]),
        ([1], {"a": 1}, ['the plan: [1] → {"a": 1}']),
    ],
)
def test_each_difference_is_a_line(old: Any, new: Any, expected: list[str]) -> None:
    """Key path, old value, new value; types are values too."""
    assert differences(old, new) == expected
    assert differences(old, old) == differences(new, new) == []


@pytest.mark.parametrize("named", ["list", "dict"])
def test_files_are_counted(named: str) -> None:
    """Hashes of a thousand files tell nobody anything: counts and the first names do."""

    def files(**hashes: str) -> Any:
        if named == "list":
            return {"files": [[name, 10, value] for name, value in hashes.items()]}
        return {"files": [{"path": name, "hash": value} for name, value in hashes.items()]}

    old = files(a="1", b="2", c="3", d="4")

    assert differences(old, files(b="9", d="4", e="5", f="6")) == [
        "files: 2 files added (e, ...), 2 removed (a, ...), 1 changed (b)"
    ]
    assert differences(old, files(a="1", b="2", c="3")) == ["files: 1 file removed (d)"]
    assert differences(old, files(d="4", c="3", b="2", a="1")) == ["files: in another order"]
    assert differences({"x": []}, {"x": [["a", 1]]}) == ["x: 1 entry added (a)"]


def test_a_long_value_is_cut() -> None:
    """A line stays a line."""
    (line,) = differences({"a": "x" * 500}, {"a": "y" * 500})

    assert len(line) < 140
