"""Media that items hold or name come to processors through a node, and what happens to them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import lmdb

from harness import serving, write_job_file
from invariants import Purity
from penstock.client import Loader
from penstock.server.jobs.load import load

ROLES = '''
import zlib

import numpy as np

from penstock.server.roles import MediaProcessor


class Sums(MediaProcessor):
    """A checksum and the length of each medium."""

    one_to_one = True
    uses_global_rng = False

    def references(self, raw):
        return raw["media"]

    def process(self, raw, context):
        media = [medium.read() for medium in context.media]
        return {
            "n": raw["n"],
            "crc": np.array([zlib.crc32(data) for data in media], np.int64),
            "size": np.array([len(data) for data in media], np.int64),
        }


class Pictures(Sums):
    """What a source of pictures names."""

    def __init__(self, key):
        self.key = key

    def references(self, raw):
        found = raw[self.key]
        return found if isinstance(found, list) else [found]

    def process(self, raw, context):
        return super().process({"n": raw.get("label", raw.get("n"))}, context)


class Heads(Sums):
    """Packed by the first byte of each medium."""

    def references(self, raw):
        return raw["media"]

    def process(self, raw, context):
        data = context.media[0].read()
        return {"input_ids": np.full(data[0], len(data), np.int32)}

    def size(self, raw, media=()):
        return media[0].head(16)[0]
'''


def picture(number: int, length: int = 3000) -> bytes:
    """Return bytes that stand for a picture; the first tells how it is packed."""
    return bytes([1 + number % 20]) + hashlib.sha256(b"%d" % number).digest() * (length // 32)


def write_media(folder: Path, count: int) -> None:
    """Write files of media in two folders, and a file beside them that is none."""
    for number in range(count):
        path = folder / f"{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    (folder / "notes.txt").write_text("no medium")


def write_jobs(folder: Path, jobs: dict[str, Any], **server: Any) -> Path:
    """Write a job file, and the roles beside it."""
    (folder / "roles.py").write_text(ROLES)
    return write_job_file(folder / "jobs.yaml", jobs, **server)


def job_of(items: list[dict[str, Any]], media: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a job of items whose media are read whole."""
    return {
        "source": {"type": "items", "items": items},
        "processor": {"type": "./roles.py:Sums"},
        "media": media,
        "batch_size": 4,
        "lanes": 2,
        "epochs": 1,
        **more,
    }


def sums(batches: Any) -> dict[int, list[tuple[int, int]]]:
    """Return checksum and length of the media of each item, by its number."""
    found: dict[int, list[tuple[int, int]]] = {}
    for batch in batches:
        for n, crc, size in zip(batch["n"], batch["crc"], batch["size"], strict=True):
            found[int(n)] = list(zip(crc.tolist(), size.tolist(), strict=True))
    return found


def crcs(*data: bytes) -> list[tuple[int, int]]:
    """Return what `Sums` gives for media."""
    return [(zlib.crc32(each), len(each)) for each in data]


def test_every_kind_of_reference_gives_its_bytes(tmp_path: Path) -> None:
    """Paths, parts of files, values of an LMDB, and dicts, whose bytes count if they are there."""
    write_media(tmp_path / "media", 24)
    (tmp_path / "media" / "all.bin").write_bytes(b"".join(map(picture, range(24))))
    made = lmdb.open(str(tmp_path / "media" / "db"), map_size=1 << 20)
    with made, made.begin(write=True) as writing:
        for number in range(24):
            writing.put(b"pictures::%d" % number, picture(number))
    at = [sum(len(picture(n)) for n in range(number)) for number in range(24)]
    items = [
        {
            "n": n,
            "media": [
                f"{n % 2}/{n}.jpg",
                {"bytes": None, "path": f"./{n % 2}//{n}.jpg"},
                str(tmp_path / "media" / f"{n % 2}" / f"{n}.jpg"),
                f"file://{tmp_path}/media/{n % 2}/{n}.jpg",
                {"path": "all.bin", "offset": at[n], "length": len(picture(n))},
                f"lmdb: db::pictures::{n}",
                {"lmdb": f"{tmp_path}/media/db::pictures::{n}"},
            ],
        }
        for n in range(24)
    ]
    file = write_jobs(tmp_path, {"main": job_of(items, {"dir": "media"})})

    with serving(file, "--workers", "2") as server, Loader(server.address, "main") as loader:
        found = sums(loader)

    assert found == {n: crcs(*[picture(n)] * 7) for n in range(24)}


