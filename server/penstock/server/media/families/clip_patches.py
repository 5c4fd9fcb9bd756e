"""How Qwen's families take videos: frames of one size, two of them to a patch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from penstock.server.media.families.family import PictureSize, Pixels
from penstock.server.media.families.family_settings import Settings
from penstock.server.media.geometry import Extent, smart_resize

TOKENS_OF_ALL = 0.9
"""Of `max_video_tokens`, what `cap_pixels_per_frame` leaves to a video's frames together."""

LEAST_OVER = 1.05
"""Times the fewest pixels, what it leaves to each frame at least."""


def smart_resize_clip(
    frames: int, height: int, width: int, factor: int, least_pixels: int, most_pixels: int
) -> Extent:
    """Return the size that Qwen3-VL gives the frames of a video: its bounds hold for all together.

    Both sides are rounded to the nearest multiple of `factor`, halves to even; a side below that is
    one. "Qwen3-VL Technical Report" (arXiv 2511.21631), as transformers has it.

    Args:
        frames: How many, with those that fill the last temporal patch.
        height: Of a frame, in pixels.
        width: The same.
        factor: What both sides become a multiple of.
        least_pixels: Of all frames together.
        most_pixels: The same.

    Raises:
        BadPicture: It is more than 200 times as long as it is wide.
    """
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    smart_resize(height, width, factor, 1, 1 << 62)  # refuses what is too long
    rows, columns = round(height / factor), round(width / factor)
    if frames * rows * columns * factor**2 > most_pixels:
        shrink = math.sqrt((frames * height * width) / most_pixels)
        rows = max(1, math.floor(height / shrink / factor))
        columns = max(1, math.floor(width / shrink / factor))
    elif frames * rows * columns * factor**2 < least_pixels:
        grow = math.sqrt(least_pixels / (frames * height * width))
        rows, columns = math.ceil(height * grow / factor), math.ceil(width * grow / factor)
    return Extent(rows * factor, columns * factor)


class ClipPatches:
    """What a video becomes for a family.

    Args:
        settings: Of the family.
        together: The bounds on pixels hold for all frames together, and not for each.
    """

    def __init__(self, settings: Settings, together: bool) -> None:
        self._settings, self._together = settings, together

    @property
    def temporal(self) -> int:
        """Return how many frames a patch has."""
        found: int = self._settings["temporal_patch_size"]
        return found

    def seconds(self, fps: float) -> float:
        """Return how many seconds of a video a temporal patch has."""
        return self.temporal / fps

    def extent(self, frames: int, width: int, height: int) -> Extent:
        """Return the size that each frame is given.

        Args:
            frames: How many the video has, a multiple of `temporal`.
            width: Of a frame as it is shown, in pixels.
            height: The same.

        Raises:
            ValueError: The family refuses such frames.
        """
        settings = self._settings
        factor = settings["patch_size"] * settings["merge_size"]
        if not settings["do_resize"]:
            check_multiple("a video", width, height, factor)
            return Extent(height, width)
        least, most = settings["video_min_pixels"], settings["video_max_pixels"]
        if settings["cap_pixels_per_frame"]:
            most = self._capped(frames, factor, least, most)
        if self._together:
            return smart_resize_clip(frames, height, width, factor, least, most)
        return smart_resize(height, width, factor, least, most)

    def size(self, frames: int, width: int, height: int) -> PictureSize:
        """Return what a video becomes: the one rule of indices, plans and readers.

        Args:
            frames: As of `extent`.
            width: The same.
            height: The same.

        Raises:
            ValueError: As `extent`.
        """
        patch, merge = self._settings["patch_size"], self._settings["merge_size"]
        extent = self.extent(frames, width, height)
        grid = (frames // self.temporal, extent.height // patch, extent.width // patch)
        count = math.prod(grid)
        pixels = frames * extent.height * extent.width
        return PictureSize(count // merge**2, count, pixels, grid)

    def patches(self, frames: Pixels) -> Pixels:
        """Return the unnormalized values of a video.

        Args:
            frames: uint8 (n, height, width, 3), of the size of `extent`; n as there.

        Returns:
            uint8 (times * rows * columns, channels * temporal * patch * patch): blocks of
            `merge_size` by `merge_size` patches, time after time.
        """
        patch, merge = self._settings["patch_size"], self._settings["merge_size"]
        count, height, width = frames.shape[:3]
        times, rows, columns = count // self.temporal, height // patch, width // patch
        blocks = frames.reshape(
            times, self.temporal, rows // merge, merge, patch, columns // merge, merge, patch, 3
        )
        # (time, block row, block column, row in block, column in block, channel, frame, y, x)
        turned = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        return np.ascontiguousarray(turned).reshape(times * rows * columns, -1)

    def frames(self, patches: Pixels, grid: Sequence[int]) -> Pixels:
        """Return the frames that `patches` gave: for who looks at them.

        Args:
            patches: uint8, of one video.
            grid: Its patches in time, rows and columns.

        Returns:
            uint8 (n, height, width, 3).
        """
        patch, merge = self._settings["patch_size"], self._settings["merge_size"]
        times, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
        blocks = patches.reshape(times, rows, columns, merge, merge, 3, self.temporal, patch, patch)
        turned = blocks.transpose(0, 6, 1, 3, 7, 2, 4, 8, 5)
        return np.ascontiguousarray(turned).reshape(
            times * self.temporal, rows * merge * patch, columns * merge * patch, 3
        )

    def _capped(self, frames: int, factor: int, least: int, most: int) -> int:
        """Return the most pixels where a video of many frames is given less for each."""
        tokens = self._settings["max_video_tokens"]
        floor = int(least * LEAST_OVER)
        if self._together:
            each = max(min(tokens * factor * factor, most // frames), floor)
            return int(each * frames)
        total = int(tokens * factor * factor * TOKENS_OF_ALL)
        return int(max(min(most, total * self.temporal // frames), floor))


def check_multiple(what: str, width: int, height: int, factor: int) -> None:
    """Refuse sides that patches do not fill, where nothing may be resized.

    Raises:
        ValueError: A side is not a multiple of `factor` pixels.
    """
    if height % factor or width % factor:
        raise ValueError(
            f"{what} of {width}x{height} pixels is not a multiple of {factor} in both directions, "
            "and settings.do_resize is false: set it to true"
        )
