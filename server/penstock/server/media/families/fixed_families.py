"""Families whose pictures all have one shape: LLaVA's, and others that a job describes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from penstock.server.media.families.family import CLIP_MEAN, CLIP_STD, Family, PictureSize, Pixels
from penstock.server.media.families.family_settings import Settings
from penstock.wire.errors import InvalidJob

MOST_RESIZED = 1 << 25
"""Pixels that a picture may have before it is cropped: 96 MiB. One that is a pixel wide and has
1,000 in height would be made 112 million for a crop of 336 by 336."""


class FixedFamily(Family):
    """Pictures are resized, and cropped in the middle, to one height and width.

    With `size: {shortest_edge: n}` the shorter side becomes n and the aspect is kept, so that
    `crop_size` decides; with `{height: h, width: w}` both sides are given. `do_pad` makes a picture
    square before that, in the colour of `image_mean`.
    """

    known: ClassVar[tuple[str, ...]] = (
        "image_token",
        "image_mean",
        "image_std",
        "rescale_factor",
        "do_resize",
        "do_rescale",
        "do_normalize",
        "do_center_crop",
        "do_pad",
        "resample",
        "patch_size",
        "size",
        "crop_size",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        "image_token": "<image>",
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "rescale_factor": 1 / 255,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_center_crop": True,
        "do_pad": False,
        "resample": 3,
        "size": {"shortest_edge": 224},
        "crop_size": {"height": 224, "width": 224},
    }
    has_grids: ClassVar[bool] = False

    def __init__(self, settings: Settings, class_name: str, kernel: str = "pillow") -> None:
        super().__init__(settings, class_name, kernel)
        self._height, self._width = self._given()
        self._resized_to(1, 1)  # or this size cannot be
        patch = self.settings.get("patch_size")
        self._patches = (self._height // patch) * (self._width // patch) if patch else 1
        self._tokens = self._count()

    @abstractmethod
    def _count(self) -> int:
        """Return the tokens of every picture."""

    def size(self, width: int, height: int) -> PictureSize:
        """Return what every picture becomes."""
        square = max(width, height)
        if self.settings["do_pad"] and square**2 > max(MOST_RESIZED, 4 * width * height):
            raise ValueError(
                f"a picture of {width}x{height} pixels would be padded to {square}x{square}: leave "
                "it out of the data, or cut it"
            )
        if self.settings["do_resize"]:
            sides = (square, square) if self.settings["do_pad"] else (height, width)
            tall, wide = self._resized_to(*sides)
            if tall * wide > MOST_RESIZED:
                raise ValueError(
                    f"a picture of {width}x{height} pixels would be resized to {wide}x{tall} and "
                    f"cropped to {self._width}x{self._height}: leave it out of the data, or cut it"
                )
        return PictureSize(self._tokens, self._patches, self._height * self._width, None)

    def patches(self, picture: Pixels) -> Pixels:
        """Return uint8 (1, channels, height, width)."""
        settings = self.settings
        if settings["do_pad"]:
            picture = self._squared(picture)
        if settings["do_resize"]:
            picture = self.resized(picture, *self._resized_to(*picture.shape[:2]))
        if settings["do_center_crop"]:
            picture = _cropped(picture, self._height, self._width)
        if picture.shape[:2] != (self._height, self._width):
            raise ValueError(
                f"a picture of {picture.shape[1]}x{picture.shape[0]} pixels is not of "
                f"{self._width}x{self._height}: set settings.do_resize"
            )
        return np.ascontiguousarray(picture.transpose(2, 0, 1))[None]

    def shape(self) -> tuple[int, ...]:
        """Return channels, height and width."""
        return (3, self._height, self._width)

    def _given(self) -> tuple[int, int]:
        """Return the height and width of every picture."""
        settings = self.settings
        name = "crop_size" if settings["do_center_crop"] else "size"
        sides = settings[name]
        if not {"height", "width"} <= sides.keys():
            raise InvalidJob(
                f"{name} of {self.class_name} (family {self.name}) is {dict(sides)}, and its "
                "pictures would have shapes of their own: give settings a height and a width, such "
                f"as {{{name}: {{height: 336, width: 336}}}}",
                key="settings",
            )
        if sides["height"] * sides["width"] > MOST_RESIZED:
            raise InvalidJob(
                f"{name} of {self.class_name} (family {self.name}) is {dict(sides)}, which are "
                f"more than {MOST_RESIZED:,} pixels: give settings a smaller one",
                key="settings",
            )
        return sides["height"], sides["width"]

    def _resized_to(self, height: int, width: int) -> tuple[int, int]:
        size = self.settings["size"]
        if {"height", "width"} <= size.keys():
            return size["height"], size["width"]
        if "shortest_edge" not in size or len(size) > 1:
            raise InvalidJob(
                f"size of {self.class_name} (family {self.name}) is {dict(size)}; give settings "
                "{size: {shortest_edge: 336}}, or a height and a width",
                key="settings",
            )
        short: int = size["shortest_edge"]
        longer = int(short * max(height, width) / min(height, width))
        return (longer, short) if width <= height else (short, longer)

    def _squared(self, picture: Pixels) -> Pixels:
        height, width = picture.shape[:2]
        side = max(height, width)
        if height == width:
            return picture
        found = np.empty((side, side, 3), np.uint8)
        found[:] = [int(each * 255) for each in self.settings["image_mean"]]
        top, left = (side - height) // 2, (side - width) // 2
        found[top : top + height, left : left + width] = picture
        return found


class Llava(FixedFamily):
    """LLaVA-1.5 and its likes: a token per patch, one less where the first feature is left out."""

    name: ClassVar[str] = "llava"
    classes: ClassVar[tuple[str, ...]] = ("LlavaProcessor",)
    known: ClassVar[tuple[str, ...]] = (
        *FixedFamily.known,
        "num_additional_image_tokens",
        "vision_feature_select_strategy",
    )
    defaults: ClassVar[Mapping[str, Any]] = {
        **FixedFamily.defaults,
        "patch_size": 14,
        "size": {"shortest_edge": 336},
        "crop_size": {"height": 336, "width": 336},
        "num_additional_image_tokens": 1,
        "vision_feature_select_strategy": "default",
    }

    def _count(self) -> int:
        settings = self.settings
        left_out = settings["vision_feature_select_strategy"] == "default"
        found: int = self._patches + settings["num_additional_image_tokens"] - left_out
        return found


class DefaultFamily(FixedFamily):
    """Any model whose pictures have one shape and `image_seq_length` tokens, all the same token.

    What stands around these is the chat template's to write.
    """

    name: ClassVar[str] = "default"
    classes: ClassVar[tuple[str, ...]] = ()
    known: ClassVar[tuple[str, ...]] = (*FixedFamily.known, "image_seq_length")

    def _count(self) -> int:
        found: int | None = self.settings.get("image_seq_length")
        if found is None:
            raise InvalidJob(
                f"{self.class_name} does not say how many tokens a picture has: give settings "
                "{image_seq_length: ...}",
                key="settings",
            )
        return found


def _cropped(picture: Pixels, height: int, width: int) -> Pixels:
    """Return the middle of a picture, on black where it is smaller."""
    tall, wide = picture.shape[:2]
    top, left = (tall - height) // 2, (wide - width) // 2
    if top >= 0 and left >= 0:
        return picture[top : top + height, left : left + width]
    most_tall, most_wide = max(tall, height), max(wide, width)
    found = np.zeros((most_tall, most_wide, 3), np.uint8)
    above, before = math.ceil((most_tall - tall) / 2), math.ceil((most_wide - wide) / 2)
    found[above : above + tall, before : before + wide] = picture
    top, left = top + above, left + before
    return found[max(0, top) : top + height, max(0, left) : left + width]
