"""One content per position, however it is computed and wherever: the promise, as one matrix.

{server with 1, 2, 4 workers; `local:`; `show`; `spawn:`} x {here; another time zone, locale, hash
seed, folder and number of threads} x every shipped role and roles such as users write.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import soundfile

import pictures
import robots
import sounds
import videos
from chats import CHATML, write_chat_folder
from harness import ENVIRONMENT, serving, write_job_file
from penstock.client import Loader
from penstock.client.calls.grpc_transport import open_transport
from penstock.server.jobs.registry import KINDS
from penstock.server.process.environment import THREAD_VARIABLES
from penstock.wire import LENT_BYTES
from penstock.wire.describe import batch_record
from penstock.wire.transports import Transport
from vision import write_vision_folder

COUNT = 6
"""Positions of each job that are compared: one step."""

ELSEWHERE = {
    "TZ": "<+0945>-09:45",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "C",
    "PYTHONHASHSEED": "4711",
    **dict.fromkeys(THREAD_VARIABLES, "2"),
}

ROLES = '''
import locale, os, random, time

import numpy as np

from penstock.server.roles import RawItemProcessor


def augment(raw):
    """Draws from the global generators."""
    return {"x": np.array([random.random(), np.random.rand(), float(len(raw["text"]))])}


def turned(image):
    """Draws from the global generators which way a picture is turned."""
    return image.rotate(90 * random.randrange(4))


def multiply(raw):
    """A float32 product: its last bits depend on how many threads share it."""
    rng = np.random.default_rng(len(raw["text"]))
    matrix, vector = (rng.standard_normal(shape, dtype=np.float32) for shape in ((100, 2000), 2000))
    return {"x": matrix @ vector}


class Surroundings(RawItemProcessor):
    """All that a process may have of its own."""

    def process(self, raw, context):
        return {
            "hour": time.localtime(10**9 + len(raw["text"])).tm_hour,
            "locale": f"{os.environ.get('LANG')} {locale.getpreferredencoding(False)}",
            "order": "".join({"one", "two", "three", "four", "five", "six", "seven"}),
        }


class Several(RawItemProcessor):
    """One item gives one to three samples."""

    def process(self, raw, context):
        count = 1 + int(context.rng.integers(3))
        return [{"input_ids": list(raw["text"].encode()[part:])} for part in range(count)]


class Choosy(RawItemProcessor):
    """Filters."""

    def process(self, raw, context):
        if context.rng.random() < 0.4:
            return context.skip("chance")
        return {"input_ids": list(raw["text"].encode())}


class Dataset:
    """Map-style, and augments as it is read."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return {"index": index, "noise": np.random.standard_normal(3) * random.random()}


class Texts:
    """Map-style, and draws which text an item is."""

    def __len__(self):
        return 25

    def __getitem__(self, index):
        return {"text": f"other {index} " + "as many " * random.randrange(5)}
