"""Arrow, `save_to_disk`, WebDataset and MDS: what their own libraries wrote is read back."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from data.formats.write import COLUMNS, ITEMS
from penstock.server.sources import ArrowSource, MdsSource, SavedSource, WebdatasetSource
from penstock.wire.errors import BadItem, InvalidJob

GOLDEN = Path(__file__).parents[1] / "data" / "formats" / "mds"


def plain(value: Any) -> Any:
    """Return a value with lists and their dtype in place of arrays."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.tolist()
    return value


def all_items(source: Any) -> list[Any]:
    return source.fetch(range(len(source)))  # type: ignore[no-any-return]


# --- Arrow ---


def table(rows: int) -> pa.Table:
    return pa.table(
        {
            "id": range(rows),
            "text": [f"row {n}" * (n % 7) for n in range(rows)],
            "kind": pa.array([f"kind {n % 3}" for n in range(rows)]).dictionary_encode(),
            "tokens": pa.array([list(range(n % 5)) for n in range(rows)], pa.list_(pa.uint16())),
        }
    )


@pytest.mark.parametrize("kind", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("block_bytes", [1, 2000, 1 << 20])
def test_arrow_files_and_streams_are_read_by_batches(
    tmp_path: Path, kind: Any, compression: str | None, block_bytes: int
) -> None:
    """Also compressed ones, and those with dictionaries; a block is a batch, or some small ones."""
    rows, options = table(100), pa.ipc.IpcWriteOptions(compression=compression)
    path = str(tmp_path / "a.arrow")
    with pa.OSFile(path, "wb") as sink, kind(sink, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=13)

    source = ArrowSource(path, block_bytes=block_bytes)
    some = ArrowSource(path, ["kind", "id"], block_bytes=block_bytes)

    assert [{**item, "tokens": item["tokens"].tolist()} for item in all_items(source)] == (
        rows.to_pylist()
    )
    assert all_items(some) == rows.select(["kind", "id"]).to_pylist()
    assert len(source.blocks()) == (8 if block_bytes == 1 else len(source.blocks()))  # type: ignore[arg-type]
    assert source.fetch([1])[0]["tokens"].dtype == np.uint16


def test_what_is_not_arrow_is_refused_by_name(tmp_path: Path) -> None:
    """Also a file that was cut, and Feather's first version."""
    rows = table(10).select(["id"])
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as sink:
        pa.ipc.new_stream(sink, rows.schema).write_table(rows)
    data = (tmp_path / "a.arrow").read_bytes()
    for name, content in (
        ("text", b"this is no Arrow file at all, but a text"),
        ("cut", data[:-30]),
        ("empty", b""),
    ):
        (tmp_path / f"{name}.arrow").write_bytes(content)
        with pytest.raises(InvalidJob, match=rf"{name}\.arrow is not an Arrow IPC file or stream"):
            ArrowSource(str(tmp_path / f"{name}.arrow"))
    with pytest.raises(InvalidJob, match=r"no column 'it': .*id"):
        ArrowSource(str(tmp_path / "a.arrow"), ["it"])


def test_a_saved_folder_is_its_own_files_and_no_others(tmp_path: Path) -> None:
    """What `map` caches beside them is not read; splits are chosen by name."""
    import datasets

    datasets.disable_progress_bars()
    made = datasets.Dataset.from_list([{"n": n} for n in range(4)])
    made.save_to_disk(tmp_path / "one", num_shards=2)
    shutil.copy(tmp_path / "one" / "data-00000-of-00002.arrow", tmp_path / "one" / "cache-1.arrow")
    datasets.DatasetDict({"train": made, "test": made.select([2])}).save_to_disk(tmp_path / "both")

    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "rows.jsonl").write_text("{}")

    assert all_items(SavedSource(str(tmp_path / "one"))) == [{"n": n} for n in range(4)]
    assert all_items(SavedSource(str(tmp_path / "both"), "test")) == [{"n": 2}]
    for path, split, sentence in (
        ("one", "train", "holds one dataset without splits"),
        ("both", None, "has the splits test, train; choose one"),
        ("both", "dev", "no split 'dev': it has test, train"),
        (
            "other",
            None,
            r"the folder '.*other' holds no file that ends in state\.json or dataset_d",
        ),
    ):
        with pytest.raises(InvalidJob, match=sentence):
            SavedSource(str(tmp_path / path), split)
    (tmp_path / "one" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(InvalidJob, match=r"data-00001-of-00002\.arrow, which is not there"):
        SavedSource(str(tmp_path / "one"))


# --- MDS ---


@pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
@pytest.mark.parametrize("name", ["plain", "zstd", "gz", "bz2", "br", "snappy"])
def test_what_mosaicml_wrote_is_read_back(name: str, block_bytes: int) -> None:
    """Every encoding but images and pickles, with each of its compressions."""
    source = MdsSource(str(GOLDEN / name), block_bytes=block_bytes)

    found = all_items(source)

    assert plain(found) == plain([{key: item[key] for key in sorted(item)} for item in ITEMS])
    assert source.fetch([5, 1]) is not None
    assert list(source.columns_of_items()) == sorted(COLUMNS)
    assert plain(MdsSource(str(GOLDEN / name / "index.json"), ["ids"]).fetch([3])) == [
        {"ids": ("int32", [0, 1, 2, 3])}
    ]


def test_shards_that_two_indexes_name_are_read_once(tmp_path: Path) -> None:
    """As `merge_index` leaves them: an index in the parent folder, and one in each below."""
    shutil.copytree(GOLDEN / "plain", tmp_path / "a")
    index = json.loads((tmp_path / "a" / "index.json").read_text())
    for shard in index["shards"]:
        shard["raw_data"]["basename"] = "a/" + shard["raw_data"]["basename"]
    (tmp_path / "index.json").write_text(json.dumps(index))

    assert len(MdsSource(str(tmp_path))) == len(ITEMS)


def test_mistakes_in_mds_folders_are_one_sentence(tmp_path: Path) -> None:
    """A shard that is gone or cut, a pickle, an index of something else."""
    folder = tmp_path / "mds"
    shutil.copytree(GOLDEN / "plain", folder)
    index, shard = folder / "index.json", folder / "shard.00001.mds"
    said, data = index.read_text(), shard.read_bytes()

    def refused(sentence: str) -> None:
        with pytest.raises(InvalidJob, match=sentence):
            MdsSource(str(folder))

    shard.unlink()
    refused(r"index\.json names shard\.00001\.mds, which is not there")
    shard.write_bytes(data[:-1])
    refused(r"shard\.00001\.mds has \d+ bytes and index\.json says")
    shard.write_bytes(b"\x63" + data[1:])
    refused(r"it says that it has 99 samples and index\.json says 3")
    shard.write_bytes(data)
    index.write_text(said.replace('"json"', '"pkl"'))
    refused("column 'turns' has the encoding 'pkl': reading a pickle runs code")
    index.write_text('{"shards": [{"format": "jsonl", "version": 2}]}')
    refused("not an index of MDS shards .*format of shard 0 is 'jsonl'")
    index.unlink()
    refused(r"there is no index\.json beside the shards")


def test_a_damaged_sample_is_a_bad_item_of_its_own(tmp_path: Path) -> None:
    """Its shard, number and column are named; the others are read."""
    shutil.copytree(GOLDEN / "plain", tmp_path / "mds")
    shard = tmp_path / "mds" / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b"needle", b"n\xffedle", 1))
    source = MdsSource(str(tmp_path / "mds"))

    with pytest.raises(BadItem, match=r"shard\.00000\.mds: sample 1, column '(text|turns)'"):
        source.fetch([1])
    assert plain(source.fetch([0, 2])[1]["text"]) == ""


