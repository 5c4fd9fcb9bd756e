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
from support import against, compare, in_child, interleaved, middle, node, python_with, ranged

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
            "penstock": partial(_penstock, Path(folder), "tcp"),
            "- by unix:": partial(_penstock, Path(folder), "unix"),
            "DataLoader": partial(in_child, "columns_dataloader", folder),
        }
        if python := python_with("SPDL", "spdl.pipeline"):
            ways["SPDL"] = partial(in_child, "columns_spdl", folder, python=python)
        results = interleaved(ways)
    compare(
        f"Pre-tokenized Parquet to packed batches of {BATCH_ROWS} x {ROW_TOKENS:,} ids (goal: at "
        "least 1.5x of a DataLoader; 1.0x of SPDL by unix:)",
        "way",
        results,
        ranged("M tokens/s", "m_tokens_per_s", ".1f"),
        against("of DataLoader", "DataLoader", "m_tokens_per_s"),
        against("of SPDL", "SPDL", "m_tokens_per_s"),
        middle("trainer CPU s/M", "trainer_s_per_m", ".4f"),
        middle("others", "server_s_per_m", ".4f"),
    )


def _penstock(data: Path, over: str) -> dict[str, float]:
    with node({"ids": job(data)}, over=over, workers=2) as served:
        return in_child("columns_penstock", *served)


if __name__ == "__main__":
    run()
