"""Parts of large files come before they are read: once, within a bound, as long as needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from far_store import FarStore
from invariants import eventually
from penstock.server.media.fetched_parts import CHUNK_BYTES
from penstock.server.media.file_medium import FileMedium
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.wire.errors import SourceChanged

SIZE = 6 * CHUNK_BYTES + 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FarStore]:
    """A web server with one large file."""
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "a.mp4").write_bytes(random.Random(0).randbytes(SIZE))
    with FarStore(tmp_path / "far") as served:
        yield served


def opened(reader: MediaReader) -> FileMedium:
    """Return the file, as another item has it."""
    [medium] = reader.media(["a.mp4"])
    assert isinstance(medium, FileMedium)
    return medium


def reader_of(store: FarStore, ahead_bytes: int) -> MediaReader:
    """Return what reads the store; how the file looks is known, as after a first item."""
    reader = MediaReader(MediaFiles(store.url, ahead_bytes=ahead_bytes))
    opened(reader).head(1)
    store.asked.clear()
    return reader


def bytes_asked(store: FarStore) -> int:
    """Return how many bytes were asked for."""
    ends = [span.removeprefix("bytes=").split("-") for _, span in store.asked]
    return sum(int(stop) - int(start) + 1 for start, stop in ends)


def test_a_part_that_several_items_need_is_fetched_once(store: FarStore) -> None:
    """What overlaps, too."""
    data = (store.folder / "a.mp4").read_bytes()
    reader = reader_of(store, CHUNK_BYTES)  # too little for chunks

    reader.parts.ask(opened(reader), [(0, 1000), (500_000, 900_000)], "one", now=False)
    reader.parts.ask(opened(reader), [(400_000, 600_000), (900_000, 950_000)], "two", now=False)
    found = [bytes(opened(reader).at(0, 1000)), bytes(opened(reader).at(500_000, 900_000))]
    found.append(bytes(opened(reader).at(400_000, 500_000)))

    assert found == [data[:1000], data[500_000:900_000], data[400_000:500_000]]
    eventually(lambda: bytes_asked(store) == 551_000, 60.0, "each byte is asked for once")
    assert bytes(opened(reader).available(899_990, 920_000)) == data[899_990:900_000]
    assert bytes(opened(reader).at(899_990, 900_200)) == data[899_990:900_200]  # of no part alone


def test_chunks_are_fetched_while_all_that_is_in_use_has_room(store: FarStore) -> None:
    """So frames of an episode take one request together; where it has none, each its own bytes."""
    wanted = [CHUNK_BYTES * n // 2 + 100 for n in range(12)]
    counts = []
    for ahead_bytes in (64 * CHUNK_BYTES, 4 * CHUNK_BYTES):
        reader = reader_of(store, ahead_bytes)
        for start in wanted:
            reader.parts.ask(opened(reader), [(start, start + 1000)], start, now=True)
            opened(reader).at(start, start + 1000)
            reader.parts.release([start])
        counts.append((len(store.asked), bytes_asked(store)))

    (few, all_bytes), (many, _) = counts
    assert few <= 7
    assert all_bytes <= SIZE
    assert many > few  # the first two chunks were fetched whole, before there were too many


def test_what_is_held_stays_within_its_bound(store: FarStore) -> None:
    """Parts that nobody needs any more make room; those that are needed do not."""
    data = (store.folder / "a.mp4").read_bytes()
    most, each = 4 * CHUNK_BYTES, CHUNK_BYTES
    reader = reader_of(store, most)
    fetching = reader.fetching
    for n in range(6):  # each a part of its own
        reader.parts.ask(opened(reader), [(n * each, (n + 1) * each - 100_000)], n, now=False)

    eventually(lambda: fetching.held_bytes > most - each, 60.0, "parts are held")
    assert fetching.held_bytes <= most
    assert not any(span.startswith(f"bytes={5 * each}-") for _, span in store.asked)
    found = bytes(opened(reader).at(5 * each, 5 * each + 10))  # needed now, so without room
    assert found == data[5 * each : 5 * each + 10]

    reader.parts.release(range(6))
    reader.parts.ask(opened(reader), [(6 * each, SIZE)], 6, now=False)
    last = f"bytes={6 * each}-{SIZE - 1}"
    eventually(lambda: store.asked[-1][1] == last, 60.0, "there is room again")
    assert bytes(opened(reader).at(6 * each, SIZE)) == data[6 * each :]
    assert fetching.held_bytes <= most
    assert [span for _, span in store.asked].count(last) == 1


def test_what_fails_ahead_is_read_by_who_needs_it(store: FarStore) -> None:
    """And is tried again there."""
    data = (store.folder / "a.mp4").read_bytes()
    reader = reader_of(store, CHUNK_BYTES)
    store.failing["a.mp4"] = [403]

    reader.parts.ask(opened(reader), [(0, 1000)], 0, now=True)
    eventually(lambda: not store.failing["a.mp4"], 60.0, "it was asked for")

    assert bytes(opened(reader).at(0, 1000)) == data[:1000]


def test_parts_of_two_versions_are_never_mixed(store: FarStore) -> None:
    """A file that changes under an item stops it, as where it reads all itself."""
    reader = reader_of(store, CHUNK_BYTES)
    medium = opened(reader)
    medium.at(0, 10)
    (store.folder / "a.mp4").write_bytes(bytes(SIZE))

    reader.parts.ask(opened(reader), [(200_000, 201_000)], 0, now=True)
    eventually(lambda: reader.fetching.held_bytes >= 1000, 60.0, "it came")

    with pytest.raises(SourceChanged, match=r"a\.mp4 changed since the job began"):
        medium.at(200_000, 200_100)
    assert bytes(opened(reader).at(200_000, 200_100)) == bytes(100)
