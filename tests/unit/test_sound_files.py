"""Files of sound: what headers tell, what is decoded, and what is refused."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile

from penstock.server.media import mp3_frames
from penstock.server.media.bad_sound import BadSound
from penstock.server.media.medium import HEAD_BYTES, HeldMedium, Medium
from penstock.server.media.parts import MediumParts
from penstock.server.media.sound_decoding import decode
from penstock.server.media.sound_header import SoundHeader, read_header
from penstock.wire.errors import SourceUnavailable
from sounds import FORMATS, audiodata, decoded, drawn, written

every_format = pytest.mark.parametrize("kind", FORMATS)


class Stored(Medium):
    """A file of which parts can be read, as behind a URL.

    Attributes:
        given: The bytes that were asked for, all requests together.
        read_whole: How often the whole was.
    """

    def __init__(self, data: bytes, fails_after: int | None = None) -> None:
        self.name, self.data, self.given, self.read_whole = "stored", data, 0, 0
        self.fails_after = fails_after

    def head(self, count: int = HEAD_BYTES) -> bytes:
        """Return the first bytes."""
        self.given += min(count, len(self.data))
        return self.data[:count]

    def read(self) -> bytes:
        """Return all of them."""
        self.read_whole += 1
        self.given += len(self.data)
        return self.data

    def size(self) -> int:
        """Return how many there are."""
        return len(self.data)

    def at(self, start: int, stop: int) -> bytes:
        """Return some of them."""
        if self.fails_after is not None and stop > self.fails_after:
            raise SourceUnavailable("the store is away", item="stored")
        found = self.data[start:stop]
        self.given += len(found)
        return found


def parts_of(data: bytes) -> MediumParts:
    return MediumParts(HeldMedium("held", data))


def header_of(data: bytes) -> SoundHeader:
    return read_header(parts_of(data))


def whole(data: bytes, *, mono: bool = False) -> np.ndarray:
    parts = parts_of(data)
    header = read_header(parts)
    return decode(parts, header, 0, header.points, mono=mono)


def refusal(data: bytes) -> str:
    with pytest.raises(BadSound) as caught:
        whole(data)
    return str(caught.value)


# --- what is read ---


@every_format
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("rate", [8000, 16000, 48000])
def test_headers_tell_what_soundfile_finds(kind: str, channels: int, rate: int) -> None:
    """Rate, channels and points, without decoding; and each point is soundfile's, to the bit."""
    data = written(drawn(0.7, rate, channels), rate, kind)

    header = header_of(data)

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        assert (header.rate, header.channels, header.points) == (
            file.samplerate,
            file.channels,
            file.frames,
        )
    assert np.array_equal(whole(data), decoded(data))


@pytest.mark.skipif(not audiodata(), reason="this Python has no files of its tests")
def test_pythons_own_files() -> None:
    """Of 8 to 32 bits, with chunks before the sound: each is the same sound."""
    found = {path.stem: whole(path.read_bytes()) for path in audiodata()}

    for path in audiodata():
        assert np.array_equal(found[path.stem], decoded(path.read_bytes())), path.name
    assert np.abs(found["pluck-pcm32"] - found["pluck-pcm16"]).max() < 2**-12


