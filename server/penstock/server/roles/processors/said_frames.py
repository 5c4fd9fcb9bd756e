"""What the data say of a video: which of its frames are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.server.core.shown import shown
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.video.clip_frames import ClipFrames, ClipWish, clip_of_file
from penstock.server.media.video.video_index import VideoIndex

_WAYS = ("frame_indices", "nframes", "fps")
_SAID = (*_WAYS, "min_frames", "max_frames")
"""What may be said of a file."""


def clip_said(
    said: Mapping[str, Any], index: VideoIndex, wish: ClipWish, temporal: int
) -> ClipFrames:
    """Return the frames of a video file that are shown.

    Args:
        said: What the data say of it.
        index: Of the file.
        wish: What holds where they say nothing.
        temporal: Frames of a temporal patch.

    Raises:
        BadVideo: What they say is not known, makes no sense, or is not in the file.
    """
    told = _checked(said, _SAID)
    ways = [name for name in _WAYS if name in told]
    if len(ways) > 1:
        raise BadVideo(f"{ways[0]} and {ways[1]} both say which of its frames: give one")
    if "fps" in told:
        wish = replace(wish, nframes=None)
    return clip_of_file(index, replace(wish, **told), temporal)


def first_said(said: Mapping[str, Any]) -> int:
    """Return the first frame of a video file that is shown.

    Raises:
        BadVideo: As `clip_said`, of what needs no index.
    """
    indices: Sequence[int] = _checked(said, _SAID).get("frame_indices", (0,))
    return indices[0]


def fps_said(said: Mapping[str, Any], fps: float | None) -> float:
    """Return how many pictures of a list were taken in a second.

    Args:
        said: What the data say of the list.
        fps: What holds where they do not say it; None = nothing does.

    Raises:
        BadVideo: Nothing says it, or something else is said, too.
    """
    found: float | None = _checked(said, ("fps",)).get("fps", fps)
    if found is None:
        raise BadVideo(
            "it is a list of pictures, and nothing says how many were taken in a second: say fps "
            "beside the list, or as a parameter of the processor"
        )
    return found


def _checked(said: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return what the data say of a video, each in the type that it has.

    Raises:
        BadVideo: One is not known, or makes no sense.
    """
    found: dict[str, Any] = {}
    for name, value in said.items():
        if name not in known:
            raise BadVideo(
                f"{name} is said of it, and known is {', '.join(known)}: leave it out of the data"
            )
        if name == "frame_indices":
            listed = value.tolist() if isinstance(value, np.ndarray) else value
            if (
                not isinstance(listed, list | tuple)
                or not listed
                or not all(_is_whole(each) and each >= 0 for each in listed)
            ):
                raise BadVideo(
                    f"its frame_indices is {shown(value)}: give a list of whole numbers from 0"
                )
            found[name] = tuple(int(each) for each in listed)
        elif name == "fps":
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < value <= 1000:
                raise BadVideo(f"its fps is {shown(value)}: give a number above 0 to 1000")
            found[name] = float(value)
        else:
            if not _is_whole(value) or value < 1:
                raise BadVideo(f"its {name} is {shown(value)}: give a whole number from 1")
            found[name] = int(value)
    return found


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
