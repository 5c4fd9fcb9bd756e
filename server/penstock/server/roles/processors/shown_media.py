"""What a conversation's pictures and videos become: sizes, from headers and indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.server.media.bad_video import BadVideo
from penstock.server.media.families.family import FAKE_SIDE, Family, PictureSize
from penstock.server.media.families.patch_families import QwenVl
from penstock.server.media.image_header import read_header
from penstock.server.media.medium import Medium
from penstock.server.media.picture import Decoding
from penstock.server.media.video.clip_frames import ClipFrames, ClipWish, clip_of_pictures
from penstock.server.media.video.parts_ahead import parts_ahead
from penstock.server.media.video.video_frames import VideoFrames
from penstock.server.media.video.video_index import VideoIndex
from penstock.server.media.video.video_indexes import VideoIndexes
from penstock.server.roles.processors.frames_processor import check_tail
from penstock.server.roles.processors.said_frames import clip_said, fps_said
from penstock.server.roles.processors.shown_parts import Clip, Picture


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
    """Knows what pictures and videos become for a family; for one thread at a time.

    Args:
        family: The family.
        decoding: How large pictures may be; frames of videos, too.
        wish: Which frames of a video are shown where the data do not say it.
        listed_fps: How many pictures of a list were taken in a second, where the data do not say
            it; None = they have to.
        on_broken_tail: `error` or `keep`: what becomes of a video whose end is missing.
        frames: The open videos.
        indexes: The indexes of videos.
        ids: Gives the tokens of a text.
    """

    def __init__(
        self,
        family: Family,
        decoding: Decoding,
        wish: ClipWish,
        listed_fps: float | None,
        on_broken_tail: str,
        frames: VideoFrames,
        indexes: VideoIndexes,
        ids: Callable[[str], list[int]],
    ) -> None:
        self._family, self._decoding = family, decoding
        self._wish, self._listed_fps, self._on_broken_tail = wish, listed_fps, on_broken_tail
        self._frames, self._indexes, self._ids = frames, indexes, ids

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
        return [
            self._clip(part, own) if isinstance(part, Clip) else self._picture(own)
            for part, own in each_part(parts, media)
        ]

    def parts(
        self, parts: Sequence[Picture], media: Sequence[Medium], *, for_size: bool
    ) -> list[Sequence[tuple[int, int]] | None]:
        """Return what of each medium is fetched ahead: of videos parts, all of pictures.

        Args:
            parts: As the conversation has them.
            media: Of all parts, in their order.
            for_size: No pixels are needed.

        Raises:
            BadVideo: A video cannot have the frames that are wanted of it.
        """
        found: list[Sequence[tuple[int, int]] | None] = []
        for part, own in each_part(parts, media):
            if isinstance(part, Clip) and not part.is_listed:
                found.append(self._parts_of(part, *own, for_size=for_size))
            else:
                found += [None] * len(own)
        return found

    def _parts_of(
        self, part: Clip, medium: Medium, *, for_size: bool
    ) -> Sequence[tuple[int, int]] | None:
        if not self._family.takes_video:
            return ()

        def numbers(index: VideoIndex) -> Sequence[int]:
            return self._clip_of(part, index).numbers

        return parts_ahead(medium, self._indexes, self._frames, numbers, for_size=for_size)

    @property
    def _qwen(self) -> QwenVl:
        assert isinstance(self._family, QwenVl)
        return self._family

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
        fps = fps_said(part.said, self._listed_fps)
        sides = self._sides(media[0])
        for medium in media[1:]:
            if (other := self._sides(medium)) != sides:
                raise BadVideo(
                    f"it is a list of pictures, of which the first has {sides[0]}x{sides[1]} "
                    f"pixels and {medium.name} {other[0]}x{other[1]}: give all the same size"
                )
        return sides, clip_of_pictures(len(media), fps, self._qwen.clips.temporal)

    def _file_clip(self, part: Clip, medium: Medium) -> tuple[tuple[int, int], ClipFrames]:
        index = self._indexes.of(medium)
        check_tail(index, self._on_broken_tail)
        if index.width * index.height > self._decoding.max_pixels:
            raise BadVideo(
                f"its frames have {index.width} x {index.height} pixels, and max_pixels is "
                f"{self._decoding.max_pixels:,}"
            )
        return (index.width, index.height), self._clip_of(part, index)

    def _clip_of(self, part: Clip, index: VideoIndex) -> ClipFrames:
        return clip_said(part.said, index, self._wish, self._qwen.clips.temporal)

    def _texts(self, clip: ClipFrames) -> tuple[tuple[int, ...], ...] | None:
        """Return what stands before each temporal patch: the mean of its first and last time."""
        if not self._family.has_clip_times:
            return None
        step, times = self._qwen.clips.temporal, clip.times_s
        return tuple(
            tuple(self._ids(f"<{(times[at] + times[at + step - 1]) / 2:.1f} seconds>"))
            for at in range(0, len(times), step)
        )


def fake_picture(family: Family) -> ShownMedium:
    """Return a white picture, which nothing holds."""
    return ShownMedium(family.size(FAKE_SIDE, FAKE_SIDE), ())


def each_part(
    parts: Sequence[Picture], media: Sequence[Medium]
) -> Iterator[tuple[Picture, Sequence[Medium]]]:
    """Yield each picture and video with its media, of which a list of pictures has several."""
    at = 0
    for part in parts:
        count = len(part.references)
        yield part, media[at : at + count]
        at += count
