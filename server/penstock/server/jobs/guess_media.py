"""What items hold of pictures, sounds and videos, and where the files lie that they name."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.server.jobs.guess_files import named
from penstock.server.media.bad_picture import BadPicture
from penstock.server.media.bad_sound import BadSound
from penstock.server.media.image_header import read_header as read_image_header
from penstock.server.media.medium import HeldMedium
from penstock.server.media.parts import MediumParts
from penstock.server.media.sound_header import read_header as read_sound_header
from penstock.server.roles.samples import RawItem
from penstock.server.sources.kinds import PICTURES, SOUNDS, VIDEOS
from penstock.wire.errors import InvalidRequest

IMAGE_COLUMNS = ("images", "image")
"""What the pictures of conversations are called, likeliest first."""

_TAG = re.compile("<image>", re.IGNORECASE)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_MAX_NAME = 4096
_MAX_FOLDERS = 256
"""Folders that are looked into for files that items name."""


@dataclass(frozen=True, kw_only=True)
class MediaColumn:
    """A column of pictures, of sounds, or of videos.

    Attributes:
        name: What it is called.
        kind: `image`, `sound` or `video`: the processor that decodes them.
        beside: The columns of numbers and texts that samples have, too.
    """

    name: str
    kind: str
    beside: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ChatPictures:
    """The pictures of conversations.

    Attributes:
        column: The column that they stand in; None = turns name their own.
        everywhere: All items have this column.
        some_without: There are conversations without a picture.
        unplaced: There are pictures for which no text has a place.
        names: The files that are named, as items have them.
    """

    column: str | None
    everywhere: bool
    some_without: bool
    unplaced: bool
    names: Sequence[str] = field(repr=False)


def kind_of_medium(value: Any) -> str | None:
    """Return `image`, `sound` or `video`; None = a value is none of them, or nothing tells it.

    Bytes are told by their header, names by their ending.
    """
    if isinstance(value, Mapping):
        value = value["bytes"] if value.get("bytes") is not None else value.get("path")
    if isinstance(value, bytes):
        return _kind_of_bytes(value)
    if not isinstance(value, str) or len(value) > _MAX_NAME or "\n" in value:
        return None
    ending = posixpath.splitext(value)[1].lower()
    return next((kind for kind, endings in _ENDINGS.items() if ending in endings), None)


_ENDINGS = {"image": PICTURES, "sound": SOUNDS, "video": VIDEOS}
"""What names of media end in, by the processor that decodes them."""

_OTHER_BRANDS = (b"heic", b"heix", b"mif1", b"msf1", b"avif", b"avis", b"M4A ", b"M4B ")
"""Of files that begin as an mp4 does, and hold pictures or sound."""


def _begins_as_video(data: bytes) -> bool:
    """Tell whether bytes begin as mp4 and mov, mkv and webm, or avi do."""
    if data[4:8] == b"ftyp":
        return data[8:12] not in _OTHER_BRANDS
    return data[:4] == b"\x1aE\xdf\xa3" or (data[:4] == b"RIFF" and data[8:12] == b"AVI ")


def _kind_of_bytes(data: bytes) -> str | None:
    medium = HeldMedium("a value", data)
    try:
        read_image_header(medium)
        return "image"
    except BadPicture:
        pass
    try:
        read_sound_header(MediumParts(medium))
        return "sound"
    except BadSound:
        return "video" if _begins_as_video(data) else None


def find_media(
    looked: Sequence[RawItem], columns: Sequence[str], all_columns: Sequence[str]
) -> list[MediaColumn]:
    """Return the columns of which most items hold media of one kind.

    Args:
        looked: Some items.
        columns: Those that may be read.
        all_columns: Those that there are.
    """
    kinds: dict[str, str] = {}
    for name in columns:
        told = [kind_of_medium(item.get(name)) for item in looked]
        for kind in _ENDINGS:
            if told.count(kind) * 2 > len(looked):
                kinds[name] = kind
    return [
        MediaColumn(
            name=name,
            kind=kind,
            beside=[
                other for other in all_columns if other not in kinds and _is_plain(looked, other)
            ],
        )
        for name, kind in kinds.items()
    ]


def _is_plain(looked: Sequence[RawItem], name: str) -> bool:
    """Tell whether every item has a number or a text there, which batches can hold."""
    values = [item.get(name) for item in looked]
    return any(
        all(isinstance(value, kinds) for value in values) for kinds in (str, bool, int, float)
    )


def names_in(looked: Sequence[RawItem], column: str) -> list[str]:
    """Return the files that a column of media names."""
    return [name for item in looked for name in _name_of(item.get(column))]


def _name_of(value: Any) -> Iterator[str]:
    """Give what a value names; nothing where it holds the bytes itself."""
    if isinstance(value, Mapping):
        if value.get("bytes") is not None:
            return
        value = next((value[key] for key in ("path", "image", "url") if value.get(key)), None)
        if isinstance(value, Mapping):
            yield from _name_of(value)
            return
    if isinstance(value, str) and value and not value.startswith(("data:", "lmdb:")):
        yield value


def find_pictures(looked: Sequence[RawItem], chat_column: str) -> ChatPictures | None:
    """Return what is known about the pictures of conversations; None = they have none."""
    column = next(
        (
            name
            for name in IMAGE_COLUMNS
            if any(item.get(name) is not None and _listed(item[name]) for item in looked)
        ),
        None,
    )
    names: list[str] = []
    some_without = unplaced = found = False
    for item in looked:
        waiting = [] if column is None else _listed(item.get(column))
        own, places = _in_turns(item.get(chat_column))
        names += [name for value in (*waiting, *own) for name in _name_of(value)]
        found |= bool(waiting or own)
        some_without |= not (waiting or own)
        unplaced |= len(waiting) > places
    if not found:
        return None
    return ChatPictures(
        column=column,
        everywhere=column is None or all(column in item for item in looked),
        some_without=some_without,
        unplaced=unplaced,
        names=names,
    )


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _in_turns(chat: Any) -> tuple[list[Any], int]:
    """Return the pictures that the parts of turns hold, and how many places there are for others.

    Places in answers count: what decides about them is a setting of the processor.
    """
    own: list[Any] = []
    places = 0
    for turn in chat or ():
        said = turn.get("content", turn.get("value"))
        parts = [said] if isinstance(said, str) else said or ()
        for part in parts:
            if isinstance(part, str):
                places += len(_TAG.findall(part))
            elif not isinstance(part, Mapping):
                continue
            elif part.get("type") in ("image", "image_url"):
                held = next(
                    (
                        part[key]
                        for key in ("image", "image_url", "url", "path", "bytes")
                        if part.get(key)
                    ),
                    None,
                )
                if held is None:
                    places += 1
                else:
                    own.append(held)
            else:
                places += len(_TAG.findall(str(part.get("text") or "")))
    return own, places


def media_section(
    names: Sequence[str], folders: Sequence[Path], base: Path, given: str | None
) -> dict[str, Any] | None:
    """Return the section `media:` with which files that items name are found.

    Args:
        names: Some of them.
        folders: Those of the data.
        base: The job file's.
        given: The folder, or URL, that somebody says they are relative to.

    Raises:
        InvalidRequest: They are relative, and in no folder that is looked into; or the one that is
            given is not there.
    """
    section: dict[str, Any] = {}
    relative = [name for name in names if not name.startswith("/") and not _URL.match(name)]
    if given is not None:
        section["dir"] = given if _URL.match(given) else named(_folder(given), base)
    elif relative:
        if (found := find_folder(relative, folders, base)) is None:
            raise InvalidRequest(
                f"items name files, such as {relative[0]!r}, that lie in no folder near the data: "
                "say with --media DIR what their names are relative to",
                field="media",
                value=relative[0],
            )
        section["dir"] = named(found, base)
    allow: list[str] = []
    if absolute := sorted({posixpath.dirname(name) for name in names if name.startswith("/")}):
        allow.append(os.path.commonpath(absolute))
    urls = (urlsplit(name) for name in names if _URL.match(name))
    allow += sorted({f"{url.scheme}://{url.netloc}" for url in urls})
    if allow:
        section["allow"] = allow
    return section or None


def _folder(given: str) -> Path:
    path = Path(os.path.abspath(Path(given).expanduser()))
    if not path.is_dir():
        raise InvalidRequest(
            f"--media {given}: there is no such folder", field="media", value=given
        )
    return path


def find_folder(names: Sequence[str], folders: Sequence[Path], base: Path) -> Path | None:
    """Return the folder in which most of some relative names are files; None = there is none.

    Looked into are the folders of the data, those in them, and the one above.
    """
    near = [*folders, base]
    inside = (
        path
        for folder in near
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    )
    candidates = dict.fromkeys([*near, *(path.parent for path in near), *inside])
    for path in list(candidates)[:_MAX_FOLDERS]:
        if sum(os.path.isfile(path / name) for name in names) * 2 > len(names):
            return path
    return None
