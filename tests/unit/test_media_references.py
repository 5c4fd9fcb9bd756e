"""What items say of media, and what a processor gets for it."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from far_store import FarStore
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.medium import Medium
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.known_verdicts import Bad
from penstock.server.roles import (
    BestFitPackingBatcher,
    MediaProcessor,
    ProcessContext,
    RawItem,
    Sample,
)
from penstock.server.sources import (
    FolderSource,
    HfSource,
    ItemsSource,
    ParquetSource,
    WebdatasetSource,
)
from penstock.wire.errors import BadItem, InvalidJob, SourceChanged

DOCS = Path(__file__).parents[2] / "docs"


class Texts(MediaProcessor):
    """The text in each medium of a column, and what its head says of its length."""

    one_to_one = True

    def __init__(self, key: str = "image") -> None:
        self.key = key

    def references(self, raw: RawItem) -> Sequence[Any]:
        """Return the media of the column."""
        found = raw[self.key]
        return found if isinstance(found, list) else [found]

    def process(self, raw: RawItem, context: ProcessContext) -> Sample:
        """Read all of them."""
        return {"texts": [bytes(medium.read()).decode() for medium in context.media]}


def texts(job: Job) -> list[Any]:
    """Return what becomes of all items of a job, or why nothing does."""
    refs = [ItemRef("main", number, 0) for number in range(job.items or 0)]
    return [
        outcome[0]["texts"] if isinstance(outcome, list) else outcome
        for outcome in Items(job).samples(refs, "exit")
    ]


def write_tar(path: Path, files: Sequence[tuple[str, bytes]]) -> None:
    """Write an archive."""
    with tarfile.open(path, "w") as archive:
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


def write_lmdb(path: Path, values: Mapping[str, bytes], **options: Any) -> None:
    """Write an LMDB, and close it."""
    made = lmdb.open(str(path), map_size=1 << 22, **options)
    with made.begin(write=True) as writing:
        for key, value in values.items():
            writing.put(key.encode(), value)
    made.close()


def test_values_of_an_lmdb_are_read_without_a_lock(tmp_path: Path) -> None:
    """Of a folder and of a file, by keys with any characters; nothing beside them is written."""
    write_lmdb(tmp_path / "folder.lmdb", {"a": b"one", "b::ü": b"two"})
    write_lmdb(tmp_path / "file.mdb", {"a": b"x" * 200_000}, subdir=False, lock=False)
    os.unlink(tmp_path / "folder.lmdb" / "lock.mdb")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    reader = MediaReader(MediaFiles(str(tmp_path)))

    media = reader.media(
        [
            "lmdb: folder.lmdb::a",
            "lmdb://folder.lmdb::b::ü",
            {"lmdb": "folder.lmdb::b::ü"},
            "folder.lmdb::a",
            "lmdb:file.mdb::a",
        ]
    )
    head = bytes(media[4].head(10))

    assert [bytes(medium.read()) for medium in media] == [
        b"one", b"two", b"two", b"one", b"x" * 200_000,
    ]  # fmt: skip
    assert head == b"x" * 10
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert reader.read_bytes() == 12 + 200_000 + 10
    assert reader.identity()["files"][0]["files"] == 2


def test_what_an_lmdb_lacks_is_a_bad_item(tmp_path: Path) -> None:
    """The database and the key are named; one that changed, or is none, is told apart."""
    write_lmdb(tmp_path / "db", {"a": b"one", "long": b"x" * 5000})
    (tmp_path / "other.mdb").write_bytes(b"no database" * 1000)
    reader = MediaReader(MediaFiles(str(tmp_path), max_file_bytes=4000))
    good, lacking, long, no_file, broken = reader.media(
        ["lmdb: db::a", "lmdb: db::cat", "lmdb: db::long", "lmdb: none::a", "lmdb: other.mdb::a"]
    )

    assert bytes(good.read()) == b"one"
    with pytest.raises(BadItem, match="db has no key 'cat'"):
        lacking.read()
    with pytest.raises(BadItem, match="has 5,000 bytes, and max_file_bytes of media is 4,000"):
        long.head()
    with pytest.raises(BadItem, match="none is not there"):
        no_file.read()
    with pytest.raises(BadItem, match=r"other\.mdb::a cannot be read"):
        broken.read()

    os.utime(tmp_path / "db" / "data.mdb", (1e9, 1e9))  # as whoever writes to it does
    with pytest.raises(SourceChanged, match=r"data\.mdb changed since the job began"):
        good.read()


@pytest.mark.parametrize("left", [0.5, 0.01])
def test_an_lmdb_that_was_cut_off_is_a_bad_item(tmp_path: Path, left: float) -> None:
    """To read a page that is not there would kill the worker, by a signal."""
    path = tmp_path / "cut.mdb"
    write_lmdb(path, {f"{n}": bytes(10_000) for n in range(100)}, subdir=False, lock=False)
    os.truncate(path, int(path.stat().st_size * left) // 4096 * 4096)
    reader = MediaReader(MediaFiles(str(tmp_path)))

    for medium in reader.media(["lmdb: cut.mdb::1", "lmdb: cut.mdb::99"]):
        with pytest.raises(BadItem, match=r"cut\.mdb is damaged: it has .* bytes: it was cut"):
            medium.read()


def test_bytes_count_where_they_are_there(tmp_path: Path) -> None:
    """As the columns of `datasets` have them, and as arrays, and in a `data:` URL."""
    (tmp_path / "1.jpg").write_bytes(b"from a file")
    items = [
        {"image": {"bytes": b"held", "path": "1.jpg"}},
        {"image": {"bytes": None, "path": "1.jpg"}},
        {"image": {"path": Path("1.jpg")}},
        {"image": [bytearray(b"b"), memoryview(b"m"), np.frombuffer(b"array", np.uint8)]},
        {"image": "data:image/png;base64,aGVsZA=="},
        {"image": []},
    ]
    job = Job(
        ItemsSource([{"n": number} for number in range(len(items))]),
        processor=Own(items),
        batch_size=1,
        media=MediaFiles(str(tmp_path)),
    )

    assert texts(job) == [
        ["held"], ["from a file"], ["from a file"], ["b", "m", "array"], ["held"], [],
    ]  # fmt: skip


class Own(Texts):
    """Media that no source can give: a memoryview, a path."""

    def __init__(self, items: Sequence[RawItem]) -> None:
        super().__init__()
        self.items = items

    def references(self, raw: RawItem) -> Sequence[Any]:
        """Return those of the item of its number."""
        return super().references(self.items[raw["n"]])


def test_sources_give_media_as_their_files_hold_them(tmp_path: Path) -> None:
    """Bytes in a tar, structs and names in Parquet, what `datasets` calls an image, a folder."""
    folder = tmp_path / "pictures"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "1.jpg").write_bytes(b"one")
    (folder / "cat" / "2.jpg").write_bytes(b"two")
    write_tar(tmp_path / "a.tar", [("1.jpg", b"one"), ("1.txt", b"t"), ("2.jpg", b"two")])
    rows = [{"image": {"bytes": b"one", "path": None}}, {"image": {"bytes": None, "path": "2.jpg"}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": ["1.jpg", "2.jpg"]}), tmp_path / "b.parquet")
    media = MediaFiles(str(folder / "cat"))
    one = {"batch_size": 1}

    tar = Job(WebdatasetSource(str(tmp_path / "a.tar")), processor=Texts("jpg"), **one)
    structs = Job(ParquetSource(str(tmp_path / "a.parquet")), processor=Texts(), media=media, **one)
    names = Job(ParquetSource(str(tmp_path / "b.parquet")), processor=Texts(), media=media, **one)
    whole = Job(FolderSource(str(folder)), processor=Texts(), **one)
    prepared = HfSource("imagefolder", data_files=str(folder / "**"))

    for job in (tar, structs, names, whole, Job(prepared, processor=Texts(), **one)):
        assert texts(job) == [["one"], ["two"]]


def test_media_are_part_of_the_log_id(tmp_path: Path) -> None:
    """What they hold, and not where they lie; of what is only allowed nothing is, and that is said.

    A job of a processor that takes none refuses the section.
    """
    for name in ("here", "there", "edited"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(b"ONE" if name == "edited" else b"one")

    def job(directory: str, **more: Any) -> Job:
        media = MediaFiles(str(tmp_path / directory), **more)
        items = ItemsSource([{"image": "1.jpg"}])
        return Job(items, processor=Texts(), batch_size=1, media=media)

    held = Job(ItemsSource([{"image": b"x"}]), processor=Texts(), batch_size=1)
    allowed = job("here", allow=["/data", "https://me:hush@host/x"], requests=3, ahead_bytes=0)

    assert job("here").log_id == job("there").log_id == allowed.log_id
    assert job("edited").log_id != job("here").log_id
    assert job("here").cautions() == held.cautions() == []
    [said] = allowed.cautions()
    assert "media below /data, https://***@host/x only the names are known" in said
    with pytest.raises(InvalidJob, match="media is given, and the processor IdentityProcessor"):
        Job(ItemsSource([{}]), batch_size=1, media=MediaFiles(str(tmp_path / "here")))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"dir": "none"}, r"jobs.main: the directory of media '.*/none' cannot be listed"),
        ({"dir": 7}, "media.dir is 7: give null, or a path"),
        ({"allow": "x"}, "media.allow is 'x': give a list of paths and URLs"),
        ({"requests": 0}, "media.requests is 0: give a whole number from 1 to 256"),
        ({"ahead_bytes": "much"}, "media.ahead_bytes is 'much': give bytes, such as 64 MiB"),
        ({"folder": "x"}, "media.folder is not a key of jobs.main.media"),
        ({"dir": "nowhere://x"}, "cannot be read: .*nowhere"),
    ],
)
def test_a_mistake_in_the_section_is_one_sentence(
    tmp_path: Path, section: dict[str, Any], said: str
) -> None:
    """With file, key and remedy."""
    (tmp_path / "roles.py").write_text((DOCS / "media_sources.md").read_text().split("```")[1][7:])
    job = {
        "source": {"type": "items", "items": [{"image": "1.jpg", "label": 1}]},
        "processor": {"type": "./roles.py:Lengths"},
        "media": section,
        "batch_size": 1,
    }
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": {"main": job}}))

    with pytest.raises(InvalidJob, match=said):
        load(str(tmp_path / "jobs.yaml"), environ={}).job("main")


def test_the_job_file_of_the_page_runs(tmp_path: Path) -> None:
    """Both jobs, with the processor of the page."""
    page = (DOCS / "media_sources.md").read_text()
    files = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page, re.S))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for number in range(4):
        path = tmp_path / "pictures" / f"{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (number + 1))
    (tmp_path / "captions.jsonl").write_text(
        "".join(json.dumps({"image": f"{n % 2}/{n}.jpg", "label": n}) + "\n" for n in range(4))
    )
    config = load(str(tmp_path / "penstock.yaml"), environ={})

    for name, labels in (("named", [0, 1, 2, 3]), ("folder", [0, 0, 1, 1])):
        job = config.job(name)
        found = Items(job).samples([ItemRef("main", n, 0) for n in range(4)], "exit")
        samples = [outcome[0] for outcome in found if isinstance(outcome, list)]
        assert [sample["label"] for sample in samples] == labels
        assert sorted(int(sample["length"]) for sample in samples) == [1, 2, 3, 4]


class Sized(Texts):
    """A size that its media's heads tell."""

    def size(self, raw: RawItem, media: Sequence[Medium] = ()) -> int:
        """Return the number that the head begins with."""
        return int(bytes(media[0].head(4)))


