"""Real files of every format, damaged at random: each is read right, or is blamed by name.

The cases here are the same each time, so that a run tells of the change it is run for. New ones
are drawn by hand, for as long as you like, with the seed printed: see `damaged.fuzz`.
"""

from __future__ import annotations

import os

import pytest

from damaged.fuzz import run

CASES = int(os.environ.get("DAMAGED_CASES", "12"))
"""Of every format; fewer of those that take long."""
SEED = int(os.environ.get("DAMAGED_SEED", "2053719894"))
"""The seed that once found a damaged Parquet file which `datasets` decodes and nobody named."""


@pytest.mark.fault
def test_a_damaged_file_is_read_right_or_blamed_by_name() -> None:
    """No error of Python's own, none of another machine, no crash, no memory, and no long wait."""
    ran = run(SEED, 0, CASES)

    assert ran.cases > 20 * CASES
    assert not ran.findings, "\n\n".join(
        f"python -m damaged.reading {SEED} {found.case} {found.case + 1} {found.format!r}\n"
        f"{found.said}"
        for found in ran.findings[:9]
    )
