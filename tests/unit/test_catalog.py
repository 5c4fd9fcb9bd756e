"""What is kept of data files between starts: believed only where nothing can have changed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.files import catalog
from penstock.server.files.catalog import SETTLED_S, VARIABLE, keep_in, remote_stamp
from penstock.server.sources import HfSource, ParquetSource

OPENED: list[str] | None = None


def _note(event: str, arguments: Any) -> None:
    if event == "open" and OPENED is not None and str(arguments[0]).endswith(".parquet"):
        OPENED.append(Path(arguments[0]).name)


sys.addaudithook(_note)


def opened(path: Path, columns: list[str] | None = None) -> tuple[set[str], Any]:
    """Return which data files were opened for the identity of a source, and the identity."""
    global OPENED
    OPENED = []
    try:
        identity = ParquetSource(str(path), columns).identity()
        return set(OPENED), identity
    finally:
        OPENED = None


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[Path]:
    """A cache folder of this test alone."""
    keep_in(str(tmp_path / "cache"), tmp_path)
    yield tmp_path / "cache"
    keep_in(os.environ[VARIABLE], tmp_path)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once: a test cannot set back the inode's own time."""
    monkeypatch.setattr(catalog, "SETTLED_S", -1.0)


def write(folder: Path, files: int = 3, rows: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        one = pa.table({"id": range(number, number + rows), "text": [f"text {number}"] * rows})
        pq.write_table(one, folder / f"{number}.parquet", row_group_size=3)
    return folder


@pytest.mark.usefixtures("settled")
def test_a_second_start_opens_only_what_has_changed(tmp_path: Path, cache: Path) -> None:
    """Also where size and time of change were kept: the inode's own time tells it."""
    data = write(tmp_path / "data")
    first, before = opened(data)
    again, same = opened(data)
    path = data / "1.parquet"
    found = path.stat()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"text 1", b"texT 1"))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    third, changed = opened(data)

    assert (first, again) == ({"0.parquet", "1.parquet", "2.parquet"}, set())
    assert before == same
    assert path.stat().st_mtime_ns == found.st_mtime_ns
    assert third == {"1.parquet"}
    assert changed != before
    (data / "3.parquet").write_bytes((data / "0.parquet").read_bytes())
    assert opened(data)[0] == {"3.parquet"}


def test_a_file_that_changed_a_moment_ago_is_read_again(tmp_path: Path, cache: Path) -> None:
    """Another change may leave it with the same time: it is not believed, as in git's index."""
    data = write(tmp_path / "data")

    first, before = opened(data)
    second, after = opened(data)

    assert first == second == {"0.parquet", "1.parquet", "2.parquet"}
    assert before == after


@pytest.mark.usefixtures("settled")
def test_what_is_damaged_or_cannot_be_written_is_no_error(tmp_path: Path, cache: Path) -> None:
    """Cut, flipped, of another version, a folder, no folder, switched off: files are read."""
    data = write(tmp_path / "data")
    everything, expected = opened(data)
    [kept] = cache.iterdir()
    good = kept.read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    for bad in (b"", good[:20], good[:-1], bytes(flipped), b"penstock catalog 0 " + good[19:]):
        kept.write_bytes(bad)
        assert opened(data) == (everything, expected)
        assert opened(data) == (set(), expected)  # and kept anew

    kept.unlink()
    kept.mkdir()
    assert opened(data) == (everything, expected)
    (tmp_path / "file").touch()
    for setting in (str(tmp_path / "file"), "off"):
        keep_in(setting, tmp_path)
        assert opened(data) == opened(data) == (everything, expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "data", "file"]


@pytest.mark.usefixtures("settled")
def test_jobs_that_read_other_columns_keep_each_others(tmp_path: Path, cache: Path) -> None:
    """Two jobs of one file open the same corpus: neither start undoes what the other has kept."""
    data = write(tmp_path / "data")
    both = [ParquetSource(str(data), columns) for columns in (None, ["id"])]
    identities = [source.identity() for source in both]

    again = [opened(data, columns) for columns in (None, ["id"])]

    assert again == [(set(), identity) for identity in identities]
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("settled")
def test_many_nodes_at_once_leave_a_whole_catalog(tmp_path: Path, cache: Path) -> None:
    """Whoever writes last replaces it as a whole, and nothing else is left in the folder."""
    data = write(tmp_path / "data", files=20)

    with ThreadPoolExecutor(8) as pool:
        identities = list(
            pool.map(lambda _: ParquetSource(str(data / "*.parquet")).identity(), range(16))
        )

    assert all(identity == identities[0] for identity in identities)
    assert len(list(cache.iterdir())) == 1
    assert opened(data / "*.parquet") == (set(), identities[0])


