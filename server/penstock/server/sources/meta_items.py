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


def converted(entry: DataSetEntry, item: RawItem, index: int) -> RawItem:
    """Return an item with the columns and the turns that the meta file asks for."""
    if not entry.columns and not entry.tags:
        return item
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
