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
from bisect import bisect_right, insort
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rates import rates

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

    rows = 8192
    data = datasets.load_dataset(
        "parquet", data_files=str(Path(folder) / "corpus" / "*.parquet"), split="train"
    )

    class Packed(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = get_worker_info()
            tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
            eos = tokenizer.token_to_id("<eos>")
            pool: list[tuple[int, int, Any]] = []
            number = 0
            for epoch in range(1_000_000):
                order = list(range(len(data)))
                random.Random(f"{seed} {epoch}").shuffle(order)
                mine = order[worker.id :: worker.num_workers]
                for place in range(0, len(mine), TEXTS):
                    texts = data[mine[place : place + TEXTS]]["text"]
                    for encoding in tokenizer.encode_batch_fast(list(texts)):
                        ids = [*encoding.ids, eos]
                        for start in range(0, len(ids), rows):
                            piece = np.array(ids[start : start + rows], dtype=np.int32)
                            insort(pool, (len(piece), number, piece))
                            number += 1
                        while len(pool) >= 64:
                            yield self.row(pool)

        @staticmethod
        def row(pool: list[tuple[int, int, Any]]) -> dict[str, Any]:
            oldest = min(range(len(pool)), key=lambda at: pool[at][1])
            taken = [pool.pop(oldest)]
            room = rows - taken[0][0]
            while room and pool:
                at = bisect_right(pool, room, key=lambda one: one[0]) - 1
                if at < 0:
                    break
                taken.append(pool.pop(at))
                room -= taken[-1][0]
            ids = np.zeros(rows, np.int64)
            labels = np.full(rows, -100, np.int64)
            positions = np.zeros(rows, np.int64)
            documents = np.zeros(rows, np.int32)
            place, seams = 0, [0]
            for document, (length, _, piece) in enumerate(taken, 1):
                end = place + length
                ids[place:end] = piece
                labels[place + 1 : end] = piece[1:]
                positions[place:end] = np.arange(length)
                documents[place:end] = document
                seams.append(end)
                place = end
            if place < rows:
                positions[place:] = np.arange(rows - place)
                seams.append(rows)
            longest = int(np.diff(seams).max())
            cu = torch.tensor(seams, dtype=torch.int32)
            return {
                "input_ids": torch.from_numpy(ids)[None],
                "labels": torch.from_numpy(labels)[None],
                "position_ids": torch.from_numpy(positions)[None],
                "document_ids": torch.from_numpy(documents)[None],
                "cu_seq_lens_q": cu,
                "cu_seq_lens_k": cu,
                "max_length_q": longest,
                "max_length_k": longest,
                "tokens": place,
            }

    loader = DataLoader(Packed(), batch_size=None, num_workers=2)
    began = time.perf_counter()
    print(json.dumps(rates((batch["tokens"] for batch in loader), began, 0)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
