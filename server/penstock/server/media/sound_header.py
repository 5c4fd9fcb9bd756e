"""What a file of sound is, from its first bytes: sample rate, channels, and how long it is.

A point is one value per channel: what people of sound call a sample, a word that is taken here.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from penstock.server.media.bad_sound import BadSound
from penstock.server.media.mp3_frames import DELAY, find_tag, walk_frames
from penstock.server.media.ogg_pages import last_page, read_page
from penstock.server.media.parts import MediumParts

_ENCODINGS = {
    (1, 8): "PCM_U8",
    (1, 16): "PCM_16",
    (1, 24): "PCM_24",
    (1, 32): "PCM_32",
    (3, 32): "FLOAT",
    (3, 64): "DOUBLE",
    (6, 8): "ALAW",
    (7, 8): "ULAW",
}
"""Of WAV, by format tag and bits: what libsndfile calls it."""

_EXTENSIBLE, _GUID_TAIL = 0xFFFE, bytes.fromhex("000000001000800000aa00389b71")
_MAX_CHUNKS = 10_000
"""Of a wav, and blocks of a flac, before its sound."""

_MAX_TAGS = 100
"""ID3 tags before a sound: an empty one has ten bytes, and millions of them would take minutes."""

_MAX_RATE, _MAX_CHANNELS = 1_000_000, 256
_UNKNOWN = 0xFFFFFFFF
"""The size of a chunk that was written before its end was known."""


@dataclass(frozen=True)
class SoundHeader:
    """What a file says of its sound before any of it is decoded.

    Attributes:
        format: `wav`, `flac`, `ogg` or `mp3`.
        rate: Points in a second.
        channels: Values in a point.
        points: How many there are.
        encoding: Of a point in a `wav`, as libsndfile calls it; of an `ogg`, the codec.
        start: The first byte of what is decoded: behind tags, of a `wav` the first point.
        stop: Of a `wav`, the byte after its last one; of others 0: they end where their file does.

    Glossary:
        point: One value for each channel of a sound, of which there are `sample_rate` in a second.
            People of sound call it a sample.
    """

    format: str
    rate: int
    channels: int
    points: int
    encoding: str = ""
    start: int = 0
    stop: int = 0


def read_header(parts: MediumParts) -> SoundHeader:
    """Return what a file says of its sound.

    Of a `wav` and a `flac` the first bytes are read, of an `ogg` also the last ones, and of an
    `mp3` all where its first frame does not say how many there are.

    Args:
        parts: The file.

    Raises:
        BadSound: It is none of these formats, or contradicts itself.
    """
    start = _after_id3(parts)
    magic = parts.near(start, start + 4)
    if magic in (b"RIFF", b"RF64"):
        found = _read_wav(parts, start)
    elif magic == b"fLaC":
        found = _read_flac(parts, start)
    elif magic == b"OggS":
        found = _read_ogg(parts, start)
    elif len(magic) == 4 and magic[0] == 0xFF and magic[1] >= 0xE0:
        found = _read_mp3(parts, start)
    elif not magic:
        raise BadSound("it is empty" if not start else "it ends with its tags")
    else:
        raise BadSound(f"it is not wav, flac, ogg or mp3: it begins with {magic!r}")
    if not 0 < found.rate <= _MAX_RATE or not 0 < found.channels <= _MAX_CHANNELS:
        raise BadSound(f"its header says {found.rate:,} Hz and {found.channels} channels")
    if found.points == 0:
        raise BadSound("it holds no sound: its length is 0")
    return found


def _after_id3(parts: MediumParts) -> int:
    """Return where tags at the beginning end; players put them before any format."""
    start = 0
    for _ in range(_MAX_TAGS):
        head = parts.near(start, start + 10)
        if head[:3] != b"ID3" or len(head) < 10:
            return start
        sizes = head[6:10]
        if max(sizes) > 0x7F:
            raise BadSound("its ID3 tag has a size that cannot be")
        size = sizes[0] << 21 | sizes[1] << 14 | sizes[2] << 7 | sizes[3]
        start += 10 + size + (10 if head[5] & 0x10 else 0)
    raise BadSound(f"it has {_MAX_TAGS} ID3 tags and more before any sound")


# --- wav ---


def _read_wav(parts: MediumParts, start: int) -> SoundHeader:
    if parts.near(start + 8, start + 12) != b"WAVE":
        raise BadSound("it is RIFF, and not a wav")
    at, form, large = start + 12, None, None
    for _ in range(_MAX_CHUNKS):
        head = parts.near(at, at + 8)
        if len(head) < 8:
            raise BadSound("it is a wav without sound: it ends before its data chunk")
        name, size = struct.unpack("<4sI", head)
        if name == b"ds64":
            large = struct.unpack("<Q", _whole(parts, at + 16, 8))[0]
        elif name == b"fmt ":
            form = _read_format(_whole(parts, at + 8, min(size, 40)))
        elif name == b"data":
            break
        at += 8 + size + size % 2
    else:
        raise BadSound(f"it has more than {_MAX_CHUNKS:,} chunks and no sound among them")
    if form is None:
        raise BadSound("its sound comes before the chunk that says how it is written")
    rate, channels, width, encoding = form
    first = at + 8
    if size == _UNKNOWN and large is not None:
        size = large
    elif size == _UNKNOWN:  # written to a pipe: it goes up to the end of the file
        size = (parts.size() - first) // (width * channels) * (width * channels)
    if size % (width * channels):
        raise BadSound(
            f"its sound has {size:,} bytes, and a point has {width * channels}: it ends within one"
        )
    points = size // (width * channels)
    return SoundHeader("wav", rate, channels, points, encoding, first, first + size)


def _read_format(data: bytes) -> tuple[int, int, int, str]:
    """Return rate, channels, bytes of a value, and encoding."""
    if len(data) < 16:
        raise BadSound("the chunk that says how its sound is written is too short")
    tag, channels, rate, _, align, bits = struct.unpack("<HHIIHH", data[:16])
    if tag == _EXTENSIBLE:
        if len(data) < 40 or data[26:40] != _GUID_TAIL:
            raise BadSound("its extensible format is one that nobody here knows")
        tag = int.from_bytes(data[24:26], "little")
    encoding = _ENCODINGS.get((tag, bits))
    if encoding is None:
        raise BadSound(
            f"its wav format is {tag:#06x} with {bits} bits: PCM of 8, 16, 24 or 32 bits, float of "
            "32 or 64, A-law and mu-law are read"
        )
    if not channels or align != channels * bits // 8:
        raise BadSound(f"its header says {channels} channels of {bits} bits in {align} bytes")
    return rate, channels, bits // 8, encoding


# --- flac ---


def _read_flac(parts: MediumParts, start: int) -> SoundHeader:
    head = _whole(parts, start + 4, 4 + 34)
    if head[0] & 0x7F or head[1:4] != b"\x00\x00\x22":
        raise BadSound("it is flac, and does not begin with the block that describes it")
    packed = int.from_bytes(head[14:22], "big")
    rate, channels = packed >> 44, (packed >> 41 & 7) + 1
    points = packed & (1 << 36) - 1
    if not points:
        raise BadSound(
            "its header does not say how long it is, as where flac is written to a pipe: write it "
            "to a file"
        )
    return SoundHeader("flac", rate, channels, points, "", start)


def check_blocks(parts: MediumParts, start: int) -> None:
    """Refuse a flac whose sound does not begin after a bounded number of blocks.

    They hold tags and pictures, and its decoder reads all of them.

    Args:
        parts: The file.
        start: Where it begins, after tags.

    Raises:
        BadSound: It does not.
    """
    at = start + 4
    for _ in range(_MAX_CHUNKS):
        head = _whole(parts, at, 4)
        at += 4 + int.from_bytes(head[1:], "big")
        if head[0] & 0x80:
            return
    raise BadSound(f"it has more than {_MAX_CHUNKS:,} blocks before its sound")


# --- ogg ---


def _read_ogg(parts: MediumParts, start: int) -> SoundHeader:
    first = read_page(parts.near(start, start + (1 << 16)), 0)
    if not first.begins:
        raise BadSound("its first ogg page is not the beginning of a stream")
    packet = first.packet
    if packet[:7] == b"\x01vorbis" and len(packet) >= 16:
        version, channels, rate = struct.unpack("<IBI", packet[7:16])
        if version:
            raise BadSound(f"it is Vorbis of version {version}, and only 0 is known")
        before, each, codec = 0, 1, "vorbis"
    elif packet[:8] == b"OpusHead" and len(packet) >= 19:
        channels, before, original = struct.unpack("<BHI", packet[9:16])
        # libsndfile gives Opus at the lowest of its rates that holds the original one.
        rate = next((one for one in (8000, 12000, 16000, 24000) if 0 < original <= one), 48000)
        each, codec = 48000 // rate, "opus"
    else:
        raise BadSound(f"its ogg stream is neither Vorbis nor Opus: it begins with {packet[:8]!r}")
    last = last_page(parts, first.serial)
    points = max(0, last - before) // each
    return SoundHeader("ogg", rate, channels, points, codec, start)


# --- mp3 ---


def _read_mp3(parts: MediumParts, start: int) -> SoundHeader:
    frame, tag = find_tag(parts.near(start, start + (1 << 12)))
    if tag is None or tag.points is None:
        points = max(0, walk_frames(parts.whole(), start).frames * frame.points - DELAY)
    else:
        points = tag.points
    return SoundHeader("mp3", frame.rate, frame.channels, points, "", start)


def _whole(parts: MediumParts, start: int, count: int) -> bytes:
    found = parts.near(start, start + count)
    if len(found) < count:
        raise BadSound("it ends within its header")
    return found
