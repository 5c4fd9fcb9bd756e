"""An index of sizes: `penstockd index` against the bare tokenizer, on as many cores.

The documents are pieces of 2,000 characters of the standard library, about 600 tokens each: what a
document costs beside its tokens shows more with short ones. The bare tokenizer has them in memory
as text, so it neither reads nor decodes anything; it takes 64 at a time. The index is read from
Parquet, processed, and written. Neither is timed before its processes have started: a corpus of a
million documents takes minutes. `BENCH_INDEX_DOCUMENTS` says how many there are; beyond those of
the library they repeat.
"""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from support import (
    Column,
    Results,
    against,
    compare,
    corpus,
    in_child,
    interleaved,
    median,
    ranged,
    write_job,
)
from text import job

PROCESSES, CHARACTERS, ROWS_PER_GROUP = 2, 2000, 1024

DOCUMENTS = int(float(os.environ.get("BENCH_INDEX_DOCUMENTS", "0")))
"""0 = as many as the standard library gives."""


def run() -> None:
    """Print the table."""
    data = corpus()
    with tempfile.TemporaryDirectory() as folder:
        documents = _write_pieces(data, Path(folder))
        section: dict[str, Any] = {**job(data)}
        section["source"] = {"type": "parquet", "files": str(Path(folder) / "pieces.parquet")}
        write_job(Path(folder), {"text": section}, workers=PROCESSES)
        results = interleaved(
            {way: partial(in_child, "index", way, data, folder) for way in ("bare", "index")}
        )
    compare(
        f"Making an index: {documents:,} documents of {CHARACTERS:,} characters, {PROCESSES} "
        "processes (goal: at least 0.9x of the bare tokenizer). The processes of the index took "
        f"{median(results['index'], 'start_s'):.1f} s to start, which is not in its rate.",
        "way",
        results,
        ranged("tokens/s", "tokens_per_s", ",.0f"),
        against("of the bare tokenizer", "bare", "tokens_per_s"),
        Column(("range",), _ratios),
    )


def _ratios(results: Results, way: str) -> list[str]:
    if way == "bare":
        return ["-"]
    pairs = zip(results[way], results["bare"], strict=True)
    found = [mine["tokens_per_s"] / other["tokens_per_s"] for mine, other in pairs]
    return [f"{min(found):.2f}-{max(found):.2f}"]


def _write_pieces(data: Path, folder: Path) -> int:
    """Write the documents, and return how many there are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pieces = [
        text[start : start + CHARACTERS]
        for path in sorted((data / "corpus").glob("*.parquet"))
        for text in pq.read_table(path, columns=["text"])["text"].to_pylist()
        for start in range(0, len(text), CHARACTERS)
    ]
    pieces = list(itertools.islice(itertools.cycle(pieces), DOCUMENTS or len(pieces)))
    written = pa.table({"text": pieces})
    pq.write_table(written, folder / "pieces.parquet", row_group_size=ROWS_PER_GROUP)
    return len(pieces)


def _index(folder: Path) -> dict[str, float]:
    """Make the index as the command does, and time it from the first word of how far it is."""
    from penstock.server.jobs.load import load
    from penstock.server.planning.make.making import Making, MakingProgress, make
    from penstock.server.planning.make.measuring import Measuring
    from penstock.server.planning.make.measuring_pool import MeasuringPool

    built = load(str(folder / "penstock.yaml")).job("text")
    measuring = Measuring(built)
    pool = MeasuringPool("text", built.definition, {0: measuring.inputs}, PROCESSES, 600.0)
    first: list[float] = []

    def watch(done: MakingProgress) -> None:
        if done.measured and not first:
            first.extend((time.perf_counter(), done.measured))

    began_s = time.perf_counter()
    making = Making(measuring, str(folder / "text.index"))
    [made] = make([making], pool.run, force=True, watch=watch)
    since_s, measured = first
    share = 1 - measured / made.done.items
    rate = share * made.done.tokens / (time.perf_counter() - since_s)
    return {"tokens_per_s": rate, "start_s": since_s - began_s}


def _bare(data: Path, folder: Path) -> dict[str, float]:
    """Tokenize in processes that begin together, until the last one is done."""
    began = multiprocessing.Barrier(PROCESSES + 1)
    with multiprocessing.get_context("fork").Manager() as manager:
        tokens = manager.list()
        processes = [
            multiprocessing.Process(target=_tokenize, args=(data, folder, number, began, tokens))
            for number in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        began.wait()
        since_s = time.perf_counter()
        for process in processes:
            process.join()
        seconds = time.perf_counter() - since_s
        return {"tokens_per_s": sum(tokens) / seconds}


def _tokenize(data: Path, folder: Path, number: int, began: Any, tokens: Any) -> None:
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
    texts = pq.read_table(folder / "pieces.parquet")["text"].to_pylist()[number::PROCESSES]
    began.wait()
    count = 0
    for start in range(0, len(texts), 64):
        found = tokenizer.encode_batch_fast(texts[start : start + 64], add_special_tokens=False)
        count += sum(len(encoding.ids) for encoding in found)
    tokens.append(count)


def main(way: str, data: str, folder: str) -> None:
    """Run one way, and print what it found."""
    found = _index(Path(folder)) if way == "index" else _bare(Path(data), Path(folder))
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
