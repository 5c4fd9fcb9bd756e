"""The packets of a video, demuxed once in the order in which they lie in the file."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.video.key_frames import is_start
from penstock.server.media.video.open_video import OpenVideo
from penstock.server.media.video.video_index import Flags, Integers

NO_TIME = np.iinfo(np.int64).min
"""In arrays of times: the file says none."""

MAX_PACKETS = 10_000_000
"""Of one video, 46 hours at 60 frames in a second: each takes 34 bytes in an index."""


@dataclass(frozen=True)
class PacketScan:
    """What is known of each packet of a stream that holds anything; all of shape (p,).

    Attributes:
        times: int64, when its frame is shown, in ticks of the stream; `NO_TIME` = unknown.
        decoding_times: int64, when it is decoded; `NO_TIME` = unknown.
        places: int64, where it lies in the file; -1 = unknown.
        keys: bool, whether the file marks it as a key frame.
        starts: bool, whether decoding can begin with it.
        hidden: bool, whether its frame is decoded, and not shown.
        broken: What the file lacks at its end, as a sentence's part; empty = nothing is known to.
    """

    times: Integers
    decoding_times: Integers
    places: Integers
    keys: Flags
    starts: Flags
    hidden: Flags
    broken: str

    def __len__(self) -> int:
        """Return how many packets there are."""
        return len(self.times)


def scan(video: OpenVideo) -> PacketScan:
    """Return the packets of a video that was just opened; it is at its end then.

    Raises:
        BadVideo: It has too many packets.
        BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
    """
    numbers = [array("q") for _ in range(3)]
    flags = [bytearray() for _ in range(3)]
    extradata = video.stream.codec_context.extradata
    broken = ""
    packets = video.packets()
    while True:
        count = len(flags[0])
        try:
            packet = next(packets, None)
        except BadVideo as error:
            broken = f"after its packet {count:,} {error}"
            break
        if packet is None:
            break
        if packet.is_corrupt:
            broken = f"its packet {count:,} is not whole: it was cut off, or is damaged"
            break
        if count == MAX_PACKETS:
            raise BadVideo(f"it has more than {MAX_PACKETS:,} packets")
        for column, value, unknown in zip(
            numbers, (packet.pts, packet.dts, packet.pos), (NO_TIME, NO_TIME, -1), strict=True
        ):
            column.append(unknown if value is None else value)
        is_key = bool(packet.is_keyframe)
        flags[0].append(is_key)
        flags[1].append(is_key and is_start(video.codec, memoryview(packet), extradata))
        flags[2].append(bool(packet.is_discard))
    count = len(flags[0])
    broken = broken or _said_missing(video, count)
    if not any(flags[1]) and any(flags[0]):
        flags[1][flags[0].index(1)] = 1  # there is no better one
    return PacketScan(
        times=np.array(numbers[0], np.int64),
        decoding_times=np.array(numbers[1], np.int64),
        places=np.array(numbers[2], np.int64),
        keys=np.frombuffer(flags[0], np.bool_),
        starts=np.frombuffer(flags[1], np.bool_),
        hidden=np.frombuffer(flags[2], np.bool_),
        broken=broken,
    )


def _said_missing(video: OpenVideo, count: int) -> str:
    """Return what a file lacks by what its header says, as a sentence's part; empty = nothing."""
    said = int(video.stream.frames)
    if said > count:
        return f"its header says {said:,} frames, and it holds {count:,}: it was cut off"
    said = said_bytes(video.head) if video.container.format.name == "matroska,webm" else 0
    if said > video.size:
        return f"its header says {said:,} bytes, and it has {video.size:,}: it was cut off"
    return ""


def said_bytes(head: bytes) -> int:
    """Return how many bytes an mkv or webm has by its header; 0 = it says nothing.

    It is two elements of EBML (RFC 8794, 4 to 6; RFC 9559): a header, and a segment with the rest.

    Args:
        head: Its first bytes.
    """
    at = 0
    for name in (b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"):
        if head[at : at + 4] != name or at + 5 > len(head):
            return 0
        width = 9 - head[at + 4].bit_length()
        size = int.from_bytes(head[at + 4 : at + 4 + width], "big") & ((1 << 7 * width) - 1)
        if width > 8 or size == (1 << 7 * width) - 1:  # of a broadcast
            return 0
        at += 4 + width + size
    return at
