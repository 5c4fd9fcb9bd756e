"""The same rows in every format that a shipped source reads, and what job files say of them."""

from __future__ import annotations

import csv
import io
import json
import struct
import tarfile
import wave
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

PARTS = {"one": (0, 17), "two": (17, 24)}
"""The rows of each of two sources of a job, so that mixtures have parts: from, to."""

KINDS = ("ragged", "even")
"""Texts of 1 to 41 letters, some longer than a row; and of 9 letters all, which can be stacked."""

BLOCK_BYTES = 700
"""A few rows."""

Row = dict[str, Any]

MODULE = '''
import json
from pathlib import Path

import numpy as np

from penstock.server.roles import SampleBatcher

HERE = Path(__file__).parent


class Rows:
    """Map-style."""

    def __init__(self, folder):
        lines = (HERE / folder / "rows.jsonl").read_text().splitlines()
        self.rows = [json.loads(line) for line in lines]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def to_samples(raw, context):
    """Filter some items, fail on some, make two samples of others; all of them are random."""
    name = next(name for name in ("input_ids", "text", "txt") if name in raw)
    ids = raw[name] if name == "input_ids" else raw[name].encode()
    first = int(ids[0])
    if first % 7 == 3:
        return context.skip("every seventh")
    if first % 11 == 5:
        raise ValueError("a damaged record")
    shift = int(context.rng.integers(1000))
    ids = [int(id) + shift for id in ids]
    return [{"input_ids": ids}, {"input_ids": ids[::-1]}][: 1 + first % 2]


def corner(pixels):
    """A pixel of a picture."""
    return pixels[:1, :1]


def plain(value):
    """As JSON has it."""
    return value.hex() if isinstance(value, bytes) else np.asarray(value).tolist()


def collate(samples):
    """Whatever the samples are, as text."""
    text = json.dumps(samples, default=plain)
    return {"text": np.frombuffer(text.encode(), np.uint8), "count": len(samples)}


class Alternating(SampleBatcher):
    """Every other sample waits; a batch is made of two that waited and two that did not."""

    version = 1
    needs_sizes = False

    def __init__(self):
        self.waiting, self.others, self.turn = [], [], False

    def add(self, ref, sample=None):
        self.turn = not self.turn
        (self.waiting if self.turn else self.others).append(ref)
        if len(self.waiting) < 4:
            return []
        newest = [self.waiting.pop(), self.others.pop(0)]
        return [[[self.waiting.pop(0)], [self.others.pop()], newest]]

    def flush(self):
        rest = [[ref] for ref in (*self.waiting, *self.others)]
        self.waiting, self.others = [], []
        return [rest] if rest else []
'''


def rows_of(kind: str) -> list[Row]:
    """Return the rows of both parts; `input_ids` are the letters of the text."""
    lengths = [9 if kind == "even" else 1 + n * 13 % 41 for n in range(PARTS["two"][1])]
    texts = ["abcdefghijk"[n % 11] * length for n, length in enumerate(lengths)]
    return [
        {
            "number": number,
            "episode": number // 5,
            "text": text,
            "input_ids": list(text.encode()),
            "picture": picture_of(number, len(text)),
            "messages": [
                {"role": "user", "content": text},
                {"role": "assistant", "content": text[:4].ljust(4, "z")},
            ],
        }
        for number, text in enumerate(texts)
    ]


def picture_of(number: int, length: int) -> str:
    """Return the name of a row's picture, of its sound and of its video, as long as its text.

    The first has as many pixels, the second as many points, the third as many frames.

    So what headers tell is what batchers find in a text, an item's ids or a picture's name.
    """
    return f"{number:08d}p" if length == 9 else "p" * length


def picture(number: int, width: int) -> bytes:
    """Return a picture of one row of pixels, each row's another one."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, 1), (10 * number, 7, width)).save(file, "PNG")
    return file.getvalue()


def sound(number: int, points: int) -> bytes:
    """Return a sound of so many points, each row's another one."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(np.arange(number, number + points, dtype="<i2").tobytes())
    return file.getvalue()


