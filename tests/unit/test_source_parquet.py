"""The Parquet source: a row group is read once, values are plain, mistakes are one sentence."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.files.content import BLOCK_BYTES, content_hash, sampled_ranges
from penstock.server.roles.distributors import MapDistributor
from penstock.server.sources import ParquetSource
from penstock.wire.errors import (
    BadItem,
    InvalidJob,
    MissingExtra,
    SourceChanged,
    SourceUnavailable,
)


def write(path: Path, rows: int, *, first: int = 0, group: int = 10) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + rows)
    table = pa.table({"id": pa.array(numbers, pa.int64()), "text": [f"row {n}" for n in numbers]})
    pq.write_table(table, path, row_group_size=group)
    return path


def compressed_bytes(path: Path, columns: set[str]) -> int:
    metadata = pq.read_metadata(path)
    return sum(
        metadata.row_group(group).column(leaf).total_compressed_size
        for group in range(metadata.num_row_groups)
        for leaf in range(metadata.num_columns)
        if metadata.row_group(group).column(leaf).path_in_schema in columns
    )


def test_files_are_ordered_by_the_bytes_of_their_logical_names(tmp_path: Path) -> None:
    """Neither the order of the patterns nor the locale decides: `B` < `a` < `é`, 10 < 9."""
    names = ["a/9", "a/10", "B/x", "é", "a/1"]
    for number, name in enumerate(names):
        write(tmp_path / f"{name}.parquet", 1, first=number)
    patterns = [str(tmp_path / "*.parquet"), str(tmp_path / "*/*.parquet")]

    forwards = ParquetSource(patterns, ["id"]).fetch(range(5))
    backwards = ParquetSource(patterns[::-1], ["id"]).fetch(range(5))

    expected = sorted(names, key=lambda name: f"{name}.parquet".encode())
    assert [names[item["id"]] for item in forwards] == expected
    assert forwards == backwards


def test_hidden_files_and_other_names_in_a_folder_are_left_alone(tmp_path: Path) -> None:
    """A folder means its Parquet files: not what tools leave beside them."""
    write(tmp_path / "deep" / "a.parquet", 3)
    (tmp_path / ".a.parquet.crc").write_bytes(b"")
    (tmp_path / "._a.parquet").write_bytes(b"junk")
    (tmp_path / "_SUCCESS").write_bytes(b"")

    assert len(ParquetSource(str(tmp_path))) == 3


def test_empty_files_and_empty_row_groups_hold_no_blocks(tmp_path: Path) -> None:
    """An empty file among others is no mistake, and adds nothing."""
    write(tmp_path / "a.parquet", 0)
    write(tmp_path / "b.parquet", 12)

    source = ParquetSource(str(tmp_path / "*.parquet"))

    assert source.blocks().items == [10, 2]
    assert source.fetch([11])[0]["id"] == 11


def test_a_fetch_reads_each_row_group_once_and_only_wanted_columns(tmp_path: Path) -> None:
    """Scattered rows of two groups cost these two groups, in the columns that were named."""
    path = write(tmp_path / "a.parquet", 20)
    source = ParquetSource(str(path), ["text"], cache_bytes=0)

    items = source.fetch([19, 0, 18, 1, 17, 2])

    assert [item["text"] for item in items] == [f"row {n}" for n in (19, 0, 18, 1, 17, 2)]
    assert source.read_bytes() == compressed_bytes(path, {"text"})


def test_an_epoch_in_blocks_reads_every_byte_once(tmp_path: Path) -> None:
    """Shuffled by blocks, with a cache of one window, nothing is read twice."""
    paths = [write(tmp_path / f"{n}.parquet", 55, first=55 * n) for n in range(4)]
    source = ParquetSource(str(tmp_path))
    distributor = MapDistributor("blocks", window_blocks=4)
    distributor.bind({"main": source}, seed=1, epochs=1, lanes=3)

    drawn = [distributor.draw(g % 3, 3, g // 3) for g in range(len(source))]
    items = [source.fetch([item.index])[0] for item in drawn if item is not None]

    assert sorted(item["id"] for item in items) == list(range(220))
    assert source.read_bytes() == sum(compressed_bytes(path, {"id", "text"}) for path in paths)


def test_decoded_row_groups_are_kept_up_to_the_bound(tmp_path: Path) -> None:
    """Within the bound a group is not read again; above it the least recently used one goes."""
    path = write(tmp_path / "a.parquet", 30, group=10)
    one_group = pq.ParquetFile(path).read_row_group(0).nbytes
    source = ParquetSource(str(path), cache_bytes=int(2.5 * one_group))

    source.fetch([0])
    source.fetch([10])
    source.fetch([1])
    source.read_bytes()
    source.fetch([2, 11])
    again = source.read_bytes()
    source.fetch([20])  # the first group goes: it was used before the second one
    source.read_bytes()
    source.fetch([12, 21])
    kept = source.read_bytes()
    source.fetch([3])
    gone = source.read_bytes()

    assert (again, kept) == (0, 0)
    assert gone > 0


def test_values_are_plain_and_lists_of_numbers_are_arrays(tmp_path: Path) -> None:
    """Each Arrow type comes as the class that the docs say, the caller's own to change."""
    rows = {
        "tokens": pa.array([[1, 2], [3]], pa.list_(pa.uint16())),
        "big": pa.array([[1], []], pa.large_list(pa.int64())),
        "point": pa.array([[0.5, 1.5], [2.5, 3.5]], pa.list_(pa.float32(), 2)),
        "flags": pa.array([[True], [False, True]], pa.list_(pa.bool_())),
        "holes": pa.array([[1, None], None], pa.list_(pa.int64())),
        "nested": pa.array([[[1], []], []], pa.list_(pa.list_(pa.int8()))),
        "image": pa.array([{"bytes": b"\x00", "path": None}, None]),
        "label": pa.array(["a", "b"]).dictionary_encode(),
        "raw": pa.array([b"\xff", b""]),
        "real": pa.array([0.25, None]),
    }
    pq.write_table(pa.table(rows), tmp_path / "a.parquet")

    first, second = ParquetSource(str(tmp_path / "a.parquet")).fetch([0, 1])

    arrays: dict[str, Any] = {name: first.pop(name) for name in ("tokens", "big", "point", "flags")}
    assert {name: (value.dtype.name, value.tolist()) for name, value in arrays.items()} == {
        "tokens": ("uint16", [1, 2]),
        "big": ("int64", [1]),
        "point": ("float32", [0.5, 1.5]),
        "flags": ("bool", [True]),
    }
    assert all(value.flags.owndata and value.flags.writeable for value in arrays.values())
    assert first == {
        "holes": [1, None],
        "nested": [[1], []],
        "image": {"bytes": b"\x00", "path": None},
        "label": "a",
        "raw": b"\xff",
        "real": 0.25,
    }
    assert isinstance(second["big"], np.ndarray)
    assert (second["big"].shape, second["holes"], second["image"]) == ((0,), None, None)


