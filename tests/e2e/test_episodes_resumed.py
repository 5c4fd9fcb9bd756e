"""Frames of a pool of episodes, through a node: none is lost or repeated, whatever dies."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import serving, write_job_file
from penstock.client import Loader

LENGTHS = [3, 41, 17, 1, 29, 8, 55, 12, 5, 23]


def test_no_frame_is_lost_where_a_worker_is_killed_and_ranks_change(tmp_path: Path) -> None:
    """One rank reads some steps, its worker dies, and two others go on from its state."""
    rows = {
        "episode": np.repeat(np.arange(len(LENGTHS)), LENGTHS),
        "number": np.arange(sum(LENGTHS)),
    }
    pq.write_table(pa.table(rows), tmp_path / "frames.parquet", row_group_size=7)
    job = {
        "source": {"type": "parquet", "files": "frames.parquet"},
        "distributor": {"type": "episodes", "pool": 3, "episode_column": "episode"},
        "batch_size": 4,
        "batches_per_step": 2,
        "lanes": 3,
        "epochs": 2,
        "seed": 7,
    }
    seen: list[int] = []

    def take(batch: object) -> None:
        if not batch.is_padding:  # type: ignore[attr-defined]
            numbers = [int(number) for number in batch["number"]]  # type: ignore[index]
            episodes = {int(episode) for episode in batch["episode"]}  # type: ignore[index]
            assert batch.counts["episodes"] == len(episodes)  # type: ignore[attr-defined]
            seen.extend(numbers)

    with serving(write_job_file(tmp_path / "jobs.yaml", {"main": job}), "--workers", "2") as node:
        with Loader(node.address, "main", rank=0, world_size=1, as_numpy=True) as loader:
            for number, batch in enumerate(loader):
                take(batch)
                if number == 4:
                    os.kill(node.worker_pids()[0], signal.SIGKILL)
                if number == 21:
                    break
            state = loader.state_dict()
        for rank in range(2):
            with Loader(node.address, "main", rank=rank, world_size=2, as_numpy=True) as loader:
                loader.load_state_dict(state)
                for batch in loader:
                    take(batch)

    assert Counter(seen) == dict.fromkeys(range(sum(LENGTHS)), 2)
