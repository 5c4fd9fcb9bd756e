"""Sources of one corpus in many formats: opening them, and reading an epoch in blocks.

The documents are those of the standard library, each once in every format, in files on a local
disk that is in memory by then. Opening is from nothing: no hash and no index is kept. An epoch is
drawn by the `map` distributor with its defaults, 16 items at a time, in one process without a node.
`hf` opens the same file through `datasets`, which converts it first. Token ids are those of the
corpus's tokenizer.
"""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from support import corpus, interleaved, ratio, spread, table
from support import median as middle

from penstock.server.roles.distributors import MapDistributor
from penstock.server.sources import (
    ArrowSource,
    CsvSource,
    HfSource,
    JsonlSource,
    JsonSource,
    MegatronSource,
    ParquetSource,
    TokensSource,
    WebdatasetSource,
)

LANES, AT_ONCE = 48, 16


def run() -> None:
    """Print the tables."""
    data = corpus()
    files = [str(path) for path in sorted(data.glob("corpus/*.parquet"))]
    texts: list[str] = pq.read_table(files, columns=["text"]).column("text").to_pylist()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PENSTOCK_HASH_CACHE"] = "off"
        size = sum(len(text.encode()) for text in texts)
        _write(folder, texts, data / "tokenizer.json")
        _measure(
            f"{len(texts):,} documents of {size / 1e6:.0f} MB as text",
            {
                "parquet": lambda: ParquetSource(str(folder / "a.parquet"), ["text"]),
                "arrow": lambda: ArrowSource(str(folder / "a.arrow")),
                "jsonl": lambda: JsonlSource(str(folder / "a.jsonl")),
                "json": lambda: JsonSource(str(folder / "a.json")),
                "csv": lambda: CsvSource(str(folder / "a.csv")),
                "webdataset": lambda: WebdatasetSource(str(folder / "a.tar")),
                "hf jsonl": lambda: _hf(folder, "json", "a.jsonl"),
                "hf csv": lambda: _hf(folder, "csv", "a.csv"),
            },
            size,
            "hf jsonl",
        )
        ids = os.stat(folder / "a.bin").st_size
        _measure(
            f"the same as {ids / 4e6:.1f} M token ids, int32",
            {
                "parquet": lambda: ParquetSource(str(folder / "ids.parquet")),
                "megatron": lambda: MegatronSource(str(folder / "a.bin")),
                "tokens": lambda: TokensSource(str(folder / "a.bin"), "int32", eos=0),
            },
            ids,
            "parquet",
        )


def _hf(folder: Path, builder: str, name: str) -> HfSource:
    """Open a file through `datasets` as at the first time."""
    import datasets

    datasets.disable_progress_bars()
    datasets.config.HF_DATASETS_CACHE = Path(tempfile.mkdtemp(dir=folder))
    return HfSource(builder, data_files=str(folder / name))


def _measure(title: str, ways: Mapping[str, Callable[[], Any]], size: int, other: str) -> None:
    results = interleaved(
        {name: lambda make=make: _once(make, size) for name, make in ways.items()}
    )
    rows = [
        (
            name,
            f"{1000 * middle(found, 'open_s'):,.0f}",
            spread([{"ms": 1000 * one["open_s"]} for one in found], "ms", ",.0f"),
            f"{middle(found, 'mb_s'):,.0f}",
            spread(found, "mb_s", ",.0f"),
            ratio(results, name, other, "mb_s"),
        )
        for name, found in results.items()
    ]
    head = ("source", "open, ms CPU", "range", "epoch, MB/s CPU", "range", f"of {other}")
    table(f"Sources: {title}", head, rows)


def _once(make: Callable[[], Any], size: int) -> dict[str, float]:
    started = time.process_time()
    source = make()
    source.identity()
    opened = time.process_time()
    distributor = MapDistributor()
    distributor.bind({"main": source}, 1, 1, LANES)
    if (reading := distributor.reading()) is not None and reading.held:
        source.keep_blocks(reading.held)
    total = len(source)
    for start in range(0, total, AT_ONCE):
        drawn = [
            distributor.draw(g % LANES, LANES, g // LANES)
            for g in range(start, min(start + AT_ONCE, total))
        ]
        source.fetch([item.index for item in drawn if item is not None])
    read = time.process_time()
    source.close()
    return {"open_s": opened - started, "mb_s": size / 1e6 / (read - opened)}


def _write(folder: Path, texts: list[str], tokenizer: Path) -> None:
    """Write the documents in every format, and their token ids, with 0 after each document."""
    from tokenizers import Tokenizer

    rows = pa.table({"text": texts})
    pq.write_table(rows, folder / "a.parquet", row_group_size=200)
    with (
        pa.OSFile(str(folder / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, rows.schema) as writer,
    ):
        writer.write_table(rows, max_chunksize=200)
    (folder / "a.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (folder / "a.json").write_text(json.dumps([{"text": text} for text in texts]))
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, text in enumerate(texts):
            entry, data = tarfile.TarInfo(f"{number:06}.txt"), text.encode()
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    found = Tokenizer.from_file(str(tokenizer)).encode_batch(texts, add_special_tokens=False)
    # Ids are moved by one, so that 0 is an id that only ends documents.
    ids = [np.append(np.array(one.ids, np.int32) + 1, np.int32(0)) for one in found]
    pq.write_table(pa.table({"input_ids": ids}), folder / "ids.parquet", row_group_size=200)
    lengths = np.array([len(one) for one in ids], np.int32)
    np.concatenate(ids).tofile(folder / "a.bin")
    (folder / "a.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX", 1, 4, len(ids), len(ids) + 1)
        + lengths.tobytes()
        + (4 * (np.cumsum(lengths, dtype=np.int64) - lengths)).tobytes()
        + np.arange(len(ids) + 1, dtype=np.int64).tobytes()
    )


if __name__ == "__main__":
    run()
