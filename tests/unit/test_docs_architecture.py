"""The page on the architecture is true: rooms, files, classes and lengths."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WAY = PAGE[PAGE.index("## The way") :]
STEPS = re.findall(r"^\| \d+ \| `([^`]+)` \| ([\d,]+) \| (.*?) \| (.*?) \|$", WAY, re.MULTILINE)
HALVES = ("server/penstock/server", "client/penstock/client")
SHARED = ("proto/penstock/wire", "proto/penstock/common")
SOURCES = [
    file.read_text()
    for folder in (*HALVES, *SHARED)
    for file in sorted((ROOT / folder).rglob("*.py"))
]


def length(path: str) -> int:
    return len((ROOT / path).read_text().splitlines())


def test_every_room_is_named_and_stands() -> None:
    """Every folder of the halves, and nothing that is not there."""
    there = {
        f"{half}/{folder.name}/"
        for half in HALVES
        for folder in (ROOT / half).iterdir()
        if (folder / "__init__.py").exists()
    }

    rooms = PAGE[PAGE.index("## The rooms") : PAGE.index("## Inside")]
    assert set(re.findall(r"^\| `([^`]+)`", rooms, re.MULTILINE)) == there | {
        f"{folder}/" for folder in SHARED
    }


@pytest.mark.parametrize("folder", [*HALVES, *SHARED])
def test_the_docstring_of_a_package_names_files_that_are_there(folder: str) -> None:
    """By `name.py`, each a file of that package."""
    for package in (ROOT / folder).rglob("__init__.py"):
        said = ast.get_docstring(ast.parse(package.read_text())) or ""
        for name in re.findall(r"`(\w+\.py)`", said):
            assert (package.parent / name).is_file(), f"{package.parent.name}: {name}"


def test_every_file_of_the_larger_rooms_is_named_once() -> None:
    """A stranger finds each file under what it is about, and none that is not there."""
    inside = PAGE[PAGE.index("## Inside") : PAGE.index("## The way")]
    named: dict[str, list[str]] = {}
    for room, files in re.findall(r"^\| `([^`]+)` \| .*? \| (.*?) \|$", inside, re.MULTILINE):
        named.setdefault(room, []).extend(re.findall(r"`(\w+)`", files))

    assert len(named) == 11
    for room, files in named.items():
        there = {file.stem for file in (ROOT / room).glob("*.py")} - {"__init__"}
        assert sorted(files) == sorted(there), room


def test_the_way_of_a_batch_is_as_long_as_the_page_says() -> None:
    """Each file within a tenth, and what is named is defined in it."""
    assert len(STEPS) == 20
    for path, lines, says, _ in STEPS:
        said, is_now = int(lines.replace(",", "")), length(path)
        assert abs(said - is_now) <= 0.1 * is_now, f"{path} has {is_now} lines"
        text = (ROOT / path).read_text()
        names = re.findall(r"`(\w+)`", says.partition(":")[0])
        assert names, says
        for name in names:
            assert re.search(rf"^(class|def|async def) {name}\b", text, re.MULTILINE), name


def test_the_way_is_no_longer_than_a_stranger_reads() -> None:
    """At most 20 files and 4,100 lines of them: what leads aside has a file of its own.

    The page's sum is that of its own lines, and within a hundredth of what the files have.
    """
    said = re.search(r"These are ([\d,]+) lines", WAY)
    assert said is not None
    total = int(said[1].replace(",", ""))
    is_now = sum(length(path) for path, *_ in STEPS)

    assert total == sum(int(lines.replace(",", "")) for _, lines, _, _ in STEPS)
    assert abs(total - is_now) <= 0.01 * is_now, f"the files have {is_now} lines"
    assert is_now <= 4100


def test_what_leads_from_one_file_to_the_next_is_there() -> None:
    """A name is a class, or a method that a class defines in the file where it stands."""
    names = [name for *_, how in STEPS for name in re.findall(r"`([\w.]+)`", how)]
    assert len(names) >= 10
    for name in names:
        cls, _, method = name.partition(".")
        assert any(
            re.search(rf"^class {cls}\b", text, re.MULTILINE)
            and (not method or re.search(rf"^    (async )?def {method}\b", text, re.MULTILINE))
            for text in SOURCES
        ), name


def test_what_lies_beside_the_way_is_there() -> None:
    """Files that the page names in short lie in a room, and no two of that name do."""
    files = [
        file.as_posix() for folder in (*HALVES, *SHARED) for file in (ROOT / folder).rglob("*.py")
    ]
    names = re.findall(r"`(\w+/\w+\.py)`", WAY)
    assert len(names) >= 10
    for name in names:
        assert sum(file.endswith(f"/{name}") for file in files) == 1, name
