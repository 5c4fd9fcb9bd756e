"""Sources of one corpus in many formats: opening them, an epoch in blocks, and items at random.

The documents are those of the standard library, each once in every format, in files on a local
disk that is in memory by then. Opening is from nothing: no hash and no index is kept. An epoch is
drawn by the `map` distributor with its defaults, 16 items at a time, in one process without a node.
At random, items are read one by one in a random order, and no block is kept between them: what it
costs to mix a corpus that is larger than memory without regard to its blocks. `hf` opens the same
file through `datasets`, which converts it first; a stream is read by one lane. Token ids are those
of the corpus's tokenizer.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from formats import write_ids, write_texts
from support import around, compare, corpus, interleaved

from penstock.server.roles import IndexedSource, Source, StreamSource
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.distributors.iterable import IterableDistributor
from penstock.server.sources import (
    ArrowSource,
    CsvSource,
    HfSource,
    HfStreamSource,
    JsonlSource,
    JsonSource,
    MdsSource,
    MegatronSource,
    MetaSource,
    ParquetSource,
    SavedSource,
    TextSource,
    TokensSource,
    WebdatasetSource,
)

LANES, AT_ONCE = 48, 16
AT_RANDOM = 100
"""Items that are read one by one."""


def run() -> None:
    """Print the tables."""
    data = corpus()
    files = [str(path) for path in sorted(data.glob("corpus/*.parquet"))]
    texts: list[str] = pq.read_table(files, columns=["text"]).column("text").to_pylist()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PENSTOCK_HASH_CACHE"] = "off"
        write_texts(folder, texts)
        write_ids(folder, texts, data / "tokenizer.json")
        size = sum(len(text.encode()) for text in texts)
        _measure(
            f"{len(texts):,} documents of {size / 1e6:.0f} MB as text",
            {
                "parquet": lambda: ParquetSource(str(folder / "a.parquet"), ["text"]),
                "arrow": lambda: ArrowSource(str(folder / "a.arrow")),
                "saved": lambda: SavedSource(str(folder / "saved")),
                "jsonl": lambda: JsonlSource(str(folder / "a.jsonl")),
                "json": lambda: JsonSource(str(folder / "a.json")),
                "csv": lambda: CsvSource(str(folder / "a.csv")),
                "text, files": lambda: TextSource(str(folder / "texts"), sample_by="document"),
                "webdataset": lambda: WebdatasetSource(str(folder / "a.tar")),
                "mds": lambda: MdsSource(str(folder / "mds")),
                "meta, of 2 jsonl": lambda: MetaSource(str(folder / "meta.json")),
                "hf, json": lambda: _hf(folder, "json", "a.jsonl"),
                "hf, csv": lambda: _hf(folder, "csv", "a.csv"),
                "hf_stream, json": lambda: HfStreamSource(
                    "json", data_files=str(folder / "stream" / "*.jsonl")
                ),
            },
            size,
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
        )


def _hf(folder: Path, builder: str, name: str) -> HfSource:
    """Open a file through `datasets` as at the first time."""
    import datasets

    datasets.config.HF_DATASETS_CACHE = Path(tempfile.mkdtemp(dir=folder))
    return HfSource(builder, data_files=str(folder / name))


def _measure(title: str, ways: Mapping[str, Callable[[], Source]], size: int) -> None:
    results = interleaved(
        {name: lambda make=make: _once(make, size) for name, make in ways.items()}
    )
    compare(
        f"Sources: {title}. CPU time, medians and ranges; items in blocks, then at random",
        "source",
        results,
        around("open, ms", "open_ms", ",.0f"),
        around("us an item", "us", ",.0f"),
        around("MB/s", "mb_s", ",.0f"),
        around("at random, us an item", "random_us", ",.0f"),
    )


def _once(make: Callable[[], Source], size: int) -> dict[str, float]:
    started = time.process_time()
    source = make()
    source.identity()
    opened = time.process_time()
    items = _in_blocks(source) if isinstance(source, IndexedSource) else _streamed(source)
    read = time.process_time()
    found = {
        "open_ms": 1000 * (opened - started),
        "us": 1e6 * (read - opened) / items,
        "mb_s": size / 1e6 / (read - opened),
    }
    if isinstance(source, IndexedSource):
        found["random_us"] = _at_random(source)
    source.close()
    return found


def _in_blocks(source: IndexedSource) -> int:
    """Read an epoch as a job does; return how many items it has."""
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
    return total


def _streamed(source: Source) -> int:
    """Read an epoch of a stream as one lane; return how many rows it has."""
    assert isinstance(source, StreamSource)
    distributor = IterableDistributor()
    distributor.bind({"main": source}, 1, 1, 1)
    draws = distributor.open(0, 1)
    rows = 0
    while (item := draws.next()) is not None:
        source.fetch([item.index])
        draws.took(item, 1)
        rows += 1
    return rows


def _at_random(source: IndexedSource) -> float:
    """Return microseconds of CPU an item, read one by one."""
    order = np.random.default_rng(1).permutation(len(source))[:AT_RANDOM].tolist()
    started = time.process_time()
    for index in order:
        source.keep_blocks(0)
        source.fetch([index])
    return 1e6 * (time.process_time() - started) / len(order)


if __name__ == "__main__":
    run()
