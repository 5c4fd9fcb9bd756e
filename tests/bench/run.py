"""All benchmarks: `make bench`, or one: `make bench NAMES=transfer`.

They print tables of figures that stand side by side in one run, and decide nothing: machines are
noisy. How to read them:

* Ways of doing the same are run in turn, at least 6 rounds (`BENCH_ROUNDS`), in an order
  that is shuffled by the seed that the first line prints; `BENCH_SEED` repeats it.
* A figure is the median of its rounds, and the range beside it goes from the worst to the best.
  `1.20x of` another way is the median of the ratios of both within one round. Where ranges
  overlap, two medians say little.
* Everything is started as its users start it: each has the allocator and the depth of
  prefetching that it has by itself. A row or a title that changes such a setting says so, for all
  ways alike.
* `trainer` is the CPU time of the process that trains: it is taken from the training loop.
  `others` is the CPU time of all that serves it: the server and its workers, or a DataLoader's
  workers. One GB is 10^9 bytes.
* tf.data service is measured where `BENCH_TF_PYTHON` names an interpreter that has
  TensorFlow, or where this one has it; else its row says `none`:
  `python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu`, then
  `BENCH_TF_PYTHON=/tmp/tf/bin/python make bench NAMES=transfer`.
* Grain, Energon and SPDL are measured where they are installed, or where `BENCH_GRAIN_PYTHON`,
  `BENCH_ENERGON_PYTHON` and `BENCH_SPDL_PYTHON` name interpreters that have them: `text.py` and
  `columns.py` say beside what.
"""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time

from support import ROUNDS, SEED

from penstock.common.resources import usable_cpus

NAMES = (
    "packing",
    "plan",
    "batchers",
    "families",
    "first_rows",
    "later",
    "text",
    "allocators",
    "arriving",
    "pinned",
    "columns",
    "completing",
    "transfer",
    "tls",
    "small_batches",
    "prefetch",
    "batch_sizes",
    "start",
    "first_local",
    "commits",
    "resume",
    "failover",
    "rolling",
    "scale",
    "nodes",
    "idle",
    "memory",
    "reading",
    "finite",
    "distributors",
    "processors",
    "images",
    "collators",
    "node_memory",
    "sizing",
    "many_lanes",
    "flood",
    "status_page",
    "half_open",
    "messages",
    "index",
    "sources",
    "media_listing",
    "robots_opened",
    "robot_windows",
    "frames_sent",
    "media_far",
    "video_far",
    "media_memory",
    "sound",
    "frame_pixels",
    "video",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(
            f"no benchmark is named {unknown[0]!r}; there are: {', '.join(NAMES)}", file=sys.stderr
        )
        return 2
    print(
        f"penstock benchmarks: {usable_cpus()} cores, Python {platform.python_version()}, "
        f"load {os.getloadavg()[0]:.1f} at the start, {time.strftime('%Y-%m-%d')}, "
        f"{ROUNDS} rounds, seed {SEED}"
    )
    for name in names or NAMES:
        importlib.import_module(name).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
