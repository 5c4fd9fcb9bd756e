"""The samples of conversations: made of their tokens and pixels, and what they hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.server.media.families.family import Family, Pixels
from penstock.server.media.families.patch_families import QwenVl
from penstock.server.roles.processors.chat import NO_LOSS
from penstock.server.roles.processors.conversation_layout import LaidConversation, lay_tokens
from penstock.server.roles.processors.shown_media import ShownMedium, fake_picture
from penstock.server.roles.processors.shown_pixels import ShownPixels
from penstock.server.roles.samples import Sample

VIDEO_PIXELS, VIDEO_GRIDS = "pixel_values_videos", "video_grid_thw"
VIDEO_SECONDS = "second_per_grid_ts"
"""What samples call what they have of videos, as transformers does."""


class ConversationSamples:
    """Makes samples, and reads them.

    Args:
        family: How pictures and videos are taken.
        pixels: Makes their patches.
        pad_id: The token that padding has.
        has_fakes: Samples have an `attention_mask`, which hides fake pictures.
        is_raw: Patches are bytes, as they are before they are normalized.
    """

    def __init__(
        self, family: Family, pixels: ShownPixels, pad_id: int, *, has_fakes: bool, is_raw: bool
    ) -> None:
        self._family, self._pixels, self._pad_id = family, pixels, pad_id
        self._has_fakes, self._is_raw = has_fakes, is_raw

    @property
    def keys(self) -> list[str]:
        """Return the keys of samples, but those of videos."""
        family = self._family
        keys = ["input_ids", "labels", "token_mask", "pad_token_id", "pixel_values"]
        keys += ["position_ids"] * family.has_rope + ["image_grid_thw"] * family.has_grids
        return keys + ["attention_mask"] * self._has_fakes + ["pixel_norm"] * self._is_raw

    def make(self, laid: LaidConversation) -> Sample:
        """Return the sample of a conversation.

        Raises:
            ValueError: A picture or a video is damaged.
        """
        family = self._family
        input_ids = laid.input_ids(family)
        learned = np.repeat(laid.learned, laid.widths)
        sample: Sample = {
            "input_ids": input_ids,
            "labels": np.where(learned, input_ids, np.int32(NO_LOSS)),
            "token_mask": learned,
            "pad_token_id": self._pad_id,
        }
        seen = None
        if self._has_fakes:
            seen = np.repeat(~laid.hidden, laid.widths)
            sample["attention_mask"] = seen
        if isinstance(family, QwenVl):
            sample["position_ids"] = laid.positions(family, seen)
        pictures = self._pixels.pictures(laid.shown)
        empty = np.zeros((0, *family.shape()), np.uint8)
        patches = np.concatenate(pictures) if len(pictures) > 1 else [*pictures, empty][0]
        sample["pixel_values"] = patches if self._is_raw else family.values(patches)
        if family.has_grids:
            grids = [each.size.grid for each in laid.shown if each.clip is None]
            sample["image_grid_thw"] = np.array(grids, dtype=np.int64).reshape(-1, 3)
        if isinstance(family, QwenVl) and (videos := self._pixels.videos(laid.shown)):
            sample |= self._video_values(laid.shown, videos, family)
        if self._is_raw:
            sample["pixel_norm"] = family.norm()
        if laid.noted:
            sample["noted"] = laid.noted
        return sample

    def _video_values(
        self, all_shown: Sequence[ShownMedium], videos: list[Pixels], family: QwenVl
    ) -> Sample:
        """Return what a sample has of its videos."""
        patches = np.concatenate(videos) if len(videos) > 1 else videos[0]
        clips = [each for each in all_shown if each.clip is not None]
        found: Sample = {
            VIDEO_PIXELS: patches if self._is_raw else family.clip_values(patches),
            VIDEO_GRIDS: np.array([each.size.grid for each in clips], dtype=np.int64),
        }
        if family.has_clip_seconds:
            seconds = [family.clips.seconds(each.clip.fps) for each in clips if each.clip]
            found[VIDEO_SECONDS] = np.array(seconds, dtype=np.float32)
        return found

    def stand_in(self, most: int | None) -> Sample:
        """Return a white picture that attention does not see, or padding where none fits.

        Args:
            most: The most tokens; None = any number.
        """
        family, pad = self._family, self._pad_id
        opening, closing = family.around_ids or (pad, pad)
        fake = fake_picture(family)
        laid = lay_tokens(family, [opening, family.image_id, closing], [fake], is_fake=True)
        if most is not None and laid.widths.sum() > most:
            laid = lay_tokens(family, [pad], [], is_fake=True)
        laid.hidden[:] = True
        sample = self.make(laid._replace(noted={"fake_images": 1}))
        del sample["noted"]
        return sample

    def counts(self, sample: Sample) -> Sequence[int]:
        """Return what a sample counts, in the order of `measures` of the processor."""
        family = self._family
        tokens = int(np.count_nonzero(sample["input_ids"] == family.image_id))
        if not family.has_grids:
            images = len(sample["pixel_values"])
            each = family.size(1, 1)
            return tokens, images, 0, images * each.patches, images * each.pixels
        side = family.settings["patch_size"]
        grids = sample["image_grid_thw"]
        patches = len(sample["pixel_values"])
        pixels = patches * side**2
        videos = sample.get(VIDEO_GRIDS, ())
        if len(videos):
            tokens += int(np.count_nonzero(sample["input_ids"] == family.video_id))
            of_videos = len(sample[VIDEO_PIXELS])
            patches += of_videos
            pixels += of_videos * side**2 * family.settings["temporal_patch_size"]
        return tokens, len(grids), len(videos), patches, pixels

    def pictures(self, sample: Sample) -> list[Pixels]:
        """Return the pictures of a sample as they were resized, then the frames of its videos."""
        family, pixels = self._family, np.asarray(sample["pixel_values"])
        grids = sample.get("image_grid_thw")
        of_each = [1] * len(pixels) if grids is None else np.prod(grids, axis=1).tolist()
        found, end = [], 0
        for number, count in enumerate(of_each):
            start, end = end, end + count
            part = pixels[start:end]
            levels = part if part.dtype == np.uint8 else family.levels(part)
            grid = None if grids is None else np.asarray(grids)[number].tolist()
            found.append(family.picture(levels, grid))
        if isinstance(family, QwenVl):
            found += self._frames_of(sample, family)
        return found

    def _frames_of(self, sample: Sample, family: QwenVl) -> list[Pixels]:
        """Return the frames of the videos of a sample."""
        found, end = [], 0
        for grid in np.asarray(sample.get(VIDEO_GRIDS, ())).tolist():
            start, end = end, end + math.prod(grid)
            part = np.asarray(sample[VIDEO_PIXELS])[start:end]
            levels = part if part.dtype == np.uint8 else family.levels(part)
            found += [*family.clips.frames(levels, grid)]
        return found
