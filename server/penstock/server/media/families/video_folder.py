"""What the folder of a processor says of videos."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.server.media.families.family import Family
from penstock.server.media.families.family_settings import Settings, checked
from penstock.server.media.pretrained import read_json
from penstock.wire.errors import InvalidJob

_OWN, _PICTURES, _WHOLE = (
    "video_preprocessor_config.json",
    "preprocessor_config.json",
    "processor_config.json",
)

_NAMES = {
    "fps": "video_fps",
    "min_frames": "min_frames",
    "max_frames": "max_frames",
    "cap_pixels_per_frame": "cap_pixels_per_frame",
    "max_video_tokens": "max_video_tokens",
    "min_pixels": "video_min_pixels",
    "max_pixels": "video_max_pixels",
}
"""What settings of a video processor are called here."""

_ALIKE = (
    *("image_mean", "image_std", "rescale_factor", "do_resize", "do_rescale", "do_normalize"),
    *("resample", "patch_size", "merge_size", "temporal_patch_size"),
)
"""What videos have to have in common with pictures: one `pixel_norm` and one vision tower."""


def video_settings(folder: Path, cls: type[Family], pictures: Mapping[str, Any]) -> Settings:
    """Return the settings of videos that a folder has.

    They are in `processor_config.json` or in a file of their own; older folders have them in that
    of pictures, as transformers reads them. `tokens_per_second` is in the model's `config.json`.

    Args:
        folder: The processor's.
        cls: Its family.
        pictures: The family's settings of pictures.

    Raises:
        InvalidJob: One makes no sense, or is another one than that of pictures.
    """
    place = folder / _WHOLE
    content = read_json(place).get("video_processor")
    for name in (_OWN, _PICTURES):
        if isinstance(content, Mapping) and content:
            break
        place = folder / name
        content = read_json(place)
    assert isinstance(content, Mapping)
    said = {name: value for name, value in content.items() if value is not None}
    if place.name != _PICTURES:
        for name in _ALIKE:
            if name in said and said[name] != pictures[name]:
                raise InvalidJob(
                    f"{name} in {str(place)!r} is {said[name]!r}, and of pictures it is "
                    f"{pictures[name]!r}: the family {cls.name} takes both alike; make samples by "
                    "a function, or correct the file",
                    key="tokenizer",
                )
    found = {ours: said[name] for name, ours in _NAMES.items() if name in said}
    size = said.get("size")
    if isinstance(size, Mapping):
        for name, others in (
            ("video_min_pixels", ("shortest_edge", "min_pixels")),
            ("video_max_pixels", ("longest_edge", "max_pixels")),
        ):
            for other in others:
                if size.get(other) is not None:
                    found.setdefault(name, size[other])
    for name, content in (
        ("tokens_per_second", read_json(folder / "config.json").get("vision_config")),
        ("video_token", read_json(folder / "tokenizer_config.json")),
    ):
        if isinstance(content, Mapping) and content.get(name) is not None:
            value = content[name]
            found[name] = value.get("content") if isinstance(value, Mapping) else value
    return checked(found, cls.known, str(place), cls.name)