def test_items_that_hold_bytes_need_no_section(tmp_path: Path) -> None:
    """What an item holds is not fetched, so a job of such items says nothing of media."""
    (tmp_path / "roles.py").write_text(ROLES)
    (tmp_path / "jobs.py").write_text(
        "from penstock.server.job.job import Job\n"
        "from penstock.server.sources import ItemsSource\n"
        "from roles import Sums\n"
        "ITEMS = [{'n': n, 'media': [b'%d' % n, {'bytes': b'x' * n, 'path': 'gone.jpg'}]}"
        " for n in range(16)]\n"
        "def main():\n"
        "    sizes = {'batch_size': 4, 'lanes': 2, 'epochs': 1}\n"
        "    return Job(ItemsSource(ITEMS), processor=Sums(), name='main', **sizes)\n"
    )

    with serving(f"{tmp_path}/jobs.py:main") as server, Loader(server.address, "main") as loader:
        found = sums(loader)

    assert found == {n: crcs(b"%d" % n, b"x" * n) for n in range(16)}


def test_sources_that_name_media_say_where_they_lie(tmp_path: Path) -> None:
    """A folder of pictures and data sets of a meta file need no section; each has its own place."""
    write_media(tmp_path / "media", 12)
    write_media(tmp_path / "sets" / "pics", 8)
    rows = [{"n": n, "media": [{"type": "none"}], "images": [f"{n % 2}/{n}.jpg"]} for n in range(8)]
    for name in ("a", "b"):
        (tmp_path / "sets" / f"{name}.jsonl").write_text("".join(map(line_of, rows)))
    (tmp_path / "sets" / "meta.json").write_text(
        json.dumps(
            {
                "one": {"path": "a.jsonl", "media_dir": "pics"},
                "two": {"path": "b.jsonl", "media_dir": str(tmp_path / "media")},
            }
        )
    )
    one = {"batch_size": 4, "lanes": 1, "epochs": 1}
    jobs = {
        "folder": {
            "source": {"type": "folder", "path": "media", "key": "media"},
            "processor": {"type": "./roles.py:Pictures", "key": "media"},
            **one,
        },
        "meta": {
            "source": {"type": "meta", "file": "sets/meta.json"},
            "processor": {"type": "./roles.py:Pictures", "key": "images"},
            **one,
        },
    }
    file = write_jobs(tmp_path, jobs)

    with serving(file) as server:
        with Loader(server.address, "folder") as loader:
            labels = sums(loader)
        with Loader(server.address, "meta") as loader:
            found = sorted(crc for batch in loader for crc in batch["crc"].ravel().tolist())

    # The label stands in for a number: all of a class, of the folders 0 and 1.
    assert sorted(labels) == [0, 1]
    assert found == sorted(2 * [crcs(picture(n))[0][0] for n in range(8)])


def line_of(row: dict[str, Any]) -> str:
    """Return a line of JSON."""
    return json.dumps(row) + "\n"


def test_sizes_from_heads_pack_alike_on_every_node(tmp_path: Path) -> None:
    """A processor that knows sizes by the heads of media plans without reading the rest."""
    write_media(tmp_path / "media", 40)
    (tmp_path / "items.jsonl").write_text(
        "".join(json.dumps({"media": [f"{n % 2}/{n}.jpg"]}) + "\n" for n in range(40))
    )
    job = {
        "source": {"type": "jsonl", "files": "items.jsonl"},
        "processor": {"type": "./roles.py:Heads"},
        "media": {"dir": "media"},
        "batcher": {"type": "best_fit", "max_tokens": 32},
        "collator": {"type": "packed"},
        "lanes": 2,
        "epochs": 1,
    }
    file = write_jobs(tmp_path, {"main": job})
    purity = Purity(load(str(file)).job("main"))

    with serving(file, "--workers", "2") as server:
        for delivered in server.read("main", horizon=30).take(8):
            purity.saw(*delivered)

    assert purity.seen == 8


def test_without_lmdb_one_sentence_names_the_extra(tmp_path: Path) -> None:
    """And no medium in a file needs it."""
    made = lmdb.open(str(tmp_path / "db"), map_size=1 << 20)
    with made, made.begin(write=True) as writing:
        writing.put(b"a", b"one")
    (tmp_path / "1.jpg").write_bytes(b"one")
    script = (
        "import sys; sys.modules['lmdb'] = None\n"
        "from penstock.server.media.media_files import MediaFiles\n"
        "from penstock.server.media.media_reader import MediaReader\n"
        f"reader = MediaReader(MediaFiles({str(tmp_path)!r}))\n"
        "file, value = reader.media(['1.jpg', 'lmdb: db::a'])\n"
        "assert file.read() == b'one'\n"
        "try:\n"
        "    value.read()\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("MissingExtra a medium in an LMDB needs the package lmdb, ")
    assert "pip install 'penstock[lmdb]'" in done.stdout
