"""The text job: tokenize and pack the standard library into rows of 8,192 tokens, on 2 cores.

A penstock server with 2 workers and its client, against a DataLoader with 2 workers that does the
same with `datasets` and `tokenizers`, each in turn on an otherwise idle machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from support import best, corpus, in_child, interleaved, serving, table, write_job

TOKENS, WARM, ROUNDS = 6_000_000, 40, 3


def job(folder: Path) -> dict[str, object]:
    """Return the text job over the corpus in `folder`."""
    return {
        "lanes": 12,
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
    """Print the table."""
    data = corpus()

    def penstock() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            job_file = write_job(Path(folder), {"text": job(data)})
            with serving(job_file, "--workers", "2") as (address, _):
                return in_child("text_penstock", address, str(TOKENS), str(WARM))

    def dataloader() -> dict[str, float]:
        return in_child("text_dataloader", str(data), str(TOKENS), str(WARM))

    results = interleaved(ROUNDS, {"penstock": penstock, "dataloader": dataloader})
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


if __name__ == "__main__":
    run()
