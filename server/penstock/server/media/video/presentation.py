"""In which order the frames of a video are shown, and when."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.video.open_video import OpenVideo
from penstock.server.media.video.packet_scan import NO_TIME, PacketScan
from penstock.server.media.video.video_index import Integers

REORDERED = ("h264", "hevc", "mpeg4")
"""Codecs whose frames may be shown in another order than they lie in the file."""


class Presentation(NamedTuple):
    """The frames that are shown, in order.

    Attributes:
        packets: int64 (n,), the packet of each frame.
        times: int64 (n,), when each is shown, in ticks; never decreasing.
    """

    packets: Integers
    times: Integers


def tells_order(video: OpenVideo, found: PacketScan) -> bool:
    """Tell whether the packets of a video say in which order they are shown.

    An avi says none: what libav reports as times there follows the order of the file.
    """
    if video.container.format.name == "avi":
        return video.codec not in REORDERED
    return not (found.times == NO_TIME).any()


def by_packets(found: PacketScan) -> Presentation:
    """Return the frames in the order of their packets' times, or without these as they lie.

    Where packets are lost at a file's end, only frames are left that no lost one comes before:
    those that are shown no later than the last packet is decoded.
    """
    times = found.times
    if (times == NO_TIME).any():
        times = _filled(found.decoding_times)
    order = np.argsort(times, kind="stable")
    shown = ~found.hidden[order]
    if found.broken:
        shown &= times[order] <= _last_sure_time(found, times)
    packets = order[shown]
    return Presentation(packets.astype(np.int64), times[packets])


def by_decoding(video: OpenVideo, found: PacketScan) -> Presentation:
    """Return the frames in the order in which decoding all of them gives them.

    For files that do not say it. Their times are those at which packets are decoded, in order: one
    frame is shown for each.

    Args:
        video: The video, just opened.
        found: Its packets.

    Raises:
        BadVideo: It cannot be decoded.
    """
    packets: list[int] = []
    for number, packet in zip(range(len(found)), video.packets(), strict=False):
        packets += [frame.pts for frame in video.decode(packet, number)]
    packets += [frame.pts for frame in video.decode(None, -1)]
    hidden = set(np.flatnonzero(found.hidden).tolist())
    kept = [packet for packet in packets if packet not in hidden]
    if len(set(kept)) < len(kept):
        raise BadVideo(
            "it holds several frames in a packet, so that they cannot be told apart: write it "
            "anew as mp4 or mkv"
        )
    if found.broken:
        # Without the lost packets, frames that wait for one are given too early.
        kept = kept[: _first_hole(kept, len(found))]
    times = np.sort(_filled(found.decoding_times))
    return Presentation(np.array(kept, np.int64), times[: len(kept)])


def _first_hole(order: list[int], count: int) -> int:
    """Return how many frames are given before the last packet that was there is decoded."""
    return order.index(count - 1) if count - 1 in order else len(order)


def _last_sure_time(found: PacketScan, times: Integers) -> int:
    """Return the time up to which no frame is missing, where packets at the end are."""
    known = found.decoding_times[found.decoding_times != NO_TIME]
    if len(known):
        return int(known[-1])
    lead = int((np.argsort(np.argsort(times, kind="stable")) - np.arange(len(times))).max())
    return int(np.sort(times)[max(0, len(times) - 1 - lead)])


def _filled(times: Integers) -> Integers:
    """Return times that rise: those that are unknown follow the one before by a tick."""
    filled, last = times.copy(), -1
    for place in range(len(filled)):
        if filled[place] == NO_TIME or (place and filled[place] <= last):
            filled[place] = last + 1
        last = int(filled[place])
    return filled
