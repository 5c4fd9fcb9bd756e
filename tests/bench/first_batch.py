"""From `penstockd serve` to `ready`, and from there to the first batch at a client.

Three jobs over small corpora, each served by 2 workers: token ids that Parquet holds as
`list<int32>`, the text job of `text.py`, and lines of JSON that `hf_stream` reads with `datasets`.
The clock runs from the start of the server's process to the line `ready` of its log, and from there
to the first batch in a client that has been imported before. CPU is that of the server's process
and of its workers, each of the time that the column beside it says.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import text
from clock import own_cpu_s, tree_cpu_s
from support import compare, corpus, interleaved, middle, ranged, write_job

from penstock.client import Loader

DOCUMENTS, LINES, WORKERS = 400, 2000, 2
"""Documents of token ids, and lines of JSON."""


def run() -> None:
    """Print the table."""
    texts = corpus()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_corpora(folder)
        stream = {"type": "hf_stream", "path": "json", "data_files": "lines.jsonl"}
        jobs = {
            "token ids": {"source": {"type": "parquet", "files": "ids.parquet"}, "batch_size": 4},
            "text": text.job(texts),
            "a stream": {
                "source": {**stream, "split": "train"},
                "distributor": {"type": "iterable", "buffer_size": 64},
                "batch_size": 4,
            },
        }
        ways = {}
        for way, job in jobs.items():
            at = folder / way.replace(" ", "_")
            at.mkdir()
            for data in folder.glob("*.*"):
                (at / data.name).symlink_to(data)
            ways[way] = partial(figures, write_job(at, {"main": job}))
        results = interleaved(ways)
    compare(
        "From exec to ready, and from there to the first batch (goals: 0.5 s to ready; token ids "
        "0.2 s after that, a stream 1 s)",
        "",
        results,
        ranged("ready s", "ready_s", ".2f"),
        middle("server CPU", "server_cpu_s", ".2f"),
        middle("workers", "workers_cpu_s", ".2f"),
        ranged("first s", "first_s", ".2f"),
        middle("CPU s", "first_cpu_s", ".2f"),
    )


def write_corpora(folder: Path) -> None:
    """Write the token ids and the lines."""
    random = np.random.default_rng(3)
    ids = [random.integers(0, 50_000, 2048, dtype=np.int32) for _ in range(DOCUMENTS)]
    pq.write_table(pa.table({"input_ids": ids}), folder / "ids.parquet")
    lines = (json.dumps({"id": number, "text": "one line " * 20}) for number in range(LINES))
    (folder / "lines.jsonl").write_text("\n".join(lines))


def figures(job_file: Path) -> dict[str, float]:
    """Serve a job until its first batch has come."""
    began = time.perf_counter()
    with logged(job_file) as (process, said):
        seen = []
        while '"ready"' not in (line := next(said, "")):
            seen.append(line)
            if not line:
                raise RuntimeError("".join(seen))
        ready = time.perf_counter()
        server, tree = own_cpu_s(process.pid), tree_cpu_s(process.pid)
        with Loader(json.loads(line)["address"], "main", rank=0, world_size=1) as loader:
            next(iter(loader))
            first = time.perf_counter()
            first_cpu_s = tree_cpu_s(process.pid) - tree
    return {
        "ready_s": ready - began,
        "server_cpu_s": server,
        "workers_cpu_s": tree - server,
        "first_s": first - ready,
        "first_cpu_s": first_cpu_s,
    }


@contextmanager
def logged(job_file: Path) -> Iterator[tuple[subprocess.Popen[str], Iterator[str]]]:
    """Run `penstockd serve` with a store of its own; yield its process and the lines of its log."""
    with tempfile.TemporaryDirectory() as store:
        flags = ("--listen", "127.0.0.1:0", "--log-format", "json", "--workers", str(WORKERS))
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock.server.cli", "serve", str(job_file), *flags],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PENSTOCK_STORE": f"sqlite:///{store}/penstock.db"},
        )
        assert process.stderr is not None
        try:
            yield process, process.stderr
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


if __name__ == "__main__":
    run()
