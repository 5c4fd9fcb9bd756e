"""Sounds that were made to be slow, or that claim to be far more than they are."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.media.bad_sound import BadSound
from penstock.server.media.medium import HEAD_BYTES, HeldMedium, Medium
from penstock.server.media.ogg_pages import _checksum
from penstock.server.media.parts import MAX_BLOCKS, MediumParts
from penstock.server.media.sound_header import read_header
from penstock.server.roles import ProcessContext, SoundProcessor
from sounds import drawn, written

FORM = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
SOUND = b"data" + struct.pack("<I", 2000) + bytes(2000)


class FarSound(Medium):
    """A file behind a store that counts its requests."""

    def __init__(self, data: bytes) -> None:
        self.name, self.data, self.requests = "far", data, 0

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return the first bytes."""
        self.requests += 1
        return self.data[:count]

    def read(self) -> bytes:
        """Refuse: a header is not the whole."""
        raise AssertionError("the whole file was read")

    def size(self) -> int:
        """Return its bytes, as the reply to the first request told them."""
        return len(self.data)

    def at(self, start: int, stop: int) -> bytes:
        """Return a part."""
        self.requests += 1
        return self.data[start:stop]


def riff(*chunks: bytes) -> bytes:
    body = b"WAVE" + b"".join(chunks)
    return b"RIFF" + struct.pack("<I", len(body)) + body


def test_many_small_chunks_are_read_by_blocks() -> None:
    """A wav of 9,000 of them beyond its first 64 KiB takes a request for each 64 KiB more."""
    notes = (b"note" + struct.pack("<I", 12) + bytes(12)) * 9_000
    far = FarSound(riff(notes, FORM, SOUND))

    assert read_header(MediumParts(far)).points == 1000

    assert far.requests <= 2 + len(far.data) // HEAD_BYTES


SPREAD = 70_000

MADE_SLOW: dict[str, Callable[[], bytes]] = {
    "wav of chunks": lambda: riff((b"note" + struct.pack("<I", SPREAD) + bytes(SPREAD)) * 200),
    "wav of empty chunks": lambda: riff(b"note\0\0\0\0" * 200_000),
    "tags": lambda: (b"ID3\x04\0\0" + bytes([0, 4, 0, 0]) + bytes(4 << 14)) * 150,
}


@pytest.mark.parametrize("kind", MADE_SLOW)
def test_a_header_in_many_places_is_refused(kind: str) -> None:
    """After a bounded number of requests."""
    far = FarSound(MADE_SLOW[kind]())

    with pytest.raises(
        BadSound, match=r"more than 100 places|more than 10,000 chunks|100 ID3 tags"
    ):
        read_header(MediumParts(far))

    assert far.requests <= MAX_BLOCKS + 1


def flac_of(block: bytes, count: int) -> bytes:
    """Return a flac with more blocks before its sound."""
    data = written(drawn(0.5, 8000), 8000, "flac")
    return data[:4] + bytes([data[4] & 0x7F]) + data[5:42] + block * count + data[42:]


def test_blocks_of_a_flac_are_bounded() -> None:
    """A few large ones are read over; nobody has thousands of tags."""
    padding = b"\x01" + (60_000).to_bytes(3, "big") + bytes(60_000)
    processor = SoundProcessor(start_s=0, stop_s="end")
    raw = {"audio": "a.flac", "end": 0.25}

    def processed(data: bytes) -> Any:
        context = ProcessContext(ItemRef("main", 0, 0), 0, [FarSound(data)])
        return processor.process(raw, context)["sound"]

    assert len(processed(flac_of(padding, 3))) == 2000
    with pytest.raises(BadSound, match="more than 10,000 blocks before its sound"):
        processed(flac_of(b"\x01\0\0\0", 20_000))
    with pytest.raises(BadSound, match="more than 100 places"):
        processed(flac_of(b"\x01" + (SPREAD).to_bytes(3, "big") + bytes(SPREAD), 200))


def years_of_wav() -> bytes:
    return riff(FORM, b"data\xfe\xff\xff\xff" + bytes(2000))


def years_of_rf64() -> bytes:
    sizes = b"ds64" + struct.pack("<IQQQI", 28, 1 << 62, 1 << 62, 1 << 61, 0)
    return b"RF64\xff\xff\xff\xffWAVE" + sizes + FORM + b"data\xff\xff\xff\xff" + bytes(2000)


def many_channels() -> bytes:
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 0xFFFF, 8000, 16000, 0xFFFE, 16)
    return riff(form, SOUND)


def flac_saying(rate: int = 8000, channels: int = 1, points: int = 4000) -> bytes:
    data = bytearray(written(drawn(0.5, 8000), 8000, "flac"))
    data[18:26] = (rate << 44 | channels - 1 << 41 | 15 << 36 | points).to_bytes(8, "big")
    return bytes(data)


def ogg_saying(position: int, channels: int | None = None, rate: int | None = None) -> bytes:
    """Return an ogg whose last page, or first one, says something else, with right checksums."""
    data = bytearray(written(drawn(0.5, 8000), 8000, "ogg"))
    last = data.rfind(b"OggS")
    data[last + 6 : last + 14] = struct.pack("<q", position)
    second = data.index(b"OggS", 4)
    if channels is not None:
        data[28 + 11] = channels
    if rate is not None:
        data[28 + 12 : 28 + 16] = struct.pack("<I", rate)
    for start, stop in ((0, second), (last, len(data))):
        page = data[start:stop]
        page[22:26] = bytes(4)
        data[start + 22 : start + 26] = struct.pack("<I", _checksum(bytes(page)))
    return bytes(data)


def mp3_saying(frames: int) -> bytes:
    data = bytearray(written(drawn(0.5, 44100), 44100, "mp3"))
    at = data.index(b"Info" if b"Info" in data[:200] else b"Xing") + 8
    data[at : at + 4] = frames.to_bytes(4, "big")
    return bytes(data)


CLAIMS: dict[str, Callable[[], bytes]] = {
    "wav of years": years_of_wav,
    "RF64 of years": years_of_rf64,
    "wav of many channels": many_channels,
    "wav without a rate": lambda: riff(FORM[:12] + bytes(4) + FORM[16:], SOUND),
    "flac of years": lambda: flac_saying(points=(1 << 36) - 1),
    "flac of years and channels": lambda: flac_saying(channels=8, points=(1 << 36) - 1),
    "flac without a rate": lambda: flac_saying(rate=0),
    "ogg of years": lambda: ogg_saying(1 << 62),
    "ogg without channels": lambda: ogg_saying(4000, channels=0),
    "ogg without a rate": lambda: ogg_saying(4000, rate=0),
    "ogg of a large rate": lambda: ogg_saying(4000, rate=(1 << 32) - 1),
    "mp3 of years": lambda: mp3_saying((1 << 32) - 1),
}


@pytest.mark.parametrize("sample_rate", [None, 16000])
@pytest.mark.parametrize("kind", CLAIMS)
def test_what_a_header_claims_takes_no_memory(kind: str, sample_rate: int | None) -> None:
    """Years of sound, or any number of channels: an error of the item, before memory is taken."""
    data = CLAIMS[kind]()
    processor = SoundProcessor(sample_rate=sample_rate)
    medium = HeldMedium("it", data)
    tracemalloc.start()
    try:
        with pytest.raises(BadSound, match="it: "):
            processor.process({"audio": data}, ProcessContext(ItemRef("main", 0, 0), 0, [medium]))
        with contextlib.suppress(BadSound):
            processor.size({"audio": data}, [medium])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
