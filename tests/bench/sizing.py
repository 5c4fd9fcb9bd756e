"""What `penstockd size` says of one core beside what a node with one worker gives a client.

The served rate is that of a node with `workers: 1` on this machine, read over TCP by one client
that does nothing else, after the lanes' pools are full. With two cores or more the worker has one
for itself. What the worker does beside making batches, such as answering the server process, is in
the served rate alone. `server` and `worker` are processor time of these processes by time. Where
the worker is not busy, its reader is slower than it, and `busy` says what it gave in a second of
its processor time: that is what the command predicts.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from node_memory import _blocks, _packed, _rows, _tokens
from support import HERE, corpus, interleaved, median, serving, spread, table, write_job

from penstock.client import Loader

MIB = 1 << 20
SECONDS = 6.0
GOAL = 0.25
"""Where a batch takes milliseconds or more: it is the head room that `penstockd size` adds."""


def stated(job_file: Path, unit: str) -> dict[str, float]:
    """Return what the command says, per second."""
    flag = f"--{unit}-per-s-per-rank"
    command = [sys.executable, "-m", "penstock.server.cli", "size", str(job_file), "main", "--json"]
    done = subprocess.run(
        [*command, "--ranks", "1", flag, "1000", "--seconds", str(SECONDS)],
        capture_output=True,
        text=True,
        check=True,
    )
    core: dict[str, float] = json.loads(done.stdout)["core"]
    return {"rate": core["median_per_s"], "low": core["low_per_s"], "high": core["high_per_s"]}


def served(job_file: Path, unit: str, skipped: int) -> dict[str, float]:
    """Return what a client gets, per second, after so many batches."""
    with (
        serving(job_file) as (address, process),
        Loader(address, "main", rank=0, world_size=1) as loader,
    ):
        batches = iter(loader)
        for _ in range(skipped):
            next(batches)
        node = psutil.Process(process.pid)
        began, used = time.perf_counter(), _used_s(node)
        total = 0
        while (seconds := time.perf_counter() - began) < SECONDS:
            total += next(batches).counts[unit]
        now = _used_s(node)
        return {
            "rate": total / seconds,
            "server": (now[0] - used[0]) / seconds,
            "worker": (now[1] - used[1]) / seconds,
            "busy": total / (now[1] - used[1]),
        }


def _used_s(node: psutil.Process) -> tuple[float, float]:
    """Return the processor time of the server process, and of its workers."""
    own = node.cpu_times()
    others = [child.cpu_times() for child in node.children(recursive=True)]
    return own.user + own.system, sum(times.user + times.system for times in others)


def cases(folder: Path) -> dict[str, tuple[dict[str, Any], str, int]]:
    """Return jobs by name, what of them is counted, and how many batches are not."""
    files = corpus()
    text = {
        "lanes": 8,
        "source": {"type": "parquet", "files": f"{files}/corpus/*.parquet", "columns": ["text"]},
        "processor": {
            "type": "tokenize",
            "tokenizer": f"{files}/tokenizer.json",
            "column": "text",
        },
        "batcher": {"type": "best_fit", "max_tokens": 8192, "overlong": "split", "pool_size": 64},
        "collator": {"type": "packed", "pad_to": 8192},
    }
    images = {
        "source": {"type": "items", "items": [{"n": number} for number in range(1000)]},
        "function": f"{HERE / 'cheap.py'}:image",
        "batch_size": 8,
        "lanes": 24,
    }
    return {
        "text, packed": (text, "tokens", 8 * 30),
        "token ids, packed": (
            _packed(_tokens(folder / "tokens.parquet")),
            "tokens",
            500,
        ),
        "images of 600 KB": (images, "samples", 50),
        "rows of 4 KiB": (
            _rows(_blocks(folder / "blocks.parquet", 64, 4 * MIB), 16, 2),
            "samples",
            500,
        ),
    }


def run() -> None:
    """Print the table."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for case, (job, unit, skipped) in cases(Path(name)).items():
            folder = Path(tempfile.mkdtemp(dir=name))
            job_file = write_job(folder, {"main": job}, workers=1)
            found = interleaved(
                {
                    "stated": partial(stated, job_file, unit),
                    "served": partial(served, job_file, unit, skipped),
                }
            )
            rates = {way: median(rounds, "rate") for way, rounds in found.items()}
            busy = median(found["served"], "busy")
            rows.append(
                (
                    case,
                    f"{rates['stated']:,.0f}",
                    spread(found["stated"], "rate", ",.0f"),
                    f"{rates['served']:,.0f}",
                    f"{median(found['served'], 'server'):.2f}",
                    f"{median(found['served'], 'worker'):.2f}",
                    f"{busy:,.0f}",
                    f"{busy / rates['stated'] - 1:+.0%}",
                )
            )
    table(
        "One core as `penstockd size` states it, and a node with one worker, tokens or samples/s "
        f"(goal: busy within {GOAL:.0%} of stated)",
        ("job", "stated", "rounds", "served", "server", "worker", "busy", "differs"),
        rows,
    )


if __name__ == "__main__":
    run()
