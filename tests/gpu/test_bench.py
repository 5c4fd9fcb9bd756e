"""The bench of devices: each driver that answers here, or a simulated device where none does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unit.devices import ANSWERING, LACKS

BENCH = Path(__file__).parent / "bench.py"


@pytest.mark.parametrize(
    "names",
    [pytest.param(list(ANSWERING) or ["simulated"], marks=[pytest.mark.gpu] if ANSWERING else [])],
)
def test_every_part_is_measured_and_brings_the_right_bytes(
    names: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, str(BENCH), "--json", str(file)],
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr

    found = json.loads(file.read_text())
    sentence = done.stdout.splitlines()[0]
    assert sentence == found["sentence"]
    assert sentence.startswith("Measured: " if ANSWERING else "No driver reaches a device of CUDA")
    assert all(why in sentence for why in LACKS.values())
    assert list(found["drivers"]) == names
    for driver in found["drivers"].values():
        calls = driver["calls"]
        assert not [key for key in calls if key.endswith("_failed")], calls
        assert calls.pop("cast_is_right") is True
        assert len(calls) == 6
        assert all(figure > 0 for figure in calls.values()), calls
    assert set(names) < set(found["loaders"])
    for loader in found["loaders"].values():
        assert loader["gb_per_s"] > 0
        assert 0 < loader["wait_p50_ms"] <= loader["wait_p99_ms"]