'''

LINES = (Path(__file__).parent.parent / "resume" / "lines.py").read_text()

FORMATS = Path(__file__).parent.parent / "data" / "formats"
PACKED = {"type": "packed", "pad_to": 64}
IDS = {"type": "items", "items": [{"input_ids": list(range(1, 2 + n % 30))} for n in range(50)]}
TEXTS = {"type": "parquet", "files": "texts.parquet"}
TOKENIZE = {"type": "tokenize", "tokenizer": "tokenizer.json", "column": "text"}

PICTURES = {
    "source": {
        "type": "items",
        "items": [{"image": f"{n}.jpg", "n": n} for n in range(9)],
    },
    "media": {"dir": "pictures"},
    "batch_size": 2,
}

JOBS: dict[str, dict[str, Any]] = {
    "tokens": {
        "source": TEXTS,
        "distributor": {"type": "map", "shuffle": "blocks"},
        "processor": TOKENIZE,
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 8, "overlong": "split"},
        "collator": PACKED,
    },
    "lines": {
        "source": {"type": "hf", "path": "json", "data_files": "texts.jsonl"},
        "processor": TOKENIZE,
        "batcher": {"type": "pool", "max_tokens": 64, "pool_size": 8},
        "collator": {**PACKED, "layout": "neat"},
    },
    "ids": {
        "source": IDS,
        "distributor": {"type": "map", "shuffle": "none"},
        "processor": "identity",
        "batcher": {"type": "sequential", "max_sequence_length": 64},
        "collator": {**PACKED, "layout": "thd"},
    },
    "wide": {  # its bodies are lent over a Unix socket
        "source": IDS,
        "batcher": {"type": "sequential", "max_sequence_length": 64, "rows": 512},
        "collator": PACKED,
    },
    "padded": {
        "source": IDS,
        "batcher": {"type": "simple", "batch_size": 3},
        "collator": "padded",
    },
    "finite": {"source": {"type": "items", "items": list(range(9))}, "epochs": 1, "batch_size": 2},
    "generators": {"source": TEXTS, "function": "./roles.py:augment", "batch_size": 2},
    "product": {"source": TEXTS, "function": "./roles.py:multiply", "batch_size": 2},
    "surroundings": {
        "source": TEXTS,
        "processor": "./roles.py:Surroundings",
        "batch_size": 2,
    },
    "several": {
        "source": TEXTS,
        "processor": "./roles.py:Several",
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 8},
        "collator": {**PACKED, "layout": "megatron", "max_documents": 64},
    },
    "choosy": {
        "source": TEXTS,
        "processor": "./roles.py:Choosy",
        "batcher": {"type": "sequential", "max_sequence_length": 64},
        "collator": {**PACKED, "layout": "indexed"},
    },
    "chat": {
        "source": {"type": "hf", "path": "json", "data_files": "chats.jsonl"},
        "processor": {"type": "chat", "tokenizer": "chat"},
        "batcher": {"type": "best_fit", "max_tokens": 96, "pool_size": 8, "overlong": "truncate"},
        "collator": "packed",
    },
    "dataset": {"source": {"type": "torch", "factory": "./roles.py:Dataset"}, "batch_size": 2},
    "two_sources": {
        "sources": {"texts": TEXTS, "more": {"type": "torch", "factory": "./roles.py:Texts"}},
        "distributor": {"type": "map", "shuffle": "blocks", "reading_groups": 2},
        "processor": TOKENIZE,
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 8},
        "collator": PACKED,
    },
    "stream": {
        "source": {"type": "./lines.py:Lines", "folder": "shards", "apart": 300},
        "distributor": {"type": "iterable", "buffer_size": 7},
        "processor": TOKENIZE,
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 8, "overlong": "split"},
        "collator": PACKED,
    },
}

JOBS["hf_stream"] = {
    **JOBS["stream"],
    "source": {"type": "hf_stream", "path": "json", "data_files": "shards/*.jsonl"},
}


def packs(source: dict[str, Any], batcher: str, **more: Any) -> dict[str, Any]:
    """Return a job that packs the texts of a source into rows of 64 tokens."""
    return {
        "source": source,
        "processor": TOKENIZE,
        "batcher": {"type": batcher, "max_tokens": 64, "overlong": "split", **more},
        "collator": PACKED,
    }


JOBS |= {
    "jsonl": packs({"type": "jsonl", "files": "texts.jsonl"}, "first_fit"),
    "array": packs({"type": "json", "files": "texts.json"}, "next_fit"),
    "table": packs({"type": "csv", "files": "texts.csv"}, "open_best_fit"),
    "text": packs({"type": "text", "files": "texts.txt"}, "balanced"),
    "arrow": packs({"type": "arrow", "files": "texts.arrow"}, "best_fit_decreasing", window=16),
    "saved": {
        **packs({"type": "saved", "path": "saved"}, "knapsack", window=16),
        "batcher": {"type": "knapsack", "max_tokens": 64, "window": 16, "drop_long_samples": True},
    },
    "meta": packs({"type": "meta", "file": "meta.yaml"}, "window", window=5),
    "tars": {
        **packs({"type": "webdataset", "files": "texts.tar"}, "concat"),
        "processor": {**TOKENIZE, "column": "txt"},
        "batcher": {"type": "concat", "max_tokens": 64},
    },
    "mosaic": packs({"type": "mds", "files": str(FORMATS / "mds" / "plain")}, "best_fit"),
    "megatron": {
        "source": {"type": "megatron", "files": str(FORMATS / "megatron" / "int32.bin")},
        "batcher": {"type": "best_fit", "max_tokens": 16, "overlong": "split"},
        "collator": {"type": "packed", "pad_to": 16, "layout": "seams"},
    },
    "flat": {
        "sources": {
            "ids": {"type": "tokens", "files": "ids.npy", "sequence_length": 17},
            "texts": {"type": "tokens", "files": "ids.npy", "eos": 7},
        },
        "distributor": {"type": "mixture", "weights_by": "tokens", "parts": {"ids": 2, "texts": 1}},
        "batcher": {"type": "best_fit", "max_tokens": 64, "overlong": "split"},
        "collator": PACKED,
    },
    "pictures": {
        **PICTURES,
        "processor": {
            **{"type": "image", "columns": ["n"], "scale": 1, "kernel": "opencv", "layout": "CHW"},
            **{"crop": "random_resized", "crop_to": 32, "flip": 0.5},
        },
    },
    "transformed": {
        **PICTURES,
        "processor": {
            **{"type": "image", "resize": "exact", "resize_to": 24},
            **{"transform": "./roles.py:turned"},
        },
    },
    "folder": {
        "source": {"type": "folder", "path": "pictures"},
        "processor": {"type": "image", "crop": "random", "crop_to": 40},
        "batch_size": 3,
        "collator": "lists",
    },
    "sounds": {
        "source": {"type": "items", "items": [{"audio": f"{n}.wav"} for n in range(5)]},
        "media": {"dir": "sounds"},
        "processor": {"type": "sound", "sample_rate": 8000},
        "batch_size": 2,
        "collator": "lists",
    },
    "robots": {
        "source": {
            **{"type": "lerobot", "root": "robots"},
            "delta_timestamps": {"action": [0, 0.1], robots.CAMERAS[0]: [-0.1, 0]},
        },
        "distributor": {"type": "episodes", "pool": 2},
        "processor": {"type": "robot", "cameras": [*robots.CAMERAS[:2]]},
        "batch_size": 2,
    },
    "videos": {
        "source": {"type": "items", "items": [{"video": f"{n}.mp4"} for n in range(3)]},
        "media": {"dir": "videos"},
        "processor": {"type": "video", "fps": 7, "resize": "shortest", "resize_to": 40},
        "batch_size": 2,
        "collator": "lists",
    },
    "planes": {
        "source": {
            "type": "items",
            "items": [{"video": f"{n % 3}.mp4", "times": [n / 10, 0.0]} for n in range(9)],
        },
        "media": {"dir": "videos"},
        "processor": {
            **{"type": "video", "times": "times", "tolerance_s": 0.02, "pixels": "yuv420p"},
            **{"decoders": 1, "frame_bytes": 0},
        },
        "batch_size": 2,
        "collator": "lists",
    },
    "pictured": {
        "source": {"type": "jsonl", "files": "pictured.jsonl"},
        "media": {"dir": "pictures"},
        "processor": {"type": "conversation", "tokenizer": "model", "fake_image": True},
        "batcher": {"type": "next_fit", "max_tokens": 128, "limits": {"images": 3}},
        "collator": {"type": "vlm", "layout": "indexed"},
    },
    "parts": {
        "sources": {"texts": TEXTS, "lines": {"type": "jsonl", "files": "texts.jsonl"}},
        "distributor": {"type": "rank_partitioned", "parts": {"texts": 3, "lines": 1}},
        "processor": TOKENIZE,
        "batch_size": 2,
        "collator": "padded",
    },
}

Records = dict[str, list[Any]]
"""By job: the record of every batch of a step, its digest in it."""


def write_formats(folder: Path, texts: list[str]) -> None:
    """Write the texts in formats that sources read."""
    (folder / "texts.json").write_text(json.dumps([{"text": text} for text in texts]))
    (folder / "texts.csv").write_text("text\n" + "\n".join(texts) + "\n")
    (folder / "texts.txt").write_text("\n".join(texts))
    (folder / "meta.yaml").write_text(
        "one: {file_name: texts.csv}\ntwo: {file_name: texts.jsonl}\n"
    )
    table = pa.table({"text": texts})
    path = str(folder / "texts.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=15)
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(folder / "saved"))
    with tarfile.open(folder / "texts.tar", "w") as archive:
        for number, text in enumerate(texts):
            member = tarfile.TarInfo(f"{number:03}.txt")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    np.save(folder / "ids.npy", np.random.default_rng(4).integers(1, 50, 2000).astype(np.uint16))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job file with all of them, and their data."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("matrix")
    texts = [f"number {number} of " + "so many " * (number % 7) for number in range(60)]
    pq.write_table(pa.table({"text": texts}), folder / "texts.parquet", row_group_size=15)
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    write_formats(folder, texts)
    chats = [
        [{"from": "human", "value": text[:9]}, {"from": "gpt", "value": text[9:20]}]
        for text in texts
    ]
    (folder / "chats.jsonl").write_text(
        "\n".join(json.dumps({"conversations": chat}) for chat in chats)
    )
    write_chat_folder(folder / "chat", CHATML)
    (folder / "pictures").mkdir()
    for number in range(9):
        picture = pictures.photograph(90 + 10 * number, 70)
        (folder / "pictures" / f"{number}.jpg").write_bytes(pictures.encoded(picture, "JPEG"))
    (folder / "sounds").mkdir()
    for number in range(5):
        points = sounds.drawn(0.1 + 0.02 * number, 16000, seed=number)
        soundfile.write(folder / "sounds" / f"{number}.wav", points, 16000)
    recorded = robots.RobotFolder(lengths=(3, 1, 4), cameras=robots.CAMERAS)
    recorded.write(folder / "robots", robots.video_writer(recorded.fps))
    (folder / "videos").mkdir()
    for number, name in enumerate(("H.264", "H.264, key frame every 2nd", "VP9")):
        (folder / "videos" / f"{number}.mp4").write_bytes(videos.film(name))
    write_vision_folder(folder / "model", "qwen2_vl")
    pictured = [
        {
            "conversations": [
                {"from": "human", "value": "<image>" * (n % 3) + "What?"},
                {"from": "gpt", "value": f"It is {n}."},
            ],
            "images": [f"{(n + place) % 9}.jpg" for place in range(n % 3)],
        }
        for n in range(12)
    ]
    (folder / "pictured.jsonl").write_text("\n".join(map(json.dumps, pictured)))
    tokenizer = Tokenizer(models.WordLevel({chr(c): c for c in range(128)}, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "roles.py").write_text(ROLES)
    (folder / "lines.py").write_text(LINES)
    (folder / "shards").mkdir()
    for shard in range(3):
        lines = (json.dumps({"text": text}) + "\n" for text in texts[shard::3])
        (folder / "shards" / f"{shard}.jsonl").write_text("".join(lines))
    jobs = {name: {"lanes": 4, "seed": 3, **job} for name, job in JOBS.items()}
    return write_job_file(folder / "jobs.yaml", jobs)


def read(target: str | Transport) -> Records:
    """Return one step of every job through Loaders; a transport is shared by all of them."""
    found: Records = {}
    with contextlib.ExitStack() as open_loaders:
        for name in JOBS:
            loader = Loader(
                target,
                name,
                rank=0,
                world_size=1,
                batches_per_step=COUNT,
                as_numpy=True,
                prefetch=1,
            )
            open_loaders.enter_context(loader)
            step = next(loader.steps())
            found[name] = [batch_record(b.header, b.body, 0) for b in step]
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def truth(file: Path) -> Records:
    """What a node with one worker sends."""
    with serving(file) as server:
        found = read(server.address)
    assert all(len(found[name]) == COUNT for name in JOBS)
    assert all(one["bytes"] >= LENT_BYTES for one in found["wide"])
    return found


def compare(found: Records, truth: Records) -> None:
    different = [
        (name, ours["position"])
        for name in JOBS
        for ours, theirs in zip(found[name], truth[name], strict=True)
        if ours != theirs
    ]
    assert different == []


def test_the_matrix_has_every_shipped_role() -> None:
    """A role that comes new is compared, too."""
    given = {"distributor": {"map"}, "batcher": {"simple"}, "collator": {"default"}}
    for kind in KINDS:
        used = [job[kind] for job in JOBS.values() if kind in job]
        if kind == "source":
            used += [one for job in JOBS.values() for one in job.get("sources", {}).values()]
        names = {one if isinstance(one, str) else one["type"] for one in used}
        assert set(KINDS[kind].builtins) <= names | given.get(kind, set()), kind


@pytest.mark.parametrize("workers", [2, 4])
def test_any_number_of_workers_anywhere(
    workers: int, file: Path, truth: Records, tmp_path: Path
) -> None:
    with serving(file, "--workers", str(workers), environment=ELSEWHERE, folder=tmp_path) as server:
        compare(read(server.address), truth)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another environment and folder for what this process starts."""
    for name, value in ELSEWHERE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("surroundings", ["here", "elsewhere"])
def test_local_anywhere(
    surroundings: str, file: Path, truth: Records, request: pytest.FixtureRequest
) -> None:
    if surroundings == "elsewhere":
        request.getfixturevalue("elsewhere")

    compare(read(open_transport(f"local:{file}")), truth)


@pytest.mark.usefixtures("elsewhere", "runtime")
def test_spawn_anywhere(file: Path, truth: Records) -> None:
    target = f"spawn:{file}?workers=2"

    compare(read(target), truth)


SHOW = """
import sys
from penstock.server.cli import run
from penstock.server.jobs.registry import KINDS
from penstock.server.process.environment import fix_this_process
file, count, *jobs = sys.argv[1:]
fix_this_process()  # as `penstockd show` does before anything else
for job in jobs:
    assert run(["show", file, job, "--json", "--step", "0", "--batches-per-step", count]) == 0
"""


@pytest.mark.parametrize("surroundings", ["here", "elsewhere"])
def test_show_anywhere(surroundings: str, file: Path, truth: Records, tmp_path: Path) -> None:
    """All jobs in one process, and one by the command itself."""
    there = surroundings == "elsewhere"
    options: dict[str, Any] = {
        "env": {**ENVIRONMENT, **(ELSEWHERE if there else {})},
        "cwd": tmp_path if there else None,
        "text": True,
        "stdout": subprocess.PIPE,
        "check": True,
    }
    shown = subprocess.run([sys.executable, "-c", SHOW, str(file), str(COUNT), *JOBS], **options)
    records = [json.loads(line) for line in shown.stdout.splitlines()]
    found = {name: records[n * COUNT :][:COUNT] for n, name in enumerate(JOBS)}

    compare(found, truth)

    command = [sys.executable, "-m", "penstock.server.cli", "show", str(file), "surroundings"]
    alone = subprocess.run(
        [*command, "--json", "--step", "0", "--batches-per-step", str(COUNT)], **options
    )
    records = [json.loads(line) for line in alone.stdout.splitlines()]
    assert records == truth["surroundings"]
