"""The text job: tokenize and pack the standard library into rows of 8,192 tokens, on 2 cores.

A penstock server with 2 workers and its client, against a DataLoader with 2 workers that does the
same with `datasets` and `tokenizers`, each in turn on an otherwise idle machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from support import corpus, in_child, interleaved, median, ratio, serving, spread, table, write_job

TOKENS, WARM = 6_000_000, 40


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
            with serving(job_file, "--workers", "2") as (address, process):
                return in_child("text_penstock", address, str(process.pid), str(TOKENS), str(WARM))

    def dataloader() -> dict[str, float]:
        return in_child("text_dataloader", str(data), str(TOKENS), str(WARM))

    results = interleaved({"penstock": penstock, "dataloader": dataloader})
    rows = [
        (
            way,
            f"{median(rounds, 'tokens_per_s'):,.0f}",
            spread(rounds, "tokens_per_s", ",.0f"),
            ratio(results, way, "dataloader", "tokens_per_s"),
            f"{median(rounds, 'trainer_s_per_m'):.3f}",
            f"{median(rounds, 'server_s_per_m'):.3f}",
        )
        for way, rounds in results.items()
    ]
    table(
        f"Text job, {TOKENS / 1e6:.0f} M tokens, 2 workers "
        "(goal: at least 0.95x; trainer at most 0.03 s/M)",
        ("way", "tokens/s", "range", "of DataLoader", "trainer CPU s/M", "others"),
        rows,
    )


if __name__ == "__main__":
    run()