@every_format
def test_a_span_is_that_of_the_whole_file(kind: str) -> None:
    """In every format: those that cannot seek exactly are decoded from their beginning."""
    data = written(drawn(3, 22050 if kind != "opus" else 24000, 2), 24000, kind)
    everything = whole(data)
    count = len(everything)

    for start, stop in ((0, 1), (1, 2), (1151, 1154), (count // 3, count // 2), (count - 5, count)):
        parts = parts_of(data)
        found = decode(parts, read_header(parts), start, stop, mono=False)
        assert np.array_equal(found, everything[start:stop]), (start, stop)


def test_soundfile_alone_would_give_other_spans_of_an_mp3() -> None:
    """What the test before guards against is real: after a seek a decoder gives other points."""
    data = written(drawn(10, 48000), 48000, "mp3")
    everything = whole(data)

    with soundfile.SoundFile(io.BytesIO(data)) as file:
        blocks = [file.read(4096, dtype="float32", always_2d=True) for _ in range(50)]

    assert not np.array_equal(np.concatenate(blocks), everything[: 50 * 4096])


def test_mono_is_the_mean_of_all_channels() -> None:
    """Of any number of them, and whole blocks of it; one channel stays as it is."""
    for channels in (1, 2, 5):
        data = written(drawn(2, 48000, channels), 48000, "flac")
        separate = whole(data).astype(np.float64)

        mixed = whole(data, mono=True)

        assert mixed.shape == (96000,)
        assert np.array_equal(mixed, (separate.sum(axis=1) / channels).astype(np.float32))


def test_a_span_of_a_long_file_is_read_alone() -> None:
    """Of a wav and a flac: 1 MiB at most, of several; of an mp3 everything, once."""
    points = drawn(40, 24000, 2)
    for kind, most in (("wav", 1 << 20), ("flac", 1 << 20), ("mp3", None)):
        data = written(points, 24000, kind)
        medium = Stored(data)
        parts = MediumParts(medium)
        header = read_header(parts)
        found = decode(parts, header, 750_000, 774_000, mono=False)

        assert np.array_equal(found, decoded(data)[750_000:774_000]), kind
        if most is None:
            assert medium.read_whole == 1
        else:
            assert (medium.read_whole, medium.given < most < len(data)) == (0, True), kind


def test_an_mp3_and_an_ogg_are_sized_by_parts() -> None:
    """By their first bytes, of an ogg by its last as well; the whole is not read."""
    for kind in ("mp3", "ogg", "opus"):
        data = written(drawn(12, 48000, 2), 48000, kind)
        medium = Stored(data)

        header = read_header(MediumParts(medium))

        assert header.points == 12 * 48000
        assert (medium.read_whole, medium.given < 140_000 < len(data)) == (0, True)


def test_what_a_store_says_passes_through_the_decoder() -> None:
    """A store that goes away while libsndfile reads is that, and not a damaged file."""
    for kind in ("wav", "flac"):
        data = written(drawn(60, 24000, 2), 24000, kind)
        parts = MediumParts(Stored(data, fails_after=len(data) // 2))
        header = read_header(parts)

        with pytest.raises(SourceUnavailable, match="the store is away"):
            decode(parts, header, 1_000_000, 1_400_000, mono=False)


# --- forms of each format ---


def chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


FORM = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
SOUND = np.arange(-500, 500, dtype="<i2").tobytes()


def riff(*chunks: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + sum(map(len, chunks))) + b"WAVE" + b"".join(chunks)


def test_a_wav_may_have_other_chunks_and_tags() -> None:
    """Before and after its sound, of odd sizes, more of them than a first read holds."""
    plain = whole(riff(chunk(b"fmt ", FORM), chunk(b"data", SOUND)))
    notes = chunk(b"LIST", b"x" * 99_999)

    for data in (
        riff(notes, chunk(b"fmt ", FORM + b"\0\0"), notes, chunk(b"data", SOUND), notes),
        b"ID3\x04\0\0\0\0\x01\0" + bytes(128) + riff(chunk(b"fmt ", FORM), chunk(b"data", SOUND)),
    ):
        assert np.array_equal(whole(data), plain)
    assert plain[0, 0] == -500 / 32768


def test_thousands_of_empty_tags_are_refused() -> None:
    """Each is looked at by itself, and a file may hold millions."""
    assert "100 ID3 tags and more" in refusal(b"ID3\4\0\0\0\0\0\0" * 5_000)


def test_a_wav_that_was_written_to_a_pipe_ends_with_its_file() -> None:
    """Its size is not known; a last point of which a part is missing does not count."""
    data = bytearray(riff(chunk(b"fmt ", FORM), chunk(b"data", SOUND)) + b"\1")
    at = data.index(b"data")
    data[at + 4 : at + 8] = b"\xff" * 4

    assert len(whole(bytes(data))) == 1000


def test_a_wav_larger_than_4_gib_is_found_by_its_64_bits() -> None:
    """RF64 says its size elsewhere; here it is small, and says so there."""
    sizes = struct.pack("<QQQI", 0, len(SOUND), 1000, 0)
    body = chunk(b"ds64", sizes) + chunk(b"fmt ", FORM) + b"data" + b"\xff" * 4 + SOUND
    data = b"RF64" + b"\xff" * 4 + b"WAVE" + body

    assert len(whole(data)) == 1000


def without_tag(data: bytes) -> bytes:
    """Return an mp3 without the first frame, which says how many follow."""
    frame, tag = mp3_frames.find_tag(data[:4096])
    assert tag is not None
    return data[frame.size :]


@pytest.mark.parametrize("rate", [44100, 48000, 32000, 22050, 16000, 11025, 8000])
@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE", "AVERAGE"])
@pytest.mark.parametrize("channels", [1, 2])
def test_an_mp3_without_a_tag_is_decoded_to_its_end(rate: int, mode: str, channels: int) -> None:
    """Its frames are counted: libsndfile guesses from the first one, and cut some to a third.

    With the tag a decoder leaves out what an encoder puts around the sound; without, its own lag.
    """
    points = drawn(3, rate, channels)
    points[: len(points) // 2] *= 0.01
    tagged = written(points, rate, "mp3", bitrate_mode=mode, compression_level=0.5)
    bare = without_tag(tagged)
    frame, tag = mp3_frames.find_tag(tagged[:4096])
    assert tag is not None
    assert tag.frames is not None

    found = whole(bare)

    assert header_of(tagged).points == len(whole(tagged)) == len(points)
    assert header_of(bare).points == len(found) == tag.frames * frame.points - 529
    lag = 576
    assert np.abs(found[lag : lag + 1000] - whole(tagged)[:1000]).max() < 1e-4


def test_an_mp3_with_tags_around_it() -> None:
    """ID3 of both versions and APE, padding between: the points are the same."""
    data = written(drawn(2, 44100), 44100, "mp3")
    before = b"ID3\x04\0\0\0\0\x02\0" + bytes(256)
    ape = b"APETAGEX" + struct.pack("<IIII", 2000, 32, 0, 0) + bytes(8)
    after = bytes(100) + ape + b"TAG" + bytes(125)

    assert np.array_equal(whole(before + data + after), whole(data))
    assert np.array_equal(whole(before + without_tag(data) + after), whole(without_tag(data)))


def test_an_mp3_with_a_tag_of_another_encoder() -> None:
    """VBRI says how many frames follow; it is taken at its word if they are there."""
    data = written(drawn(2, 44100), 44100, "mp3")
    frame, tag = mp3_frames.find_tag(data[:4096])
    assert tag is not None
    assert tag.frames is not None
    vbri = bytearray(data[:4] + bytes(frame.size - 4))
    vbri[36:40] = b"VBRI"
    vbri[50:54] = struct.pack(">I", tag.frames)
    made = bytes(vbri) + without_tag(data)

    assert header_of(made).points == tag.frames * 1152 - 529
    assert np.array_equal(whole(made), whole(without_tag(data)))


# --- what is refused ---


@every_format
@pytest.mark.parametrize("left", [0.98, 0.5, 0.1])
def test_a_file_that_was_cut_is_refused(kind: str, left: float) -> None:
    """Wherever: libsndfile alone gives what there is of a wav, an ogg or an mp3."""
    data = written(drawn(2, 24000, 2), 24000, kind)

    assert "cut" in refusal(data[: int(left * len(data))])


@pytest.mark.parametrize("kind", ["flac", "flac of 24 bits", "ogg", "opus"])
def test_a_changed_byte_is_noticed_where_there_are_checksums(kind: str) -> None:
    """Anywhere in the sound: silence, or a gap, in its place would go unnoticed."""
    data = written(drawn(2, 24000), 24000, kind)
    for place in np.linspace(len(data) // 5, len(data) - 10, 25).astype(int):
        damaged = bytearray(data)
        damaged[place] ^= 0x55

        assert "damaged" in refusal(bytes(damaged)) or "ogg" in refusal(bytes(damaged)), place


def test_a_stretch_that_is_missing_is_noticed() -> None:
    """In the middle of each format that has a structure there."""
    for kind in ("wav", "flac", "ogg", "opus", "mp3"):
        data = written(drawn(4, 24000, 2), 24000, kind)
        middle = len(data) // 2

        assert refusal(data[:middle] + data[middle + 3001 :]), kind


def test_headers_that_lie_are_refused() -> None:
    """About how much follows, or what it is."""
    mp3 = bytearray(written(drawn(2, 44100), 44100, "mp3"))
    at = mp3.index(b"Info" if b"Info" in mp3[:200] else b"Xing") + 11
    mp3[at] += 1
    flac = bytearray(written(drawn(2, 16000), 16000, "flac"))
    flac[24] += 1

    flac_to_a_pipe = bytearray(flac)
    flac_to_a_pipe[21] &= 0xF0
    flac_to_a_pipe[22:26] = bytes(4)

    assert "does not say how long it is" in refusal(bytes(flac_to_a_pipe))
    assert "mp3 frames, and it has" in refusal(bytes(mp3))
    assert "points" in refusal(bytes(flac)) or "damaged" in refusal(bytes(flac))
    long = riff(chunk(b"fmt ", FORM), b"data" + struct.pack("<I", 3000) + SOUND)
    assert "says 1,500 points, and it gives 1,000" in refusal(long)


def form(**changes: int) -> bytes:
    values = {"tag": 1, "channels": 1, "rate": 8000, "bytes": 16000, "align": 2, "bits": 16}
    return chunk(b"fmt ", struct.pack("<HHIIHH", *{**values, **changes}.values()))


DATA = chunk(b"data", SOUND)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "it is empty"),
        (b"\x89PNG\r\n" + bytes(100), "not wav, flac, ogg or mp3: it begins with b'\\\\x89PNG'"),
        (b"RIFF\0\0\0\0AVI " + bytes(100), "RIFF, and not a wav"),
        (riff(form()), "ends before its data chunk"),
        (riff(DATA, form()), "before the chunk that says how"),
        (riff(form(), chunk(b"data", b"")), "its length is 0"),
        (riff(form(), chunk(b"data", b"123")), "it ends within one"),
        (riff(form(tag=0x11, bits=4), DATA), "wav format is 0x0011 with 4 bits"),
        (riff(form(channels=0), DATA), "0 channels"),
        (riff(form(align=4), DATA), "1 channels of 16 bits in 4 bytes"),
        (riff(form(rate=0), DATA), "0 Hz"),
        (riff(form(rate=2**32 - 1), DATA), "4,294,967,295 Hz"),
        (b"fLaC\x04\0\0\x22" + bytes(40), "does not begin with the block"),
        (b"OggS" + bytes(100), "checksum"),
        (b"\xff\xfd\x90\x00" + bytes(2000), "another layer"),
        (b"\xff\xfb\xf0\x00" + bytes(2000), "bitrate"),
        (b"ID3\x04\0\0\xff\0\0\0" + bytes(20), "ID3 tag has a size"),
        (b"ID3\x04\0\0\0\0\0\x05" + bytes(5), "ends with its tags"),
    ],
)  # fmt: skip
def test_what_cannot_be_sound_is_said(data: bytes, said: str) -> None:
    with pytest.raises(BadSound, match=said):
        whole(data)


def test_values_that_are_no_numbers_are_refused() -> None:
    """A float file may hold anything: one of them would end a training run."""
    for value in (np.nan, np.inf, -np.inf, 1e30):
        points = drawn(0.5, 8000)
        points[1234] = value

        assert "not numbers, or beyond" in refusal(written(points, 8000, "wav of floats"))


def change_pages(data: bytes, change: Callable[[list[bytes]], list[bytes]]) -> bytes:
    from penstock.server.media.ogg_pages import read_page

    pages, at = [], 0
    while at < len(data):
        size = read_page(data, at).size
        pages.append(data[at : at + size])
        at += size
    return b"".join(change(pages))


CHANGES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "a page is missing": (lambda pages: pages[:5] + pages[6:], "pages are missing"),
    "its end is missing": (lambda pages: pages[:-1], "does not end the stream: it was cut"),
    "two streams": (lambda pages: pages + pages, "goes on after the end|several ogg streams"),
    "bytes after it": (lambda pages: [*pages, b"more"], "does not end with an ogg page"),
}


@pytest.mark.parametrize(("change", "said"), CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("kind", ["ogg", "opus"])
def test_pages_of_an_ogg_are_all_there(kind: str, change: Any, said: str) -> None:
    """Each page has a number and a checksum, and one says that it is the last."""
    data = written(drawn(8, 48000, 2), 48000, kind)
    assert change_pages(data, lambda pages: pages) == data

    with pytest.raises(BadSound, match=said):
        whole(change_pages(data, change))
