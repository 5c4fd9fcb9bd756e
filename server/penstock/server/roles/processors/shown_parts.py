"""What a conversation shows: parts that are pictures and videos, and what holds or names them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from penstock.server.core.shown import shown

_HOLDERS = ("image", "image_url", "url", "path", "bytes", "lmdb")
"""Keys of a part, or of an entry of the column of pictures, that hold or name the picture."""

_WITHIN = ("dir", "offset", "length")
"""Keys beside them that say where the name leads: which directory, which part of the file."""

_VIDEO_HOLDERS = ("video", "video_url", *_HOLDERS[2:])
_SOUNDS = ("audio", "audio_url", "input_audio")


class Picture(dict[str, Any]):
    """A part that is a picture, as templates take it: `type`, and what else the data says of it.

    Attributes:
        reference: What holds or names the picture; None = the next one of the item's column, and
            of a fake one there is none.
    """

    reference: Any = None

    @property
    def references(self) -> list[Any]:
        """Return all media that it is made of."""
        return [self.reference]


class Clip(Picture):
    """A part that is a video: a file, or a list of pictures, which are its frames.

    What else is said of it, such as `fps`, says which frames are shown, and nothing to templates.

    Attributes:
        said: What that is, by name.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__(type="video")
        self.said = dict(said)

    @property
    def is_listed(self) -> bool:
        """Tell whether it is a list of pictures."""
        return isinstance(self.reference, list)

    @property
    def references(self) -> list[Any]:
        """Return all media that it is made of."""
        return self.reference if self.is_listed else [self.reference]


def references_of(parts: Sequence[Picture]) -> list[Any]:
    """Return the media of pictures and videos, in order.

    Those whose bytes the item holds without a name are called by their number: `picture 0`,
    `video 0`, `picture 2 of video 0`.
    """
    found: list[Any] = []
    counts = {"picture": 0, "video": 0}
    for part in parts:
        kind = "video" if isinstance(part, Clip) else "picture"
        name = f"{kind} {counts[kind]}"
        counts[kind] += 1
        is_listed = isinstance(part, Clip) and part.is_listed
        found += [
            _called(reference, f"picture {number} of {name}" if is_listed else name)
            for number, reference in enumerate(part.references)
        ]
    return found


def _called(reference: Any, name: str) -> Any:
    """Return what holds or names a medium, with a name if it has none of its own."""
    if isinstance(reference, bytes | bytearray | memoryview | np.ndarray):
        reference = {"bytes": reference}
    if not isinstance(reference, Mapping) or reference.get("bytes") is None:
        return reference
    return reference if reference.get("path") else {**reference, "path": name}


def text_part(text: str) -> dict[str, Any]:
    """Return a text as a part."""
    return {"type": "text", "text": text}


def part_of(part: Any, number: int) -> dict[str, Any]:
    """Return a part of a turn of OpenAI's form."""
    if isinstance(part, str):
        return text_part(part)
    if not isinstance(part, Mapping):
        raise ValueError(
            f"turn {number} has a part of type {type(part).__name__}; give it a type and a text, "
            "or a type and an image"
        )
    part = {name: value for name, value in part.items() if value is not None}  # as Arrow fills up
    kind = part.get("type")
    if kind == "text" or (kind is None and "text" in part):
        if not isinstance(part.get("text"), str):
            raise ValueError(f"turn {number} has a part of type text without a text")
        return {**part, "type": "text"}
    if any(name in part for name in _SOUNDS) or kind in _SOUNDS:
        raise ValueError(
            f"turn {number} has a part of type {kind!r}, and conversation takes text, pictures and "
            "videos"
        )
    if kind in _VIDEO_HOLDERS[:2] or any(name in part for name in _VIDEO_HOLDERS[:2]):
        return _clip(part)
    if kind in ("image", "image_url") or "image" in part or "image_url" in part:
        return _picture(part, {})
    raise ValueError(
        f"turn {number} has a part of type {kind!r}; known are text, image, image_url, video and "
        "video_url"
    )