@pytest.mark.usefixtures("settled")
def test_the_folder_is_bounded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was used longest ago goes first, and what a killed process has left goes, too."""
    for number in range(4):
        opened(write(tmp_path / f"data-{number}"))
        newest = max(cache.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (10**9 + number, 10**9 + number))
    size = newest.stat().st_size
    left = cache / ".left"
    left.touch()
    os.utime(left, (10**9, 10**9))
    assert opened(tmp_path / "data-0")[0] == set()  # used: now it is the newest of the four
    monkeypatch.setattr(catalog, "MAX_FOLDER_BYTES", 3 * size + size // 2)
    monkeypatch.setattr(catalog, "LOOK_BYTES", 1)

    opened(write(tmp_path / "data-4"))

    assert len(list(cache.iterdir())) == 3
    assert opened(tmp_path / "data-1")[0] == {"0.parquet", "1.parquet", "2.parquet"}
    monkeypatch.setattr(catalog, "MAX_CATALOG_BYTES", 10)
    before = {path.name for path in cache.iterdir()}
    opened(write(tmp_path / "data-5"))
    assert {path.name for path in cache.iterdir()} == before


def test_small_files_are_bounded_without_a_look_at_each(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes a stat of all that is there, so it comes by chance, once a MiB or so."""
    monkeypatch.setattr(catalog, "MAX_FOLDER_BYTES", 1 << 20)
    looks = []
    scan = os.scandir

    def counted(folder: Path) -> Any:
        looks.append(folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", counted)
    for number in range(640):
        catalog.keep_bytes(f"{number:032x}", bytes(64 << 10))
    monkeypatch.undo()

    # 40 MiB: without a look at the last 24 of them, or with as many as writes, e to the -24th.
    assert sum(path.stat().st_size for path in cache.iterdir()) < 25 << 20
    assert 0 < len(looks) < 320


def test_behind_a_url_the_filesystem_says_what_changes() -> None:
    """An ETag at once, a time once it lies back, and nothing where it says nothing."""
    now = datetime.now(UTC)
    old = now - timedelta(seconds=SETTLED_S + 60)
    cases: list[tuple[dict[str, Any], bool]] = [
        ({"ETag": '"abc"', "LastModified": now}, True),
        ({"md5Hash": "abc"}, True),
        ({"blob_id": "abc", "lfs": {"sha256": "def"}, "last_commit": None}, True),
        ({"xet_hash": "abc", "mtime": now}, True),
        ({"sha": "abc", "mode": "100644"}, True),
        ({"modificationTime": int(now.timestamp() * 1000)}, False),
        ({"mtime": now.timestamp()}, False),
        ({"mtime": old.timestamp()}, True),
        ({"created": old}, True),
        ({"created": now}, False),
        ({"created": old.replace(tzinfo=None)}, False),
        ({"LastModified": (old - timedelta(days=3)).isoformat()}, True),
        ({"LastModified": "Sun, 06 Nov 1994 08:49:37 GMT"}, True),
        ({"Last-Modified": format_datetime(old, usegmt=True)}, True),
        ({"Last-Modified": format_datetime(now, usegmt=True)}, False),
        ({"Last-Modified": "yesterday"}, False),
        ({}, False),
    ]

    for info, expected in cases:
        stamp = remote_stamp({"size": 7, "name": "x", **info})
        assert stamp.is_settled is expected, info
        assert bool(stamp.version) is bool(info)


@pytest.mark.usefixtures("settled")
def test_the_hashes_of_hf_are_kept_too(tmp_path: Path, cache: Path) -> None:
    """A file that `datasets` opens is hashed once, and again when it has changed."""
    path = write(tmp_path / "data", files=1) / "0.parquet"
    before = HfSource("parquet", str(path)).identity()
    [kept] = cache.iterdir()
    content = kept.read_bytes()

    assert HfSource("parquet", str(path)).identity() == before
    assert kept.read_bytes() == content
    write(tmp_path / "data", files=1, rows=7)
    assert HfSource("parquet", str(path)).identity() != before
    assert kept.read_bytes() != content
