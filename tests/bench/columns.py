"""Pre-tokenized documents: `list<int32>` columns of Parquet to packed batches of 4 x 8,192 ids.

2 workers on either side: a penstock server and its client, over TCP and through a Unix socket,
against a DataLoader with 2 workers that does the same with `datasets`. Both shuffle and pack 64
documents at a time with best fit. The DataLoader hands the trainer int32 ids with the boundaries of
their documents; penstock all values of its default layout. Beside them SPDL, which reads with
threads of the training process, where this interpreter has it, or the one that BENCH_SPDL_PYTHON
names (`pip install spdl-core pyarrow`). The corpus lies in a temporary folder: 64 M tokens,
uncompressed, in documents of log-normal lengths, 640 tokens in the mean.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support import (
    in_child,
    interleaved,
    median,
    python_with,
    ratio,
    serving,
    spread,
    table,
    write_job,
)

FILES, GROUPS, ROWS = 5, 20, 1000
"""Of the corpus: `datasets` writes row groups of 1,000 rows by itself."""

BATCH_ROWS, ROW_TOKENS, POOL = 4, 8192, 64


def job(folder: Path) -> dict[str, object]:
    """Return the job over the corpus in `folder`."""
    return {
        "source": {"type": "parquet", "files": str(folder / "*.parquet"), "columns": ["input_ids"]},
        "processor": "identity",
        "batcher": {
            "type": "best_fit",
            "max_tokens": ROW_TOKENS,
            "pool_size": POOL,
            "rows": BATCH_ROWS,
            "overlong": "split",
        },
        "collator": {"type": "packed", "pad_to": ROW_TOKENS},
    }


def write_corpus(folder: Path) -> None:
    """Write the corpus."""
    random = np.random.default_rng(11)
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    for number in range(FILES):
        path = folder / f"{number:03}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(GROUPS):
                lengths = np.clip(random.lognormal(6.0, 0.95, ROWS), 8, 30_000).astype(np.int32)
                offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int32)))
                ids = random.integers(0, 50_000, int(offsets[-1]), dtype=np.int32)
                rows = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
                writer.write_table(pa.table({"input_ids": rows}, schema=schema))


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        write_corpus(Path(folder))
        ways: dict[str, Callable[[], Mapping[str, float]]] = {
            "penstock": partial(_penstock, Path(folder)),
            "- by unix:": partial(_penstock, Path(folder), unix=True),
            "DataLoader": partial(in_child, "columns_dataloader", folder),
        }
        if python := python_with("SPDL", "spdl.pipeline"):
            ways["SPDL"] = partial(in_child, "columns_spdl", folder, python=python)
        results = interleaved(ways)
    table(
        f"Pre-tokenized Parquet to packed batches of {BATCH_ROWS} x {ROW_TOKENS:,} ids (goal: at "
        "least 1.5x of a DataLoader; 1.0x of SPDL by unix:)",
        ("way", "M tokens/s", "range", "of DataLoader", "of SPDL", "trainer CPU s/M", "others"),
        [
            (
                way,
                f"{median(rounds, 'm_tokens_per_s'):.1f}",
                spread(rounds, "m_tokens_per_s", ".1f"),
                ratio(results, way, "DataLoader", "m_tokens_per_s"),
                ratio(results, way, "SPDL", "m_tokens_per_s"),
                f"{median(rounds, 'trainer_s_per_m'):.4f}",
                f"{median(rounds, 'server_s_per_m'):.4f}",
            )
            for way, rounds in results.items()
        ],
    )


def _penstock(data: Path, unix: bool = False) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        job_file = write_job(Path(folder), {"ids": job(data)})
        listen = f"unix:{folder}/s" if unix else None
        with serving(job_file, "--workers", "2", listen=listen) as (address, process):
            return in_child("columns_penstock", address, str(process.pid))


if __name__ == "__main__":
    run()