@pytest.fixture
def memory_url() -> Iterator[str]:
    """A folder on fsspec's filesystem in memory: what is not local goes through fsspec alike."""
    import fsspec

    fs = fsspec.filesystem("memory")
    fs.mkdir("/penstock-test")
    yield "memory://penstock-test"
    fs.rm("/penstock-test", recursive=True)


def test_a_url_gives_the_same_items_and_the_same_identity(tmp_path: Path, memory_url: str) -> None:
    """Copied to an object store, the same files are the same source."""
    import fsspec

    for name in ("x/a", "x/b"):
        path = write(tmp_path / f"{name}.parquet", 15)
        with fsspec.open(f"{memory_url}/{name}.parquet", "wb") as target:
            target.write(path.read_bytes())

    local = ParquetSource(str(tmp_path / "**/*.parquet"))
    remote = ParquetSource(f"{memory_url}/**/*.parquet", storage_options={})

    assert remote.identity() == local.identity()
    assert remote.fetch([29, 0, 14]) == local.fetch([29, 0, 14])
    local.close()
    remote.close()


def test_a_url_that_changes_is_noticed(tmp_path: Path, memory_url: str) -> None:
    """An object that was written again is SourceChanged, though its size is the same."""
    import fsspec

    data = write(tmp_path / "a.parquet", 5).read_bytes()
    url = f"{memory_url}/a.parquet"
    with fsspec.open(url, "wb") as target:
        target.write(data)
    source = ParquetSource(url)
    with fsspec.open(url, "wb") as target:
        target.write(data)

    with pytest.raises(SourceChanged, match=r"a\.parquet changed"):
        source.fetch([0])


def test_a_file_that_changes_under_an_open_source_is_noticed(tmp_path: Path) -> None:
    """Another size or another time of change: not a retry, an error that names the file."""
    path = write(tmp_path / "a.parquet", 20)
    source = ParquetSource(str(path), cache_bytes=0)
    source.fetch([0])

    write(path, 25)

    with pytest.raises(SourceChanged) as caught:
        source.fetch([15])
    assert caught.value.fields["path"] == str(path)


