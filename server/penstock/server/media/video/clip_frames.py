"""Which frames a model is shown of a video: one rule for sizes, plans and whoever decodes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.server.core.shown import shown
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.video.frame_choice import even_numbers
from penstock.server.media.video.video_index import VideoIndex

ERROR, LAST = BEYOND = ("error", "last")
"""What becomes of a number that no frame has."""


@dataclass(frozen=True)
class ClipWish:
    """Which frames are wanted: by the first of these that says it.

    Attributes:
        frame_indices: Numbers of frames, never falling.
        nframes: So many, evenly from the first to the last.
        fps: So many in a second, evenly from the first to the last.
        min_frames: The fewest that `fps` gives, where the video has them.
        max_frames: The most that `fps` gives.
        beyond: `error` or `last`: what becomes of a number in `frame_indices` after the last frame.
    """

    frame_indices: tuple[int, ...] | None = None
    nframes: int | None = None
    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    beyond: str = ERROR


@dataclass(frozen=True)
class ClipFrames:
    """The frames of a video that a model is shown.

    Attributes:
        numbers: Which, never falling, with those that fill the last temporal patch: the last again.
        fps: How many of these there are in a second of the video, as far apart as they lie.
        times_s: When each is shown, in seconds after the first frame of the video.
        clamped: How many of the numbers that the item names were after the last frame.
    """

    numbers: tuple[int, ...]
    fps: float
    times_s: tuple[float, ...]
    clamped: int = 0


def clip_of_file(index: VideoIndex, wish: ClipWish, temporal: int) -> ClipFrames:
    """Return the frames of a video file that a model is shown, from its index.

    By `fps`, n = frames / rate * fps is raised to `min_frames`, lowered to `max_frames` and to the
    frames that there are, cut to a whole number, and rounded up to temporal patches; frames are
    then taken evenly, so that some may come twice.

    Args:
        index: Of the video.
        wish: Which frames.
        temporal: Frames of a temporal patch.

    Raises:
        BadVideo: It has no frame of a number that is wanted, or too few.
    """
    total, clock = len(index), _Clock(index)
    clamped = 0
    if wish.frame_indices is not None:
        numbers, clamped = _named(wish.frame_indices, total, wish.beyond)
        apart = numbers[-1] - numbers[0]
        fps = (len(numbers) - 1) / apart * clock.rate if apart else clock.rate
    elif wish.nframes is not None:
        if not 2 <= wish.nframes <= total:
            raise BadVideo(
                f"nframes is {wish.nframes:,}, and it has {total:,} frames: give a number from 2 "
                "to as many, or fps, or leave the video out"
            )
        numbers = even_numbers(total, wish.nframes)
        fps = len(numbers) / total * clock.rate
    else:
        wanted = total / clock.rate * wish.fps
        count = int(min(max(wanted, wish.min_frames), wish.max_frames, total))
        count = max(1, -(-count // temporal)) * temporal
        numbers = even_numbers(total, count)
        fps = count / total * clock.rate
    numbers = _filled(numbers, temporal)
    return ClipFrames(tuple(numbers), fps, tuple(clock.time_s(each) for each in numbers), clamped)


def clip_of_pictures(count: int, fps: float, temporal: int) -> ClipFrames:
    """Return the frames of a list of pictures that a model is shown: all of them.

    Args:
        count: How many pictures, at least one.
        fps: How many were taken in a second.
        temporal: Frames of a temporal patch.
    """
    numbers = _filled(list(range(count)), temporal)
    return ClipFrames(tuple(numbers), float(fps), tuple(each / fps for each in numbers))


class _Clock:
    """When the frames of a video are shown.

    Containers round times, some to a thousandth of a second. Where each frame is shown within half
    a frame of its number / rate, that is its time, as transformers reckons it; else the rate
    varies, and the file's times hold, with the mean rate.
    """

    def __init__(self, index: VideoIndex) -> None:
        after_first = index.times_s - index.times_s[0]
        self.rate = float(index.rate)
        ideal = np.arange(len(index)) / self.rate
        self._times = None
        if (np.abs(after_first - ideal) > 0.5 / self.rate).any():
            self._times = after_first
            self.rate = len(index) / index.duration_s

    def time_s(self, number: int) -> float:
        return number / self.rate if self._times is None else float(self._times[number])


def _named(given: Sequence[int], total: int, beyond: str) -> tuple[list[int], int]:
    """Return the numbers that an item names, and how many of them were after the last frame."""
    if any(after < before for before, after in itertools.pairwise(given)):
        raise BadVideo(f"frame_indices is {shown(list(given))}: give numbers that never fall")
    clamped = sum(number >= total for number in given)
    if clamped and beyond == ERROR:
        raise BadVideo(
            f"frame_indices names frame {given[-1]:,}, and it has {total:,}, numbered from 0; "
            "frames_beyond: last takes the last one instead"
        )
    return [min(number, total - 1) for number in given], clamped


def _filled(numbers: list[int], temporal: int) -> list[int]:
    return numbers + numbers[-1:] * (-len(numbers) % temporal)
