"""docs/features.md: every row says what does it here, and names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

HOME = Path(__file__).parents[2]
PAGE = (HOME / "docs" / "features.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in re.findall(r"^\| [CNRMS]\d+ .*$", PAGE, re.M)
]

LETTERS = {"C": 36, "N": 40, "R": 22, "M": 20, "S": 16}
"""How many rows each system has: what it does was listed once, before any of it was made here."""


def test_no_row_is_left_out() -> None:
    """What does not work has a row that says so."""
    assert [row[0] for row in ROWS] == [
        f"{letter}{number}" for letter, last in LETTERS.items() for number in range(1, last + 1)
    ]


def test_every_test_of_the_page_exists() -> None:
    """The file, and a function of this name in it."""
    named = {name for row in ROWS for name in re.findall(r"`(tests/\S+)`", row[3])}

    missing = []
    for name in sorted(named):
        file, _, function = name.partition("::")
        path = HOME / file
        if not path.is_file() or not re.search(rf"^def {function}\(", path.read_text(), re.M):
            missing.append(name)

    assert named
    assert missing == []


def test_every_row_that_works_names_a_test() -> None:
    """Only what is not there yet has none."""
    for row in ROWS:
        number, feature, here, tests = row
        assert feature
        assert here, number
        assert tests.startswith("`tests/") != here.startswith("not yet"), number
