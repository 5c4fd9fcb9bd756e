"""Batches of many megabytes through a real node: counted before they are made, given out early."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import videos
from harness import call_command, run_command, serving, write_job_file
from invariants import check_bounds
from penstock.client import Loader
from penstock.server.node.workers.arena import Arenas, ArenaWriter

MIB = 1 << 20

ROLES = '''
import pathlib, time
import numpy as np
from penstock.server.roles import RawItemProcessor


class Large(RawItemProcessor):
    """Samples of as many bytes as their item says; the fourth one waits for a file."""

    version = 1
    one_to_one = True
    uses_global_rng = False

    def __init__(self, gate=""):
        self.gate = gate

    def process(self, raw, context):
        end = time.monotonic() + 240
        while self.gate and raw["n"] >= 3 and not pathlib.Path(self.gate).exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        return {"n": raw["n"], "x": np.full(raw["nbytes"], raw["n"], np.uint8)}
'''


def write_jobs(folder: Path, sizes: list[int], ready_bytes: int, **processor: Any) -> Path:
    """Write a job file with a batch of each of these sizes, in order."""
    (folder / "roles.py").write_text(ROLES)
    job = {
        "source": {
            "type": "items",
            "items": [{"n": n, "nbytes": nbytes} for n, nbytes in enumerate(sizes)],
        },
        "distributor": {"type": "map", "shuffle": "none"},
        "processor": {"type": "./roles.py:Large", **processor},
        "batch_size": 1,
        "lanes": 1,
        "epochs": 1,
    }
    return write_job_file(folder / "job.yaml", {"main": job}, ready_bytes=ready_bytes)


def test_a_batch_is_given_out_as_it_is_written(tmp_path: Path) -> None:
    """Those before one that takes long have come, while it is still being made."""
    gate = tmp_path / "gate"
    file = write_jobs(tmp_path, [8 * MIB] * 5, 256 * MIB, gate=str(gate))

    with serving(file, "--workers", "1") as server, Loader(server.address, "main") as loader:
        batches = iter(loader)
        early = [int(next(batches)["n"][0]) for _ in range(3)]
        gate.touch()
        late = [int(batch["n"][0]) for batch in batches]

    assert early == [0, 1, 2]
    assert late == [3, 4]


def test_batches_of_8_to_100_mb_stay_within_the_bound(tmp_path: Path) -> None:
    """Whole, in order, whatever their sizes; `ready_bytes` and one batch for the reader hold."""
    rng = random.Random(7)
    sizes = [rng.randrange(8_000_000, 100_000_000) for _ in range(12)]
    file = write_jobs(tmp_path, sizes, 256 * MIB)

    with (
        serving(file, "--workers", "2") as server,
        Loader(server.address, "main") as loader,
    ):
        for n, batch in enumerate(loader):
            x = np.asarray(batch["x"])
            assert x.shape == (1, sizes[n])
            assert (x[0, 0], x[0, -1], int(batch["n"][0])) == (n, n, n)
            check_bounds(server.status(), max(sizes) + 1000)
            del x, batch

    assert n == len(sizes) - 1


@pytest.mark.parametrize("seed", range(3))
def test_an_arena_keeps_no_hole_for_each_size(seed: int) -> None:
    """Spans of any sizes share what is free: arenas take at most 3 times what is in use."""
    rng = random.Random(seed)
    sizes: dict[int, int] = {}
    arenas = Arenas(
        lambda arena: sizes.__setitem__(arena.number, arena.size_bytes),
        lambda arena: sizes.__delitem__(arena.number),
    )
    held: list[tuple[ArenaWriter, int, int]] = []
    most = 0
    for _ in range(1000):
        nbytes = rng.randrange(8_000_000, 100_000_000)
        while sum(each for *_, each in held) + nbytes > 512 * MIB:
            arena, start, _ = held.pop(0 if rng.random() < 0.8 else rng.randrange(len(held)))
            arenas.give_back(arena.number, start)
        held.append((*arenas.take(nbytes), nbytes))
        most = max(most, sum(sizes.values()))
    arenas.close()

    assert most <= 3 * 512 * MIB


def test_a_job_of_which_no_batch_fits_is_refused_at_load(tmp_path: Path) -> None:
    """With both numbers, by the node and by `check`; before anything is decoded or stored."""
    (tmp_path / "a.mp4").write_bytes(videos.film("H.264"))
    job = {
        "source": {"type": "items", "items": [{"video": "a.mp4"}]},
        "processor": {"type": "video", "nframes": 8, "resize": "exact", "resize_to": [480, 640]},
        "media": {"dir": "."},
        "batch_size": 16,
    }
    file = write_job_file(tmp_path / "job.yaml", {"main": job}, ready_bytes=64 * MIB)
    takes = 16 * 8 * 480 * 640 * 3

    served = run_command(["penstock.server.cli", "serve", str(file)])
    for done in (served, call_command("penstockd", "check", str(file))):
        assert done.returncode == 2, done.stderr
        assert f"a batch of job 'main' takes {takes:,} bytes or more" in done.stderr
        assert f"ready_bytes of the server is {64 * MIB:,}" in done.stderr
    said = json.loads(call_command("penstockd", "check", str(file), "--json").stdout)
    assert said["jobs"][0]["error"]["code"] == "invalid_job"
