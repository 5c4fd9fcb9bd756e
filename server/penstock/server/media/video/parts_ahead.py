"""Which parts of a far video are fetched before its frames are decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.server.media.medium import Medium
from penstock.server.media.video.read_spans import spans_of
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_index import VideoIndex
from penstock.server.media.video.video_indexes import VideoIndexes


def parts_ahead(
    medium: Medium,
    indexes: VideoIndexes,
    frames: VideoFrames,
    numbers: Callable[[VideoIndex], Sequence[int]],
    *,
    for_size: bool,
) -> Sequence[tuple[int, int]] | None:
    """Return what of a video will be read, as far as its index tells; reads nothing.

    A video without an index is read whole, to make it. Of one of which nothing is known yet, not
    even its size, the head is fetched for `size`, which tells more.

    Args:
        medium: The video.
        indexes: Those of this process.
        frames: The frames that it holds.
        numbers: Returns which frames are wanted of a video with this index.
        for_size: The index is all that is needed.

    Returns:
        As `MediaProcessor.parts_read`, of one medium.

    Raises:
        BadVideo: `numbers` finds that the video cannot have what is wanted.
    """
    size, version = medium.known()
    if not version:
        return None if for_size else ()
    if (index := indexes.look(medium)) is None:
        return [(0, size)]
    if for_size:
        return ()
    lacking = frames.lacks(medium, index, numbers(index))
    return spans_of(index, lacking, size) if lacking else ()
