"""What a conversation's pictures and videos become: sizes from headers, then pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from penstock.server.core.shown import shown
from penstock.server.media.bad_video import BadVideo
from penstock.server.media.families.family import FAKE_SIDE, Family, PictureSize, Pixels
from penstock.server.media.families.patch_families import QwenVl
from penstock.server.media.geometry import Extent
from penstock.server.media.image_header import read_header
from penstock.server.media.medium import Medium
from penstock.server.media.picture import Decoding
from penstock.server.media.video.clip_frames import (
    ClipFrames,
    ClipWish,
    clip_of_file,
    clip_of_pictures,
)
from penstock.server.media.video.video_frames import FrameCounts, VideoFrames, video_key
from penstock.server.media.video.video_indexes import VideoIndexes
from penstock.server.roles.processors.shown_parts import Clip, Picture

AT_ONCE = 8
"""Frames that are decoded before they are resized: what is held of a long video."""

_SAID = ("frame_indices", "nframes", "fps", "min_frames", "max_frames")
"""What the data may say of a video: which frames are shown."""


class ShownMedium(NamedTuple):
    """A picture or a video, and what it becomes.

    Attributes:
        size: Its tokens, patches and pixels.
        media: What it is made of: one medium, or the pictures that are its frames; a fake picture
            has none.
        clip: The frames that are shown; None = it is a picture.
        texts: For each temporal patch, the ids of the text before it; None = the tokens of all
            follow each other.
        is_listed: It is a video whose frames are pictures, each a medium.
    """

    size: PictureSize
    media: Sequence[Medium]
    clip: ClipFrames | None = None
    texts: tuple[tuple[int, ...], ...] | None = None
    is_listed: bool = False

    def width(self) -> int:
        """Return how many tokens stand in the place of its one."""
        if self.texts is None:
            return self.size.tokens
        return self.size.tokens + sum(len(text) + 2 for text in self.texts)

    def written(self, token: int, around: tuple[int, int]) -> Iterator[int]:
        """Yield the tokens that stand there, where texts do, too.

        Args:
            token: The family's own token of a video.
            around: Those that begin and end the frames of one time.
        """
        assert self.texts is not None
        each = self.size.tokens // len(self.texts)
        for text in self.texts:
            yield from (*text, around[0], *[token] * each, around[1])


class MediaShown:
    """Knows what pictures and videos become for a family, and makes it; for one thread at a time.

    Args:
        family: The family.
        decoding: How pictures are decoded, and how large they may be; frames of videos, too.
        wish: Which frames of a video are shown where the data do not say it.
        listed_fps: How many pictures of a list were taken in a second, where the data do not say
            it; None = they have to.
        frames: The open videos.
        ids: Gives the tokens of a text.
    """

    def __init__(
        self,
        family: Family,
        decoding: Decoding,
        wish: ClipWish,
        listed_fps: float | None,
        frames: VideoFrames,
        ids: Callable[[str], list[int]],
    ) -> None:
        self._family, self._decoding = family, decoding
        self._wish, self._listed_fps = wish, listed_fps
        self._frames, self._ids = frames, ids
        self._indexes = VideoIndexes()

    @property
    def counts(self) -> FrameCounts:
        """Return what was decoded of videos so far, and what for."""
        return self._frames.counts

    def check(self, parts: Sequence[Picture]) -> None:
        """Refuse videos of a family that takes none, or of a folder that lacks what they need.

        Raises:
            ValueError: Says what is missing.
        """
        if not any(isinstance(part, Clip) for part in parts):
            return
        family = self._family
        if not family.takes_video:
            raise ValueError(
                f"the conversation has a video, and the family {family.name} takes none: leave it "
                "out of the data, or take a model of qwen2_vl, qwen2_5_vl or qwen3_vl"
            )
        if family.video_id is None:
            raise ValueError(
                f"the conversation has a video, and its token {family.video_token!r} is not in the "
                "tokenizer's vocabulary: give the folder of the processor with its own tokenizer, "
                "or name the token by settings: {video_token: ...}"
            )
        if family.has_clip_seconds and family.settings.get("tokens_per_second") is None:
            raise ValueError(
                "the conversation has a video, and how many positions a second of it has is not "
                "known: put the model's config.json into the folder of the processor, or say "
                "settings: {tokens_per_second: 2}"
            )

    def sized(self, parts: Sequence[Picture], media: Sequence[Medium]) -> list[ShownMedium]:
        """Return what the pictures and videos of a conversation become, by their headers.

        Args:
            parts: As the conversation has them.
            media: Of all parts, in their order.

        Raises:
            ValueError: One cannot be, or not as the data say.
        """
        found, at = [], 0
        for part in parts:
            count = len(part.references)
            own, at = media[at : at + count], at + count
            found.append(self._clip(part, own) if isinstance(part, Clip) else self._picture(own))
        return found

    def fake(self) -> ShownMedium:
        """Return a white picture."""
        return ShownMedium(self._family.size(FAKE_SIDE, FAKE_SIDE), ())

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
            found.append(self._qwen.clips.patches(frames[place]))
            frames[place] = np.empty(0, np.uint8)  # a long video is not held in both forms
        return found

    @property
    def _qwen(self) -> QwenVl:
        assert isinstance(self._family, QwenVl)
        return self._family

    # --- sizes ---

    def _picture(self, media: Sequence[Medium]) -> ShownMedium:
        width, height = self._sides(*media)
        return ShownMedium(self._family.size(width, height), media)

    def _sides(self, medium: Medium) -> tuple[int, int]:
        header = read_header(medium)
        self._decoding.check(header, medium.name)
        return header.width, header.height

    def _clip(self, part: Clip, media: Sequence[Medium]) -> ShownMedium:
        name = media[0].name
        try:
            if part.is_listed:
                sides, clip = self._listed_clip(part, media)
            else:
                sides, clip = self._file_clip(part, *media)
        except BadVideo as error:
            raise BadVideo(f"{name}: {error}") from error
        size = self._qwen.clips.size(len(clip.numbers), *sides)
        if size.pixels * 3 > self._decoding.max_bytes:
            raise BadVideo(
                f"{name}: its {len(clip.numbers):,} frames take {size.pixels * 3:,} bytes, and "
                f"max_bytes is {self._decoding.max_bytes:,}: raise that, or take fewer frames"
            )
        return ShownMedium(size, media, clip, self._texts(clip), part.is_listed)

    def _listed_clip(
        self, part: Clip, media: Sequence[Medium]
    ) -> tuple[tuple[int, int], ClipFrames]:
        said = _checked(part.said, ("fps",))
        fps = said.get("fps", self._listed_fps)
        if fps is None:
            raise BadVideo(
                "it is a list of pictures, and nothing says how many were taken in a second: say "
                "fps beside the list, or as a parameter of the processor"
            )
        sides = self._sides(media[0])
        for medium in media[1:]:
            if (other := self._sides(medium)) != sides:
                raise BadVideo(
                    f"it is a list of pictures, of which the first has {sides[0]}x{sides[1]} "
                    f"pixels and {medium.name} {other[0]}x{other[1]}: give all the same size"
                )
        return sides, clip_of_pictures(len(media), fps, self._qwen.clips.temporal)

    def _file_clip(self, part: Clip, medium: Medium) -> tuple[tuple[int, int], ClipFrames]:
        said = _checked(part.said, _SAID)
        ways = [name for name in _SAID[:3] if name in said]
        if len(ways) > 1:
            raise BadVideo(f"{ways[0]} and {ways[1]} both say which of its frames: give one")
        index = self._indexes.of(medium)
        if index.broken:
            raise BadVideo(index.broken)
        if index.width * index.height > self._decoding.max_pixels:
            raise BadVideo(
                f"its frames have {index.width} x {index.height} pixels, and max_pixels is "
                f"{self._decoding.max_pixels:,}"
            )
        wish = self._wish
        if "fps" in said:
            wish = replace(wish, nframes=None)
        clip = clip_of_file(index, replace(wish, **said), self._qwen.clips.temporal)
        return (index.width, index.height), clip

    def _texts(self, clip: ClipFrames) -> tuple[tuple[int, ...], ...] | None:
        """Return what stands before each temporal patch: the mean of its first and last time."""
        if not self._family.has_clip_times:
            return None
        step, times = self._qwen.clips.temporal, clip.times_s
        return tuple(
            tuple(self._ids(f"<{(times[at] + times[at + step - 1]) / 2:.1f} seconds>"))
            for at in range(0, len(times), step)
        )

    # --- pixels ---

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
                for frame in self._frames.frames(medium, index, numbers[begin : begin + AT_ONCE]):
                    pixels = frame.rgb24()
                    made: dict[tuple[int, ...], Pixels] = {}
                    for frames, at in uses[frame.number]:
                        shape = frames.shape[1:3]
                        if shape not in made:
                            made[shape] = self._family.resized(pixels, *shape)
                        frames[at] = made[shape]
        except BadVideo as error:
            raise BadVideo(f"{medium.name}: {error}") from error

    def _listed_frame(self, each: ShownMedium, number: int) -> Pixels:
        return self._family.resized(self._decoded(each.media[number]), *self._extent(each))

    def _extent(self, each: ShownMedium) -> Extent:
        assert each.size.grid is not None
        patch = self._family.settings["patch_size"]
        return Extent(each.size.grid[1] * patch, each.size.grid[2] * patch)

    def _decoded(self, medium: Medium) -> Pixels:
        return self._decoding.decode(medium.read(), read_header(medium), medium.name)


def _checked(said: dict[str, Any], known: Sequence[str]) -> dict[str, Any]:
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


def _white() -> Pixels:
    return np.full((FAKE_SIDE, FAKE_SIDE, 3), 255, np.uint8)
