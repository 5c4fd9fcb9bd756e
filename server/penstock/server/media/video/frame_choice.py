"""Which frames of a video are wanted: by a rate, or by their count."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.video.video_index import VideoIndex


def by_rate(index: VideoIndex, fps: float) -> list[int]:
    """Return the frames that are shown nearest to 0, 1 / fps, 2 / fps ... after the first one.

    There are as many as the video's duration times `fps`, rounded, and at least one; a rate above
    the video's own repeats frames. Of two as near, the earlier is taken.

    Args:
        index: Of the video.
        fps: How many in a second; as it is written, so that 0.1 is a tenth.
    """
    step = 1 / Fraction(str(fps))
    base, times = index.time_base, index.times
    duration = int(times[-1] - times[0]) * base + 1 / index.rate
    count = max(1, round(duration / step))
    wanted = np.array([round(place * step / base) for place in range(count)]) + int(times[0])
    after = np.clip(np.searchsorted(times, wanted), 1, max(1, len(times) - 1))
    if len(times) == 1:
        return [0] * count
    is_earlier = wanted - times[after - 1] <= times[after] - wanted
    return [int(number) for number in np.where(is_earlier, after - 1, after)]


def by_count(index: VideoIndex, count: int) -> list[int]:
    """Return so many frames, as `even_numbers`.

    Raises:
        BadVideo: There are fewer frames.
    """
    frames = len(index)
    if count > frames:
        raise BadVideo(f"nframes is {count:,}, and it has {frames:,} frames: give at most as many")
    return even_numbers(frames, count)


def even_numbers(frames: int, count: int) -> list[int]:
    """Return so many numbers of frames, evenly from the first to the last; one is the first.

    Place k of m is round(k (n - 1) / (m - 1)), of n frames, halves to even numbers. Where m is more
    than n, some come twice.
    """
    if count == 1:
        return [0]
    return [round(Fraction(place * (frames - 1), count - 1)) for place in range(count)]
