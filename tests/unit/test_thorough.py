"""tests/thorough.txt names tests that exist: else what was to be left out runs, and nobody sees."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LINES = [
    line for line in (TESTS / "thorough.txt").read_text().splitlines() if not line.startswith("#")
]


@pytest.mark.parametrize("line", LINES)
def test_it_is_there(line: str) -> None:
    """Its file and its function; of its case what stands in the brackets is not looked for."""
    file, *_, name = line.partition("[")[0].split("::")

    assert f"def {name}(" in (TESTS / file).read_text()


def test_the_list_is_in_order_of_files() -> None:
    """And names none twice."""
    assert len(LINES) == len(set(LINES))
    assert [line.partition("::")[0] for line in LINES] == sorted(
        line.partition("::")[0] for line in LINES
    )
