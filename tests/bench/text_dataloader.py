"""The text job the usual way: an IterableDataset that tokenizes and packs, behind a DataLoader.

The same Parquet through `datasets`, the same tokenizer, the same best-fit packing into rows of
8,192 tokens with the same keys, in 2 workers. The same fast call of the tokenizer, given 16 texts
at once, as its documentation does; its own threads are off, since the workers have all cores.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rates import rates
from text_rows import POOL, Waiting, pieces, values

TEXTS = 16
"""Given to the tokenizer at once."""


def main(folder: str, seed: int) -> None:
    """Read in an order of this seed; print the rates."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import datasets
    import numpy as np
    import torch
    from tokenizers import Tokenizer
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    data = datasets.load_dataset(
        "parquet", data_files=str(Path(folder) / "corpus" / "*.parquet"), split="train"
    )

    class Packed(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = get_worker_info()
            tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
            eos = tokenizer.token_to_id("<eos>")
            waiting = Waiting()
            for epoch in range(1_000_000):
                order = list(range(len(data)))
                random.Random(f"{seed} {epoch}").shuffle(order)
                mine = order[worker.id :: worker.num_workers]
                for place in range(0, len(mine), TEXTS):
                    texts = data[mine[place : place + TEXTS]]["text"]
                    for encoding in tokenizer.encode_batch_fast(list(texts)):
                        for piece in pieces([*encoding.ids, eos]):
                            waiting.add(len(piece), piece)
                        while len(waiting) >= POOL:
                            yield tensors(values(waiting.row()))

    def tensors(row: dict[str, Any]) -> dict[str, Any]:
        return {
            name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for name, value in row.items()
        }

    loader = DataLoader(Packed(), batch_size=None, num_workers=2)
    began = time.perf_counter()
    print(json.dumps(rates((batch["tokens"] for batch in loader), began, 0)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