# --- WebDataset ---

FILES: list[tuple[str, bytes]] = [
    ("__meta__", b"not a sample"),
    ("dir/a.b/0001.txt", "schön".encode()),
    ("dir/a.b/0001.json", b'{"x": [1]}'),
    ("dir/a.b/0001.seg.png", b"\x89PNG"),
    ("no-ending", b"left out"),
    ("dir/0002.CLS", b"7"),
    ("dir/0002." + "long" * 40 + ".txt", b"a name that needs a header of its own"),
    ("0003.npy", b""),
    ("0003.big", bytes(3000)),
    ("0004.txt", b""),
]


def write_tar(path: Path, files: list[tuple[str, bytes]], form: int) -> None:
    with tarfile.open(path, "w", format=form) as archive:
        folder = tarfile.TarInfo("dir")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, data in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
@pytest.mark.parametrize("block_bytes", [1, 2500, 1 << 20])
def test_samples_are_those_of_webdatasets_own_reader(
    tmp_path: Path, form: int, block_bytes: int
) -> None:
    """The same keys, endings and bytes, and the same values where both decode."""
    from webdataset import tariterators

    array = io.BytesIO()
    np.save(array, np.arange(3))
    files = [(name, array.getvalue() if name.endswith(".npy") else data) for name, data in FILES]
    path = tmp_path / "a.tar"
    write_tar(path, files, form)
    with path.open("rb") as stream:
        shards = [{"url": "a.tar", "stream": stream}]
        expected = list(tariterators.group_by_keys(tariterators.tar_file_expander(shards)))

    raw = WebdatasetSource(str(path), decode=False, block_bytes=block_bytes)
    decoded = all_items(WebdatasetSource(str(path), block_bytes=block_bytes))

    assert all_items(raw) == expected
    assert raw.fetch([3, 0]) == [expected[3], expected[0]]
    assert [item["__key__"] for item in decoded] == ["dir/a.b/0001", "dir/0002", "0003", "0004"]
    assert decoded[0]["txt"] == "schön"
    assert decoded[0]["json"] == {"x": [1]}
    assert decoded[0]["seg.png"] == b"\x89PNG"
    assert decoded[1]["cls"] == 7
    assert decoded[2]["npy"].tolist() == [0, 1, 2]
    assert decoded[3]["txt"] == ""


