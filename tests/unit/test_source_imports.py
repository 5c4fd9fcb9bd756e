"""Naming code in a job: files and modules, found alike by every process, with errors in words."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from penstock.server.roles.role import module_hash
from penstock.server.usercode.imports import load_attribute
from penstock.wire.errors import InvalidJob


@pytest.fixture(autouse=True)
def _own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what loading a file appends to the path."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def test_a_file_and_a_module_are_named_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absolute, relative to the working directory, dotted inside, or an installed module."""
    (tmp_path / "mine.py").write_text("class A:\n    class B:\n        value = 7\n")
    monkeypatch.chdir(tmp_path)

    assert load_attribute("./mine.py:A.B.value") == 7
    assert load_attribute(f"{tmp_path}/mine.py:A") is load_attribute("./mine.py:A")
    assert load_attribute("mine.py:A") is load_attribute("./mine.py:A")
    assert load_attribute("os.path:join") is os.path.join


def test_an_edited_file_is_another_module_and_another_hash(tmp_path: Path) -> None:
    """Even with the same size and time of change: the bytes decide, and the old one stays."""
    path = tmp_path / "mine.py"
    path.write_text("class A:\n    value = 1\n")
    os.utime(path, (10**9, 10**9))
    first = load_attribute(f"{path}:A")
    before = module_hash(first)

    path.write_text("class A:\n    value = 2\n")
    os.utime(path, (10**9, 10**9))
    second = load_attribute(f"{path}:A")

    assert (first.value, second.value) == (1, 2)
    assert module_hash(first) == before != module_hash(second)


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    """As under `python mine.py`; but an installed module of that name is not hidden."""
    (tmp_path / "neighbour_of_mine.py").write_text("value = 5\n")
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong json')\n")
    path = tmp_path / "mine.py"
    path.write_text("import json\nfrom neighbour_of_mine import value\n")

    assert load_attribute(f"{path}:value") == 5


def test_a_failed_import_leaves_nothing_behind(tmp_path: Path) -> None:
    """The next attempt fails alike, rather than finding half a module."""
    path = tmp_path / "mine.py"
    path.write_text("value = 1\nraise RuntimeError('half way')\n")

    for _ in range(2):
        with pytest.raises(InvalidJob, match="RuntimeError: half way"):
            load_attribute(f"{path}:value")


def test_mistakes_are_one_sentence_with_the_users_frames_alone(tmp_path: Path) -> None:
    """What is missing or failed, where, and the nearest name; no frame of ours or of importlib."""
    (tmp_path / "mine.py").write_text("def make_data(): ...\n")
    (tmp_path / "syntax.py").write_text("x = 1\ndef broken(:\n")
    (tmp_path / "broken.py").write_text("def f():\n    import nosuchpackage\nf()\n")
    (tmp_path / "notes.txt").write_text("x = 1\n")

    for spec, sentence in (
        ("make", "'make' names no code"),
        (":make", "':make' names no code"),
        ("mine:", "'mine:' names no code"),
        ("./nowhere/mine.py:make", r"cannot be read \(No such file or directory\).*nowhere"),
        (f"{tmp_path}/mine.py:make_dta", "has no 'make_dta'; did you mean make_data"),
        (f"{tmp_path}/mine.py:zzz", "has no 'zzz'; it has make_data"),
        (f"{tmp_path}/syntax.py:x", r"SyntaxError: .*syntax\.py, line 2"),
        (
            f"{tmp_path}/broken.py:f",
            r"No module named 'nosuchpackage' .*broken\.py, line 2: import",
        ),
        (f"{tmp_path}/notes.txt:x", "is not a Python file"),
        ("nosuchpackage.deep:x", "no module 'nosuchpackage'.*./nosuchpackage"),
        ("os.nosuchmodule:x", "no module 'os.nosuchmodule'"),
    ):
        with pytest.raises(InvalidJob, match=sentence) as caught:
            load_attribute(spec)
        assert caught.value.fields["spec"] == spec
        frames = caught.value.fields.get("traceback", "")
        assert "importlib" not in frames
        assert "usercode/imports.py" not in frames


def test_the_same_text_in_two_folders_is_two_modules(tmp_path: Path) -> None:
    """Each reads what lies beside itself."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "roles.py").write_text(
            "from pathlib import Path\n\ndef home():\n    return Path(__file__).parent.name\n"
        )

    found = [load_attribute(f"{tmp_path / folder / 'roles.py'}:home")() for folder in "aba"]

    assert found == ["a", "b", "a"]
