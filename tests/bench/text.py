"""The text job: tokenize and pack the standard library into rows of 8,192 tokens, on 2 cores.

A penstock server with 2 workers and its client, against a DataLoader with 2 workers that does the
same with `datasets` and `tokenizers`, each in turn on an otherwise idle machine.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median

from rates import COLD_BATCHES
from support import best, corpus, in_child, interleaved, serving, table, write_job

TOKENS, WARM, ROUNDS = 6_000_000, 40, 3

LANES, PREFETCH = 48, 4
"""What a job and a Loader have where nobody says otherwise."""

COLD_ROUNDS = 6
WARM_BATCHES = 480


def job(folder: Path, lanes: int = 12) -> dict[str, object]:
    """Return the text job over the corpus in `folder`."""
    return {
        "lanes": lanes,
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
        "batcher": {"type": "best_fit", "max_tokens": 8192, "pool_size": 64, "overlong": "split"},
        "collator": {"type": "packed", "pad_to": 8192},
    }


def run() -> None:
    """Print the tables."""
    data = corpus()
    ways = {
        "penstock": lambda: _penstock(data, 12, 32, WARM),
        "dataloader": lambda: _dataloader(data, WARM),
    }
    results = interleaved(ROUNDS, ways)
    base = best(results["dataloader"], "tokens_per_s")["tokens_per_s"]
    rows = []
    for way in ("penstock", "dataloader"):
        rates = sorted(one["tokens_per_s"] for one in results[way])
        rows.append((way, f"{rates[-1]:,.0f}", f"{rates[0]:,.0f}", f"{rates[-1] / base:.2f}x"))
    table(
        f"Text job, {TOKENS / 1e6:.0f} M tokens, 2 workers, {ROUNDS} interleaved rounds "
        "(goal: at least 0.95x)",
        ("way", "tokens/s, best", "worst", "of DataLoader"),
        rows,
    )
    _defaults(data)


def _defaults(data: Path) -> None:
    """Print what a user meets who changes nothing: 48 lanes, a prefetch of 4, and cold starts."""
    ways = {
        "penstock": lambda: _penstock(data, LANES, PREFETCH, 0),
        "dataloader": lambda: _dataloader(data, 0),
        "penstock, warm": lambda: _penstock(data, LANES, PREFETCH, WARM_BATCHES),
        "dataloader, warm": lambda: _dataloader(data, WARM_BATCHES),
    }
    results = interleaved(COLD_ROUNDS, ways)
    rows = []
    for way, base, key, what in (
        ("penstock", "dataloader", "cold_tokens_per_s", f"first {COLD_BATCHES} batches"),
        ("penstock", "dataloader", "tokens_per_s", f"first {TOKENS / 1e6:.0f} M tokens"),
        ("penstock, warm", "dataloader, warm", "tokens_per_s", f"after {WARM_BATCHES} batches"),
    ):
        ratios = [
            one[key] / other[key] for one, other in zip(results[way], results[base], strict=True)
        ]
        rows.append(
            (
                what,
                f"{_middle(results[way], key):,.0f}",
                f"{_middle(results[base], key):,.0f}",
                f"{median(ratios):.2f}x",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            )
        )
    first = [_middle(results[way], "first_s") for way in ("penstock", "dataloader")]
    ready = _middle(results["penstock"], "ready_s")
    table(
        f"Text job as users start it: {LANES} lanes, prefetch {PREFETCH}, 2 workers, medians of "
        f"{COLD_ROUNDS} interleaved rounds (goal: cold at least 0.95x, warm 1.0x)\n  first batch "
        f"after {first[0]:.2f} s, of the DataLoader {first[1]:.2f} s; before that the server took "
        f"{ready:.2f} s to be ready, which no row counts",
        ("tokens/s", "penstock", "DataLoader", "ratio", "of the rounds"),
        rows,
    )


def _middle(results: list[dict[str, float]], key: str) -> float:
    return median(one[key] for one in results)


def _penstock(data: Path, lanes: int, prefetch: int, warm: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        job_file = write_job(Path(folder), {"text": job(data, lanes)})
        began = time.perf_counter()
        with serving(job_file, "--workers", "2") as (address, _):
            ready_s = time.perf_counter() - began
            read = in_child("text_penstock", address, str(TOKENS), str(warm), str(prefetch))
            return {**read, "ready_s": ready_s}


def _dataloader(data: Path, warm: int) -> dict[str, float]:
    return in_child("text_dataloader", str(data), str(TOKENS), str(warm))


if __name__ == "__main__":
    run()
