"""What a container lends decides the `auto` settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.common.resources import usable_cpus, usable_memory_bytes


@pytest.mark.parametrize(
    ("quota", "most"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("", None)]
)
def test_a_quota_cuts_the_processors(tmp_path: Path, quota: str, most: int | None) -> None:
    """Half a processor is one worker; no quota is what the machine has."""
    (tmp_path / "cpu.max").write_text(quota)

    expected = most if most is not None else usable_cpus(tmp_path / "none")
    assert usable_cpus(tmp_path) == expected >= 1


@pytest.mark.parametrize(("limit", "bounded"), [("1048576", True), ("max", False)])
def test_a_limit_cuts_the_memory(tmp_path: Path, limit: str, bounded: bool) -> None:
    """A container's limit counts where it is below what the machine has."""
    (tmp_path / "memory.max").write_text(limit + "\n")

    found = usable_memory_bytes(tmp_path)

    assert found == (1 << 20 if bounded else usable_memory_bytes(tmp_path / "none"))
