"""Which family the folder of a processor is, and with which settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.server.media.families.family import Family
from penstock.server.media.families.family_settings import Settings, checked
from penstock.server.media.families.fixed_families import DefaultFamily, Llava
from penstock.server.media.families.patch_families import Kimi, Qwen3Vl, Qwen25Vl, QwenVl
from penstock.server.media.families.video_folder import video_settings
from penstock.server.media.pretrained import read_json
from penstock.wire.errors import InvalidJob

FAMILIES: dict[str, type[Family]] = {
    cls.name: cls for cls in (QwenVl, Qwen25Vl, Qwen3Vl, Llava, Kimi, DefaultFamily)
}
"""What `family` of a job may name."""

_CLASSES = {name: cls for cls in FAMILIES.values() for name in cls.classes}
_FILES = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")

_TILES = (
    "crop_to_patches",
    "do_image_splitting",
    "do_pan_and_scan",
    "image_grid_pinpoints",
    "max_image_tiles",
)
"""Settings of processors that cut a picture into several, by its shape."""


def load_family(
    folder: Path, name: str | None, given: Mapping[str, Any] | None, kernel: str = "pillow"
) -> Family:
    """Return the family of a processor.

    Args:
        folder: The processor's, as `save_pretrained` of transformers writes it.
        name: The family; None = that of the processor's class, which its files name.
        given: Settings over those of the folder; what neither has is the family's default.
        kernel: What resizes: `pillow` or `torch`.

    Raises:
        InvalidJob: The files name no class of a family, or a setting makes no sense.
    """
    found, class_name, place = _found(folder)
    if name is not None:
        if name not in FAMILIES:
            raise InvalidJob(f"family is {name!r}; give one of {', '.join(FAMILIES)}", key="family")
        cls = FAMILIES[name]
    else:
        cls = _class(folder, class_name)
    class_name = class_name or f"the family {cls.name}"
    if cls is DefaultFamily and (tiles := [key for key in _TILES if found.get(key)]):
        raise InvalidJob(
            f"{class_name} cuts pictures into several by their shape ({tiles[0]} in "
            f"{str(folder / place)!r}), and the family default has one shape for all: give another "
            "family, or make samples by a function",
            key="family",
        )
    own = cls.layered(checked(_numbers(found), cls.known, str(folder / place), cls.name))
    if cls.takes_video:
        own.update(video_settings(folder, cls, {**cls.defaults, **own}))
    settings: Settings = cls.layered(checked(given or {}, cls.known, "", cls.name))
    return cls({**own, **settings}, class_name, kernel)


def _class(folder: Path, class_name: str | None) -> type[Family]:
    if class_name is None:
        raise InvalidJob(
            f"the folder {str(folder)!r} does not say of which processor it is: there is no "
            "processor_class in its preprocessor_config.json or processor_config.json; give a "
            f"family, one of {', '.join(FAMILIES)}",
            key="family",
        )
    cls = _CLASSES.get(class_name)
    if cls is None:
        raise InvalidJob(
            f"the folder {str(folder)!r} is that of {class_name}, and no family has that class: "
            f"known are {', '.join(_CLASSES)}; if its pictures are taken as those of one of "
            f"{', '.join(FAMILIES)} are, name that family",
            key="family",
        )
    return cls


def _found(folder: Path) -> tuple[dict[str, Any], str | None, str]:
    """Return what the files of a folder say, the processor's class, and the file of pictures."""
    values: dict[str, Any] = {}
    class_name, place = None, _FILES[1]
    for name in _FILES:
        content = read_json(folder / name)
        class_name = class_name or _class_name(content)
        if name == "tokenizer_config.json":
            more = content.get("extra_special_tokens")
            token = content.get("image_token") or (
                more.get("image_token") if isinstance(more, Mapping) else None
            )
            if token is not None:
                values["image_token"] = (
                    token.get("content") if isinstance(token, Mapping) else token
                )
            continue
        nested = content.pop("image_processor", None)
        if isinstance(nested, Mapping):
            content = {**content, **nested}
        if isinstance(own := content.get("media_proc_cfg"), Mapping):
            content = {**content, **_kimi_settings(own, folder / name)}
        if content and any(key.startswith("image_") for key in content):
            place = name
        values.update({key: value for key, value in content.items() if value is not None})
    return values, class_name, place


def _class_name(content: Mapping[str, Any]) -> str | None:
    """Return the class that a file names, of transformers or of code beside the model."""
    code = content.get("auto_map")
    told = code.get("AutoProcessor") if isinstance(code, Mapping) else None
    found = content.get("processor_class") or told
    return found.rpartition(".")[2] if isinstance(found, str) else None


_KIMI = {
    "in_patch_limit": "max_patches",
    "patch_limit_on_one_side": "max_side_patches",
    "merge_kernel_size": "merge_size",
    "patch_size": "patch_size",
    "image_mean": "image_mean",
    "image_std": "image_std",
}
"""What the settings of Kimi's own code, `media_proc_cfg`, are called in transformers."""

_KIMI_OTHERS = ("fixed_output_tokens", "transparent_bg_config")
"""Its settings that the family has not."""


def _kimi_settings(told: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return the settings of Kimi's own code as those of the family.

    Raises:
        InvalidJob: It has one that the family has not.
    """
    for name in _KIMI_OTHERS:
        if told.get(name) is not None:
            raise InvalidJob(
                f"{name} in {str(place)!r} is {told[name]!r}, which the family kimi does not have: "
                "make samples of this model by a function",
                key="family",
            )
    found = {name: told[own] for own, name in _KIMI.items() if told.get(own) is not None}
    if isinstance(merge := found.get("merge_size"), list) and merge:
        found["merge_size"] = merge[0]
    return found


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as families have them.

    Older files have one number for both sides. A processor that does not crop has no word of it in
    its file. `do_pad` makes pictures square in LLaVA's own processor alone.
    """
    values = dict(found)
    kind = values.get("image_processor_type")
    if not (isinstance(kind, str) and kind.startswith("LlavaImageProcessor")):
        values.pop("do_pad", None)
    for name in ("size", "crop_size"):
        if isinstance(sides := values.get(name), Mapping):
            values[name] = {key: each for key, each in sides.items() if each is not None}
    if "image_mean" in values:
        values.setdefault("do_center_crop", False)
    if isinstance(values.get("size"), int):
        values["size"] = {"shortest_edge": values["size"]}
    if isinstance(side := values.get("crop_size"), int):
        values["crop_size"] = {"height": side, "width": side}
    return values
