"""The index of a video: one pass over its packets, and a look at its first frame."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.medium import Medium
from penstock.server.media.video.conversion import UnsupportedPixels, frame_colours
from penstock.server.media.video.open_video import OpenVideo
from penstock.server.media.video.packet_scan import PacketScan, scan
from penstock.server.media.video.presentation import (
    Presentation,
    by_decoding,
    by_packets,
    tells_order,
)
from penstock.server.media.video.read_spans import ReadSpans
from penstock.server.media.video.video_index import VideoIndex
from penstock.wire.colours import Colours, Siting

_MOST_RATE = Fraction(1000)


def index_video(medium: Medium) -> VideoIndex:
    """Return what is known of a video without decoding more of it than its first frame.

    An avi of H.264, HEVC or MPEG-4, and a file that lacks times, are decoded whole, once: nothing
    else tells in which order their frames are shown.

    Args:
        medium: The file.

    Raises:
        BadVideo: It is not a video, of a kind that is not read, or has no frame.
        BadItem, SourceUnavailable, SourceChanged: As `Medium.at`.
        MissingExtra: PyAV is not installed.
    """
    video = OpenVideo(medium)
    try:
        found = scan(video)
        if not len(found):
            raise BadVideo("it has no frames" + (f": {found.broken}" if found.broken else ""))
        if not found.starts.any():
            raise BadVideo("it has no frame from which decoding can begin")
        stream = video.stream
        facts = (stream.time_base, stream.average_rate, video.container.format.name, stream.index)
    finally:
        video.close()
    video = OpenVideo(medium)
    try:
        if says_times := tells_order(video, found):
            shown = by_packets(found)
        else:
            shown = by_decoding(video, found)
    finally:
        video.close()
    if not len(shown.packets):
        raise BadVideo("it has no frame that is shown")
    look = _look(medium, found)
    time_base, rate, container, number = facts
    is_told_apart = found.places.min() >= 0 and len(np.unique(found.places)) == len(found)
    starts = np.flatnonzero(found.starts)
    return VideoIndex(
        codec=video.codec,
        container=container,
        stream=number,
        time_base=Fraction(time_base),
        rate=_rate(rate, shown, Fraction(time_base)),
        times=shown.times,
        packets=shown.packets,
        keys=found.keys[shown.packets],
        starts=starts,
        first_numbers=_first_numbers(starts, found, shown),
        places=found.places if is_told_apart else np.empty(0, np.int64),
        decoding_times=_sought_times(found),
        opening=_opening(medium, _sought_times(found)[starts[0]]),
        says_times=says_times and container != "avi",
        broken=found.broken,
        **look._asdict(),
    )


def _first_numbers(starts: Any, found: PacketScan, shown: Presentation) -> Any:
    """Return for each start the first frame from which on all that follow in the file are exact."""
    numbers = np.full(len(found), -1, np.int64)
    numbers[shown.packets] = np.arange(len(shown.packets))
    firsts = numbers[starts]
    for place in np.flatnonzero(firsts < 0):  # it is not shown itself
        firsts[place] = np.searchsorted(shown.times, found.times[starts[place]])
    return firsts


def _sought_times(found: PacketScan) -> Any:
    """Return when packets are decoded, where that is known, else shown: seeks need not be exact."""
    known = found.decoding_times != np.iinfo(np.int64).min
    return np.where(known, found.decoding_times, found.times)


def _opening(medium: Medium, first: int) -> Any:
    """Return what is read until a file is open and was sought in, as `VideoIndex.opening`."""
    watched = ReadSpans(medium)
    video = OpenVideo(watched)
    try:
        with video.libav():  # matroska reads its table when it is sought in for the first time
            video.container.seek(int(first), stream=video.stream)
    finally:
        video.close()
    return np.array(watched.joined(), np.int64).reshape(-1)


def _rate(said: Fraction | None, shown: Presentation, time_base: Fraction) -> Fraction:
    """Return frames in a second: what the file says, where that can be, else as its times do."""
    if said is not None and 0 < said <= _MOST_RATE:
        return Fraction(said)
    ticks = int(shown.times[-1] - shown.times[0])
    if ticks > 0:
        return (len(shown.times) - 1) / (ticks * time_base)
    return Fraction(1)


# --- the first frame ------------------------------------------------------------------------------


class _Appearance(NamedTuple):
    """How frames are shown: attributes as of `VideoIndex`."""

    width: int
    height: int
    rotation: int
    mirrored: bool
    pixel_format: str
    colours: Colours


def _look(medium: Medium, found: PacketScan) -> _Appearance:
    video = OpenVideo(medium)
    try:
        first = int(np.flatnonzero(found.starts)[0])
        frame = None
        for number, packet in zip(range(len(found)), video.packets(), strict=False):
            if number >= first and (frames := video.decode(packet, number)):
                frame = frames[0]
                break
        else:
            frame = next(iter(video.decode(None, -1)), None)
        if frame is None:
            raise BadVideo("none of its frames can be decoded")
        return _look_of(frame)
    finally:
        video.close()


def _look_of(frame: Any) -> _Appearance:
    turns, mirrored = _turns(frame)
    width, height = (frame.height, frame.width) if turns % 2 else (frame.width, frame.height)
    try:
        colours = frame_colours(frame)
    except UnsupportedPixels as error:
        raise BadVideo(str(error)) from error
    if turns or mirrored:  # chroma beside the middle is on another side then
        colours = colours._replace(siting=Siting.CENTER)
    return _Appearance(width, height, 90 * turns, mirrored, frame.format.name, colours)


def _turns(frame: Any) -> tuple[int, bool]:
    """Return how often a frame is turned by 90 degrees counterclockwise, and if it is mirrored.

    Its display matrix (ISO/IEC 14496-12, 6.2.2) maps a point (x, y), y downwards, to
    (a x + c y, b x + d y), in 16.16 fixed point.
    """
    beside = [frame.side_data[place] for place in range(len(frame.side_data))]
    data = next((found for found in beside if found.type.name == "DISPLAYMATRIX"), None)
    if data is None:
        return 0, False
    a, b, _, c, d, *_ = struct.unpack("<9i", bytes(data)[:36])
    signs = tuple((value > 0) - (value < 0) for value in (a, b, c, d))
    if signs not in _TURNS or len({abs(value) for value in (a, b, c, d)} - {0}) > 1:
        raise BadVideo(
            f"its display matrix is {a / 65536:g}, {b / 65536:g}, {c / 65536:g}, {d / 65536:g}, "
            "and only turns by 90 degrees and mirroring are applied"
        )
    return _TURNS[signs]


_TURNS = {
    (1, 0, 0, 1): (0, False),
    (0, -1, 1, 0): (1, False),
    (-1, 0, 0, -1): (2, False),
    (0, 1, -1, 0): (3, False),
    (-1, 0, 0, 1): (0, True),
    (0, -1, -1, 0): (3, True),
    (1, 0, 0, -1): (2, True),
    (0, 1, 1, 0): (1, True),
}
"""By the signs of a display matrix: mirrored from left to right first, then turned."""
