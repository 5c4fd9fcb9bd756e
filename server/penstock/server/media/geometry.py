"""Which part of a picture is kept, and in which size: whole numbers, from its size alone.

A layout is made before a picture is decoded, so that a JPEG is decoded no larger than it needs to
be, and the size of a sample is known from a header.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.server.media.bad_picture import BadPicture

RESIZES = ("exact", "shortest", "longest", "smart_resize", "pad")
CROPS = ("centre", "random", "random_resized")

MOST_ELONGATED = 200
"""How many times longer than wide a picture may be for `smart_resize`, as in transformers."""

MOST_RESIZED = 1 << 26
"""Pixels that `shortest` may make of a picture. One that is a pixel wide and 60,000 high would be
made 3 billion for a shortest side of 224."""

TRIES = 10
"""So often a random part is drawn before the middle is taken, as in torchvision."""


class Extent(NamedTuple):
    """Pixels down and across."""

    height: int
    width: int


NONE = Extent(0, 0)
"""Stands for a size where there is none."""


class Box(NamedTuple):
    """A part of a picture: where it begins, and its size."""

    top: int
    left: int
    height: int
    width: int


class Layout(NamedTuple):
    """What becomes of one picture, in this order.

    Attributes:
        part: What is kept of it before it is resized.
        resized: The size that this part gets.
        crop: What is kept of that; None = all.
        canvas: The size that is padded to; None = not padded.
        flip: It is mirrored, left to right.
    """

    part: Box
    resized: Extent
    crop: Box | None = None
    canvas: Extent | None = None
    flip: bool = False

    @property
    def size(self) -> Extent:
        """Return the size of the result."""
        if self.canvas is not None:
            return self.canvas
        return self.resized if self.crop is None else Extent(self.crop.height, self.crop.width)

    def least(self, picture: Extent, times: int) -> Extent:
        """Return the smallest size of a whole picture in which its part is `times` what it becomes.

        Args:
            picture: The picture's own size.
            times: How many times as large as the result it should be, 1 or more.
        """
        return Extent(
            -(-picture.height * self.resized.height * times // self.part.height),
            -(-picture.width * self.resized.width * times // self.part.width),
        )

    def part_of(self, picture: Extent, decoded: Extent) -> Box:
        """Return where the part lies in a picture that was decoded smaller.

        Args:
            picture: The picture's own size.
            decoded: The size that it was decoded in.
        """
        top, bottom = _scaled(self.part.top, self.part.height, picture.height, decoded.height)
        left, right = _scaled(self.part.left, self.part.width, picture.width, decoded.width)
        return Box(top, left, bottom - top, right - left)


def _scaled(start: int, count: int, whole: int, decoded: int) -> tuple[int, int]:
    """Return start and end of a stretch, rounded to pixels of another size; one pixel at least."""
    first = min((2 * start * decoded + whole) // (2 * whole), decoded - 1)
    last = (2 * (start + count) * decoded + whole) // (2 * whole)
    return first, min(max(last, first + 1), decoded)


@dataclass(frozen=True)
class Geometry:
    """How pictures are laid out: what a job says of it.

    Attributes:
        resize: One of `RESIZES`; None = not resized.
        size: The size for `exact` and `pad`; its height is the length of a side for `shortest` and
            `longest`.
        crop: One of `CROPS`; None = not cropped.
        crop_size: The size that is kept; for `random_resized` that of the result.
        crop_scale: Which parts of a picture's area `random_resized` takes: from, to.
        crop_ratio: Of which width to height: from, to.
        flip: How likely a picture is mirrored, 0 to 1.
        factor: A side's divisor, for `smart_resize`.
        least_pixels: The fewest pixels, for `smart_resize`.
        most_pixels: The most pixels, for `smart_resize`.
    """

    resize: str | None = None
    size: Extent = NONE
    crop: str | None = None
    crop_size: Extent = NONE
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    factor: int = 28
    least_pixels: int = 56 * 56
    most_pixels: int = 28 * 28 * 1280

    @property
    def draws(self) -> bool:
        """Tell whether anything is random."""
        return self.flip > 0 or self.crop in ("random", "random_resized")

    def result(self, picture: Extent, name: str) -> Extent:
        """Return the size of the result, which nothing random decides.

        Raises:
            BadPicture: As `lay_out`.
        """
        if self.crop is not None:
            if self.crop != "random_resized":
                self._check_crop(self._resized(picture, name), name)
            return self.crop_size
        return self.size if self.resize == "pad" else self._resized(picture, name)

    def lay_out(
        self, picture: Extent, name: str, generator: Callable[[], np.random.Generator]
    ) -> Layout:
        """Return what becomes of a picture.

        Args:
            picture: Its size.
            name: What errors call it.
            generator: Gives the item's random numbers; called only if there is something to draw.

        Raises:
            BadPicture: It is smaller than what is cropped, or too elongated.
        """
        part, crop, canvas = Box(0, 0, *picture), None, None
        if self.crop == "random_resized":
            part, resized = self._random_part(picture, generator()), self.crop_size
        else:
            resized = self._resized(picture, name)
            if self.crop is not None:
                crop = self._cropped(resized, name, generator)
            elif self.resize == "pad":
                canvas = self.size
        if self.resize is None and crop is not None:  # nothing but a part of the picture
            part, resized, crop = crop, Extent(crop.height, crop.width), None
        flip = self.flip > 0 and float(generator().random()) < self.flip
        return Layout(part, resized, crop, canvas, flip)

    def _resized(self, picture: Extent, name: str) -> Extent:
        height, width = picture
        match self.resize:
            case "exact":
                return self.size
            case "shortest" | "longest":
                side = self.size.height
                found = Extent(max(1, side * height // width), side)
                if (height < width) == (self.resize == "shortest"):
                    found = Extent(side, max(1, side * width // height))
                if found.height * found.width > max(MOST_RESIZED, side * side):
                    raise BadPicture(
                        f"{name} has {width} x {height} pixels, of which resize: {self.resize} "
                        f"would make {found.width} x {found.height}: leave it out of the data, or "
                        "cut it"
                    )
                return found
            case "pad":
                # The side that fills its own; the other is at most as long as its own.
                if height * self.size.width >= width * self.size.height:
                    return Extent(self.size.height, max(1, width * self.size.height // height))
                return Extent(max(1, height * self.size.width // width), self.size.width)
            case "smart_resize":
                return smart_resize(*picture, self.factor, self.least_pixels, self.most_pixels)
        return picture

    def _check_crop(self, resized: Extent, name: str) -> None:
        if resized.height < self.crop_size.height or resized.width < self.crop_size.width:
            raise BadPicture(
                f"{name} has {resized.width} x {resized.height} pixels where it is cropped to "
                f"{self.crop_size.width} x {self.crop_size.height}: resize to a larger size before"
            )

    def _cropped(
        self, resized: Extent, name: str, generator: Callable[[], np.random.Generator]
    ) -> Box:
        self._check_crop(resized, name)
        down, across = resized.height - self.crop_size.height, resized.width - self.crop_size.width
        if self.crop == "centre":
            return Box(down // 2, across // 2, *self.crop_size)
        rng = generator()
        top = int(rng.integers(down + 1))
        return Box(top, int(rng.integers(across + 1)), *self.crop_size)

    def _random_part(self, picture: Extent, rng: np.random.Generator) -> Box:
        """Draw a part of some area and ratio; the middle where ten do not fit.

        Inception's augmentation (Szegedy et al., 2014), drawn as torchvision draws it.
        """
        low, high = math.log(self.crop_ratio[0]), math.log(self.crop_ratio[1])
        for _ in range(TRIES):
            area = picture.height * picture.width * float(rng.uniform(*self.crop_scale))
            ratio = math.exp(float(rng.uniform(low, high)))
            width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < width <= picture.width and 0 < height <= picture.height:
                top = int(rng.integers(picture.height - height + 1))
                left = int(rng.integers(picture.width - width + 1))
                return Box(top, left, height, width)
        height, width = picture
        if width < self.crop_ratio[0] * height:
            height = max(1, round(width / self.crop_ratio[0]))
        elif width > self.crop_ratio[1] * height:
            width = max(1, round(height * self.crop_ratio[1]))
        return Box((picture.height - height) // 2, (picture.width - width) // 2, height, width)


def smart_resize(
    height: int, width: int, factor: int, least_pixels: int, most_pixels: int
) -> Extent:
    """Return the size, of multiples of `factor`, that Qwen's models give a picture.

    Both sides are rounded to the nearest multiple, halves to even; a picture of too many pixels is
    made smaller, one of too few larger, in nearly its own aspect. "Qwen2-VL" (arXiv 2409.12191).

    Raises:
        BadPicture: It is more than 200 times as long as it is wide.
    """
    if max(height, width) > MOST_ELONGATED * min(height, width):
        raise BadPicture(
            f"a picture of {width}x{height} pixels is more than {MOST_ELONGATED} times as long as "
            "it is wide, which smart_resize refuses; leave it out of the data, or cut it"
        )
    rows, columns = round(height / factor), round(width / factor)
    if rows * columns * factor**2 > most_pixels:
        shrink = math.sqrt((height * width) / most_pixels)
        rows = max(1, math.floor(height / shrink / factor))
        columns = max(1, math.floor(width / shrink / factor))
    elif rows * columns * factor**2 < least_pixels:
        grow = math.sqrt(least_pixels / (height * width))
        rows, columns = math.ceil(height * grow / factor), math.ceil(width * grow / factor)
    return Extent(rows * factor, columns * factor)
