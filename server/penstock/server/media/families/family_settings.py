"""What decides the tokens and pixels of a family, from its folder and from the job, checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.common.nearest import hint
from penstock.wire.errors import InvalidJob

Settings = dict[str, Any]

Check = tuple[Callable[[Any], bool], str]
"""Whether a value makes sense, and which ones do."""

RESAMPLINGS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Filters of Pillow, by the numbers that the files of processors have."""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(least: int, most: int) -> Check:
    """Return the check of a whole number, and what it asks for."""
    return (
        lambda value: _is_whole(value) and least <= value <= most,
        f"a whole number from {least} to {most:,}",
    )


def _number(value: Any, least: float, most: float) -> bool:
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    return fits and least <= value <= most


def _channels(value: Any, least: float) -> bool:
    is_list = isinstance(value, Sequence) and len(value) == 3
    return is_list and all(_number(each, least, 1000) for each in value)


def _edges(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(_is_whole(each) and 1 <= each <= MOST_PIXELS for each in value.values())
    )


MOST_PIXELS = 1 << 28
"""Of bounds on pixels, where more would be a mistake: 768 MiB of a picture."""

_FLAG: Check = (lambda value: isinstance(value, bool), "true or false")
_PIXELS = _whole(1, MOST_PIXELS)

KINDS: dict[str, Check] = {
    "image_token": (lambda value: isinstance(value, str) and bool(value), "the text of a token"),
    "video_token": (lambda value: isinstance(value, str) and bool(value), "the text of a token"),
    "image_mean": (lambda value: _channels(value, -1000), "three numbers, of red, green and blue"),
    "image_std": (lambda value: _channels(value, 1e-6), "three numbers above 0"),
    "rescale_factor": (lambda value: _number(value, 1e-6, 1000), "a number, such as 0.0039"),
    "do_resize": _FLAG,
    "do_rescale": _FLAG,
    "do_normalize": _FLAG,
    "do_center_crop": _FLAG,
    "do_pad": _FLAG,
    "resample": (
        lambda value: _is_whole(value) and value in RESAMPLINGS,
        "a filter of Pillow, by its number from 0 to 5",
    ),
    "patch_size": _whole(1, 1024),
    "merge_size": _whole(1, 64),
    "temporal_patch_size": _whole(1, 64),
    "max_patches": _whole(1, 1 << 24),
    "max_side_patches": _whole(1, 1 << 16),
    "min_pixels": _PIXELS,
    "max_pixels": _PIXELS,
    "video_min_pixels": _PIXELS,
    "video_max_pixels": _PIXELS,
    "cap_pixels_per_frame": _FLAG,
    "max_video_tokens": _whole(1, 1 << 24),
    "video_fps": (lambda value: _number(value, 1e-3, 1000), "frames in a second, such as 2"),
    "min_frames": _whole(1, 1 << 16),
    "max_frames": _whole(1, 1 << 16),
    "tokens_per_second": (lambda value: _number(value, 1e-3, 1000), "a number, such as 2"),
    "size": (_edges, "sizes by names, such as {shortest_edge: 336}"),
    "crop_size": (_edges, "sizes by names, such as {height: 336, width: 336}"),
    "image_seq_length": _whole(1, 1 << 20),
    "num_additional_image_tokens": _whole(0, 1 << 20),
    "vision_feature_select_strategy": (
        lambda value: isinstance(value, str) and value in ("default", "full"),
        "default or full",
    ),
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
