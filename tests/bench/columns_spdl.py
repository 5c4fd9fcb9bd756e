"""The pre-tokenized job with SPDL's pipeline: threads of the training process, no other process.

Row groups in a random order, read by 2 threads; the documents of each shuffled; the same best-fit
packing by a third; int32 ids and the documents' boundaries. It stands for what one process can do
that reads for itself: it has no cursor, and no order that a second run would repeat.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from columns_rates import Packing, rates


def main(folder: str) -> None:
    """Read; print the rates."""
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

    packing = Packing()

    def pack(documents: list[Any]) -> Iterator[dict[str, Any]]:
        for ids in documents:
            yield from packing.add(ids)

    builder = PipelineBuilder().add_source(source()).pipe(read, concurrency=2, output_order="input")
    pipeline = builder.pipe(pack).add_sink(2).build(num_threads=3)
    with pipeline.auto_stop():
        print(json.dumps(rates((batch["tokens"] for batch in pipeline), 0)))


if __name__ == "__main__":
    main(sys.argv[1])
