"""What is known of a directory of media, and how little of it is read for that."""

from __future__ import annotations

import os
from pathlib import Path

import fsspec
import pytest

from penstock.server.files import catalog
from penstock.server.files.catalog import Stamp, local_stamp, pack_catalogs, take_catalogs
from penstock.server.files.ranges import LocalRanges
from penstock.server.media.listing import ENDINGS, HASHED_FILES, listing_of
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.wire.errors import InvalidJob


class Counting(LocalRanges):
    """Files of this machine, with what was read of them."""

    def __init__(self) -> None:
        super().__init__(fsspec.filesystem("file"))
        self.read_bytes = 0

    def read(self, path: str, start: int, stop: int, wanted: Stamp) -> tuple[bytes, Stamp]:
        """Read, and count."""
        data, stamp = super().read(path, start, stop, wanted)
        self.read_bytes += len(data)
        return data, stamp


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes are kept in a folder of the test."""
    monkeypatch.setattr(catalog, "_kept", [tmp_path / "cache"])


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files that changed long ago."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (1e9, 1e9))
    return folder


FILES = {"a/1.jpg": b"one", "a/2.PNG": b"two", "b/c/3.wav": b"three", "db/data.mdb": b"db"}
OTHERS = {"penstock.db": b"x", "items.jsonl": b"{}", "db/lock.mdb": b"l", "x.lmdb-lock": b"l"}


def test_media_are_listed_and_other_files_are_not(tmp_path: Path) -> None:
    """A store that lies in the same folder changes, and the log id must not."""
    root = write(tmp_path / "media", {**FILES, **OTHERS})
    ranges = Counting()

    before = listing_of(ranges, str(root), ENDINGS, {})
    write(root, {"penstock.db": b"another", "new.jsonl": b""})
    after = listing_of(ranges, str(root), ENDINGS, {})

    assert (len(before), before.fingerprint["bytes"]) == (4, 13)
    assert before.fingerprint == after.fingerprint
    found = before.find("b/c/3.wav")
    assert found is not None
    assert found.is_same(local_stamp(os.stat(root / "b/c/3.wav")))
    assert before.find("penstock.db") is before.find("b/c/4.wav") is None


def test_a_copy_has_the_same_fingerprint_and_an_edit_has_not(tmp_path: Path) -> None:
    """Names, sizes and content count; times and places do not."""
    here = listing_of(Counting(), str(write(tmp_path / "one", FILES)), ENDINGS, {})
    os.utime(write(tmp_path / "two", FILES) / "a/1.jpg", (2e9, 2e9))

    there = listing_of(Counting(), str(tmp_path / "two"), ENDINGS, {})
    edited = write(tmp_path / "three", {**FILES, "a/1.jpg": b"ONE"})
    renamed = write(tmp_path / "four", {**FILES, "a/9.jpg": b"one"})
    (renamed / "a/1.jpg").unlink()

    assert there.fingerprint == here.fingerprint
    for other in (edited, renamed):
        assert listing_of(Counting(), str(other), ENDINGS, {}).fingerprint != here.fingerprint


def test_a_large_directory_is_read_in_part_and_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more files than are hashed whole, some are, at their ends; what was hashed is kept."""
    monkeypatch.setattr(catalog, "SETTLED_S", -60.0)  # these files were written just now
    count = 5000
    root = write(tmp_path / "media", {f"{n % 50}/{n}.jpg": b"%d" % n * 50 for n in range(count)})
    first, second = Counting(), Counting()

    listing = listing_of(first, str(root), ENDINGS, {})
    again = listing_of(second, str(root), ENDINGS, {})

    assert len(listing) == count
    assert first.read_bytes <= HASHED_FILES * 200
    assert second.read_bytes == 0
    assert again.fingerprint == listing.fingerprint


def test_links_are_followed_and_rings_are_not(tmp_path: Path) -> None:
    """Whoever owns a directory may have it lead to another disk."""
    write(tmp_path / "disk", {"1.jpg": b"one"})
    root = write(tmp_path / "media", {"2.jpg": b"two"})
    (root / "linked").symlink_to(tmp_path / "disk")
    (root / "ring").symlink_to(root)
    (root / "gone.jpg").symlink_to(tmp_path / "nowhere")
    (root / "itself.jpg").symlink_to("itself.jpg")
    (root / "below.jpg").symlink_to(Path(__file__) / "below.jpg")
    os.mkfifo(root / "pipe.jpg")

    listing = listing_of(Counting(), str(root), ENDINGS, {})

    assert listing.find("linked/1.jpg") is not None
    assert listing.find("gone.jpg") is listing.find("pipe.jpg") is None
    assert len(listing) == 2


def test_workers_take_what_their_node_has_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They look at no file: what was there when the node began is what counts."""
    root = write(tmp_path / "media", FILES)
    node = MediaReader(MediaFiles(str(root)))
    monkeypatch.setattr(catalog, "_handed", {})
    take_catalogs(pack_catalogs(node.hand_over()))
    write(root, {"a/5.jpg": b"new"})

    worker = MediaReader(MediaFiles(str(root)))

    assert worker.identity() == node.identity()
    assert [bytes(m.read()) for m in worker.media(["a/1.jpg"])] == [b"one"]


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    """In one sentence, with the key."""
    write(tmp_path / "media", {"notes.txt": b"x"})
    for root, said in ((tmp_path / "none", "cannot be listed"), (tmp_path / "media", "no file")):
        with pytest.raises(InvalidJob, match=said) as caught:
            MediaReader(MediaFiles(str(root)))
        assert caught.value.key == "media.dir"
    everything = MediaFiles(str(tmp_path / "media"), endings=[""])

    assert MediaReader(everything).identity()["files"][0]["files"] == 1
