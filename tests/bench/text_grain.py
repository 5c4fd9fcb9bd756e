"""The text job by Grain: its own sharding, best-fit packing and worker processes.

The same Parquet through `datasets`, the same tokenizer call on 16 texts, rows of 8,192 tokens by
Grain's `BestFitPackIterDataset` with 64 open rows, the same keys, in 2 worker processes, one row or
several in a batch. Run by an interpreter that has Grain, which may be another one than penstock's.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rates import rates

TEXTS, ROWS, OPEN_ROWS = 16, 8192, 64


def main(folder: str, seed: int, height: int) -> None:
    """Read batches of so many rows, in an order of this seed; print the rates."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import datasets
    import grain
    import grain.experimental
    import numpy as np
    from tokenizers import Tokenizer

    data = datasets.load_dataset(
        "parquet", data_files=str(Path(folder) / "corpus" / "*.parquet"), split="train"
    )

    class Texts:
        def __len__(self) -> int:
            return len(data)

        def __getitem__(self, index: int) -> str:
            return str(data[int(index)]["text"])

    class Tokens(grain.experimental.FlatMapTransform):  # type: ignore[misc]
        """16 texts to the pieces of their tokens."""

        max_fan_out = 100_000
        tokenizer: Any = None

        def flat_map(self, texts: list[str]) -> list[dict[str, Any]]:
            if self.tokenizer is None:  # in the worker: it does not travel
                self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
                self.eos = self.tokenizer.token_to_id("<eos>")
            found = []
            for encoding in self.tokenizer.encode_batch_fast(list(texts)):
                ids = np.array([*encoding.ids, self.eos], dtype=np.int32)
                found += [{"input_ids": ids[at : at + ROWS]} for at in range(0, len(ids), ROWS)]
            return found

    def row(packed: dict[str, Any]) -> dict[str, Any]:
        ids = packed["input_ids"].astype(np.int64)
        documents = packed["input_ids_segment_ids"]
        starts = np.flatnonzero(np.diff(documents, prepend=-1, append=-1)).astype(np.int32)
        labels = np.where(packed["input_ids_positions"] > 0, ids, -100)
        labels[documents == 0] = -100
        longest = int(np.diff(starts).max())
        return {
            "input_ids": ids[None],
            "labels": labels[None],
            "position_ids": packed["input_ids_positions"].astype(np.int64)[None],
            "document_ids": documents[None],
            "cu_seq_lens_q": starts,
            "cu_seq_lens_k": starts,
            "max_length_q": longest,
            "max_length_k": longest,
            "tokens": int((documents > 0).sum()),
        }

    def join(rows: list[dict[str, Any]]) -> dict[str, Any]:
        whole = ("input_ids", "labels", "position_ids", "document_ids")
        ends = [each["cu_seq_lens_q"][1:] + ROWS * n for n, each in enumerate(rows)]
        starts = np.concatenate([np.zeros(1, np.int32), *ends]).astype(np.int32)
        longest = max(each["max_length_q"] for each in rows)
        return {
            **{name: np.concatenate([each[name] for each in rows]) for name in whole},
            "cu_seq_lens_q": starts,
            "cu_seq_lens_k": starts,
            "max_length_q": longest,
            "max_length_k": longest,
            "tokens": sum(each["tokens"] for each in rows),
        }

    texts = grain.MapDataset.source(Texts()).seed(seed).shuffle().repeat()
    pieces = grain.experimental.FlatMapIterDataset(
        texts.batch(TEXTS, batch_fn=list).to_iter_dataset(), Tokens()
    )
    packed = grain.experimental.BestFitPackIterDataset(
        pieces, length_struct={"input_ids": ROWS}, num_packing_bins=OPEN_ROWS
    )
    rows = packed.map(row)
    if height > 1:
        rows = rows.batch(height, batch_fn=join)
    rows = rows.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))

    def counts(batches: Iterator[dict[str, Any]]) -> Iterator[int]:
        return (batch["tokens"] for batch in batches)

    began = time.perf_counter()
    print(json.dumps(rates(counts(iter(rows)), began, 0)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1)
