"""A small real file of every format that a user's data, or a job's files, may have.

Each is written by the library that its users write it with, and is read as a node reads it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import re
import shutil
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import yaml

from chats import TEMPLATES, write_chat_folder
from damaged.mutations import mutate, replaced
from penstock.server.core.refs import ItemRef
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.processors.chat import ChatProcessor
from penstock.server.roles.processors.tokenize import TokenizeProcessor
from penstock.server.sources import (
    ArrowSource,
    CsvSource,
    HfSource,
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

DATA = Path(__file__).parents[1] / "data" / "formats"
ROWS = 40


class Format(NamedTuple):
    """A kind of file.

    Attributes:
        write: Writes real files into a folder.
        open: What reads them: a source, or what gives a list of values.
        names: Which of the files is damaged, one of them at a time.
        theirs: What the format's own library reads of the folder, as plain rows; None = nothing to
            compare with. It may raise anything.
        damage: Changes the bytes of a file.
    """

    write: Callable[[Path], None]
    open: Callable[[Path], Any]
    names: tuple[str, ...]
    theirs: Callable[[Path], list[Any]] | None = None
    damage: Callable[[bytes, random.Random], bytes] = mutate


def table() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "text": [None if n % 11 == 3 else f"row {n} é" * (n % 7) for n in range(ROWS)],
            "kind": pa.array([f"kind {n % 3}" for n in range(ROWS)]).dictionary_encode(),
            "ids": pa.array([list(range(n % 5)) for n in range(ROWS)], pa.list_(pa.uint16())),
            "at": pa.array([{"x": n / 2, "y": [f"{n}"]} for n in range(ROWS)]),
            "flag": [n % 3 == 0 for n in range(ROWS)],
        }
    )


def dicts() -> list[dict[str, Any]]:
    return [
        {"id": n, "text": f'row {n} \\ " é' * (n % 4), "ids": [*range(n % 5)], "x": None}
        for n in range(ROWS)
    ]


def ids() -> list[list[int]]:
    return [[*range(n % 9), 0] for n in range(ROWS)]


# --- written ---


def _parquet(compression: str, **options: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        pq.write_table(
            table(), folder / "a.parquet", row_group_size=13, compression=compression, **options
        )

    return write


def _arrow(kind: Any, compression: str | None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        with (
            pa.OSFile(str(folder / "a.arrow"), "wb") as sink,
            kind(sink, table().schema, options=options) as writer,
        ):
            writer.write_table(table(), max_chunksize=13)

    return write


def _feather(folder: Path) -> None:
    pa.feather.write_feather(table(), str(folder / "a.feather"), compression="lz4", chunksize=13)


def _saved(folder: Path) -> None:
    import datasets

    datasets.Dataset.from_list(dicts()).save_to_disk(str(folder / "saved"))


def _mds(name: str) -> Callable[[Path], None]:
    return lambda folder: shutil.copytree(DATA / "mds" / name, folder, dirs_exist_ok=True)


def _megatron(folder: Path) -> None:
    for ending in ("bin", "idx"):
        shutil.copy(DATA / "megatron" / f"uint16.{ending}", folder / f"a.{ending}")


def _tar(folder: Path) -> None:
    array = io.BytesIO()
    np.save(array, np.arange(6, dtype=np.int16).reshape(2, 3))
    with tarfile.open(folder / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        for number in range(12):
            for ending, data in (
                ("txt", f"text {number} é".encode()),
                ("json", json.dumps({"n": number}).encode()),
                ("cls", str(number).encode()),
                ("npy", array.getvalue()),
                ("bin", bytes([number] * 9)),
            ):
                entry = tarfile.TarInfo(f"folder/{number:04}.{ending}")
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))


def _lines(folder: Path) -> None:
    text = "".join(json.dumps(row, ensure_ascii=row["id"] % 2 == 0) + "\n" for row in dicts())
    (folder / "a.jsonl").write_text(text)


def _array(folder: Path) -> None:
    (folder / "a.json").write_text(json.dumps(dicts(), indent=1, ensure_ascii=False))


def _csv(folder: Path) -> None:
    with open(folder / "a.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "value", "flag"])
        for n in range(ROWS):
            writer.writerow([n, f'row "{n}",\né' * (n % 3), n / 4, n % 2 == 0])


def _text(folder: Path) -> None:
    (folder / "a.txt").write_text("".join(f"line {n} é\n" * (n % 3) + "\n" for n in range(ROWS)))


def _npy(folder: Path) -> None:
    np.save(folder / "a.npy", np.concatenate(ids()).astype(np.uint16))


def _npy_rows(folder: Path) -> None:
    np.save(folder / "a.npy", np.arange(ROWS * 7, dtype=np.int32).reshape(ROWS, 7))


def _bin(folder: Path) -> None:
    np.concatenate(ids()).astype("<u4").tofile(folder / "a.bin")


def _meta(folder: Path) -> None:
    _lines(folder)
    chats = [{"id": n, "conversations": [{"from": "human", "value": f"{n}"}]} for n in range(9)]
    (folder / "b.json").write_text(json.dumps(chats))
    (folder / "meta.json").write_text(
        json.dumps(
            {
                "lines": {
                    "file_name": "a.jsonl",
                    "sample_ratio": 1.5,
                    "options": {"columns": None},
                },
                "chats": {
                    "path": "b.json",
                    "type": "json",
                    "columns": {"messages": "conversations"},
                    "tags": {"role_tag": "from", "user_tag": "human"},
                },
            }
        )
    )


def _meta_yaml(folder: Path) -> None:
    _meta(folder)
    text = yaml.safe_dump(json.loads((folder / "meta.json").read_text()))
    (folder / "meta.json").unlink()
    (folder / "meta.yaml").write_text(text)


def _sizes(folder: Path) -> None:
    from indexes import samples_of, written

    items: list[Any] = [[n * 700] * (n % 4) or f"filtered:because {n % 3}" for n in range(900)]
    written(folder / "sizes.idx", ("main", samples_of(*items)))


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<eos>"], show_progress=False
    )
    tokenizer.train_from_iterator(["some words of a text"] * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def _job(folder: Path) -> None:
    names = ["input_ids" if name == "ids" else name for name in table().column_names]
    pq.write_table(table().rename_columns(names), folder / "a.parquet", row_group_size=13)
    job = {
        "server": {"listen": "127.0.0.1:0", "workers": 1},
        "jobs": {
            "main": {
                "seed": 7,
                "lanes": 2,
                "batches_per_step": 4,
                "source": {"type": "parquet", "files": "a.parquet", "columns": ["input_ids"]},
                "distributor": {
                    "type": "map",
                    "shuffle": "blocks",
                    "where": {"flag": [True, None]},
                },
                "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 4},
                "collator": {"type": "packed"},
            }
        },
    }
    (folder / "job.json").write_text(json.dumps(job))


# --- read ---


class Values(NamedTuple):
    """What was read that is not a source.

    Attributes:
        values: All of it.
    """

    values: list[Any]


def _size_index(folder: Path) -> Values:
    index = SizeIndex.open(str(folder / "sizes.idx"))
    index.check()
    found: list[Any] = [index.root, dict(index.inputs)]
    for name, source in index.sources.items():
        sizes = source.read(0, source.items)
        counts = None if sizes.counts is None else sizes.counts.tolist()
        told = [source.items, source.samples, source.tokens, dict(source.left_out)]
        found.append([name, told, counts, sizes.sizes.tolist(), dict(sizes.left_out)])
        for start in range(0, source.items, 400):
            source.read(start, min(source.items, start + 7))
    return Values(found)


def _tokens(folder: Path) -> Values:
    processor = TokenizeProcessor(str(folder / "tokenizer.json"), append="<eos>")
    found: list[Any] = [processor.identity()]
    processor.setup()
    for text in ("some words", "", "é \0 of a text"):
        try:
            sample = processor.process(
                {"text": text}, ProcessContext(ItemRef("main", 0, 0), seed=1)
            )
        except Exception as error:  # as of any role: a bad item, by name
            found.append(f"{type(error).__name__}: {error}")
        else:
            found.append(None if sample is None else sample["input_ids"].tolist())
    return Values(found)


def _chats(folder: Path) -> None:
    write_chat_folder(folder / "chat", TEMPLATES["chatml"])


def _chat(folder: Path) -> Values:
    processor = ChatProcessor(str(folder / "chat"))
    found: list[Any] = [processor.identity()]
    processor.setup()
    messages = [{"role": "user", "content": "two"}, {"role": "assistant", "content": "four"}]
    try:
        context = ProcessContext(ItemRef("main", 0, 0), seed=1)
        sample = processor.process({"messages": messages}, context)
    except Exception as error:  # as of any role: a bad item, by name
        found.append(f"{type(error).__name__}: {error}")
    else:
        found.append(None if sample is None else sample["input_ids"].tolist())
    return Values(found)


def _loaded(folder: Path) -> Values:
    from penstock.server.jobs.load import load

    jobs = load(str(folder / "job.json"), environ={}).jobs
    return Values([(name, jobs[name].log_id) for name in jobs])


def _crafted(data: bytes, draw: random.Random) -> bytes:
    """Damage the file, or write its footer with another value and the hash of that."""
    if draw.random() < 0.3:
        return mutate(data, draw)
    (length,) = struct.unpack_from("<Q", data, len(data) - 24)
    at = len(data) - 56 - length
    footer = json.loads(data[at : at + length])
    if draw.random() < 0.1:
        said = b"[" * draw.choice((10, 5000)) + b"]" * draw.choice((10, 5000))
    else:
        for _ in range(draw.choice((1, 1, 2))):
            footer = replaced(footer, draw)
        said = json.dumps(footer).encode()
    tail = hashlib.sha256(said).digest() + struct.pack("<Q", len(said))
    return data[:at] + said + tail + data[-16:]


def _shallow(data: bytes, draw: random.Random) -> bytes:
    """Damage JSON, but nest nothing by thousands: that ends a process in pyarrow's own reader.

    `datasets` calls it for type hf; our own source of type json refuses such an element by name.
    """
    return re.sub(rb'(\[|\{"a":){100,}', rb"\1", mutate(data, draw))


def _theirs_parquet(folder: Path) -> list[Any]:
    opened = pq.ParquetFile(folder / "a.parquet", page_checksum_verification=True)
    groups = [opened.read_row_group(group) for group in range(opened.num_row_groups)]
    rows = pa.concat_tables(groups)
    rows.validate(full=True)
    return rows.to_pylist()


def _theirs_arrow(folder: Path) -> list[Any]:
    with pa.OSFile(str(folder / "a.arrow")) as file:
        data = file.read()
    opened = pa.ipc.open_file(data) if data.startswith(b"ARROW1") else pa.ipc.open_stream(data)
    rows = opened.read_all()
    rows.validate(full=True)
    return rows.to_pylist()


def _theirs_lines(folder: Path) -> list[Any]:
    lines = (folder / "a.jsonl").read_bytes().split(b"\n")
    return [json.loads(line) for line in lines if line.strip()]


def _theirs_array(folder: Path) -> list[Any]:
    return json.loads((folder / "a.json").read_bytes())  # type: ignore[no-any-return]


def _theirs_npy_rows(folder: Path) -> list[Any]:
    return [{"input_ids": row} for row in np.load(folder / "a.npy").tolist()]


FORMATS: dict[str, Format] = {
    **{
        f"parquet {name}": Format(
            _parquet(name, **options),
            lambda folder: ParquetSource(str(folder / "a.parquet")),
            ("a.parquet",),
            _theirs_parquet,
        )
        for name, options in {
            "none": {},
            "snappy": {"write_page_checksum": True},
            "zstd": {"data_page_version": "2.0", "use_dictionary": False},
        }.items()
    },
    **{
        f"arrow {name}": Format(
            write,
            lambda folder: ArrowSource(str(folder / "a.arrow"), block_bytes=2000),
            ("a.arrow",),
            _theirs_arrow,
        )
        for name, write in {
            "file": _arrow(pa.ipc.new_file, None),
            "stream": _arrow(pa.ipc.new_stream, None),
            "zstd": _arrow(pa.ipc.new_file, "zstd"),
            "lz4": _arrow(pa.ipc.new_stream, "lz4"),
        }.items()
    },
    "feather": Format(
        _feather, lambda folder: ArrowSource(str(folder / "a.feather")), ("a.feather",)
    ),
    "saved": Format(
        _saved,
        lambda folder: SavedSource(str(folder / "saved")),
        ("saved/state.json", "saved/dataset_info.json", "saved/data-00000-of-00001.arrow"),
    ),
    "mds plain": Format(
        _mds("plain"),
        lambda folder: MdsSource(str(folder), block_bytes=500),
        ("index.json", "index.json", "shard.00000.mds", "shard.00001.mds"),
    ),
    **{
        f"mds {name}": Format(
            _mds(name),
            lambda folder: MdsSource(str(folder)),
            ("index.json", f"shard.00000.mds.{name}"),
        )
        for name in ("zstd", "gz", "bz2", "br", "snappy")
    },
    "megatron": Format(
        _megatron,
        lambda folder: MegatronSource(str(folder / "a.bin"), block_bytes=12),
        ("a.idx", "a.idx", "a.bin"),
    ),
    "webdataset": Format(
        _tar,
        lambda folder: WebdatasetSource(str(folder / "a.tar"), block_bytes=9000),
        ("a.tar",),
    ),
    "jsonl": Format(
        _lines,
        lambda folder: JsonlSource(str(folder / "a.jsonl"), block_bytes=500),
        ("a.jsonl",),
        _theirs_lines,
    ),
    "json": Format(
        _array,
        lambda folder: JsonSource(str(folder / "a.json"), block_bytes=500),
        ("a.json",),
        _theirs_array,
    ),
    "csv": Format(
        _csv, lambda folder: CsvSource(str(folder / "a.csv"), block_bytes=300), ("a.csv",)
    ),
    "text": Format(
        _text,
        lambda folder: TextSource(str(folder / "a.txt"), "paragraph", block_bytes=100),
        ("a.txt",),
    ),
    "npy": Format(
        _npy, lambda folder: TokensSource(str(folder / "a.npy"), eos=0, block_bytes=64), ("a.npy",)
    ),
    "npy rows": Format(
        _npy_rows,
        lambda folder: TokensSource(str(folder / "a.npy"), block_bytes=64),
        ("a.npy",),
        _theirs_npy_rows,
    ),
    "bin": Format(
        _bin,
        lambda folder: TokensSource(str(folder / "a.bin"), "uint32", eos=0, block_bytes=64),
        ("a.bin",),
    ),
    "meta json": Format(
        _meta,
        lambda folder: MetaSource(str(folder / "meta.json")),
        ("meta.json",) * 3 + ("b.json",),
    ),
    "meta yaml": Format(
        _meta_yaml, lambda folder: MetaSource(str(folder / "meta.yaml")), ("meta.yaml",)
    ),
    "size index": Format(_sizes, _size_index, ("sizes.idx",), damage=_crafted),
    "tokenizer": Format(_tokenizer, _tokens, ("tokenizer.json",)),
    "chat": Format(
        _chats,
        _chat,
        ("chat/tokenizer.json", "chat/tokenizer_config.json", "chat/tokenizer_config.json"),
    ),
    "job": Format(_job, _loaded, ("job.json",)),
    "hf json": Format(
        _array,
        lambda folder: HfSource("json", str(folder / "a.json")),
        ("a.json",),
        damage=_shallow,
    ),
    "hf parquet": Format(
        _parquet("snappy"),
        lambda folder: HfSource("parquet", str(folder / "a.parquet")),
        ("a.parquet",),
    ),
}

SLOW = {"hf json": 0.1, "hf parquet": 0.1, "saved": 0.5}
"""Formats of which a part of the cases is enough: `datasets` takes long for each."""

__all__ = ["FORMATS", "SLOW", "Format", "Values"]
