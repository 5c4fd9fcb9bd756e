"""`penstockd plan`: seconds and memory for a million sizes; BENCH_PLAN_SIZES=1e8 for more.

Sizes are log-normal, as those of documents are: 250 tokens in the middle, 500 in the mean, 20,000
at most. The command runs as people run it, in a process of its own, which starts others for a
planned job of 2 million sizes and more; memory is that of the largest of them. Jobs that are not
planned are simulated lane by lane, and of a million sizes at most.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from roles import Numbers
from support import ROUNDS, interleaved, median, spread, table

from penstock.server.job.job import Job
from penstock.server.planning.index.block import ItemSizes, block_items, encode_block
from penstock.server.planning.index.index_file import SourceBlocks, write_index
from penstock.server.planning.index.inputs import index_inputs
from penstock.server.planning.log.job_plan import Plan
from penstock.server.roles import (
    BestFitDecreasingPackingBatcher,
    BestFitPackingBatcher,
    IndexedSource,
    MapDistributor,
    PackedCollator,
    SampleBatcher,
)

SIZES = int(float(os.environ.get("BENCH_PLAN_SIZES", "1e6")))
SIMULATED = min(SIZES, 10**6)
CAPACITY, LANES, STEP = 8192, 48, 48
COST = f"tokens + squares / {CAPACITY}"
FOLDER = "BENCH_PLAN_FOLDER"
"""Where the index lies, for the processes that build the jobs."""


class ToldNumbers(Numbers):
    """They tell sizes, too."""

    _sizes: np.ndarray | None = None

    def sizes(self, indices: Sequence[int]) -> np.ndarray:  # type: ignore[override]
        """Return the sizes of items."""
        if self._sizes is None:
            self._sizes = np.concatenate(list(_sizes(self.length)))
        found: np.ndarray = self._sizes[np.asarray(indices)]
        return found


def _sizes(count: int) -> Iterator[np.ndarray]:
    draw = np.random.default_rng(0)
    step = block_items(count)
    for start in range(0, count, step):
        some = draw.lognormal(5.5, 1.2, min(step, count - start)).astype(np.int64) + 1
        yield np.minimum(some, 20_000)


def _job(source: IndexedSource, batcher: SampleBatcher, plan: Plan | None = None) -> Job:
    return Job(
        source,
        MapDistributor(shuffle="full"),
        None,
        batcher,
        PackedCollator(pad_to=CAPACITY),
        lanes=LANES,
        batches_per_step=STEP,
        epochs=1,
        plan=plan,
    )


def jobs() -> dict[str, Job]:
    """Return the jobs, for the command and its processes."""
    index = str(Path(os.environ[FOLDER]) / "sizes.index")
    decreasing = BestFitDecreasingPackingBatcher(CAPACITY)
    return {
        "planned": _job(Numbers(SIZES), decreasing, Plan(index)),
        "balanced": _job(Numbers(SIZES), decreasing, Plan(index, balance=COST)),
        "lanes": _job(ToldNumbers(SIMULATED), BestFitPackingBatcher(CAPACITY)),
    }


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER] = folder
        bare = _job(Numbers(SIZES), BestFitDecreasingPackingBatcher(CAPACITY))
        blocks = (
            encode_block(ItemSizes(None, sizes), number * block_items(SIZES))
            for number, sizes in enumerate(_sizes(SIZES))
        )
        write_index(
            f"{folder}/sizes.index",
            index_inputs(bare.role_sets[0], bare.seed),
            [SourceBlocks("main", SIZES, blocks)],
        )
        ways = {name: partial(_plan, name) for name in ("planned", "balanced", "lanes")}
        rounds = ROUNDS if SIZES <= 10**7 else 1
        results = interleaved(ways, rounds)
    labels = {
        "planned": (SIZES, "planned, best_fit_decreasing"),
        "balanced": (SIZES, f"the same, balance: {COST}"),
        "lanes": (SIMULATED, f"not planned, best_fit, {LANES} lanes"),
    }
    table(
        f"penstockd plan --json: median of {rounds} rounds, and the largest process",
        ("job", "sizes", "batches", "seconds", "range", "MiB"),
        [
            (
                label,
                f"{sizes:,}",
                f"{median(results[name], 'batches'):,.0f}",
                f"{median(results[name], 'seconds'):.1f}",
                spread(results[name], "seconds", ".1f"),
                f"{median(results[name], 'mib'):,.0f}",
            )
            for name, (sizes, label) in labels.items()
        ],
    )


def _plan(name: str) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main(name: str) -> None:
    """Run the command and print what it took, in a process of its own: for its children's peak."""
    # A planned job has no table of lanes; of another one only the row that is the job itself.
    more = ["--lanes", str(LANES)] if name == "lanes" else []
    target = f"{Path(__file__).resolve()}:jobs"
    command = [sys.executable, "-m", "penstock.server.cli", "plan", target, name, "--json", *more]
    begin = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - begin
    mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    batches = json.loads(done.stdout)["batches"]
    print(json.dumps({"seconds": seconds, "mib": mib, "batches": batches}))


if __name__ == "__main__":
    main(sys.argv[1])
