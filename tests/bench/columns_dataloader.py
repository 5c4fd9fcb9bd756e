"""The pre-tokenized job the usual way: an IterableDataset that packs, behind a DataLoader.

The same Parquet through `datasets`, as NumPy arrays, 256 shuffled documents at a time; the same
best-fit packing; int32 ids and the documents' boundaries, in 2 workers.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from columns_rates import Packing, rates

DOCUMENTS = 256
"""Read from `datasets` at once."""


def main(folder: str) -> None:
    """Read; print the rates."""
    import datasets
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    data = datasets.load_dataset(
        "parquet", data_files=str(Path(folder) / "*.parquet"), split="train"
    ).with_format("numpy")

    class Packed(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker, packing = get_worker_info(), Packing()
            for epoch in range(1_000_000):
                order = list(range(len(data)))
                random.Random(epoch).shuffle(order)
                mine = order[worker.id :: worker.num_workers]
                for place in range(0, len(mine), DOCUMENTS):
                    for ids in data[mine[place : place + DOCUMENTS]]["input_ids"]:
                        for batch in packing.add(ids):
                            arrays = {name: batch[name] for name in ("input_ids", "cu_seq_lens")}
                            yield {**batch, **{n: torch.from_numpy(v) for n, v in arrays.items()}}

    loader = DataLoader(Packed(), batch_size=None, num_workers=2)
    print(json.dumps(rates((batch["tokens"] for batch in loader), 0)))


if __name__ == "__main__":
    main(sys.argv[1])
