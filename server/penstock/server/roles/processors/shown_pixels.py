"""The pixels of what a conversation shows: pictures, and the frames of videos."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.families.family import FAKE_SIDE, Family, Pixels
from penstock.server.media.families.patch_families import QwenVl
from penstock.server.media.geometry import Extent
from penstock.server.media.image_header import read_header
from penstock.server.media.media_cpu import CONVERT, spending
from penstock.server.media.medium import Medium
from penstock.server.media.picture import Decoding
from penstock.server.media.video.clip_frames import ClipFrames
from penstock.server.media.video.video_frames import VideoFrames, video_key
from penstock.server.media.video.video_indexes import VideoIndexes
from penstock.server.roles.processors.shown_media import ShownMedium

AT_ONCE = 8
"""Frames that are decoded before they are resized: what is held of a long video."""


class ShownPixels:
    """Makes the patches of pictures and videos; for one thread at a time.

    Args:
        family: The family.
        decoding: How pictures are decoded.
        frames: The open videos.
        indexes: The indexes of videos.
    """

    def __init__(
        self, family: Family, decoding: Decoding, frames: VideoFrames, indexes: VideoIndexes
    ) -> None:
        self._family, self._decoding = family, decoding
        self._frames, self._indexes = frames, indexes

    def pictures(self, all_shown: Sequence[ShownMedium]) -> list[Pixels]:
        """Return the patches of the pictures among a conversation's media.

        Raises:
            ValueError: One is damaged.
        """
        return [
            self._family.patches(self._decoded(*each.media) if each.media else _white())
            for each in all_shown
            if each.clip is None
        ]

    def videos(self, all_shown: Sequence[ShownMedium]) -> list[Pixels]:
        """Return the patches of the videos among a conversation's media.

        A file that is shown several times is decoded once.

        Raises:
            ValueError: One is damaged.
        """
        clips = [(each, each.clip) for each in all_shown if each.clip is not None]
        frames: list[Pixels] = [
            np.empty((len(clip.numbers), *self._extent(each), 3), np.uint8) for each, clip in clips
        ]
        files: dict[str, list[int]] = {}
        for place, (each, clip) in enumerate(clips):
            if each.is_listed:
                for at, number in enumerate(clip.numbers):
                    frames[place][at] = self._listed_frame(each, number)
                continue
            [medium] = each.media
            key = video_key(medium, self._indexes.of(medium))
            files.setdefault(key, []).append(place)
        for places in files.values():
            [medium] = clips[places[0]][0].media
            self._fill(medium, [(clips[place][1], frames[place]) for place in places])
        found = []
        for place in range(len(frames)):
            assert isinstance(self._family, QwenVl)
            found.append(self._family.clips.patches(frames[place]))
            frames[place] = np.empty(0, np.uint8)  # a long video is not held in both forms
        return found

    def _fill(self, medium: Medium, wanted: Sequence[tuple[ClipFrames, Pixels]]) -> None:
        """Decode the frames of one file, and resize them into each array that wants them."""
        index = self._indexes.of(medium)
        uses: dict[int, list[tuple[Pixels, int]]] = {}
        for clip, frames in wanted:
            for at, number in enumerate(clip.numbers):
                uses.setdefault(number, []).append((frames, at))
        numbers = sorted(uses)
        try:
            for begin in range(0, len(numbers), AT_ONCE):
                some = self._frames.frames(medium, index, numbers[begin : begin + AT_ONCE])
                with spending(CONVERT):
                    for frame in some:
                        self._resize_into(uses[frame.number], frame.rgb24())
        except BadVideo as error:
            raise BadVideo(f"{medium.name}: {error}") from error

    def _resize_into(self, places: Sequence[tuple[Pixels, int]], pixels: Pixels) -> None:
        """Resize a frame into each array that wants it, once for each shape."""
        made: dict[tuple[int, ...], Pixels] = {}
        for frames, at in places:
            shape = frames.shape[1:3]
            if shape not in made:
                made[shape] = self._family.resized(pixels, *shape)
            frames[at] = made[shape]

    def _listed_frame(self, each: ShownMedium, number: int) -> Pixels:
        return self._family.resized(self._decoded(each.media[number]), *self._extent(each))

    def _extent(self, each: ShownMedium) -> Extent:
        assert each.size.grid is not None
        patch = self._family.settings["patch_size"]
        return Extent(each.size.grid[1] * patch, each.size.grid[2] * patch)

    def _decoded(self, medium: Medium) -> Pixels:
        return self._decoding.decode(medium.read(), read_header(medium), medium.name)


def _white() -> Pixels:
    return np.full((FAKE_SIDE, FAKE_SIDE, 3), 255, np.uint8)
