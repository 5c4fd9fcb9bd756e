"""What an item says of a picture or a sound: its bytes, or the name of what holds them."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from penstock.server.core.shown import shown
from penstock.server.media.listing import DATABASES
from penstock.server.media.medium import HeldMedium

LMDB = "lmdb:"
"""What a text begins with that names a key of an LMDB."""

MAX_NAME = 4096
"""The most characters of a name: a longer text is data, not a path."""


class FileReference(NamedTuple):
    """A file, or a part of one.

    Attributes:
        path: A path or a URL, as the item has it.
        start: The first byte.
        length: Bytes; None = up to the end of the file.
        dir: The name of a directory of its source that it is relative to; empty = it names none.
    """

    path: str
    start: int = 0
    length: int | None = None
    dir: str = ""


class LmdbReference(NamedTuple):
    """A value in an LMDB.

    Attributes:
        database: The path of its folder or file, as the item has it.
        key: The key; as UTF-8 in the database.
        dir: As for a file.
    """

    database: str
    key: str
    dir: str = ""


def read_reference(
    value: Any, number: int, most_bytes: int = sys.maxsize
) -> HeldMedium | FileReference | LmdbReference:
    """Return what one of the references of an item means.

    Args:
        value: Bytes; a dict with `bytes` or `path` (bytes count where they are not None), and
            `offset` and `length` for a part of a file; a path or a URL; `lmdb: DB::KEY`, as a dict
            or as text; `data:` with base64. A dict may have a `dir`, by name: see
            `Source.media_dirs`.
        number: Which of the item's references it is, from 0 on, for names.
        most_bytes: How many bytes a `data:` URL may hold; what holds bytes is there already.

    Raises:
        ValueError: It is none of these; says what it is.
    """
    if isinstance(value, Mapping):
        return _of_mapping(value, number, most_bytes)
    if (data := _held(value)) is not None:
        return HeldMedium(f"medium {number}", data)
    if isinstance(value, str | os.PathLike):
        return _named(os.fspath(value), number, most_bytes)
    raise ValueError(
        f"medium {number} is of type {type(value).__name__}: a processor gives bytes, a dict with "
        "bytes or path, a path, a URL, or lmdb: DB::KEY"
    )


def _of_mapping(
    value: Mapping[Any, Any], number: int, most_bytes: int
) -> HeldMedium | FileReference | LmdbReference:
    data, path = value.get("bytes"), value.get("path")
    if data is not None:
        if (held := _held(data)) is None:
            raise ValueError(
                f"the bytes of medium {number} are of type {type(data).__name__}: give bytes"
            )
        name = path if isinstance(path, str) and path else f"medium {number}"
        return _part(HeldMedium(name, held), value, number)
    directory = value.get("dir") or ""
    if not isinstance(directory, str):
        raise ValueError(f"the dir of medium {number} is {shown(directory)}: give a name")
    if value.get("lmdb") is not None:
        found = _lmdb(value["lmdb"], number)._replace(dir=directory)
        return _part(found, value, number)
    if isinstance(path, str | os.PathLike):
        named = _part(_named(os.fspath(path), number, most_bytes), value, number)
        return named if isinstance(named, HeldMedium) else named._replace(dir=directory)
    raise ValueError(
        f"medium {number} has neither bytes nor a path: it is a dict with "
        f"{', '.join(map(str, value)) or 'nothing'}, and {{bytes: ..., path: ...}} is meant"
    )


def _part(
    found: HeldMedium | FileReference | LmdbReference, value: Mapping[Any, Any], number: int
) -> HeldMedium | FileReference | LmdbReference:
    """Return a reference with the part that a dict names beside it, `offset` and `length`."""
    start, length = value.get("offset"), value.get("length")
    if start is None and length is None:
        return found
    if not isinstance(found, FileReference):
        of = "an LMDB's value" if isinstance(found, LmdbReference) else "the bytes of the item"
        raise ValueError(
            f"medium {number} is a part of {of} (offset {shown(start)}, length {shown(length)}): "
            "parts are of files alone, give the whole"
        )
    return found._replace(
        start=_whole(start or 0, "offset", number),
        length=None if length is None else _whole(length, "length", number),
    )


def _held(value: Any) -> bytes | memoryview | None:
    """Return bytes that are there already; None = it is something else."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return memoryview(value).cast("B")
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 1:
        return memoryview(value.tobytes())
    return None


def _named(text: Any, number: int, most_bytes: int) -> HeldMedium | FileReference | LmdbReference:
    if isinstance(text, str) and text.startswith("data:"):
        return _of_data(text, number, most_bytes)
    if isinstance(text, str) and text.startswith(LMDB):
        return _lmdb(text.removeprefix(LMDB).removeprefix("//").strip(), number)
    if isinstance(text, str) and text.partition("::")[0].endswith(DATABASES) and "::" in text:
        return _lmdb(text, number)
    return FileReference(_checked(text, number))


def _of_data(text: str, number: int, most_bytes: int) -> HeldMedium:
    """Return the bytes that a `data:` URL holds."""
    head, comma, coded = text.partition(",")
    if (count := len(coded) // 4 * 3 - coded[-2:].count("=")) > most_bytes:
        raise ValueError(
            f"medium {number} is a data: URL of {count:,} bytes, and max_file_bytes of media is "
            f"{most_bytes:,}: raise that, if such are meant"
        )
    try:
        if not (comma and head.endswith(";base64")):
            raise ValueError("there is no ;base64,")
        return HeldMedium(f"medium {number}", base64.b64decode(coded, validate=True))
    except ValueError as error:
        raise ValueError(
            f"medium {number} is a data: URL that cannot be read: {error}; give data:TYPE;base64,"
            "BYTES"
        ) from None


def _lmdb(text: Any, number: int) -> LmdbReference:
    database, colons, key = text.partition("::") if isinstance(text, str) else ("", "", "")
    if not (database.strip() and colons and key):
        raise ValueError(
            f"medium {number} is lmdb: {shown(text)}: give the database and the key, as lmdb: "
            "DB::KEY"
        )
    return LmdbReference(_checked(database.strip(), number), key)


def _checked(text: Any, number: int) -> str:
    if not isinstance(text, str) or not text or "\0" in text or len(text) > MAX_NAME:
        raise ValueError(f"medium {number} is named {shown(text)}: give a path or a URL")
    return text


def _whole(value: Any, name: str, number: int) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"the {name} of medium {number} is {shown(value)}: give a whole number")
    return value
