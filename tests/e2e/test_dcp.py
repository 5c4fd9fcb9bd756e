"""A training run under torch.distributed that is saved by 4 ranks and goes on with 3."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import ENVIRONMENT, Server, serving, write_job_file

pytest.importorskip("torch")

BATCHES_PER_STEP = 12
SAVED_STEP, MORE_STEPS = 3, 2

RANK = """\
import hashlib, json, sys
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from penstock.client import Loader

address, folder, rank, world, saves = *sys.argv[1:3], *map(int, sys.argv[3:6])
dist.init_process_group(
    "gloo", init_method=f"file://{folder}/meet-{world}", rank=rank, world_size=world
)
with Loader(address, "main", group="run", deadline_s=60) as loader:
    seen = []
    first = 0
    if not saves:
        dcp.load({"data": loader}, checkpoint_id=f"{folder}/checkpoint")
        first = loader.state_dict()["step"]
    for step in loader.steps():
        for batch in step:
            digest = hashlib.sha256(batch["input_ids"].numpy().tobytes()).hexdigest()
            seen.append([step.index, batch.position, digest])
        if saves and step.index + 1 == int(sys.argv[6]):
            dcp.save({"data": loader}, checkpoint_id=f"{folder}/checkpoint")
            loader.commit()
        if step.index + 1 == int(sys.argv[6]) + int(sys.argv[7]):
            break
    print(json.dumps({"first": first, "seen": seen, "world": loader.world_rank.world_size}))
dist.barrier()
dist.destroy_process_group()
"""


def run_ranks(server: Server, folder: Path, world: int, *, saves: bool) -> list[dict[str, Any]]:
    """Run a process per rank; return what each has seen."""
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-c", RANK, server.address, str(folder)),
                *map(str, (rank, world, int(saves), SAVED_STEP, MORE_STEPS)),
            ],
            env={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    found = []
    try:
        for rank in ranks:
            out, err = rank.communicate(timeout=120)
            assert rank.returncode == 0, err
            found.append(json.loads(out.splitlines()[-1]))
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
                rank.wait()
    return found


def test_a_checkpoint_of_4_ranks_is_loaded_by_3(tmp_path: Path) -> None:
    """The steps after it have the same batches, each read by one rank, whatever was read ahead."""
    items = [{"input_ids": list(range(n, n + 1 + n % 7))} for n in range(100)]
    job = {
        "lanes": 5,
        "batches_per_step": BATCHES_PER_STEP,
        "source": {"type": "items", "items": items},
        "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 4},
        "collator": {"type": "packed", "pad_to": 16},
    }
    with serving(write_job_file(tmp_path / "jobs.yaml", {"main": job})) as server:
        before = run_ranks(server, tmp_path, 4, saves=True)
        after = run_ranks(server, tmp_path, 3, saves=False)

    assert {one["world"] for one in before} == {4}
    assert {(one["world"], one["first"]) for one in after} == {(3, SAVED_STEP)}
    expected = sorted(seen for one in before for seen in one["seen"] if seen[0] >= SAVED_STEP)
    got = sorted(seen for one in after for seen in one["seen"])
    start = SAVED_STEP * BATCHES_PER_STEP
    assert [seen[1] for seen in got] == list(range(start, start + MORE_STEPS * BATCHES_PER_STEP))
    assert got == expected
