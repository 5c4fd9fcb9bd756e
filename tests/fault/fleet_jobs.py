"""Jobs of several nodes whose items fail, are repaired, or end every worker that reads them.

Those of `whole` do not fail.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness import write_job_file

STEP, LANES = 12, 6
ITEMS = 20_000
BAD_EVERY, BAD_AT = 997, 500
DEADLY_EVERY, DEADLY_AT = 307, 100

ROLES = '''
import os
import pathlib

from penstock.server.roles import RawItemProcessor

HERE = pathlib.Path({folder!r})


class Fails(RawItemProcessor):
    """Some items fail, until they are repaired: a verdict about one holds on."""

    def process(self, raw, context):
        self.check(raw)
        shift = int(context.rng.integers(1000))
        tokens = [token + shift for token in raw["input_ids"]]
        return [{"input_ids": tokens} for _ in range(1 + raw["n"] % 2)]

    def check(self, raw):
        if raw["n"] % DEADLY_EVERY == DEADLY_AT and (HERE / "deadly").exists():
            os._exit(9)  # as a library does that runs into its own damage
        if raw["n"] % BAD_EVERY == BAD_AT and not (HERE / "repaired").exists():
            raise ValueError(f"item {raw['n']} is damaged")


class Whole(Fails):
    """Nothing fails, so no verdict is needed."""

    def check(self, raw):
        pass


class FailsSized(Fails):
    """It fails where its batch is made, not where it is planned."""

    one_to_one = True

    def process(self, raw, context):
        return super().process(raw, context)[0]

    def size(self, raw):
        return len(raw["input_ids"])
'''


def write_items(folder: Path) -> None:
    """Write the items that all jobs read."""
    with (folder / "items.jsonl").open("w") as file:
        for n in range(ITEMS):
            size = 1 + (n * 7919) % 41
            ids = [100 * n + k for k in range(size)]
            file.write(json.dumps({"n": n, "input_ids": ids}) + "\n")


def write_jobs(folder: Path, data: Path, *, lanes: int = LANES, **server: Any) -> Path:
    """Write the job file of a node; all of them have the same jobs."""
    common = {
        "seed": 11,
        "lanes": lanes,
        "batches_per_step": STEP,
        "snapshot_every": 8,
        "source": {"type": "jsonl", "files": str(data / "items.jsonl"), "block_bytes": 20_000},
        "on_item_error": "quarantine",
        "max_quarantined": 100_000,
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 5, "rows": 2},
        "collator": {"type": "packed"},
    }
    roles = ROLES.replace("{folder!r}", repr(str(data)))
    for name in ("BAD_EVERY", "BAD_AT", "DEADLY_EVERY", "DEADLY_AT"):
        roles = roles.replace(name, str(globals()[name]))
    folder.mkdir(exist_ok=True)
    (folder / "roles.py").write_text(roles)
    jobs = {
        "drawn": {**common, "processor": {"type": "./roles.py:Fails"}},
        "sized": {**common, "processor": {"type": "./roles.py:FailsSized"}},
        "whole": {**common, "processor": {"type": "./roles.py:Whole"}},
    }
    return write_job_file(
        folder / "jobs.yaml", jobs, **{"ready_bytes": "256 KiB", "snapshot_seconds": 0.1, **server}
    )


__all__ = ["LANES", "STEP", "write_items", "write_jobs"]