def test_a_file_that_goes_and_comes_back_is_unavailable_meanwhile(tmp_path: Path) -> None:
    """A lost mount is SourceUnavailable, naming file and item; the retry works."""
    path = write(tmp_path / "a.parquet", 20)
    source = ParquetSource(str(path), cache_bytes=0)
    before = source.fetch([15])
    away = path.rename(tmp_path / "away")

    with pytest.raises(SourceUnavailable, match=r"a\.parquet cannot be read") as caught:
        source.fetch([3, 15])
    away.rename(path)

    assert caught.value.fields["item"] == 3
    assert source.fetch([15]) == before


def damage(path: Path, group: int, *, at: int) -> None:
    """Flip a bit of a row group's first column; time and size of the file stay as they were."""
    before = path.stat()
    chunk = pq.read_metadata(path).row_group(group).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data = bytearray(path.read_bytes())
    data[start + at % chunk.total_compressed_size] ^= 0x10
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_damaged_page_is_named_at_once_and_is_a_property_of_the_bytes(tmp_path: Path) -> None:
    """File, row group and column are named; the other row groups are read as before."""
    path = write(tmp_path / "a.parquet", 30)
    damage(path, 1, at=0)
    source = ParquetSource(str(path))

    for index in (10, 19):
        with pytest.raises(BadItem, match=r"a\.parquet: row group 1, column 'id',") as caught:
            source.fetch([index])
        assert caught.value.fields["row_group"] == 1
        assert caught.value.fields["reason"].startswith("a.parquet: row group 1")
    assert [item["id"] for item in source.fetch([9, 20])] == [9, 20]


def test_no_flipped_bit_of_a_page_with_checksums_gives_another_value(tmp_path: Path) -> None:
    """Without them a page may decode to other values; with them each is the same or damaged."""
    table = pa.table({"text": [f"row {n}" for n in range(40)]})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=20, write_page_checksum=True)
    whole, expected = path.read_bytes(), table.to_pylist()[20:]
    damaged = 0

    for at in range(0, 400, 7):
        before = path.stat()
        damage(path, 1, at=at)
        source = ParquetSource(str(path))
        try:
            assert source.fetch(range(20, 40)) == expected
        except BadItem:
            damaged += 1
        path.write_bytes(whole)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert damaged > 30


def test_a_footer_that_names_bytes_beyond_the_end_is_damage(tmp_path: Path) -> None:
    """A file that lost its middle: every byte that is there was read, and a page is not."""
    path = write(tmp_path / "a.parquet", 30)
    data = path.read_bytes()
    path.write_bytes(data[:4] + data[len(data) - int.from_bytes(data[-8:-4], "little") - 8 :])
    source = ParquetSource(str(path))

    with pytest.raises(BadItem, match=r"a\.parquet: row group 2, column 'id',"):
        source.fetch([25])


