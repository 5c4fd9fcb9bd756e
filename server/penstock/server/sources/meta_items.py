"""Items of a meta file's data sets, with the columns and the turns that it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.common.nearest import listed
from penstock.server.core.shown import shown
from penstock.server.roles.samples import RawItem
from penstock.server.sources.meta_file import TAGS, DataSetEntry
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import BadItem
from penstock.wire.plain import clean_text

ROLES = {"user_tag": "user", "assistant_tag": "assistant", "system_tag": "system"}


MEDIA = ("image", "images", "video", "videos", "audio", "audios")
"""What items call media, and what parts of messages do; `image_url` and the like hold a `url`."""


def converted(entry: DataSetEntry, item: RawItem, index: int) -> RawItem:
    """Return an item with the columns, the turns and the media that the meta file asks for."""
    if entry.columns or entry.tags:
        item = _renamed(entry, item, index)
    return with_media_of(item, entry.name) if entry.media_dir else item


def with_media_of(value: Any, name: str) -> Any:
    """Return an item, or a part of a message, whose media name the directory that they are in.

    Args:
        value: It.
        name: The data set, by whose name `MetaSource.media_dirs` has that directory.
    """
    if not isinstance(value, Mapping):
        return value
    found = dict(value)
    for key, inner in value.items():
        if key in MEDIA:
            found[key] = _in_directory(inner, name)
        elif isinstance(key, str) and key.endswith("_url") and isinstance(inner, Mapping):
            found[key] = {**inner, "url": _in_directory(inner.get("url"), name)}
        elif key in ("messages", "conversations", "content", "value") and isinstance(inner, list):
            found[key] = [with_media_of(part, name) for part in inner]
    return found


def _in_directory(reference: Any, name: str) -> Any:
    """Return a reference that names its directory; what holds bytes, or is none, stays as it is."""
    if isinstance(reference, list | tuple):
        return [_in_directory(each, name) for each in reference]
    if isinstance(reference, str) and not reference.startswith("data:"):
        if reference.startswith("lmdb:"):
            return {"lmdb": reference.removeprefix("lmdb:").strip(), "dir": name}
        return {"path": reference, "dir": name}
    if isinstance(reference, Mapping) and reference.get("bytes") is None:
        return {**reference, "dir": name}
    return reference


def _renamed(entry: DataSetEntry, item: RawItem, index: int) -> RawItem:
    """Return an item with the columns and the turns that the meta file asks for."""
    if not isinstance(item, Mapping):
        raise _bad(entry, index, f"is of type {type(item).__name__} and has no columns")
    if entry.columns:
        for name, column in entry.columns.items():
            if column not in item and name == "messages":
                raise _bad(
                    entry, index, f"has no column {shown(column)}: it has {listed(map(str, item))}"
                )
        item = {name: item[column] for name, column in entry.columns.items() if column in item}
    if not entry.tags:
        return item
    if "messages" not in item:
        raise _bad(entry, index, "has no messages: say with columns what the files call them")
    return {**item, "messages": _turns(entry, item["messages"], index)}


def _turns(entry: DataSetEntry, messages: Any, index: int) -> list[dict[str, Any]]:
    tags = {**TAGS, **entry.tags}
    roles = {tags[tag]: role for tag, role in ROLES.items()}
    try:
        return [
            {
                "role": roles.get(turn[tags["role_tag"]], turn[tags["role_tag"]]),
                "content": turn[tags["content_tag"]],
            }
            for turn in messages
        ]
    except (KeyError, TypeError) as error:
        raise _bad(
            entry,
            index,
            f"has turns without {shown(tags['role_tag'])} and {shown(tags['content_tag'])} "
            f"({error_line(error, 300)})",
        ) from None


def _bad(entry: DataSetEntry, index: int, said: str) -> BadItem:
    return BadItem(
        f"item {index} of data set {shown(entry.name)} {said}: correct it, or columns and tags in "
        f"{entry.at.file}",
        path=entry.path,
        reason=clean_text(f"item {index} of data set {entry.name!r} {said}", 300),
    )