def test_sizes_come_from_heads_alone(tmp_path: Path) -> None:
    """No more of a medium is read for them, and one that is not there is its item's mistake."""
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(b"%04d" % number + b"x" * 1_000_000)
    job = Job(
        ItemsSource([{"image": f"{number}.jpg"} for number in range(5)]),
        processor=Sized(),
        batcher=BestFitPackingBatcher(8),
        media=MediaFiles(str(tmp_path)),
    )

    sizes = Items(job).sizes([ItemRef("main", number, 0) for number in range(5)])

    assert sizes[:4] == [0, 1, 2, 3]
    assert isinstance(sizes[4], Bad)
    assert "'4.jpg' is not there" in sizes[4].error.message
    assert job.role_sets[0].plans_from_refs
    assert job.media_bytes() == 16


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ({"path": "a.jpg", "offset": 100}, "has 100 bytes, and the item names what follows its"),
        ({"path": "a.jpg", "offset": 10**12}, "names what follows its byte 1,000,000,000,000: the"),
        ({"path": "a.jpg", "offset": 90, "length": 11}, "names 11 bytes of it from byte 90 on"),
        ({"path": "a.jpg", "length": 2000}, "^the part that the item names of .* has 2,000 bytes"),
        (
            {"path": "data:;base64,AAAA", "offset": 1},
            r"bytes of the item \(offset 1, length null\)",
        ),
        (
            {"path": "data:;base64,AAAA", "length": 1},
            r"bytes of the item \(offset null, length 1\)",
        ),
        ({"bytes": b"abc", "offset": 1}, "medium 0 is a part of the bytes of the item"),
        ({"lmdb": "db::x", "length": 1}, "medium 0 is a part of an LMDB's value"),
        ("data:;base64," + "A" * 1336, "data: URL of 1,002 bytes, and max_file_bytes .* is 1,000"),
    ],
)
def test_a_part_that_is_not_there_is_a_bad_item(tmp_path: Path, reference: Any, said: str) -> None:
    """And so is one beside what has no parts; nothing is cut short, or left out, in silence."""
    (tmp_path / "a.jpg").write_bytes(bytes(100))
    reader = MediaReader(MediaFiles(str(tmp_path), max_file_bytes=1000))
    with FarStore(tmp_path) as store:
        far = MediaReader(MediaFiles(store.url, max_file_bytes=1000))
        for each in (reader, far):
            for look in ("head", "read"):
                with pytest.raises(BadItem, match=said):
                    getattr(each.media([reference])[0], look)()


def test_the_end_of_a_file_may_be_named_as_nothing(tmp_path: Path) -> None:
    """A part without bytes, wherever it lies, is one, and so is an empty file."""
    (tmp_path / "a.jpg").write_bytes(bytes(100))
    (tmp_path / "e.jpg").write_bytes(b"")
    reader = MediaReader(MediaFiles(str(tmp_path)))
    for reference in (
        {"path": "a.jpg", "offset": 100, "length": 0},
        {"path": "e.jpg", "offset": 0},
    ):
        [medium] = reader.media([reference])
        assert (medium.size(), bytes(medium.head()), bytes(medium.read())) == (0, b"", b"")
