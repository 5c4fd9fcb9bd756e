"""What lies in a directory of media: how each file looked when the job began, in little memory.

All files are listed, and none is opened for that. Of each file 32 bytes are kept: a hash of its
name, its size, and a hash of what tells its version. A node lists a directory once, and its workers
map the same memory.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import posixpath
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from penstock.server.files.catalog import (
    Catalog,
    Stamp,
    catalog_key,
    handed,
    local_stamp,
    open_catalog,
    remote_stamp,
)
from penstock.server.files.content import WHOLE_BYTES, content_hash
from penstock.server.files.ranges import LOOKERS, LocalRanges, Ranges
from penstock.server.usercode.transient import is_transient
from penstock.wire.credentials import without_credentials
from penstock.wire.errors import InvalidJob, SourceUnavailable

ENDINGS = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm",
    ".pgm", ".pbm", ".jp2", ".avif", ".heic", ".npy", ".wav", ".flac", ".ogg", ".opus", ".mp3",
    ".m4a", ".aac", ".aif", ".aiff", ".mp4", ".mkv", ".webm", ".mov", ".avi", ".mdb", ".lmdb",
)  # fmt: skip
"""What names of pictures, sounds, films and LMDBs end in. Other files of a directory may change
while a job runs: a store, a log, the table that names the media."""

DATABASES = (".mdb", ".lmdb")

HASHED_FILES, HASHED_WHOLE = 1024, 4096
"""Of more than `HASHED_WHOLE` files, or of more than 64 MiB in all, so many are hashed, at their
heads and tails: 128 MiB at most are read, whatever the directory holds."""

MAX_DEPTH = 64
"""Folders below each other: links may form a ring."""

_LEADS_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What is said of a link to nothing, to below a file, to itself; and of what is gone by now."""

_FORMAT = 1
_LENGTH = struct.Struct("<QQ")
_ROW = np.dtype([("name", "<u8"), ("check", "<u8"), ("size", "<u8"), ("version", "<u8")])


class Listed(NamedTuple):
    """A file as it was found.

    Attributes:
        size: Bytes.
        version: A hash of what tells its version; 0 = its filesystem does not tell.
    """

    size: int
    version: int

    def is_same(self, stamp: Stamp) -> bool:
        """Tell whether a file that looks like this is the one that was found."""
        if stamp.size != self.size:
            return False
        return not (self.version and stamp.version) or self.version == version_of(stamp)


