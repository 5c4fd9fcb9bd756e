"""Sound in processes of its own: damaged files, and other processors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sounds import FORMATS, RESAMPLED

TESTS = Path(__file__).resolve().parents[1]
COUNT = 600


def run(*arguments: str, **surroundings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS,
        env={**os.environ, **surroundings},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def decode_damaged(count: int, seed: int) -> dict[str, int]:
    done = run("-W", "error", "damaged/sounds.py", str(count), str(seed))
    assert done.returncode == 0, f"seed {seed} ends with {done.returncode}:\n{done.stderr[-3000:]}"
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_damaged_sounds_are_refused_by_name_and_take_no_memory() -> None:
    """No crash, no other error, no warning, and 64 MiB for files of a few KiB; all formats met."""
    found = decode_damaged(COUNT, seed=1)

    assert sum(found.values()) == COUNT + len(FORMATS)
    assert all(found.get(f"{name}: refused") for name in FORMATS)
    assert sum(count for name, count in found.items() if "decoded" in name) > COUNT // 8


@pytest.mark.parametrize("seed", range(2, 7))
def test_many_damaged_sounds(seed: int) -> None:
    """The same at more length: 10^4 files."""
    assert decode_damaged(2000, seed)


@pytest.mark.parametrize(
    "surroundings",
    [
        {"OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Nehalem"},
        {"OPENBLAS_NUM_THREADS": "2", "NPY_DISABLE_CPU_FEATURES": "FMA3 AVX2 AVX512F"},
    ],
    ids=["an old processor", "two threads, few vectors"],
)
def test_resampled_sound_is_the_same_on_other_processors(surroundings: dict[str, str]) -> None:
    """Whatever adds the products up: other kernels, other threads."""
    script = "import sounds; print(sounds.resampling_digest())"

    done = run("-W", "ignore", "-c", script, **surroundings)

    assert done.stdout.strip() == repr(RESAMPLED), done.stderr