def test_mistakes_in_archives_are_named(tmp_path: Path) -> None:
    """A file that is not one, a cut one, two files of one ending, one that cannot be decoded."""
    (tmp_path / "text.tar").write_text("this is no archive" * 100)
    with pytest.raises(InvalidJob, match=r"text\.tar is not a tar file"):
        WebdatasetSource(str(tmp_path / "text.tar"))
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz"):
        pass
    with pytest.raises(InvalidJob, match="compressed with gzip"):
        WebdatasetSource(str(tmp_path / "a.tar.gz"))
    write_tar(tmp_path / "two.tar", [("a.txt", b""), ("a.TXT", b"")], tarfile.PAX_FORMAT)
    with pytest.raises(InvalidJob, match=r"a\.txt is in it two times"):
        WebdatasetSource(str(tmp_path / "two.tar"))
    write_tar(tmp_path / "c.tar", [("a.json", b"{"), ("b.json", b"[]")], tarfile.PAX_FORMAT)
    source = WebdatasetSource(str(tmp_path / "c.tar"))
    assert source.fetch([1])[0]["json"] == []
    with pytest.raises(BadItem, match=r"c\.tar: sample 0, a\.json, cannot be decoded"):
        source.fetch([0])
    evil = pickle.dumps({"a": 1})
    write_tar(tmp_path / "d.tar", [("a.pkl", evil)], tarfile.PAX_FORMAT)
    assert WebdatasetSource(str(tmp_path / "d.tar")).fetch([0])[0]["pkl"] == evil


@pytest.mark.parametrize("form", ["gnu", "pax"])
def test_a_file_with_holes_in_an_archive_is_refused(form: str) -> None:
    """Its bytes are not those that stand in the archive: holes are left out of it.

    `tar --sparse --format=FORM -cf FORM.tar x.txt y.txt` wrote it, of a file that begins with 1 MiB
    of nothing.
    """
    with pytest.raises(InvalidJob, match=r"\.tar is not .* \(ReadError: '.*x\.txt' is sparse"):
        WebdatasetSource(str(GOLDEN.with_name("sparse") / f"{form}.tar"))


def test_a_size_below_0_in_an_archive_is_refused(tmp_path: Path) -> None:
    head = bytearray(tarfile.TarInfo("a.txt").tobuf(tarfile.GNU_FORMAT))
    head[124:136] = b"\xff" * 12
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    (tmp_path / "a.tar").write_bytes(bytes(head) + bytes(2048))

    with pytest.raises(InvalidJob, match=r"ReadError: 'a\.txt' has a size of -1"):
        WebdatasetSource(str(tmp_path / "a.tar"))


class Counting(MemoryFileSystem):  # type: ignore[misc]
    """Notes which ranges of its files are asked for."""

    protocol = "counting"
    ranges: ClassVar[list[tuple[int, int]]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("counting://", "memory://"))  # type: ignore[no-any-return]

    def cat_file(self, path: str, start: Any = None, end: Any = None, **kwargs: Any) -> bytes:
        """Return a range."""
        self.ranges.append((start, end))
        return super().cat_file(path, start, end, **kwargs)  # type: ignore[no-any-return]


def test_a_remote_archive_is_read_by_ranges(tmp_path: Path) -> None:
    """An item costs the block of samples that it lies in, wherever that is in the archive."""
    fsspec.register_implementation("counting", Counting, clobber=True)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(64):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = 2000
            archive.addfile(member, io.BytesIO(bytes([number]) * 2000))
    files = fsspec.filesystem("counting")
    files.pipe("/tars/a.tar", (tmp_path / "a.tar").read_bytes())
    try:
        source = WebdatasetSource("counting://tars/*.tar", block_bytes=20_000)
        for item in (60, 3, 31):
            Counting.ranges.clear()
            [found] = source.fetch([item])
            assert found["bin"] == bytes([item]) * 2000
            [(start, stop)] = Counting.ranges
            assert start <= 2560 * item < stop <= start + 20_000
    finally:
        files.rm("/tars", recursive=True)


@pytest.mark.parametrize("name", ["pipe:cat a.tar", "pipe:curl -s https://host/a.tar", "-"])
def test_a_command_is_not_a_file(name: str) -> None:
    """What webdataset's own reader runs is refused with what to give instead."""
    with pytest.raises(InvalidJob, match=r"is a stream, .* give the files themselves"):
        WebdatasetSource([name])