def version_of(stamp: Stamp) -> int:
    """Return a hash of what tells the version of a file; 0 = nothing does."""
    if not stamp.version:
        return 0
    digest = hashlib.blake2b(stamp.version.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


def _name_hash(name: str) -> tuple[int, int]:
    digest = hashlib.blake2b(os.fsencode(name), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


class MediaListing:
    """The files of one directory of media.

    Attributes:
        key: By which workers find what their node has listed.
        fingerprint: What identifies the content: how many files, their bytes, a hash of all names
            and sizes, and one of the content of some; JSON-able.
        endings: What names end in that are listed; empty = all are.
    """

    def __init__(self, key: str, data: bytes | memoryview) -> None:
        self.key, self._data = key, data
        head, rows = _LENGTH.unpack_from(data, 0)
        at = _LENGTH.size + head
        said = json.loads(bytes(data[_LENGTH.size : at]))
        self.fingerprint: dict[str, Any] = said["fingerprint"]
        self.endings = tuple(said["endings"])
        self._rows = np.frombuffer(data, _ROW, rows, at)

    def __len__(self) -> int:
        """Return how many files there are."""
        return len(self._rows)

    def lists(self, name: str) -> bool:
        """Tell whether a file of this name would be listed."""
        return is_listed(name, self.endings)

    def find(self, name: str) -> Listed | None:
        """Return a file as it was found; None = there was none of this name."""
        first, second = _name_hash(name)
        at = int(np.searchsorted(self._rows["name"], np.uint64(first)))
        while at < len(self._rows) and int(self._rows["name"][at]) == first:
            if int(self._rows["check"][at]) == second:
                return Listed(int(self._rows["size"][at]), int(self._rows["version"][at]))
            at += 1
        return None

    def to_bytes(self) -> bytes | memoryview:
        """Return all of it, for other processes."""
        return self._data


def listing_of(ranges: Ranges, root: str, endings: tuple[str, ...], options: Any) -> MediaListing:
    """Return the files of a directory: as this process's node has listed them, or listed now.

    Args:
        ranges: How its filesystem is asked.
        root: The directory, as its filesystem calls it.
        endings: What names of files end in that count; empty = all count.
        options: Of its filesystem.

    Raises:
        OSError: It cannot be listed.
    """
    key = catalog_key("media", _FORMAT, type(ranges.fs).__name__, root, endings, options)
    if (known := handed(key)) is not None:
        return MediaListing(key, known)
    found = {name: stamp for name, stamp in stamps_below(ranges, root) if is_listed(name, endings)}
    rows = np.array(
        sorted((*_name_hash(name), stamp.size, version_of(stamp)) for name, stamp in found.items()),
        _ROW,
    )
    names = b"".join(rows[field].tobytes() for field in ("name", "check", "size"))
    fingerprint = {
        "files": len(rows),
        "bytes": int(rows["size"].sum()),
        "names": hashlib.sha256(names).hexdigest(),
        "content": _content(ranges, root, found, options),
    }
    head = json.dumps({"fingerprint": fingerprint, "endings": endings}).encode()
    head += b" " * (-(_LENGTH.size + len(head)) % 8)  # the rows are aligned
    return MediaListing(key, _LENGTH.pack(len(head), len(rows)) + head + rows.tobytes())


@contextlib.contextmanager
def listed_for(what: str, root: str, key: str) -> Iterator[None]:
    """Name the directory that cannot be listed.

    Args:
        what: What it is, as errors say it.
        root: The directory, as the job has it.
        key: The key path of that.

    Raises:
        InvalidJob: It is not there, or its filesystem lists nothing.
        SourceUnavailable: It cannot be listed at the moment.
    """
    name = without_credentials(root)
    try:
        yield
    except ValueError as error:
        raise InvalidJob(f"{name!r} cannot be read: {error}", key=key) from None
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        said = error.strerror or error
        raise InvalidJob(f"{what} {name!r} cannot be listed: {said}", key=key) from error
    except Exception as error:
        if not is_transient(error, reading=True):
            raise
        raise SourceUnavailable(f"{what} {name!r} cannot be listed: {error}", item=name) from error


def holds_nothing(what: str, root: str, endings: tuple[str, ...], key: str) -> InvalidJob:
    """Return the error of a directory without media; arguments as of `listed_for`."""
    return InvalidJob(
        f"{what} {without_credentials(root)!r} holds no file that ends in "
        f"{', '.join(endings[:3]) or 'anything'} ...: name another, or say with endings what its "
        "files end in",
        key=key,
    )


def is_listed(name: str, endings: tuple[str, ...]) -> bool:
    """Tell whether a file is one of a listing, by its name.

    Args:
        name: The name.
        endings: What names end in, in lower case; empty = all are.
    """
    base = posixpath.basename(name)
    # What LMDB keeps its readers in changes with each of them.
    return (
        base != "lock.mdb"
        and not base.endswith("-lock")
        and (not endings or base.lower().endswith(endings))
    )


# --- listing --------------------------------------------------------------------------------------


def stamps_below(ranges: Ranges, root: str) -> Iterator[tuple[str, Stamp]]:
    """Yield the name and the stamp of every file below a folder.

    Args:
        ranges: How its filesystem is asked.
        root: The folder, as its filesystem calls it.

    Raises:
        OSError: It cannot be listed.
    """
    if isinstance(ranges, LocalRanges):
        found = os.stat(root)
        yield from _local(root, "", ((found.st_dev, found.st_ino),))
        return
    infos: Mapping[str, Mapping[str, Any]] = ranges.fs.find(root, detail=True)
    above = root.rstrip("/") + "/"
    stamps = {
        path: remote_stamp(info)
        for path, info in infos.items()
        if path.startswith(above) and info.get("size") is not None
    }
    if not all(ranges.look(path, listed=False)[:2] == stamps[path][:2] for path in [*stamps][:3]):
        # Its listings tell versions otherwise than a look does, which would seem a change.
        stamps = {path: stamp._replace(version="") for path, stamp in stamps.items()}
    for path, stamp in stamps.items():
        yield path[len(above) :], stamp


def _local(
    folder: str, name: str, above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, Stamp]]:
    """Yield the files of a local folder and of those in it; links are followed, rings are not."""
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                found = entry.stat()
            except OSError as error:
                if error.errno in _LEADS_NOWHERE:
                    continue
                raise
            if entry.is_dir():
                here = found.st_dev, found.st_ino
                if here not in above and len(above) < MAX_DEPTH:
                    yield from _local(entry.path, f"{name}{entry.name}/", (*above, here))
            elif entry.is_file():
                yield name + entry.name, local_stamp(found)


# --- content --------------------------------------------------------------------------------------


def _content(ranges: Ranges, root: str, found: Mapping[str, Stamp], options: Any) -> str:
    """Return a hash of the content of all files, or of some that their names choose."""
    whole = len(found) <= HASHED_WHOLE and sum(s.size for s in found.values()) <= WHOLE_BYTES
    chosen = sorted(found, key=_name_hash)
    if not whole:
        databases = [name for name in chosen if name.lower().endswith(DATABASES)]
        chosen = list(dict.fromkeys([*databases[:HASHED_FILES], *chosen[:HASHED_FILES]]))
    kept = open_catalog(catalog_key("media content", type(ranges.fs).__name__, root, options))
    paths = {name: posixpath.join(root, name) for name in chosen}

    def hashed(name: str) -> str:
        path, stamp = paths[name], found[name]
        is_database = name.lower().endswith(DATABASES)
        fact = "whole" if whole else "sampled" if is_database else "ends"
        known = kept.find(path, stamp, fact) if stamp.version else None
        if known is None:
            known = content_hash(
                lambda start, stop: ranges.read(path, start, stop, stamp)[0],
                stamp.size,
                whole=whole,
                blocks=16 if is_database else 0,
            )
            kept.note(path, stamp, fact, known)
        return str(known)

    if isinstance(ranges, LocalRanges):
        digests = [hashed(name) for name in chosen]
    else:
        with ThreadPoolExecutor(LOOKERS) as pool:
            digests = list(pool.map(hashed, chosen))
    _keep(kept, paths.values())
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def _keep(kept: Catalog, paths: Any) -> None:
    kept.save(paths)
