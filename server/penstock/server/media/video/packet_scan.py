"""The packets of a video, demuxed once in the order in which they lie in the file."""

from __future__ import annotations

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
    rows: list[tuple[int, int, int, bool, bool, bool]] = []
    extradata = video.stream.codec_context.extradata
    broken = ""
    packets = video.packets()
    while True:
        try:
            packet = next(packets, None)
        except BadVideo as error:
            broken = f"after its packet {len(rows):,} {error}"
            break
        if packet is None:
            break
        if packet.is_corrupt:
            broken = f"its packet {len(rows):,} is not whole: it was cut off, or is damaged"
            break
        if len(rows) == MAX_PACKETS:
            raise BadVideo(f"it has more than {MAX_PACKETS:,} packets")
        is_key = bool(packet.is_keyframe)
        rows.append(
            (
                NO_TIME if packet.pts is None else packet.pts,
                NO_TIME if packet.dts is None else packet.dts,
                -1 if packet.pos is None else packet.pos,
                is_key,
                is_key and is_start(video.codec, memoryview(packet), extradata),
                bool(packet.is_discard),
            )
        )
    columns = [np.array(column) for column in zip(*rows, strict=True)] or [np.empty(0)] * 6
    numbers = [column.astype(np.int64) for column in columns[:3]]
    flags = [column.astype(np.bool_) for column in columns[3:]]
    said = int(video.stream.frames)
    if not broken and said > len(rows):
        broken = f"its header says {said:,} frames, and it holds {len(rows):,}: it was cut off"
    return PacketScan(*numbers, *flags, broken)