def listed(column: Any) -> list[Any]:
    """Return the pictures of a column: a list, or a single one that stands alone."""
    if column is None:
        return []
    if isinstance(column, Sequence) and not isinstance(column, str | bytes):
        return list(column)
    return [column]


def _picture(given: Any, more: Mapping[str, Any], kind: str = "picture") -> Picture:
    """Return a part of what holds or names a picture, and of what else is said of it.

    A video is held and named the same way: then `kind` is what errors call it.
    """
    found = Picture(more)
    if isinstance(given, Mapping):
        held = {name: given[name] for name in _HOLDERS if given.get(name) is not None}
        inner = held.pop("image", None)
        if inner is None:
            inner = held.pop("image_url", None)
        within = {name: given[name] for name in _WITHIN if held and given.get(name) is not None}
        found.update(
            (name, each)
            for name, each in given.items()
            if name not in _HOLDERS and name not in within
        )
        given = {**held, **within} or None
        if inner is not None:
            found.reference = _picture(inner, {}).reference if isinstance(inner, Mapping) else inner
            given = None
        elif (url := held.get("url")) is not None and "bytes" not in held:
            named = within and isinstance(url, str) and not url.startswith("data:")
            given = {"path": url, **within} if named else url
    elif given is None:
        raise ValueError("a picture of the conversation is null; leave it out of the data")
    if given is not None:
        found.reference = given
    if isinstance(found.reference, str) and found.reference.startswith("data:"):
        found.reference = {"bytes": _data_of(found.reference, kind)}
    found["type"] = "image"
    return found


def _clip(given: Any) -> Clip:
    """Return a part of what holds or names a video, and of what else is said of it."""
    if not isinstance(given, Mapping):
        found = Clip({})
        found.reference = _clip_reference(given)
        return found
    inner = next((given[name] for name in _VIDEO_HOLDERS[:2] if given.get(name) is not None), None)
    if isinstance(inner, Mapping):
        found = _clip(inner)
    else:
        held = _HOLDERS[2:] if inner is None else ()
        names = {*held, *_WITHIN}
        holds = {name: given[name] for name in names if given.get(name) is not None}
        found = Clip({})
        if inner is not None and holds and isinstance(inner, str):
            found.reference = {"path": inner, **holds}
        elif inner is not None:
            found.reference = _clip_reference(inner)
        elif any(name in holds for name in held):
            found.reference = _picture(holds, {}, "video").reference
    found.said |= {
        name: value
        for name, value in given.items()
        if value is not None and name not in ("type", *_VIDEO_HOLDERS, *_WITHIN)
    }
    return found


def _clip_reference(given: Any) -> Any:
    if isinstance(given, Sequence) and not isinstance(given, str | bytes):
        if not given:
            raise ValueError(
                "a video of the conversation is an empty list of pictures; leave it out of the data"
            )
        return [shown_part(each, Picture()).reference for each in given]
    if given is None:
        raise ValueError("a video of the conversation is null; leave it out of the data")
    return _picture(given, {}, "video").reference


def shown_part(given: Any, place: Picture) -> Picture:
    """Return a picture or video of a column, which has to be one: it has no other to take."""
    found: Picture
    if isinstance(place, Clip):
        found = _clip(given)
        found.said = {**found.said, **place.said}
    else:
        found = _picture(given, place)
    if found.reference is None:
        kind = "video" if isinstance(place, Clip) else "picture"
        raise ValueError(
            f"a {kind} of the conversation is {shown(given)}, which has neither bytes nor a path; "
            "leave it out of the data"
        )
    return found


def _data_of(url: str, kind: str) -> bytes:
    """Return the bytes that a URL of the scheme `data:` holds (RFC 2397)."""
    head, comma, body = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise ValueError(f"a {kind} is {url[:50]!r}, and of data: only base64 is known")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a {kind} is {url[:50]!r}, which is not base64: {error}") from None
