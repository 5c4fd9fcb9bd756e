"""The pre-tokenized job with SPDL's pipeline: threads of the training process, no other process.

Row groups in a random order, read by 2 threads; the documents of each shuffled; the same best-fit
packing by a third; int32 ids and the documents' boundaries. It stands for what one process can do
that reads for itself: it has no cursor, and no order that a second run would repeat.
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

WIDTH, HEIGHT, POOL = 8192, 4, 64


def main(folder: str) -> None:
    """Read; print the rates."""
    import numpy as np
    import pyarrow.parquet as pq
    from spdl.pipeline import PipelineBuilder

    paths = sorted(Path(folder).glob("*.parquet"))
    groups = [
        (path, group) for path in paths for group in range(pq.read_metadata(path).num_row_groups)
    ]

    def source() -> Iterator[tuple[Path, int, int]]:
        for epoch in range(1_000_000):
            order = list(groups)
            random.Random(epoch).shuffle(order)
            for path, group in order:
                yield path, group, epoch

    def read(place: tuple[Path, int, int]) -> list[Any]:
        path, group, epoch = place
        with pq.ParquetFile(path) as file:
            column = file.read_row_group(group, columns=["input_ids"])["input_ids"].chunk(0)
        ids, ends = column.values.to_numpy(), column.offsets.to_numpy()
        order = list(range(len(column)))
        random.Random(f"{epoch} {path} {group}").shuffle(order)
        return [ids[ends[row] : ends[row + 1]] for row in order]

    pool: list[tuple[int, int, Any]] = []
    rows: list[list[tuple[int, int, Any]]] = []
    number = 0

    def pack(documents: list[Any]) -> Iterator[dict[str, Any]]:
        nonlocal number
        for ids in documents:
            for start in range(0, len(ids), WIDTH):
                piece = ids[start : start + WIDTH]
                insort(pool, (len(piece), number, piece))
                number += 1
            while len(pool) >= POOL:
                rows.append(row_of(pool))
            while len(rows) >= HEIGHT:
                yield batch_of(rows[:HEIGHT])
                del rows[:HEIGHT]

    def batch_of(rows: list[list[tuple[int, int, Any]]]) -> dict[str, Any]:
        ids = np.zeros((HEIGHT, WIDTH), np.int32)
        seams = [0]
        tokens = 0
        for row, taken in enumerate(rows):
            place = 0
            for length, _, piece in taken:
                ids[row, place : place + length] = piece
                place += length
                seams.append(row * WIDTH + place)
            tokens += place
            if place < WIDTH:
                seams.append((row + 1) * WIDTH)
        return {"input_ids": ids, "cu_seq_lens": np.array(seams, np.int32), "tokens": tokens}

    builder = PipelineBuilder().add_source(source()).pipe(read, concurrency=2, output_order="input")
    pipeline = builder.pipe(pack).add_sink(2).build(num_threads=3)
    with pipeline.auto_stop():
        print(json.dumps(rates((batch["tokens"] for batch in pipeline), 0)))


def row_of(pool: list[tuple[int, int, Any]]) -> list[tuple[int, int, Any]]:
    """Take the oldest piece, and those that fill its row best."""
    oldest = min(range(len(pool)), key=lambda at: pool[at][1])
    taken = [pool.pop(oldest)]
    room = WIDTH - taken[0][0]
    while room and pool:
        at = bisect_right(pool, room, key=lambda one: one[0]) - 1
        if at < 0:
            break
        taken.append(pool.pop(at))
        room -= taken[-1][0]
    return taken


if __name__ == "__main__":
    main(sys.argv[1])
