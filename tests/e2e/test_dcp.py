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

RANKS = """\
import hashlib, json, os, sys, threading, traceback
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import grpc.aio
from penstock.client import Loader

address, folder, saved, more = *sys.argv[1:3], *map(int, sys.argv[3:])
assert threading.active_count() == 1, "forks of threads"


def run(rank, world, saves):
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
            if saves and step.index + 1 == saved:
                dcp.save({"data": loader}, checkpoint_id=f"{folder}/checkpoint")
                loader.commit()
            if step.index + 1 == saved + more:
                break
        found = {"first": first, "seen": seen, "world": loader.world_rank.world_size}
        with open(f"{folder}/{world}-{rank}.json", "w") as file:
            json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


for world, saves in ((4, True), (3, False)):
    ranks = []
    for rank in range(world):
        if not (pid := os.fork()):
            try:
                run(rank, world, saves)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        ranks.append(pid)
    if any([os.waitpid(pid, 0)[1] for pid in ranks]):
        sys.exit(1)
"""
"""Each rank is a fork of a process that has done the imports, which take longer than all else."""


def run_ranks(server: Server, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Run 4 ranks that save, and then 3 that load; return what each has seen."""
    subprocess.run(
        [
            *(sys.executable, "-c", RANKS, server.address, str(folder)),
            *(str(SAVED_STEP), str(MORE_STEPS)),
        ],
        env={**ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        timeout=120,
        check=True,
    )
    before, after = (
        [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)]
        for world in (4, 3)
    )
    return before, after


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
        before, after = run_ranks(server, tmp_path)

    assert {one["world"] for one in before} == {4}
    assert {(one["world"], one["first"]) for one in after} == {(3, SAVED_STEP)}
    expected = sorted(seen for one in before for seen in one["seen"] if seen[0] >= SAVED_STEP)
    got = sorted(seen for one in after for seen in one["seen"])
    start = SAVED_STEP * BATCHES_PER_STEP
    assert [seen[1] for seen in got] == list(range(start, start + MORE_STEPS * BATCHES_PER_STEP))
    assert got == expected
