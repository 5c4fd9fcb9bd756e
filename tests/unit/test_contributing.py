"""CONTRIBUTING says which files a change touches: each list is that of a real example."""

from __future__ import annotations

import re
from pathlib import Path

from penstock.common import programs
from penstock.server import roles

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def test_an_operation_of_the_store_is_where_the_page_says() -> None:
    """The example's name stands in these files of the store and in no others."""
    part = PAGE[PAGE.index("An operation of the store") : PAGE.index("A class of rows")]
    example, *named = re.findall(r"`([^`]+)`", part)
    rooms = ("server/penstock/server/store", "server/penstock/server/testing")
    found = {
        file.name
        for room in rooms
        for file in (ROOT / room).rglob("*.py")
        if example in file.read_text()
    }

    assert found == {"log_operations.py", "lane_records.py", "store.py"}
    assert found <= {Path(name).name for name in named}
    for name in named:
        assert list((ROOT / "server/penstock/server").rglob(Path(name).name)), name


def files_named(part: str) -> tuple[str, set[str]]:
    """Return the example of a list, and the files that its lines begin with."""
    example = re.search(r"such as `([^`]+)`", part)
    assert example is not None
    return example[1], set(re.findall(r"^\* `([^`]+)`:", part, re.MULTILINE))


def product_files(pattern: str) -> set[str]:
    return {
        file.relative_to(ROOT).as_posix()
        for folder in ("proto", "server", "client")
        for file in (ROOT / folder).rglob("*.py")
        if re.search(pattern, file.read_text())
    }


def test_a_built_in_role_is_where_the_page_says() -> None:
    """And so is what else lists the built-in ones."""
    part = PAGE[PAGE.index("A built-in role") : PAGE.index("A command, such as")]
    product, lists = part.split("What lists the roles")
    example, named = files_named(product)
    listing = re.findall(r"^\* `([^`]+)`", lists, re.MULTILINE)

    assert product_files(rf"\b{example}\b") == named
    assert len(listing) == 5
    type_name = getattr(roles, example).type_name
    assert all(
        re.search(rf"\b({example}|{type_name})\b", (ROOT / name).read_text()) for name in listing
    )


def test_a_command_is_where_the_page_says() -> None:
    part = PAGE[PAGE.index("A command, such as") : PAGE.index("## Generated code")]
    example, named = files_named(part)

    names = "proto/penstock/common/programs.py"
    assert named == {f"server/penstock/server/commands/{example}.py", names}
    assert all((ROOT / name).is_file() for name in named)
    assert example in programs.COMMANDS["penstockd"]
    # Its module is found by its name: no other list has it.
    listed = product_files(rf'"serve",[^)}}]*"{example}"')
    assert listed == {names}
