"""What an LMDB says of itself is compared with its file before it is mapped."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import lmdb
import pytest

from penstock.server.media.lmdb_pages import DamagedLmdb, LmdbPages
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.wire.errors import BadItem

PAGE = 4096
META_AT = 16
"""Where the description begins in its page."""


def check(path: Path, data: bytes | None = None) -> None:
    """Check a file, with other content where some is given."""
    if data is not None:
        path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    try:
        LmdbPages(fd, os.fstat(fd).st_size).check()
    finally:
        os.close(fd)


def write(path: Path, count: int = 200) -> bytes:
    """Write a database of so many values, and return the file."""
    made = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26)
    with made.begin(write=True) as writing:
        for number in range(count):
            writing.put(
                f"{number:04}".encode(), bytes([number % 256]) * (50 if number % 2 else 9000)
            )
    made.close()
    return path.read_bytes()


def test_a_file_that_lacks_any_page_is_refused(tmp_path: Path) -> None:
    """From one page to all but two: whichever value was asked for, to read it might be the end."""
    data = write(tmp_path / "a.mdb")
    pages = len(data) // PAGE

    check(tmp_path / "a.mdb")
    for missing in [*range(1, 130), *range(130, pages - 2, 7)]:
        with pytest.raises(DamagedLmdb, match=rf"says that it has {pages} pages .* cut off"):
            check(tmp_path / "a.mdb", data[: (pages - missing) * PAGE])
    with pytest.raises(DamagedLmdb, match="cut off"):
        check(tmp_path / "a.mdb", data[:-1])


def test_pages_that_were_freed_before_they_were_written_may_be_missing(tmp_path: Path) -> None:
    """A whole database may end before its last page."""
    found = 0
    for seed in range(16):
        draw, path = random.Random(seed), tmp_path / f"{seed}.mdb"
        made = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26)
        for _ in range(8):
            with made.begin(write=True) as writing:
                for _ in range(20):
                    key = b"%d" % draw.randint(0, 30)
                    if draw.random() < 0.5:
                        writing.put(key, bytes(draw.choice([50, 5000, 60_000])))
                    else:
                        writing.delete(key)
            pages = made.info()["last_pgno"] + 1
            found += path.stat().st_size < pages * PAGE
            check(path)
        made.close()
    assert found > 3, "no such database was made"


def changed(data: bytes, field_at: int, value: bytes) -> bytes:
    """Return a file with other bytes in both of its descriptions."""
    out = bytearray(data)
    for page in (0, PAGE):
        at = page + META_AT + field_at
        out[at : at + len(value)] = value
    return bytes(out)


@pytest.mark.parametrize(
    ("at", "value", "said"),
    [
        (24, struct.pack("<I", 0), "its pages have 0 bytes"),
        (24, struct.pack("<I", 1 << 30), "its pages have 1073741824 bytes"),
        (16, struct.pack("<Q", 1 << 60), "bytes of it are mapped"),
        (72 + 40, struct.pack("<Q", 1 << 40), "its entries begins at page 1,099,511,627,776"),
        (72 + 40, struct.pack("<Q", 1), "its entries begins at page 1,"),
        (24 + 40, struct.pack("<Q", 3), "its free pages begins at page 3,"),
        (120, struct.pack("<Q", 1 << 50), "cut off"),
        (120, struct.pack("<Q", (1 << 64) - 2), "cut off"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(
    tmp_path: Path, at: int, value: bytes, said: str
) -> None:
    data = write(tmp_path / "a.mdb")

    with pytest.raises(DamagedLmdb, match=said):
        check(tmp_path / "a.mdb", changed(data, at, value))


def test_any_damage_gives_a_named_error_or_none(tmp_path: Path) -> None:
    """In the description and the tree of free pages, of a file whose end is missing, too."""
    path, seed = tmp_path / "a.mdb", 24
    write(path, 60)
    made = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 26)
    for first in range(0, 60, 2):
        with made.begin(write=True) as writing:
            writing.delete(f"{first:04}".encode())
    made.close()
    data = path.read_bytes()
    tracemalloc.start()
    try:
        for number in range(400):
            draw = random.Random(f"{seed} {number}")
            out = bytearray(data if draw.random() < 0.3 else data[: -PAGE * draw.randint(1, 40)])
            for _ in range(draw.choice((1, 2, 5))):
                at = draw.choice((META_AT, PAGE + META_AT)) + draw.randrange(150)
                if draw.random() < 0.5:
                    at = draw.randrange(2, len(out) // PAGE) * PAGE + draw.randrange(64)
                value = draw.choice((b"\xff" * 8, bytes(8), draw.randbytes(4), b"\x03"))
                out[at : at + len(value)] = value
            try:
                check(path, bytes(out))
            except DamagedLmdb:
                continue
            except Exception as error:
                pytest.fail(f"seed {seed}, file {number}: {error!r}")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe would hold up the worker for ever."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe.mdb")
    os.mkfifo(tmp_path / "folder" / "data.mdb")
    write(tmp_path / "a.mdb", 1)
    reader = MediaReader(MediaFiles(str(tmp_path), endings=["a.mdb"]))

    for medium in reader.media(["lmdb: pipe.mdb::a", "lmdb: folder::a"]):
        with pytest.raises(BadItem, match="is not there"):
            medium.read()