def video(number: int, frames: int) -> bytes:
    """Return a video of so many frames, each row's another one."""
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="avi") as out:
        stream = out.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "yuvj420p"
        for place in range(frames):
            pixels = np.full((16, 16, 3), (7 * number + 3 * place) % 256, np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        out.mux(stream.encode(None))
    return file.getvalue()


def write_all(folder: Path) -> None:
    """Write the rows of both kinds and parts in every format; tokenizers; and a user's roles."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from chats import CHATML, write_chat_folder
    from vision import write_vision_folder

    (folder / "roles.py").write_text(MODULE)
    (folder / "lines.py").write_text((Path(__file__).parent / "lines.py").read_text())
    write_chat_folder(folder / "chat", CHATML)
    write_vision_folder(folder / "kimi", "kimi")
    tokenizer = Tokenizer(models.WordLevel({**{c: ord(c) for c in "abcdefghijk"}, "<eos>": 0}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    for kind in KINDS:
        rows = rows_of(kind)
        for made in ("pictures", "sounds", "videos"):
            (folder / made / kind).mkdir(parents=True)
        for row in rows:
            told, name = (row["number"], len(row["text"])), row["picture"]
            (folder / "pictures" / kind / name).write_bytes(picture(*told))
            (folder / "sounds" / kind / name).write_bytes(sound(*told))
            (folder / "videos" / kind / name).write_bytes(video(*told))
        for part, (start, stop) in PARTS.items():
            _write(folder / kind / part, rows[start:stop])


def _write(folder: Path, rows: list[Row]) -> None:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    table = pa.Table.from_pylist(rows)
    pq.write_table(table, folder / "rows.parquet", row_group_size=4)
    with pa.ipc.new_file(str(folder / "rows.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    datasets.disable_progress_bars()
    datasets.Dataset(table).save_to_disk(str(folder / "saved"), num_shards=3)
    lines = [json.dumps(row) + "\n" for row in rows]
    (folder / "rows.jsonl").write_text("".join(lines))
    (folder / "rows.json").write_text(json.dumps(rows))
    (folder / "shards").mkdir()
    for shard in range(3):
        (folder / "shards" / f"{shard}.jsonl").write_text("".join(lines[shard::3]))
    (folder / "texts.txt").write_text("".join(row["text"] + "\n" for row in rows))
    (folder / "pictures.txt").write_text("".join(row["picture"] + "\n" for row in rows))
    (folder / "chats.txt").write_text("".join(json.dumps(row["messages"]) + "\n" for row in rows))
    (folder / "meta.yaml").write_text(
        f"lines: {{file_name: rows.jsonl, options: {{block_bytes: {BLOCK_BYTES}}}}}\n"
        "groups: {file_name: rows.parquet, sample_ratio: 0.5}\n"
    )
    with (folder / "rows.csv").open("w", newline="") as file:
        table_of_texts = csv.writer(file)
        table_of_texts.writerow(["text", "messages", "picture", "episode"])
        table_of_texts.writerows(
            [row["text"], json.dumps(row["messages"]), row["picture"], row["episode"]]
            for row in rows
        )
    _write_tar(folder / "rows.tar", rows)
    _write_mds(folder / "mds", rows)
    ids = [np.array([*row["input_ids"], 0], np.uint16) for row in rows]
    np.concatenate(ids).tofile(folder / "documents.bin")
    _write_megatron(folder / "indexed", ids)


def _write_tar(path: Path, rows: list[Row]) -> None:
    with tarfile.open(path, "w") as archive:
        for row in rows:
            for ending, data in (
                ("txt", row["text"].encode()),
                ("json", json.dumps(row["messages"]).encode()),
                ("png", picture(row["number"], len(row["text"]))),
                ("wav", sound(row["number"], len(row["text"]))),
                ("avi", video(row["number"], len(row["text"]))),
            ):
                member = tarfile.TarInfo(f"{row['number']:03}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def _write_mds(folder: Path, rows: list[Row]) -> None:
    """By the layout of `streaming/base/format/mds`, version 2: columns in the order of names."""
    encodings = {
        "episode": "int",
        "input_ids": "ndarray:int32",
        "messages": "json",
        "number": "int",
        "picture": "str",
        "text": "str",
    }
    samples = []
    for row in rows:
        ids = np.array(row["input_ids"], "<i4")
        values = [
            struct.pack("<q", row["episode"]),
            struct.pack("<BB", 1 << 2, len(ids)) + ids.tobytes(),
            json.dumps(row["messages"]).encode(),
            struct.pack("<q", row["number"]),
            row["picture"].encode(),
            row["text"].encode(),
        ]
        # What has no fixed size is told at the start of a sample.
        sizes = [len(value) for n, value in enumerate(values) if n not in (0, 3)]
        samples.append(struct.pack("<4I", *sizes) + b"".join(values))
    shard: dict[str, Any] = {
        "column_encodings": list(encodings.values()),
        "column_names": list(encodings),
        "column_sizes": [8, None, None, 8, None, None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "samples": len(samples),
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": None,
    }
    config = json.dumps(shard).encode()
    start = 4 * (len(samples) + 2) + len(config)
    offsets = np.cumsum([start, *map(len, samples)]).astype("<u4")
    data = struct.pack("<I", len(samples)) + offsets.tobytes() + config + b"".join(samples)
    shard["raw_data"] = {"basename": "shard.00000.mds", "bytes": len(data), "hashes": {}}
    folder.mkdir()
    (folder / "shard.00000.mds").write_bytes(data)
    (folder / "index.json").write_text(json.dumps({"shards": [shard], "version": 2}))


def _write_megatron(path: Path, documents: Sequence[np.ndarray[Any, Any]]) -> None:
    """By the layout of Megatron-LM's `indexed_dataset.py`, with values of two bytes."""
    lengths = np.array([len(ids) for ids in documents])
    path.with_suffix(".bin").write_bytes(b"".join(ids.tobytes() for ids in documents))
    path.with_suffix(".idx").write_bytes(
        struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, len(documents), len(documents) + 1)
        + lengths.astype(np.int32).tobytes()
        + (2 * (np.cumsum(lengths) - lengths)).astype(np.int64).tobytes()
        + np.arange(len(documents) + 1, dtype=np.int64).tobytes()
    )


