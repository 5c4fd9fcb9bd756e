"""A resharding that is killed at any moment leaves whole tables, and the same command ends it."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import call_command
from invariants import eventually
from penstock.server.sources import LerobotSource
from penstock.wire.errors import InvalidJob
from robots import RobotFolder


@pytest.mark.parametrize("written", [1, 20])
def test_a_killed_resharding_is_gone_on_with(tmp_path: Path, written: int) -> None:
    """Killed after the first table, and in the midst of 40; what is there is whole."""
    draw = random.Random(written)
    lengths = [draw.randrange(3, 9) for _ in range(40)]
    root = RobotFolder(lengths, "v2.1", group_rows=2, cameras=()).write(tmp_path / "robots")
    target = tmp_path / "apart"
    command = [sys.executable, "-m", "penstock.server.cli", "reshard", str(root), str(target)]

    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        eventually(
            lambda: len(tables(target)) >= written or running.poll() is not None,
            60,
            f"{written} tables are written",
        )
        running.send_signal(signal.SIGKILL)
        running.wait()
    left = tables(target)
    had_ended = running.returncode == 0

    assert all(pq.ParquetFile(path).metadata.num_row_groups == 1 for path in left)
    if not had_ended:
        with pytest.raises(InvalidJob):
            LerobotSource(str(target))
    done = call_command("penstockd", "reshard", str(root), str(target))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) == 40 - len(left)
    assert rows(target).equals(rows(root))
    assert len(LerobotSource(str(target))) == sum(lengths)
    assert list(target.rglob(".reshard-*")) == []


def test_a_resharding_killed_twenty_times_ends_in_the_same_rows(tmp_path: Path) -> None:
    """At random moments, from its start to its last tables; each time the same command goes on."""
    seed = 20
    draw = random.Random(seed)
    lengths = [draw.randrange(3, 9) for _ in range(400)]
    root = RobotFolder(lengths, "v2.1", group_rows=2, cameras=()).write(tmp_path / "robots")
    target = tmp_path / "apart"
    command = [sys.executable, "-m", "penstock.server.cli", "reshard", str(root), str(target)]
    left: list[int] = []

    for _ in range(20):
        # By what is written, and not by a clock: so that no machine is too fast or too slow.
        there = len(tables(target))
        until = there + draw.randrange(0, 24)
        with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
            eventually(
                lambda until=until, running=running: (
                    len(tables(target)) >= until or running.poll() is not None
                ),
                60,
                f"{until} tables are written, seed {seed}",
            )
            running.send_signal(signal.SIGKILL)
            running.wait()
        assert len(tables(target)) >= there, f"seed {seed}"
        left.append(len(tables(target)))
        for path in tables(target):
            assert pq.ParquetFile(path).metadata.num_row_groups == 1, f"seed {seed}"
        if running.returncode != 0:
            with pytest.raises(InvalidJob):
                LerobotSource(str(target))
    done = call_command("penstockd", "reshard", str(root), str(target))

    assert done.returncode == 0, done.stderr
    assert len(set(left)) > 10, left
    assert rows(target).equals(rows(root)), f"seed {seed}"
    assert len(LerobotSource(str(target))) == sum(lengths)
    assert list(target.rglob(".reshard-*")) == []


def tables(root: Path) -> list[Path]:
    return sorted((root / "data").rglob("episode_*.parquet"))


def rows(root: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in tables(root))
