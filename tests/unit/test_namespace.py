"""The layout that makes `penstock` one namespace of three rooms, and docs that name real files."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
ROOMS = {"proto": ["common", "wire"], "server": ["server"], "client": ["client"]}
PAGES = sorted(
    [*HOME.glob("*.md"), *(HOME / "docs").rglob("*.md"), *(HOME / "deploy").rglob("*.md")]
)

NAMED = re.compile(r"`((?:docs|proto|server|client|tests|deploy|\.ci)/[\w./*-]*)`")
LINKED = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")


def test_every_extra_brings_what_some_code_asks_for() -> None:
    """No extra without code, and no sentence that names one that there is not."""
    extras = tomllib.loads((HOME / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    code = "\n".join(path.read_text() for room in ROOMS for path in (HOME / room).rglob("*.py"))

    named = set(re.findall(r"^.*\bextra(?:: str)? ?= ?\"(\w+)\"(?! *, *frozen)", code, re.M))
    named |= set(re.findall(r"\boptional\(\"[^\"]+\", \"[^\"]+\", \"(\w+)\"", code))

    # Nothing asks for otel: where it is missing there are no spans, and nothing else is missing.
    # `dev` and `fuzz` are for our own tests.
    assert named == set(extras) - {"dev", "fuzz", "otel"}


@pytest.mark.parametrize("room", ROOMS)
def test_no_init_file_closes_the_namespace(room: str) -> None:
    """One would hide the other rooms from whoever imports."""
    assert not (HOME / room / "__init__.py").exists()
    assert not (HOME / room / "penstock" / "__init__.py").exists()


@pytest.mark.parametrize(("room", "packages"), ROOMS.items())
def test_a_room_holds_its_packages_alone(room: str, packages: list[str]) -> None:
    """A stray module there would be a global one in editable installs."""
    assert [path.name for path in visible(HOME / room)] == ["penstock"]
    assert [path.name for path in visible(HOME / room / "penstock")] == packages


@pytest.mark.parametrize(("room", "packages"), ROOMS.items())
def test_a_package_is_typed(room: str, packages: list[str]) -> None:
    """Type checkers of users look for the marker."""
    assert all((HOME / room / "penstock" / package / "py.typed").is_file() for package in packages)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(HOME).as_posix())
def test_a_page_names_files_that_are_there(page: Path) -> None:
    """In links, and in backquotes where it looks like a path of the checkout."""
    text = page.read_text()

    missing = [name for name in NAMED.findall(text) if not any(HOME.glob(name.rstrip("/")))]
    missing += [name for name in LINKED.findall(text) if not (page.parent / name).exists()]

    assert missing == []


def test_code_names_pages_that_are_there() -> None:
    """`docs/...` in a help text or a docstring."""
    named = {
        (name, path.relative_to(HOME).as_posix())
        for room in ROOMS
        for path in (HOME / room / "penstock").rglob("*.py")
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text())
    }

    assert named
    assert [where for where in sorted(named) if not (HOME / where[0]).is_file()] == []


def visible(folder: Path) -> Iterator[Path]:
    """What lies in a folder, but for caches."""
    return (path for path in folder.iterdir() if path.name != "__pycache__")