def _items(folder: str) -> dict[str, Any]:
    kind, part = folder.split("/")
    start, stop = PARTS[part]
    return {"items": rows_of(kind)[start:stop]}


def _files(name: str, **more: Any) -> Callable[[str], dict[str, Any]]:
    return lambda folder: {"files": f"{folder}/{name}", **more}


SOURCES: dict[str, Callable[[str], dict[str, Any]]] = {
    "parquet": _files("rows.parquet"),
    "jsonl": _files("rows.jsonl", block_bytes=BLOCK_BYTES),
    "json": _files("rows.json", block_bytes=BLOCK_BYTES),
    "csv": _files("rows.csv", block_bytes=BLOCK_BYTES),
    "text": _files("texts.txt", block_bytes=50),
    "arrow": _files("rows.arrow", block_bytes=1),
    "saved": lambda folder: {"path": f"{folder}/saved", "block_bytes": 1},
    "webdataset": _files("rows.tar", block_bytes=6000),
    "mds": _files("mds", block_bytes=BLOCK_BYTES),
    "megatron": _files("indexed.bin", block_bytes=150),
    "tokens": _files("documents.bin", dtype="uint16", eos=0, block_bytes=150),
    "meta": lambda folder: {"file": f"{folder}/meta.yaml"},
    "hf": lambda folder: {"path": "json", "data_files": f"{folder}/rows.jsonl"},
    "hf_stream": lambda folder: {"path": "json", "data_files": f"{folder}/shards/*.jsonl"},
    "torch": lambda folder: {"factory": "./roles.py:Rows", "folder": folder},
    "items": _items,
    "user's stream": lambda folder: {"folder": f"{folder}/shards", "apart": 300},
}
"""What a job file says of the rows in a folder."""

TYPES = {"user's stream": "./lines.py:Lines", "user's": "./roles.py:Alternating"}
"""The `type:` of roles that a user brings."""

STREAMS = ("hf_stream", "user's stream")
IN_EPISODES = ("parquet", "jsonl", "json", "csv", "arrow", "saved", "mds", "hf", "items")
"""Whose items have a column that names their episode, which can be read alone and lies together."""

BLOCKED = tuple(
    name for name in SOURCES if name not in (*STREAMS, "hf", "torch", "items", "tokens", "megatron")
)
"""Whose items lie in blocks that are decoded whole, so that they are not shuffled one by one."""


def source(name: str, kind: str, part: str, lines: str = "texts") -> dict[str, Any]:
    """Return the source of a job: of its rows of a kind, those of one part.

    Args:
        name: The source.
        kind: One of `KINDS`.
        part: One of `PARTS`.
        lines: What lines of text hold: `texts`, `chats` or names of `pictures`.
    """
    found = {"type": TYPES.get(name, name), **SOURCES[name](f"{kind}/{part}")}
    if name == "text":
        found["files"] = f"{kind}/{part}/{lines}.txt"
    return found


def write_job(path: Path, job: dict[str, Any]) -> str:
    """Write a job file with one job of the name `job`."""
    path.write_text(yaml.dump({"jobs": {"job": job}}, Dumper=yaml.CSafeDumper))
    return str(path)


__all__ = [
    "BLOCKED",
    "KINDS",
    "PARTS",
    "SOURCES",
    "STREAMS",
    "TYPES",
    "source",
    "write_all",
    "write_job",
]