def test_a_file_that_cannot_be_read_is_no_damage(tmp_path: Path) -> None:
    """Neither is one that was edited, though its time of change was put back."""
    path = write(tmp_path / "a.parquet", 30)
    source, other = ParquetSource(str(path)), ParquetSource(str(path))
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    damage(path, 0, at=0)

    with pytest.raises(SourceChanged, match="changed under an open source"):
        source.fetch([0])
    path.unlink()
    with pytest.raises(SourceUnavailable, match=r"a\.parquet cannot be read"):
        other.fetch([0])


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    """The pattern, the file, the column and what to do next are in the message."""
    good = write(tmp_path / "good" / "a.parquet", 3)
    write(tmp_path / "empty" / "a.parquet", 0)
    (tmp_path / "text.parquet").write_bytes(b"this is no parquet file at all")
    (tmp_path / "short.parquet").write_bytes(b"PAR1")
    (tmp_path / "crypt.parquet").write_bytes(b"PARE" + bytes(20) + b"PARE")
    (tmp_path / "footer.parquet").write_bytes(b"PAR1" + b"\xee" * 20 + b"\x14\0\0\0PAR1")
    (tmp_path / "mixed").mkdir()
    write(tmp_path / "mixed" / "a.parquet", 3)
    pq.write_table(pa.table({"id": [1], "text": ["x"], "more": [2]}), tmp_path / "mixed/b.parquet")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "good-and-less.parquet")
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"files": str(tmp_path / "none*.parquet")}, r"no file matches '.*none\*\.parquet'"),
        ({"files": str(tmp_path / "none.parquet")}, r"no file matches '.*none\.parquet'"),
        ({"files": str(tmp_path / "nowhere" / "*")}, r"no file matches"),
        ({"files": []}, r"files is \[\]"),
        (
            {"files": str(good), "columns": ["txet"]},
            r"no column 'txet': did you mean 'text'.*id, text",
        ),
        ({"files": str(good), "columns": "text"}, r"columns is 'text': give a list"),
        ({"files": str(good), "columns": []}, r"columns is empty.*id, text"),
        ({"files": str(tmp_path / "empty")}, r"hold zero rows"),
        ({"files": str(tmp_path / "text.parquet")}, r"text\.parquet is not a Parquet file"),
        ({"files": str(tmp_path / "short.parquet")}, r"short\.parquet is not a Parquet file"),
        ({"files": str(tmp_path / "crypt.parquet")}, r"crypt\.parquet is encrypted"),
        ({"files": str(tmp_path / "footer.parquet")}, r"footer\.parquet has no readable"),
        (
            {"files": str(tmp_path / "mixed")},
            r"b\.parquet has columns that a\.parquet lacks \(more\)",
        ),
        (
            {"files": [str(good), str(tmp_path / "good-and-less.parquet")], "columns": ["text"]},
            r"good-and-less\.parquet has no column 'text': it has id",
        ),
        ({"files": [str(good), "memory://x/a.parquet"]}, r"different filesystems"),
        ({"files": "nosuch://x/a.parquet"}, r"nosuch://x/a.parquet' cannot be read"),
    ]
    for parameters, sentence in mistakes:
        with pytest.raises(InvalidJob, match=sentence):
            ParquetSource(**parameters)


def test_a_filesystem_without_its_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    """A URL whose package is not installed names the package to install."""
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)

    with pytest.raises(MissingExtra, match="pip install gcsfs"):
        ParquetSource("gs://bucket/a.parquet")


def test_columns_shared_by_all_files_may_be_named(tmp_path: Path) -> None:
    """Files of different schemas are read where the columns asked for are in each."""
    write(tmp_path / "a.parquet", 1)
    pq.write_table(pa.table({"more": [2], "id": [1]}), tmp_path / "b.parquet")

    source = ParquetSource(str(tmp_path), ["id"])

    assert source.fetch([0, 1]) == [{"id": 0}, {"id": 1}]


def test_what_decides_no_bytes_is_not_in_the_identity(tmp_path: Path) -> None:
    """The bound of the cache and the filesystem's options do not change the log."""
    path = str(write(tmp_path / "a.parquet", 3))

    plain, tuned = ParquetSource(path), ParquetSource(path, cache_bytes=1, storage_options={})

    assert plain.identity() == tuned.identity()
    assert ParquetSource(path, ["id"]).identity() != plain.identity()


def test_a_sample_of_a_large_file_has_head_tail_and_blocks_in_bounds() -> None:
    """The ranges depend on the size alone, lie in the file, and hold both of its ends."""
    for size in (BLOCK_BYTES * 18 + 1, 10**8, 10**12):
        ranges = sampled_ranges(size)

        assert ranges == sampled_ranges(size)
        assert ranges[0] == (0, BLOCK_BYTES)
        assert ranges[-1] == (size - BLOCK_BYTES, size)
        assert 16 <= len(ranges) <= 18
        assert all(0 <= start < stop <= size for start, stop in ranges)
    assert sampled_ranges(10**8) != sampled_ranges(10**8 + 1)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, BLOCK_BYTES * 18])
def test_every_byte_of_a_small_file_counts(size: int) -> None:
    """Sampled or whole: below the sampling size, the hash is of everything."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)

    def read_at(start: int, stop: int) -> bytes:
        return data[start:stop]

    assert sampled_ranges(size) == [(0, size)]
    assert content_hash(read_at, size, whole=True) == content_hash(read_at, size, whole=False)


def test_a_touched_file_is_changed_only_where_its_content_is_not_known(tmp_path: Path) -> None:
    """A time of change alone says nothing, once there is a hash to compare with."""
    path = write(tmp_path / "a.parquet", 3)
    source, unhashed = ParquetSource(str(path)), ParquetSource(str(path))
    before = source.identity()

    os.utime(path, (10**9, 10**9))

    with pytest.raises(SourceChanged):
        unhashed.fetch([0])
    assert [item["id"] for item in source.fetch([2])] == [2]
    assert ParquetSource(str(path)).identity() == before
