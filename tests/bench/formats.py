"""The documents of the standard library in every format that a source opens, as text and as ids.

Blocks are alike as far as the formats let them be: 200 documents of Parquet and Arrow, and the
`block_bytes` that sources have by themselves of all others.
"""

from __future__ import annotations

import csv
import io
import json
import struct
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

GROUP = 200
"""Documents of a row group or a record batch."""

SHARDS = 48
"""Files of the stream, one for each lane of a job with the default number of lanes."""


def write_texts(folder: Path, texts: Sequence[str]) -> None:
    """Write the documents in every format of text.

    Args:
        folder: Where to: `a.parquet`, `a.arrow`, `a.jsonl`, `a.json`, `a.csv`, `a.tar`,
            `meta.json`, which lists two halves, and the folders `texts`, `saved`, `mds` and
            `stream`.
        texts: The documents.
    """
    import datasets

    rows = pa.table({"text": texts})
    pq.write_table(rows, folder / "a.parquet", row_group_size=GROUP)
    with (
        pa.OSFile(str(folder / "a.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, rows.schema) as writer,
    ):
        writer.write_table(rows, max_chunksize=GROUP)
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict({"text": list(texts)}).save_to_disk(folder / "saved")
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    (folder / "a.jsonl").write_text("".join(lines))
    (folder / "stream").mkdir()
    for number in range(SHARDS):
        (folder / "stream" / f"{number:02}.jsonl").write_text("".join(lines[number::SHARDS]))
    (folder / "a.json").write_text(json.dumps([{"text": text} for text in texts]))
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    (folder / "texts").mkdir()
    for number, text in enumerate(texts):
        (folder / "texts" / f"{number:06}.txt").write_text(text, encoding="utf-8", newline="")
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, text in enumerate(texts):
            entry, data = tarfile.TarInfo(f"{number:06}.txt"), text.encode()
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    _write_mds(folder / "mds", texts)
    for number in range(2):
        (folder / f"half-{number}.jsonl").write_text("".join(lines[number::2]))
    halves = {f"half_{number}": {"file_name": f"half-{number}.jsonl"} for number in range(2)}
    (folder / "meta.json").write_text(json.dumps(halves))


def _write_mds(folder: Path, texts: Sequence[str]) -> None:
    """Write one shard of a text column, as `streaming.MDSWriter` does without compression."""
    shard: dict[str, object] = {
        "column_encodings": ["str"],
        "column_names": ["text"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "samples": len(texts),
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": None,
    }
    config = json.dumps(shard).encode()
    samples = [struct.pack("<I", len(data)) + data for data in (text.encode() for text in texts)]
    start = 4 * (len(samples) + 2) + len(config)
    offsets = np.cumsum([start, *map(len, samples)]).astype("<u4")
    data = struct.pack("<I", len(samples)) + offsets.tobytes() + config + b"".join(samples)
    shard["raw_data"] = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    folder.mkdir()
    (folder / "shard.00000.mds").write_bytes(data)
    (folder / "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))


def write_ids(folder: Path, texts: Sequence[str], tokenizer: Path) -> None:
    """Write the token ids of the documents: `ids.parquet`, `a.bin` and `a.idx`.

    Args:
        folder: Where to.
        texts: The documents.
        tokenizer: Its file. Ids are moved by one, so that 0 is an id that only ends documents.
    """
    from tokenizers import Tokenizer

    found = Tokenizer.from_file(str(tokenizer)).encode_batch(list(texts), add_special_tokens=False)
    ids: list[npt.NDArray[np.int32]] = [
        np.append(np.array(one.ids, np.int32) + 1, np.int32(0)) for one in found
    ]
    pq.write_table(pa.table({"input_ids": ids}), folder / "ids.parquet", row_group_size=GROUP)
    lengths = np.array([len(one) for one in ids], np.int32)
    np.concatenate(ids).tofile(folder / "a.bin")
    (folder / "a.idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX", 1, 4, len(ids), len(ids) + 1)
        + lengths.tobytes()
        + (4 * (np.cumsum(lengths, dtype=np.int64) - lengths)).tobytes()
        + np.arange(len(ids) + 1, dtype=np.int64).tobytes()
    )


__all__ = ["write_ids", "write_texts"]
