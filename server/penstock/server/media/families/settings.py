"""What decides the tokens and pixels of a family, from its folder and from the job, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.common.nearest import hint
from penstock.wire.errors import InvalidJob

Settings = dict[str, Any]

RESAMPLINGS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Filters of Pillow, by the numbers that the files of processors have."""


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _positive(value: Any) -> bool:
    return _whole(value) and value > 0


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _channels(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 3 and all(map(_number, value))


def _deviations(value: Any) -> bool:
    return _channels(value) and all(each > 0 for each in value)


def _edges(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and all(map(_positive, value.values()))


def _text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "image_token": (_text, "the text of a token"),
    "image_mean": (_channels, "three numbers"),
    "image_std": (_deviations, "three numbers above 0"),
    "rescale_factor": (_number, "a number"),
    "do_resize": (_flag, "true or false"),
    "do_rescale": (_flag, "true or false"),
    "do_normalize": (_flag, "true or false"),
    "do_center_crop": (_flag, "true or false"),
    "do_pad": (_flag, "true or false"),
    "resample": (RESAMPLINGS.__contains__, "a filter of Pillow, by its number from 0 to 5"),
    "patch_size": (_positive, "a whole number from 1"),
    "merge_size": (_positive, "a whole number from 1"),
    "temporal_patch_size": (_positive, "a whole number from 1"),
    "max_patches": (_positive, "a whole number from 1"),
    "max_side_patches": (_positive, "a whole number from 1"),
    "min_pixels": (_positive, "a whole number from 1"),
    "max_pixels": (_positive, "a whole number from 1"),
    "size": (_edges, "sizes by names, such as {shortest_edge: 336}"),
    "crop_size": (_edges, "sizes by names, such as {height: 336, width: 336}"),
    "image_seq_length": (_positive, "a whole number from 1"),
    "num_additional_image_tokens": (_whole, "a whole number from 0"),
    "vision_feature_select_strategy": (("default", "full").__contains__, "default or full"),
}
"""Every setting: whether a value makes sense, and which do."""


def checked(given: Mapping[str, Any], known: Sequence[str], place: str, family: str) -> Settings:
    """Return the settings that a family has, each with a value that makes sense.

    Args:
        given: Values by names.
        known: The names that the family has.
        place: Where they stand, for errors: a file's name, or empty = the job, which may name
            nothing else.
        family: Its name.

    Raises:
        InvalidJob: One is not known, or has a value that makes no sense.
    """
    found: Settings = {}
    for name, value in given.items():
        if name not in known:
            if place:
                continue  # a processor's file has much that decides nothing here
            raise InvalidJob(
                f"settings has {name!r}, which the family {family} does not have: "
                f"{hint(str(name), list(known))}",
                key="settings",
            )
        fits, meaning = KINDS[name]
        if value is None:
            continue
        if not fits(value):
            said = f"{name} in {place!r}" if place else f"settings.{name}"
            raise InvalidJob(f"{said} is {value!r}; give {meaning}", key="settings")
        found[name] = value
    return found
