"""The text job: tokenize and pack the standard library into rows of 8,192 tokens.

A penstock server with 2 workers and its client, against a DataLoader with 2 workers that does the
same with `datasets` and `tokenizers`, Grain with 2 workers and its own packing, and Energon with 2
workers, each started anew, with the settings that it has by itself. Grain and Energon run where
this interpreter has them, or in those that BENCH_GRAIN_PYTHON (`pip install grain datasets
tokenizers`) and BENCH_ENERGON_PYTHON (`pip install megatron-energon pyarrow tokenizers`) name.

Ways to the same values from penstock: sent over TCP; lent through a Unix socket, or sent where
batches are small; and both with 4 rows in a batch, as larger micro-batches are, beside Grain with 4
rows. What a trainer's process takes is by the batch.

Corpus and tokenizer are those that `penstock.server.examples.stdlib` makes, as in the demo: whoever
has run that has them, and all ways tokenize the same texts with the same file. A tokenizer of
another training gives other lengths, so rates of two corpora cannot be compared; ratios of one run
can.

Every round has a seed of its own, the same for all ways. The first 393,216 tokens are of an eighth
of the documents, and one order needs a third more of their text than another: with one seed the
cold table would measure that order, and whom it favours.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from rates import COLD_TOKENS, TOKENS, WARM_TOKENS
from support import (
    SEED,
    Column,
    against,
    compare,
    corpus,
    in_child,
    interleaved,
    median,
    middle,
    node,
    python_with,
    ranged,
    write_job,
)

OTHERS = {"Grain": ("grain", "text_grain"), "Energon": ("megatron.energon", "text_energon")}
"""Loader -> its package, and the module here that reads with it."""

SPAWNED = "- by spawn:"
"""It starts its node as it is opened: its cold rate counts that. Warm it is a node like others."""

COMPARED = ("DataLoader", *OTHERS)
"""Their columns say how many times as fast a way is, in the median over the rounds."""


def job(folder: Path, seed: int = 0, rows: int = 1) -> dict[str, object]:
    """Return the text job over the corpus in `folder`: with so many rows in a batch."""
    return {
        "seed": seed,
        "source": {
            "type": "parquet",
            "files": str(folder / "corpus" / "*.parquet"),
            "columns": ["text"],
        },
        "processor": {
            "type": "tokenize",
            "tokenizer": str(folder / "tokenizer.json"),
            "column": "text",
            "append": "<eos>",
        },
        "batcher": {
            "type": "best_fit",
            "max_tokens": 8192,
            "pool_size": 64,
            "rows": rows,
            "overlong": "split",
        },
        "collator": {"type": "packed", "pad_to": 8192},
    }


def run() -> None:
    """Print the tables."""
    data = corpus()
    ways: dict[str, Callable[[int], Mapping[str, float]]] = {
        "penstock": partial(_penstock, data),
        "- by unix:": partial(_penstock, data, unix=True),
        "- 4 rows": partial(_penstock, data, rows=4),
        "- 4 rows by unix:": partial(_penstock, data, rows=4, unix=True),
        SPAWNED: partial(_spawned, data),
        "DataLoader": partial(_child, "text_dataloader", data, sys.executable),
    }
    for name, (package, module) in OTHERS.items():
        if python := python_with(name, package):
            ways[name] = partial(_child, module, data, python)
            if name == "Grain":
                ways["- 4 rows of Grain"] = partial(_child, module, data, python, rows=4)
    results = interleaved({name: _seeded(way) for name, way in ways.items()})
    first = {way: median(rounds, "first_s") for way, rounds in results.items()}
    ready_s = median(results["penstock"], "ready_s")
    compare(
        f"Text job cold: the first {COLD_TOKENS:,} tokens (goal: at least 0.95x, spawn: 0.7x). "
        f"The first batch came after {first['penstock']:.2f} s, of the DataLoader after "
        f"{first['DataLoader']:.2f} s; before that the server took {ready_s:.2f} s to be "
        "ready, which the rate does not count.",
        "way",
        results,
        *_rate("cold_tokens_per_s"),
    )
    compare(
        f"Text job warm: {TOKENS / 1e6:.0f} M tokens after {WARM_TOKENS / 1e6:.0f} M "
        "(goal: at least 1.0x of the best; trainer at most 0.03 s/M)",
        "way",
        results,
        *_rate("tokens_per_s"),
        middle("trainer s/M", "trainer_s_per_m", ".3f"),
        middle("others", "server_s_per_m", ".3f"),
        names={way: way for way in results if way != SPAWNED},
    )


def _rate(key: str) -> list[Column]:
    others = (against(other, other, key) for other in COMPARED)
    return [ranged("tokens/s", key, ",.0f"), *others]


def _seeded(way: Callable[[int], Mapping[str, float]]) -> Callable[[], Mapping[str, float]]:
    """Return a way whose n-th call, so that of round n, has the n-th seed."""
    seeds = itertools.count(SEED)
    return lambda: way(next(seeds))


def _child(module: str, data: Path, python: str, seed: int, rows: int = 1) -> dict[str, float]:
    height = [rows] if rows > 1 else []
    return in_child(module, data, seed, *height, python=python)


def _spawned(data: Path, seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        job_file = write_job(Path(folder), {"text": job(data, seed)})
        return in_child("text_penstock", f"spawn:{job_file}?workers=2&metrics=off", "0")


def _penstock(data: Path, seed: int, rows: int = 1, unix: bool = False) -> dict[str, float]:
    began, over = time.perf_counter(), "unix" if unix else "tcp"
    with node({"text": job(data, seed, rows)}, over=over, workers=2) as served:
        ready_s = time.perf_counter() - began
        return {**in_child("text_penstock", *served), "ready_s": ready_s}


if __name__ == "__main__":
    run()
