"""What `meta/info.json` of a LeRobot folder declares: features, rate, and where files lie.

The layouts are those that LeRobot documents for its dataset formats v2.1 and v3.0; names of files
come from the templates in `info.json`, so a folder that has others is read as well.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from penstock.common.nearest import hint, listed
from penstock.server.core.shown import shown
from penstock.wire.errors import InvalidJob

VERSIONS = ("v2.0", "v2.1", "v3.0")
IMAGE, VIDEO, TEXT, LIST, NUMBERS = "image", "video", "string", "list", "numbers"

MAX_FRAMES = 1 << 40
"""Of a folder, and of an episode: what counts more is a damaged number."""

_PLACE = re.compile(r"\{(\w+)(?::0?(\d{1,2})d?)?\}")
_BRACES = re.compile(r"[{}]")


class Feature(NamedTuple):
    """A feature as `info.json` declares it.

    Attributes:
        name: Its key.
        kind: `numbers` of a fixed shape, `list` (of another length in each frame), `string`,
            `image` (a file in the table), or `video` (frames of a file beside it).
        dtype: The dtype that is declared.
        shape: Of one frame's value; (1,) is a single number. Empty where `kind` is `list`.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_camera(self) -> bool:
        """Tell whether it is pictures."""
        return self.kind in (IMAGE, VIDEO)


@dataclass(frozen=True)
class FolderInfo:
    """What is declared of a folder.

    Attributes:
        version: The version of its layout.
        fps: Frames a second.
        features: By name, in the order of the file.
        episodes: How many episodes there are.
        frames: How many frames there are.
        chunk_size: How many episodes are in a folder of files, before v3.0.
        data_path: The template of the tables' names.
        video_path: The template of the videos' names; empty where there are none.
    """

    version: str
    fps: float
    features: Mapping[str, Feature]
    episodes: int
    frames: int
    chunk_size: int
    data_path: str
    video_path: str

    @property
    def shares_files(self) -> bool:
        """Tell whether a file may hold several episodes, as since v3.0."""
        return self.version >= "v3"

    def chosen(self, names: Sequence[str] | None) -> list[Feature]:
        """Return the features that are asked for, in the order of the file; None = all.

        Raises:
            InvalidJob: One is not there.
        """
        if names is None:
            return list(self.features.values())
        if isinstance(names, str) or not names:
            raise InvalidJob(
                f"features is {shown(names)}: give a list of names, or leave it out for all",
                key="source.features",
            )
        for name in names:
            if name not in self.features:
                raise no_feature("features", name, self.features)
        return [feature for name, feature in self.features.items() if name in names]


def no_feature(parameter: str, name: Any, known: Mapping[str, Feature]) -> InvalidJob:
    """Return the error of a name that is no feature's: says what there is."""
    near = hint(name, known) if isinstance(name, str) else ""
    there = f"there are {listed(known)}"
    return InvalidJob(
        f"{parameter} names {shown(name)}, and meta/info.json has no such feature: "
        + (f"{near} {there[0].upper()}{there[1:]}" if near.startswith("did") else there),
        key=f"source.{parameter}",
    )


def invalid_root(said: str) -> InvalidJob:
    """Return the error of a folder that is not as LeRobot writes it."""
    return InvalidJob(said, key="source.root")


def read_info(data: bytes, where: str) -> FolderInfo:
    """Return what an `info.json` says.

    Args:
        data: Its bytes.
        where: What errors call the file.

    Raises:
        InvalidJob: It is damaged, or of a layout that is not known.
    """
    try:
        said = json.loads(data)
    except ValueError as error:
        raise invalid_root(f"{where} is not JSON ({error}): it is damaged") from None
    if not isinstance(said, dict):
        raise invalid_root(f"{where} holds a {type(said).__name__} and no keys: it is damaged")
    version = said.get("codebase_version")
    if version not in VERSIONS:
        raise invalid_root(
            f"{where} has codebase_version {shown(version)}: {', '.join(VERSIONS)} are read; "
            "convert the folder with LeRobot's own scripts"
        )
    is_shared = version >= "v3"
    fps = said.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < math.inf:
        raise invalid_root(f"{where} has fps {shown(fps)}: a number above 0 is needed")
    features = said.get("features")
    if not isinstance(features, dict) or not features:
        raise invalid_root(f"{where} has no features: it is damaged")
    found = {name: _feature(name, declared, where) for name, declared in features.items()}
    has_videos = any(feature.kind == VIDEO for feature in found.values())
    return FolderInfo(
        version=version,
        fps=float(fps),
        features=found,
        episodes=_count(said, "total_episodes", where),
        frames=_count(said, "total_frames", where),
        chunk_size=1000 if is_shared else max(1, _count(said, "chunks_size", where)),
        data_path=_template(said, "data_path", where),
        video_path=_template(said, "video_path", where) if has_videos else "",
    )


def _feature(name: str, declared: Any, where: str) -> Feature:
    dtype = declared.get("dtype") if isinstance(declared, dict) else None
    shape = declared.get("shape") if isinstance(declared, dict) else None
    if not isinstance(dtype, str):
        raise invalid_root(f"{where} declares no dtype of {shown(name)}: it is damaged")
    if dtype in (IMAGE, VIDEO, TEXT):
        sides = [n for n in shape if _is_whole(n)] if isinstance(shape, list | tuple) else []
        return Feature(name, dtype, dtype, tuple(sides))
    is_number = _is_number(dtype)
    if is_number and isinstance(shape, list | tuple) and shape:
        if all(_is_whole(side) and 0 < side < MAX_FRAMES for side in shape):
            return Feature(name, NUMBERS, dtype, tuple(shape))
        return Feature(name, LIST, dtype, ())  # another length in each frame
    if is_number:
        return Feature(name, NUMBERS, dtype, (1,))
    return Feature(name, LIST, dtype, ())


def _is_number(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:
        return False


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _count(said: Mapping[str, Any], key: str, where: str) -> int:
    value = said.get(key)
    if not _is_whole(value) or not 0 <= value < MAX_FRAMES:  # type: ignore[operator]
        raise invalid_root(f"{where} has {key} {shown(value)}: a whole number is needed")
    return int(value)  # type: ignore[arg-type]


def _template(said: Mapping[str, Any], key: str, where: str) -> str:
    value = said.get(key)
    if not isinstance(value, str) or not value:
        raise invalid_root(f"{where} has {key} {shown(value)}: the names of files are needed")
    return value


def fill(template: str, where: str, **values: int | str) -> str:
    """Return a file's name by a template of `info.json`, such as `file-{file_index:03d}.parquet`.

    The template is data: nothing but a value and its width is understood, where `str.format` would
    reach into objects.

    Raises:
        InvalidJob: It asks for something else.
    """

    def value(found: re.Match[str]) -> str:
        name, width = found.groups()
        if name not in values:
            raise invalid_root(
                f"{where} has the name {shown(template)}, in which {name!r} is not known: "
                f"known are {', '.join(values)}"
            )
        return str(values[name]).rjust(int(width or 0), "0")

    if _BRACES.search(_PLACE.sub("", template)):
        raise invalid_root(
            f"{where} has the name {shown(template)}, which cannot be read: such as "
            "{file_index:03d} is known"
        )
    return _PLACE.sub(value, template)


def fixed_folder(template: str) -> str:
    """Return the folder of a template's names, as far as all have the same one."""
    return template.partition("{")[0].rpartition("/")[0]
