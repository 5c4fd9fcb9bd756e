"""The frames of an MP3 file: how many there are, and that nothing is missing between them.

The decoder that libsndfile uses guesses the length of a file with a varying bitrate from its first
frame, where no tag (Xing, Info) tells it: the end of the sound would be missing without a word. It
also goes on after damage as if nothing had been there. So frames are counted here, and what the
decoder gets always begins with a tag that says how many follow.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock.server.media.bad_sound import BadSound

_KBITS = {
    3: (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
    2: (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0),
}
"""Bitrates of layer III by index: of MPEG 1, and of MPEG 2 and 2.5. 0 = free or reserved."""

_RATES = (44100, 48000, 32000)
_LOWERED = {3: 0, 2: 1, 0: 2}
"""How often the rate is halved, by the two bits of the version: MPEG 1, 2 and 2.5."""

DELAY = 529
"""Points by which a decoder lags: it leaves them out, and has so many less at the end."""


class Frame(NamedTuple):
    """What the first four bytes of a frame say.

    Attributes:
        size: Its bytes.
        rate: Points in a second.
        channels: Values in a point.
        points: How many it holds.
        side: Bytes between its four and its data.
    """

    size: int
    rate: int
    channels: int
    points: int
    side: int


class Tag(NamedTuple):
    """What the first frame says, if it is no sound.

    Attributes:
        frames: How many follow; None = it does not say.
        points: How many points they give when they are decoded; None as well.
        size: Bytes of the frame.
    """

    frames: int | None
    points: int | None
    size: int


class Walked(NamedTuple):
    """What was found along all frames.

    Attributes:
        frames: How many hold sound.
        first: Where the first of them begins.
        stop: Where the last one ends.
    """

    frames: int
    first: int
    stop: int


def read_frame(word: int, at: int) -> Frame:
    """Return what the first four bytes of a frame say.

    Raises:
        BadSound: They are not those of a frame of layer III.
    """
    version, layer = word >> 19 & 3, word >> 17 & 3
    bitrate, rate, padding = word >> 12 & 15, word >> 10 & 3, word >> 9 & 1
    if word >> 21 != 0x7FF or version == 1:
        raise BadSound(f"it has no mp3 frame at byte {at:,}, where one should begin")
    if layer != 1:
        raise BadSound("it is MPEG audio of another layer than III")
    kbits = _KBITS[3 if version == 3 else 2][bitrate]
    if not kbits or rate == 3:
        raise BadSound(
            f"its mp3 frame at byte {at:,} has a bitrate or a sample rate without a value"
        )
    hertz = _RATES[rate] >> _LOWERED[version]
    mono = (word >> 6 & 3) == 3
    points = 1152 if version == 3 else 576
    size = points // 8 * kbits * 1000 // hertz + padding
    side = (17 if mono else 32) if version == 3 else (9 if mono else 17)
    return Frame(size, hertz, 1 if mono else 2, points, side)


def find_tag(head: bytes) -> tuple[Frame, Tag | None]:
    """Return the first frame, and what it says of all if it is a tag.

    Args:
        head: The file from its first frame on; 4 KiB hold the largest frame.

    Raises:
        BadSound: It does not begin with a frame, or its tag cannot be.
    """
    if len(head) < 4:
        raise BadSound("it ends within its first mp3 frame")
    frame = read_frame(int.from_bytes(head[:4], "big"), 0)
    body = head[: frame.size]
    if body[36:40] == b"VBRI":
        frames = int.from_bytes(body[50:54], "big")
        return frame, Tag(frames, max(0, frames * frame.points - DELAY), frame.size)
    at = 4 + frame.side
    if body[at : at + 4] not in (b"Xing", b"Info"):
        return frame, None
    flags = int.from_bytes(body[at + 4 : at + 8], "big")
    at += 8
    if not flags & 1:
        return frame, Tag(None, None, frame.size)
    frames = int.from_bytes(body[at : at + 4], "big")
    at += 4 + (4 if flags & 2 else 0) + (100 if flags & 4 else 0) + (4 if flags & 8 else 0)
    encoder, delay, after = body[at : at + 24], 0, 0
    if len(encoder) == 24 and encoder[0]:  # LAME's part: what the encoder put before and after
        both = int.from_bytes(encoder[21:24], "big")
        delay, after = both >> 12, both & 0xFFF
    points = frames * frame.points
    points = min(points, points - after + DELAY) - delay - DELAY
    if points < 0:
        raise BadSound("its mp3 tag takes more points away than there are")
    return frame, Tag(frames, points, frame.size)


def walk_frames(data: memoryview, start: int) -> Walked:
    """Return how many frames a file has, after meeting each of them.

    Raises:
        BadSound: One is damaged or cut, or there are others than the tag says.
    """
    frame, tag = find_tag(bytes(data[start : start + (1 << 12)]))
    stop = _before_tags(data)
    first = start + (tag.size if tag else 0)
    at, count = first, 0
    while at + 4 <= stop:
        word = int.from_bytes(data[at : at + 4], "big")
        if not word and not bytes(data[at:stop]).strip(b"\0"):
            break  # padding
        found = read_frame(word, at)
        if found[1:4] != frame[1:4]:
            raise BadSound(f"its mp3 frame at byte {at:,} has another rate or other channels")
        if at + found.size > stop:
            raise BadSound("it ends within an mp3 frame: it was cut")
        at += found.size
        count += 1
    if tag is not None and tag.frames is not None and tag.frames != count:
        raise BadSound(
            f"its header says {tag.frames:,} mp3 frames, and it has {count:,}: it was cut, or its "
            "header is of another file"
        )
    return Walked(count, first, at)


def for_decoder(data: memoryview, start: int) -> bytes | memoryview:
    """Return what the decoder is given: a tag that says how many frames there are, and these.

    Args:
        data: The file.
        start: Where its first frame begins.

    Raises:
        BadSound: As `walk_frames`.
    """
    walked = walk_frames(data, start)
    _, tag = find_tag(bytes(data[start : start + (1 << 12)]))
    if (
        tag is not None
        and tag.frames is not None
        and bytes(data[start + 36 : start + 40]) != b"VBRI"
    ):
        return data[start : walked.stop]
    word = int.from_bytes(data[walked.first : walked.first + 4], "big")
    return _own_tag(word, walked.frames) + bytes(data[walked.first : walked.stop])


def _own_tag(word: int, frames: int) -> bytes:
    """Return a frame like others that holds nothing but their number."""
    word |= 1 << 16  # no checksum
    for bitrate in range(1, 15):
        chosen = word & ~(15 << 12 | 1 << 9) | bitrate << 12
        frame = read_frame(chosen, 0)
        if frame.size >= 192:
            break
    tag = b"Info" + struct.pack(">II", 1, frames)
    return (chosen.to_bytes(4, "big") + bytes(frame.side) + tag).ljust(frame.size, b"\0")


def _before_tags(data: memoryview) -> int:
    """Return where sound ends: before an ID3v1 tag and an APE tag, which stand at the end."""
    stop = len(data)
    while True:
        if bytes(data[max(0, stop - 128) : stop][:3]) == b"TAG" and stop >= 128:
            stop -= 128
        elif bytes(data[max(0, stop - 32) : stop][:8]) == b"APETAGEX":
            size, _, flags = struct.unpack("<III", data[stop - 20 : stop - 8])
            whole = size + (32 if flags & 1 << 31 else 0)
            if size < 32 or whole > stop:
                raise BadSound("its APE tag has a size that cannot be")
            stop -= whole
        else:
            return stop
