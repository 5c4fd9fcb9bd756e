"""Media come ahead of those who need them: several at once, joined, and within a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from far_store import FarStore
from invariants import eventually
from penstock.server.media.file_medium import FileMedium
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.media.media_storage import FIRST_BYTES
from penstock.server.media.medium import HEAD_BYTES
from penstock.wire.errors import BadItem, SourceChanged, SourceUnavailable


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FarStore]:
    """A web server over a folder."""
    (tmp_path / "far").mkdir()
    with FarStore(tmp_path / "far") as served:
        yield served


def reader_of(store: FarStore, **parameters: Any) -> MediaReader:
    """Return what reads media of the store."""
    return MediaReader(MediaFiles(store.url, **parameters))


def files_of(reader: MediaReader, *references: Any) -> list[FileMedium]:
    """Return media that lie in files."""
    found = [medium for medium in reader.media(references) if isinstance(medium, FileMedium)]
    assert len(found) == len(references)
    return found


def write(store: FarStore, count: int, nbytes: int = 1000) -> list[str]:
    """Write so many files; return their names."""
    names = [f"{number}.jpg" for number in range(count)]
    for number, name in enumerate(names):
        (store.folder / name).write_bytes(bytes([number % 256]) * nbytes)
    return names


def test_many_are_on_their_way_at_once(store: FarStore) -> None:
    """As many as the job says, and no more, though nobody has taken one yet."""
    names = write(store, 24)
    gate = threading.Event()
    store.held.update(dict.fromkeys(names, gate))
    reader = reader_of(store, requests=6)
    media = files_of(reader, *names)

    reader.fetching.ask(media, now=False)
    eventually(lambda: len(store.asked) == 6, 60.0, "six requests came")
    gate.set()
    data = [bytes(medium.read()) for medium in files_of(reader, *names)]

    assert data == [bytes([number]) * 1000 for number in range(24)]
    assert store.most_at_once <= 7  # the last one that nobody had begun, by whoever reads
    assert sorted(path for path, _ in store.asked) == sorted(names)  # each once


def test_what_is_held_stays_within_its_bound(store: FarStore) -> None:
    """Media that nobody takes keep others from coming; who needs one gets it all the same."""
    names = write(store, 40, 10_000)
    reader = reader_of(store, ahead_bytes=55_000, requests=8)
    media = files_of(reader, *(({"path": name, "length": 10_000}) for name in names))

    reader.fetching.ask(media, now=False)
    eventually(lambda: reader.fetching.held_bytes == 50_000, 60.0, "five of them are held")
    last = bytes(media[-1].read())

    assert last == bytes([39]) * 10_000
    assert reader.fetching.held_bytes == 50_000
    assert [bytes(medium.read())[:1] for medium in media[:39]] == [bytes([n]) for n in range(39)]
    eventually(lambda: reader.fetching.held_bytes == 0, 60.0, "all were taken")


def test_what_a_lane_left_behind_makes_room_again(store: FarStore) -> None:
    """Media of a lane that goes on elsewhere are not taken: others come in their place."""
    names = write(store, 400, 1000)
    reader = reader_of(store, ahead_bytes=10_000, requests=4)
    left = files_of(reader, *({"path": name, "length": 1000} for name in names[:10]))
    reader.fetching.ask(left, now=False)
    eventually(lambda: reader.fetching.held_bytes == 10_000, 60.0, "they fill the bound")

    for name in names[10:]:
        [medium] = files_of(reader, {"path": name, "length": 1000})
        reader.fetching.ask([medium], now=True)
        assert len(medium.read()) == 1000
    reader.fetching.ask(files_of(reader, {"path": names[0], "length": 999}), now=False)

    eventually(lambda: reader.fetching.held_bytes <= 1000, 60.0, "what was left is dropped")


def test_parts_of_a_file_that_lie_beside_each_other_are_one_request(store: FarStore) -> None:
    """Whatever the order that they are asked for in; what lies far apart is another one."""
    data = b"".join(bytes([number]) * 500 for number in range(200)) + bytes(1 << 20) + b"end"
    (store.folder / "all.bin").write_bytes(data)
    write(store, 1)
    gate = threading.Event()
    store.held["0.jpg"] = gate
    reader = reader_of(store, requests=1)
    parts = [{"path": "all.bin", "offset": 500 * n, "length": 500} for n in (7, 3, 5, 4, 6, 9)]
    far = {"path": "all.bin", "offset": len(data) - 3, "length": 3}
    [first, *media] = files_of(reader, "0.jpg", *parts, far)

    reader.fetching.ask([first], now=False)
    eventually(lambda: len(store.asked) == 1, 60.0, "the only thread is busy")
    reader.fetching.ask(media, now=False)
    gate.set()
    eventually(lambda: len(store.asked) == 3, 60.0, "the parts came")
    found = [bytes(medium.read()) for medium in media]

    assert found == [bytes([n]) * 500 for n in (7, 3, 5, 4, 6, 9)] + [b"end"]
    assert store.asked[1:] == [
        ("all.bin", "bytes=1500-4999"),
        ("all.bin", f"bytes={len(data) - 3}-{len(data) - 1}"),
    ]


def test_heads_are_all_that_is_read_for_a_size(store: FarStore) -> None:
    """And of a file that is no larger, the head is the file: it is not fetched again."""
    (store.folder / "large.jpg").write_bytes(b"l" * (3 * HEAD_BYTES))
    (store.folder / "small.jpg").write_bytes(b"small")
    (store.folder / "empty.jpg").write_bytes(b"")
    reader = reader_of(store)
    media = files_of(reader, "large.jpg", "small.jpg", "empty.jpg")

    reader.fetching.ask(media, HEAD_BYTES, now=True)
    heads = [bytes(medium.head()) for medium in media]
    read = reader.read_bytes()
    whole = [bytes(medium.read()) for medium in media]

    assert heads == [b"l" * HEAD_BYTES, b"small", b""]
    assert read == HEAD_BYTES + 5
    assert whole == [b"l" * 3 * HEAD_BYTES, b"small", b""]


def test_a_head_that_came_ahead_tells_the_size(store: FarStore) -> None:
    """Whoever asked for it: what reads it is another object, as it is for each item."""
    (store.folder / "long.wav").write_bytes(b"w" * (3 * HEAD_BYTES))
    reader = reader_of(store)
    for count in (HEAD_BYTES, None):
        store.asked.clear()
        reader.fetching.ask(files_of(reader, "long.wav"), count, now=True)
        [medium] = files_of(reader, "long.wav")
        eventually(lambda: reader.fetching.held_bytes > 0, 60.0, "a thread fetches it")

        head = bytes(medium.head())
        size = medium.size()

        assert (head, size) == (b"w" * HEAD_BYTES, 3 * HEAD_BYTES)
        assert len(store.asked) <= 1 + (count is None)  # of what is asked for whole, the rest, too


def test_a_part_is_read_alone(store: FarStore) -> None:
    """By one request, within a part that the item names, too; a head is not read again."""
    data = bytes(range(256)) * 1024
    (store.folder / "long.wav").write_bytes(data)
    reader = reader_of(store)
    whole, part = files_of(
        reader, "long.wav", {"path": "long.wav", "offset": 1000, "length": 90000}
    )

    assert whole.size() == len(data)
    assert (whole.at(100, 200), part.size()) == (data[100:200], 90000)
    for medium, first, size in ((whole, 0, len(data)), (part, 1000, 90000)):
        medium.head()
        store.asked.clear()
        assert medium.at(70000, 70010) == data[first + 70000 : first + 70010]
        assert medium.at(size - 5, size + 5) == data[first + size - 5 : first + size]
        assert medium.at(size, size + 5) == medium.at(size + 5, size + 9) == b""
        assert [wanted for _, wanted in store.asked] == [
            f"bytes={first + 70000}-{first + 70009}",
            f"bytes={first + size - 5}-{first + size - 1}",
        ]
    store.failing["long.wav"] = [503] * 99
    with pytest.raises(SourceUnavailable, match=r"long\.wav cannot be read at the moment"):
        whole.at(80000, 80010)
    assert isinstance(whole.failure, SourceUnavailable)


def test_what_fails_ahead_fails_by_name_when_it_is_needed(store: FarStore) -> None:
    """A thread's error is nobody's: whoever needs the medium asks again, and is told."""
    write(store, 3)
    store.failing["1.jpg"] = [503] * 99
    reader = reader_of(store)
    media = files_of(reader, "0.jpg", "1.jpg", "2.jpg", "gone.jpg")

    reader.fetching.ask(media, now=False)
    assert len(media[0].read()) == len(media[2].read()) == 1000
    with pytest.raises(SourceUnavailable, match=r"/1\.jpg cannot be read at the moment: .*503"):
        media[1].read()
    with pytest.raises(BadItem, match=r"/gone\.jpg is not there"):
        media[3].read()
    assert isinstance(media[1].failure, SourceUnavailable)

    store.failing.clear()
    assert len(media[1].read()) == 1000
    assert media[1].failure is None


def test_a_file_that_changes_between_two_looks_is_refused(store: FarStore, tmp_path: Path) -> None:
    """Of a web server only names are known, but one medium is of one version."""
    (store.folder / "0.jpg").write_bytes(b"a" * (2 * HEAD_BYTES))
    [medium] = files_of(reader_of(store), "0.jpg")
    assert medium.head(10) == b"a" * 10

    (store.folder / "0.jpg").write_bytes(b"b" * (2 * HEAD_BYTES))

    with pytest.raises(SourceChanged, match=r"0\.jpg changed since the job began"):
        medium.read()


def test_bytes_that_are_too_many_are_not_read(store: FarStore) -> None:
    """Nor are those that an item says are there, and are not."""
    (store.folder / "0.jpg").write_bytes(b"a" * 5000)
    reader = reader_of(store, max_file_bytes=4000)
    whole, part, beyond = files_of(
        reader,
        "0.jpg",
        {"path": "0.jpg", "offset": 10, "length": 4001},
        {"path": "0.jpg", "offset": 4000, "length": 1001},
    )

    for medium in (whole, part):
        with pytest.raises(BadItem, match=r"bytes or more, and max_file_bytes of media is 4,000"):
            medium.read()
    with pytest.raises(
        BadItem, match=r"0\.jpg has 5,000 bytes, and the item names 1,001 b.* byte 4,000 on"
    ):
        beyond.read()


def test_what_is_larger_than_expected_waits_for_room(store: FarStore) -> None:
    """Of a medium of which nobody knows the size a mebibyte comes; the rest has to fit."""
    (store.folder / "large.jpg").write_bytes(b"l" * (3 * FIRST_BYTES))
    names = write(store, 3, 500_000)
    reader = reader_of(store, ahead_bytes=2 * FIRST_BYTES, requests=4)
    media = files_of(reader, names[0], "large.jpg", *names[1:])

    reader.fetching.ask(media[:1], now=False)
    eventually(lambda: reader.fetching.held_bytes == 500_000, 60.0, "the first is held")
    reader.fetching.ask(media[1:], now=False)
    eventually(lambda: len(store.asked) == 2, 60.0, "the large one was asked for")
    eventually(lambda: reader.fetching.held_bytes == 500_000, 60.0, "it has no room")

    assert bytes(media[1].read()) == b"l" * (3 * FIRST_BYTES)
    assert [len(medium.read()) for medium in (media[0], *media[2:])] == [500_000] * 3
    eventually(lambda: reader.fetching.held_bytes == 0, 60.0, "all were taken")
