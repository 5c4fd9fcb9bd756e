"""Families that keep a picture's shape and cut it into patches: Qwen's and Kimi's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from penstock.server.media.families.clip_patches import ClipPatches, check_multiple
from penstock.server.media.families.family import CLIP_MEAN, CLIP_STD, Family, PictureSize, Pixels
from penstock.server.media.families.family_settings import Settings
from penstock.server.media.geometry import smart_resize

_PIXEL_SETTINGS = (
    "image_token",
    "image_mean",
    "image_std",
    "rescale_factor",
    "do_resize",
    "do_rescale",
    "do_normalize",
    "resample",
    "patch_size",
    "merge_size",
)

VIDEO_SETTINGS = (
    "video_token",
    "video_min_pixels",
    "video_max_pixels",
    "cap_pixels_per_frame",
    "max_video_tokens",
    "video_fps",
    "min_frames",
    "max_frames",
)


class QwenVl(Family):
    """Qwen2-VL: patches of two times 14x14 pixels, four of them to a token.

    Patches lie in blocks of `merge_size` by `merge_size`, as the merger takes them; a still picture
    fills `temporal_patch_size` times with itself.
    """

    name: ClassVar[str] = "qwen2_vl"
    classes: ClassVar[tuple[str, ...]] = ("Qwen2VLProcessor",)
    known: ClassVar[tuple[str, ...]] = (
        *_PIXEL_SETTINGS,
        "temporal_patch_size",
        "min_pixels",
        "max_pixels",
        "size",
        *VIDEO_SETTINGS,
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "image_token": "<|image_pad|>",
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "rescale_factor": 1 / 255,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "resample": 3,
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 56 * 56,
        "max_pixels": 28 * 28 * 1280,
        "video_token": "<|video_pad|>",
        "video_min_pixels": 128 * 28 * 28,
        "video_max_pixels": 768 * 28 * 28,
        "cap_pixels_per_frame": False,
        "max_video_tokens": 128_000,
        "video_fps": 2,
        "min_frames": 4,
        "max_frames": 768,
    }
    around: ClassVar[tuple[str, str] | None] = ("<|vision_start|>", "<|vision_end|>")
    has_rope: ClassVar[bool] = True
    takes_video: ClassVar[bool] = True
    together: ClassVar[bool] = False
    """The bounds on a video's pixels hold for its frames together."""

    def interval(self, fps: float) -> float:
        """Return how far apart the times of a video are among positions."""
        return 1.0

    @property
    def clips(self) -> ClipPatches:
        """Return what videos become."""
        return ClipPatches(self.settings, self.together)

    @classmethod
    def layered(cls, settings: Settings) -> Settings:
        """Return bounds as pixels, whichever names a file has for them."""
        found = dict(settings)
        size = found.pop("size", {})
        for name, others in (
            ("min_pixels", ("shortest_edge", "min_pixels")),
            ("max_pixels", ("longest_edge", "max_pixels")),
        ):
            for other in others:
                if other in size:
                    found.setdefault(name, size[other])
        return found

    def size(self, width: int, height: int) -> PictureSize:
        """Return what a picture becomes."""
        patch, merge = self.settings["patch_size"], self.settings["merge_size"]
        height, width = self._bounds(width, height)
        rows, columns = height // patch, width // patch
        count = rows * columns
        return PictureSize(count // merge**2, count, height * width, (1, rows, columns))

    def patches(self, picture: Pixels) -> Pixels:
        """Return uint8 (rows * columns, channels * times * patch * patch)."""
        patch, merge = self.settings["patch_size"], self.settings["merge_size"]
        times = self.settings["temporal_patch_size"]
        height, width = self._bounds(picture.shape[1], picture.shape[0])
        resized = self.resized(picture, height, width)
        rows, columns = height // patch, width // patch
        blocks = resized.reshape(rows // merge, merge, patch, columns // merge, merge, patch, 3)
        found = np.empty((rows * columns, 3, times, patch, patch), np.uint8)
        # (block row, block column, row in block, column in block, channel, y, x)
        found.reshape(rows // merge, columns // merge, merge, merge, 3, times, patch, patch)[:] = (
            blocks.transpose(0, 3, 1, 4, 6, 2, 5)[:, :, :, :, :, None]
        )
        return found.reshape(rows * columns, -1)

    def picture(self, patches: Pixels, grid: Sequence[int] | None) -> Pixels:
        """Return the picture of one time."""
        assert grid is not None
        patch, merge = self.settings["patch_size"], self.settings["merge_size"]
        rows, columns = grid[1] // merge, grid[2] // merge
        times = self.settings["temporal_patch_size"]
        blocks = patches.reshape(rows, columns, merge, merge, 3, times, patch, patch)[..., 0, :, :]
        turned = blocks.transpose(0, 2, 5, 1, 3, 6, 4)
        return turned.reshape(rows * merge * patch, columns * merge * patch, 3)

    def values(self, patches: Pixels) -> npt.NDArray[np.float32]:
        """Return what the family's processor gives; all times of a still picture are alike."""
        times = self.settings["temporal_patch_size"]
        by_time = patches.reshape(len(patches), 3, times, self.settings["patch_size"] ** 2)
        found = super().values(by_time[:, :, :1])
        return np.repeat(found, times, axis=2).reshape(patches.shape)

    def clip_values(self, patches: Pixels) -> npt.NDArray[np.float32]:
        """Return what the family's processor gives of a video, of what `clips.patches` gave."""
        return super().values(patches)

    def shape(self) -> tuple[int, ...]:
        """Return the length of a patch."""
        return (3 * self.settings["temporal_patch_size"] * self.settings["patch_size"] ** 2,)

    def _bounds(self, width: int, height: int) -> tuple[int, int]:
        settings = self.settings
        factor = settings["patch_size"] * settings["merge_size"]
        if not settings["do_resize"]:
            check_multiple("a picture", width, height, factor)
            return height, width
        return smart_resize(height, width, factor, settings["min_pixels"], settings["max_pixels"])


class Qwen25Vl(QwenVl):
    """Qwen2.5-VL: as Qwen2-VL, and times of videos go by their rate."""

    name: ClassVar[str] = "qwen2_5_vl"
    classes: ClassVar[tuple[str, ...]] = ("Qwen2_5_VLProcessor",)
    known: ClassVar[tuple[str, ...]] = (*QwenVl.known, "tokens_per_second")
    has_clip_seconds: ClassVar[bool] = True

    def interval(self, fps: float) -> float:
        """Return how far apart the times of a video are, in float32, as the model reckons it."""
        seconds = np.float32(self.clips.seconds(fps))
        return float(np.float32(self.settings["tokens_per_second"]) * seconds)


class Qwen3Vl(QwenVl):
    """Qwen3-VL and Qwen3.5: patches of 16x16 pixels, mean and deviation of a half."""

    name: ClassVar[str] = "qwen3_vl"
    classes: ClassVar[tuple[str, ...]] = ("Qwen3VLProcessor",)
    defaults: ClassVar[Mapping[str, Any]] = {
        **QwenVl.defaults,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "patch_size": 16,
        "min_pixels": 256 * 256,
        "max_pixels": 4096 * 4096,
        "video_min_pixels": 128 * 32 * 32,
        "video_max_pixels": 768 * 32 * 32,
        "max_video_tokens": 768,
    }
    together: ClassVar[bool] = True
    has_clip_times: ClassVar[bool] = True


MOST_PADDED = 1 << 25
"""Pixels that a picture may have with its padding, 96 MiB, where that is more than twice what it
has without: a line of 60 million pixels would be padded to 28 of them, 5 GB."""


def navit_resize(
    height: int, width: int, patch: int, max_patches: int, max_side_patches: int
) -> tuple[int, int]:
    """Return the height and width that Kimi's models give a picture before they pad it.

    It is made smaller where it has too many patches, in all or along a side, and never larger.
    "Patch n' Pack: NaViT" (arXiv 2307.06304), as Kimi-K2.5 has it.
    """
    count = max(1.0, height // patch) * max(1.0, width // patch)
    most = max_side_patches * patch
    scale = min(1.0, math.sqrt(max_patches / count), most / height, most / width)
    return (
        min(max(1, int(height * scale)), most),
        min(max(1, int(width * scale)), most),
    )


class Kimi(Family):
    """Kimi-K2.5: patches of 14x14 pixels in rows, black at the right and below to a whole token."""

    name: ClassVar[str] = "kimi"
    classes: ClassVar[tuple[str, ...]] = ("Kimi_K25Processor", "KimiK25Processor")
    known: ClassVar[tuple[str, ...]] = (
        *_PIXEL_SETTINGS,
        "max_patches",
        "max_side_patches",
        "size",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "image_token": "<|media_pad|>",
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "rescale_factor": 1 / 255,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "resample": 3,
        "patch_size": 14,
        "merge_size": 2,
        "max_patches": 16384,
        "max_side_patches": 512,
    }
    around: ClassVar[tuple[str, str] | None] = ("<|media_begin|>", "<|media_end|>")

    @classmethod
    def layered(cls, settings: Settings) -> Settings:
        """Return the bound of a side as patches, as the files of processors mean it."""
        found = dict(settings)
        size = found.pop("size", {})
        if "max_height" in size:
            found.setdefault("max_side_patches", size["max_height"])
        return found

    def size(self, width: int, height: int) -> PictureSize:
        """Return what a picture becomes."""
        patch, merge = self.settings["patch_size"], self.settings["merge_size"]
        (height, width), _ = self._bounds(width, height)
        rows, columns = height // patch, width // patch
        count = rows * columns
        return PictureSize(count // merge**2, count, height * width, (1, rows, columns))

    def patches(self, picture: Pixels) -> Pixels:
        """Return uint8 (rows * columns, channels, patch, patch)."""
        patch = self.settings["patch_size"]
        (height, width), inner = self._bounds(picture.shape[1], picture.shape[0])
        padded = np.zeros((height, width, 3), np.uint8)
        padded[: inner[0], : inner[1]] = self.resized(picture, *inner)
        rows, columns = height // patch, width // patch
        blocks = padded.reshape(rows, patch, columns, patch, 3).transpose(0, 2, 4, 1, 3)
        return np.ascontiguousarray(blocks).reshape(rows * columns, 3, patch, patch)

    def picture(self, patches: Pixels, grid: Sequence[int] | None) -> Pixels:
        """Return the picture, with its padding."""
        assert grid is not None
        patch, (_, rows, columns) = self.settings["patch_size"], grid
        blocks = patches.reshape(rows, columns, 3, patch, patch).transpose(0, 3, 1, 4, 2)
        return blocks.reshape(rows * patch, columns * patch, 3)

    def shape(self) -> tuple[int, ...]:
        """Return channels, rows and columns of a patch."""
        return (3, self.settings["patch_size"], self.settings["patch_size"])

    def _bounds(self, width: int, height: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return height and width with padding, and without.

        Raises:
            ValueError: Nearly all of it would be padding, and large.
        """
        settings = self.settings
        factor = settings["patch_size"] * settings["merge_size"]
        inner = height, width
        if settings["do_resize"]:
            inner = navit_resize(
                height,
                width,
                settings["patch_size"],
                settings["max_patches"],
                settings["max_side_patches"],
            )
        tall, wide = (-(-side // factor) * factor for side in inner)
        if tall * wide > max(MOST_PADDED, 2 * width * height):
            raise ValueError(
                f"a picture of {width}x{height} pixels would be padded to {wide}x{tall}: leave it "
                "out of the data, or cut it"
            )
        return (tall, wide), inner

    @property
    def _over_torchvision(self) -> bool:
        return True  # transformers has this family over torchvision alone
