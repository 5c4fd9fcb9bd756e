"""Small, cheap jobs, so that restarts are fast and what is in between is proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import write_job_file
from resume.plans import LENGTHS
from robots import WINDOWS, RobotFolder, video_writer

ROLES = '''
from penstock.server.roles import RawItemProcessor


class Choosy(RawItemProcessor):
    """Filters some items, makes several samples of others."""

    def process(self, raw, context):
        number = raw["input_ids"][0] // 100
        if number % 7 == 3:
            return context.skip("every seventh")
        shift = int(context.rng.integers(1000))
        return [
            {"input_ids": [token + shift + part for token in raw["input_ids"]]}
            for part in range(1 + number % 3)
        ]


class Sized(RawItemProcessor):
    """Knows sizes, so that any worker makes any batch."""

    one_to_one = True

    def process(self, raw, context):
        shift = int(context.rng.integers(1000))
        return {"input_ids": [token + shift for token in raw["input_ids"]]}

    def size(self, raw):
        return len(raw["input_ids"])


class Estimating(Sized):
    """Tells a size below or above what it gives."""

    def size(self, raw):
        size = len(raw["input_ids"])
        return max(1, size + (0, -3, 2, -1, 1)[size % 5])
'''

STEP = 12


def write_jobs(folder: Path, **server: Any) -> Path:
    """Write the roles and the jobs `packed`, `sized` and `later`: 6 lanes, steps of 12 batches."""
    (folder / "roles.py").write_text(ROLES)
    items = [{"input_ids": [100 * n + k for k in range(size)]} for n, size in enumerate(LENGTHS)]
    common = {
        "seed": 11,
        "lanes": 6,
        "batches_per_step": STEP,
        "snapshot_every": 4,
        "source": {"type": "items", "items": items},
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 5, "rows": 2},
        "collator": {"type": "packed"},
    }
    jobs = {
        "packed": {**common, "processor": {"type": "./roles.py:Choosy"}},
        "sized": {**common, "processor": {"type": "./roles.py:Sized"}},
        "later": {
            **common,
            "processor": {"type": "./roles.py:Estimating"},
            "on_item_error": "quarantine",
            "max_quarantined": 100_000,
            "later_within": 3,
        },
    }
    return write_job_file(folder / "jobs.yaml", jobs, **{"ready_bytes": "64 KiB", **server})


ROBOTS = RobotFolder(lengths=(7, 4, 9, 1, 6, 12, 5, 16))
"""Sixty frames: ten for each lane in an epoch."""


def write_robot_job(folder: Path, **server: Any) -> Path:
    """Write the folder `ROBOTS` with its videos, and the job `robots`: as the others, by pools."""
    ROBOTS.write(folder / "robots", video_writer(ROBOTS.fps))
    job = {
        "seed": 11,
        "lanes": 6,
        "batches_per_step": STEP,
        "snapshot_every": 4,
        "source": {"type": "lerobot", "root": "robots", "delta_timestamps": WINDOWS},
        "distributor": {"type": "episodes", "pool": 2},
        "processor": {"type": "robot", "decoders": 2, "frame_bytes": 1 << 20},
        "batch_size": 3,
    }
    return write_job_file(folder / "jobs.yaml", {"robots": job}, ready_bytes="16 MiB", **server)


__all__ = ["ROBOTS", "STEP", "write_jobs", "write_robot_job"]
