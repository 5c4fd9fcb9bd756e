"""A pass over a finite packed job: what is read of storage, and what it costs to know its length.

Text is tokenized and packed by two workers, so where the lanes end follows from no arithmetic. Each
way is a node of its own with an empty store. `read` is what the node says it has read, by what the
drawn items take in storage; CPU is that of all its processes, those that have ended included.
"""

from __future__ import annotations

import os
import re
import tempfile
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from support import (
    ROUNDS,
    compare,
    corpus,
    free_port,
    interleaved,
    middle,
    ranged,
    serving,
    write_job,
)

from penstock.client import Loader

WAYS = {"a pass": False, "len(), then a pass": True}


def run() -> None:
    """Print the table."""
    folder = corpus()
    ways = {name: partial(_pass, folder, asks=asks) for name, asks in WAYS.items()}
    results = interleaved(ways)
    compare(
        f"A finite packed job, read to its end; medians of {ROUNDS} rounds",
        "",
        results,
        middle("read x", "read", ".2f"),
        ranged("CPU s/M tokens", "cpu", ".2f"),
    )


def _pass(data: Path, *, asks: bool) -> dict[str, float]:
    job: dict[str, Any] = {
        "lanes": 12,
        "epochs": 1,
        "source": {"type": "parquet", "files": str(data / "corpus" / "*.parquet")},
        "distributor": {"type": "map", "reading_groups": 4, "window_blocks": 4},
        "processor": {
            "type": "tokenize",
            "tokenizer": str(data / "tokenizer.json"),
            "column": "text",
        },
        "batcher": {"type": "best_fit", "max_tokens": 8192, "pool_size": 64, "overlong": "split"},
        "collator": {"type": "packed", "pad_to": 8192},
    }
    job["source"]["columns"] = ["text"]
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = write_job(Path(folder), {"job": job}, metrics=f"127.0.0.1:{port}", workers=2)
        with serving(file) as (address, process), Loader(address, "job", mode="eval") as loader:
            begun_s = _spent_s(process.pid)
            if asks:
                _ask(loader)
            tokens = sum(batch.counts["tokens"] for batch in loader)
            spent_s = _spent_s(process.pid)
            text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    told = dict(re.findall(r"^penstock_source_(\w+)_bytes_total\{.*\} (\S+)$", text, re.M))
    return {
        "read": float(told["read"]) / float(told["drawn"]),
        "cpu": (spent_s - begun_s) / tokens * 1e6,
    }


def _ask(loader: Any) -> None:
    try:
        len(loader)
    except TypeError as error:  # it takes longer than `len()` waits
        print(f"  {error}")


def _spent_s(pid: int) -> float:
    """Return the CPU seconds of a process and of all below it, those that have ended included."""
    process = Path(f"/proc/{pid}")
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    below = [
        int(child)
        for thread in (process / "task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(map(_spent_s, below))
