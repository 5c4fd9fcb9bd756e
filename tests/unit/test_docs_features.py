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
    """Only what is not there yet has none; rows come once each, in order."""
    for row in ROWS:
        number, feature, here, tests = row
        assert feature
        assert here, number
        assert tests.startswith("`tests/") != here.startswith("not yet"), number

    numbers = [row[0] for row in ROWS]
    assert numbers == sorted(set(numbers), key=lambda one: ("CNRMS".index(one[0]), int(one[1:])))
