"""The pre-tokenized job the usual way: an IterableDataset that packs, behind a DataLoader.

The same Parquet through `datasets`, as NumPy arrays, 256 shuffled documents at a time; the same
best-fit packing; int32 ids and the documents' boundaries, in 2 workers.
"""

from __future__ import annotations

import json
import random
import sys
from bisect import bisect_right, insort
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from columns_rates import rates

DOCUMENTS = 256
"""Read from `datasets` at once."""


def main(folder: str) -> None:
    """Read; print the rates."""
    import datasets
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info

    width, height, pool_size = 8192, 4, 64
    data = datasets.load_dataset(
        "parquet", data_files=str(Path(folder) / "*.parquet"), split="train"
    ).with_format("numpy")

    class Packed(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = get_worker_info()
            pool: list[tuple[int, int, Any]] = []
            rows: list[list[tuple[int, int, Any]]] = []
            number = 0
            for epoch in range(1_000_000):
                order = list(range(len(data)))
                random.Random(epoch).shuffle(order)
                mine = order[worker.id :: worker.num_workers]
                for place in range(0, len(mine), DOCUMENTS):
                    for ids in data[mine[place : place + DOCUMENTS]]["input_ids"]:
                        for start in range(0, len(ids), width):
                            piece = ids[start : start + width]
                            insort(pool, (len(piece), number, piece))
                            number += 1
                        while len(pool) >= pool_size:
                            rows.append(self.row(pool))
                        while len(rows) >= height:
                            yield self.batch(rows[:height])
                            del rows[:height]

        @staticmethod
        def row(pool: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
            oldest = min(range(len(pool)), key=lambda at: pool[at][1])
            taken = [pool.pop(oldest)]
            room = width - taken[0][0]
            while room and pool:
                at = bisect_right(pool, room, key=lambda one: one[0]) - 1
                if at < 0:
                    break
                taken.append(pool.pop(at))
                room -= taken[-1][0]
            return taken

        @staticmethod
        def batch(rows: list[list[tuple[int, int, Any]]]) -> dict[str, Any]:
            ids = np.zeros((height, width), np.int32)
            seams = [0]
            tokens = 0
            for row, taken in enumerate(rows):
                place = 0
                for length, _, piece in taken:
                    ids[row, place : place + length] = piece
                    place += length
                    seams.append(row * width + place)
                tokens += place
                if place < width:
                    seams.append((row + 1) * width)
            return {
                "input_ids": torch.from_numpy(ids),
                "cu_seq_lens": torch.tensor(seams, dtype=torch.int32),
                "tokens": tokens,
            }

    loader = DataLoader(Packed(), batch_size=None, num_workers=2)
    print(json.dumps(rates((batch["tokens"] for batch in loader), 0)))


if __name__ == "__main__":
    main(sys.argv[1])
