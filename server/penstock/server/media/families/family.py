"""What families of vision-language models share: sizes, pixels, and the tokens of pictures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.media.families.family_settings import RESAMPLINGS, Settings
from penstock.server.media.geometry import Extent
from penstock.server.media.resize import FILTERS, resize
from penstock.wire.errors import InvalidJob

CLIP_MEAN, CLIP_STD = (
    [0.48145466, 0.4578275, 0.40821073],
    [0.26862954, 0.26130258, 0.27577711],
)
"""Of the pictures that CLIP was trained on, by channel, from 0 to 1 (arXiv 2103.00020)."""

Pixels = npt.NDArray[np.uint8]
"""A picture, (height, width, 3), or (n, ...) once it is patches."""

FAKE_SIDE = 56
"""Pixels of the sides of the white picture that a conversation without one is given."""


class PictureSize(NamedTuple):
    """What a picture becomes, known from its width and height.

    Attributes:
        tokens: The tokens that stand for it among a conversation's.
        patches: The patches that the vision tower takes.
        pixels: Those of its resized form, padding and cropping included.
        grid: Its patches in time, rows and columns; None = all pictures have one shape.
    """

    tokens: int
    patches: int
    pixels: int
    grid: tuple[int, int, int] | None


class Family(ABC):
    """How one family of models takes pictures.

    Class attributes:
        name: What a job calls it.
        classes: The classes of transformers' processors that belong to it.
        known: The settings that it has.
        defaults: Their values where neither the folder nor the job gives one.
        around: The tokens that begin and end a picture, as templates write them; None = there are
            none.
        has_grids: Pictures have shapes of their own, `image_grid_thw`.
        has_rope: Positions have three dimensions.
        takes_video: Videos can be shown, by tokens of their own.
        has_clip_seconds: Positions of a video go by its rate, `second_per_grid_ts`.
        has_clip_times: The frames of a temporal patch are a block of tokens, and before it stands a
            text that says when they are shown.

    Args:
        settings: Checked values, over `defaults`.
        class_name: The class of the processor whose folder it is, for errors.
        kernel: What resizes: `pillow` or `torch`.

    Raises:
        InvalidJob: They do not go together.

    Glossary:
        family: Models that take pictures alike: as many tokens for a size, and the same pixels.
    """

    name: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    known: ClassVar[tuple[str, ...]]
    defaults: ClassVar[Mapping[str, Any]]
    around: ClassVar[tuple[str, str] | None] = None
    has_grids: ClassVar[bool] = True
    has_rope: ClassVar[bool] = False
    takes_video: ClassVar[bool] = False
    has_clip_seconds: ClassVar[bool] = False
    has_clip_times: ClassVar[bool] = False

    def __init__(self, settings: Settings, class_name: str, kernel: str = "pillow") -> None:
        self.settings: Settings = {**self.defaults, **settings}
        self.class_name, self.kernel = class_name, kernel
        self._filter = RESAMPLINGS[self.settings["resample"]]
        if kernel == "torch" and self._filter not in FILTERS:
            raise InvalidJob(
                f"resample of {class_name} (family {self.name}) is {self._filter}, which torch "
                "does not have: write kernel: pillow, or settings: {resample: 3}, bicubic",
                key="kernel",
            )
        self.image_token: str = self.settings["image_token"]
        self.image_id = -1
        self.video_token: str | None = self.settings.get("video_token")
        self.video_id: int | None = None
        self.around_ids: tuple[int, int] | None = None
        self._table = self._levels()

    @classmethod
    def layered(cls, settings: Settings) -> Settings:
        """Return settings of one place in the names that this family goes by."""
        return settings

    def find_tokens(self, token_id: Callable[[str], int | None]) -> None:
        """Look for the tokens of pictures.

        Args:
            token_id: Gives the number of a token's text; None = it is not in the vocabulary.

        Raises:
            InvalidJob: One is not there, and the family's pictures could not be told from text.
        """
        texts = (self.image_token, *(self.around or ()))
        ids = [token_id(text) for text in texts]
        if missing := [text for text, found in zip(texts, ids, strict=True) if found is None]:
            raise InvalidJob(
                f"the tokens of pictures of {self.class_name} (family {self.name}) are not found: "
                f"{', '.join(map(repr, missing))} is not in the tokenizer's vocabulary; give the "
                "folder of the processor with its own tokenizer, or name the token by settings: "
                "{image_token: ...}",
                key="tokenizer",
            )
        found = [each for each in ids if each is not None]
        self.image_id = found[0]
        if self.around is not None:
            self.around_ids = (found[1], found[2])
        if self.video_token is not None:  # a folder for pictures alone may lack it
            self.video_id = token_id(self.video_token)

    @abstractmethod
    def size(self, width: int, height: int) -> PictureSize:
        """Return what a picture becomes: the one rule of indices, plans and readers.

        Raises:
            ValueError: The family refuses such a picture.
        """

    @abstractmethod
    def patches(self, picture: Pixels) -> Pixels:
        """Return the unnormalized values of a picture: uint8, as `pixel_values` of the family.

        Args:
            picture: uint8 (height, width, 3).
        """

    def picture(self, patches: Pixels, grid: Sequence[int] | None) -> Pixels:
        """Return the picture, as it was resized, that `patches` gave: for who looks at it.

        Args:
            patches: uint8, of one picture.
            grid: Its patches in time, rows and columns; None = the family has none.
        """
        found: Pixels = patches[0].transpose(1, 2, 0)
        return found

    def levels(self, values: npt.NDArray[np.float32]) -> Pixels:
        """Return the unnormalized pixels of what `values` gave, as near as float32 has them."""
        first, second = self.norm()
        found: Pixels = np.rint(values * second + first).clip(0, 255).astype(np.uint8)
        return found

    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one entry of `pixel_values`; its first axis begins with channels."""

    def values(self, patches: Pixels) -> npt.NDArray[np.float32]:
        """Return what the family's processor gives, of what `patches` gave.

        A pixel has one of 256 levels, so its normalized value is looked up: the same bits, made by
        the same operations, for a fraction of the time.
        """
        if not len(patches):
            return np.zeros(patches.shape, np.float32)
        by_channel = patches.reshape(len(patches), 3, -1)
        found = np.empty(by_channel.shape, np.float32)
        for channel in range(3):
            found[:, channel] = self._table[channel][by_channel[:, channel]]
        return found.reshape(patches.shape)

    def norm(self) -> npt.NDArray[np.float32]:
        """Return what normalizes unnormalized pixels: (level - first) / second.

        Returns:
            float32 (2, ...), which broadcasts over any number of patches or pictures: (2, values)
            where a patch is a row of values, else (2, 3, 1, 1).
        """
        factor = self.settings["rescale_factor"] if self.settings["do_rescale"] else 1.0
        mean, std = [0.0] * 3, [1.0] * 3
        if self.settings["do_normalize"]:
            mean, std = self.settings["image_mean"], self.settings["image_std"]
        found = np.array([np.array(mean) / factor, np.array(std) / factor], dtype=np.float32)
        if len(self.shape()) == 1:
            return np.repeat(found, self.shape()[0] // 3, axis=1)
        return found.reshape(2, 3, 1, 1)

    def _levels(self) -> npt.NDArray[np.float32]:
        """Return the value of each level in each channel: float32 (3, 256).

        The order of operations, and where they round, is that of transformers' image processors:
        over Pillow they scale a picture first; over torchvision they scale mean and deviation.
        """
        settings, levels = self.settings, np.tile(np.arange(256, dtype=np.float32), (3, 1))
        rescales, normalizes = settings["do_rescale"], settings["do_normalize"]
        factor = settings["rescale_factor"]
        mean = np.array(settings["image_mean"], dtype=np.float32)[:, None]
        std = np.array(settings["image_std"], dtype=np.float32)[:, None]
        if not self._over_torchvision:
            if rescales:
                levels = (levels.astype(np.float64) * factor).astype(np.float32)
        elif rescales and normalizes:
            mean, std = (each * np.float32(1.0 / factor) for each in (mean, std))
        elif rescales:
            levels = levels * np.float32(factor)
        return (levels - mean) / std if normalizes else levels

    @property
    def _over_torchvision(self) -> bool:
        return self.kernel == "torch"

    def resized(self, picture: Pixels, height: int, width: int) -> Pixels:
        """Return a picture in another size."""
        return resize(picture, Extent(height, width), self.kernel, self._filter)


def identity_of(family: Family) -> dict[str, Any]:
    """Return what of a family decides bytes, JSON-able: part of a job's identity."""
    settings = {name: _plain(value) for name, value in sorted(family.settings.items())}
    return {"family": family.name, "settings": settings, "kernel": family.kernel}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(sorted(value.items()))
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
