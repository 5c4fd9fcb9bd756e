"""What is known of data files without opening them: their hashes and footers, kept for next time.

A catalog belongs to the patterns of one source. It is found in two places: in the user's cache
folder, where the last start left it, and in memory that the node's own process passes to its
workers, so that only one process of a node looks at the files.

A file is taken for the one that was hashed if its path, size, time of change, inode and the time of
the inode's last change are the same: the last one cannot be set back by `touch` or `utime`. For a
URL it is what the filesystem gives: an ETag, a checksum, a time. Nothing of it enters a log id.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from penstock.wire.credentials import without_credentials

logger = logging.getLogger("penstock")

FORMAT = 1
"""Of a catalog's file; raised too when hashes or footers are computed in another way."""

SETTLED_S = 3.0
"""A file that changed less than so many seconds before it was looked at is not remembered: another
change may leave it with the same time. Clocks of file systems tick in up to 2 s (FAT)."""

MAX_CATALOG_BYTES, MAX_FOLDER_BYTES = 64 << 20, 256 << 20
"""Bounds of one catalog and, at each look, of all; those that were used longest ago go first."""

LOOK_BYTES, LEAST_BYTES = 1 << 20, 4 << 10
"""The folder is looked at once for so much that is written, where nothing counts for less than the
second: a look takes the size of every file, which are tens of thousands where each video has one.
"""

VARIABLE = "PENSTOCK_HASH_CACHE"
AUTO, OFF = "auto", "off"

MAX_FACTS = 8
"""How many entries are kept for a file: jobs may read other columns of it, or use another version
of Arrow."""

_MAGIC = b"penstock catalog %d " % FORMAT
_LENGTHS = struct.Struct("<IQ")


class Stamp(NamedTuple):
    """A file's metadata when it was looked at.

    Attributes:
        size: Bytes.
        version: Changes when the file does; empty = its filesystem does not tell.
        whole: Everything that distinguishes it from another file at its path; the key of what is
            kept.
        is_settled: Any later change gives it another `whole`.
    """

    size: int
    version: str
    whole: str
    is_settled: bool


def local_stamp(found: os.stat_result) -> Stamp:
    """Return the stamp of a file of this machine."""
    changed_ns = max(found.st_mtime_ns, found.st_ctime_ns)
    return Stamp(
        found.st_size,
        f"mtime={found.st_mtime_ns}",
        f"{found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}",
        time.time_ns() - changed_ns > SETTLED_S * 1e9,
    )


_CONTENT = (
    "ETag", "etag", "md5", "md5Hash", "checksum", "sha256",
    "blob_id", "xet_hash",  # of the Hub's repositories, and of its buckets
    "sha",  # of GitHub's
)  # fmt: skip
_TIMES = (
    "mtime", "LastModified", "last_modified", "Last-Modified", "updated", "created",
    "modificationTime",  # of WebHDFS
    "modify",  # of FTP
)  # fmt: skip


def remote_stamp(info: Mapping[str, Any]) -> Stamp:
    """Return the stamp of what a filesystem of fsspec tells of a file."""
    size = int(info["size"])
    for name in (*_CONTENT, *_TIMES):
        if info.get(name) is not None:
            version = f"{name}={info[name]}"
            return Stamp(size, version, version, name in _CONTENT or _is_past(info[name]))
    return Stamp(size, "", "", False)


def _is_past(value: Any) -> bool:
    """Tell whether a time, in any of the forms that filesystems give, lies far enough back."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            try:
                value = parsedate_to_datetime(value)  # of a web server: Sun, 06 Nov 1994 ...
            except ValueError:
                return False
    if isinstance(value, datetime):
        # One without a zone is UTC or local: so it must be older than the largest difference
        # between zones.
        doubt_s = 0 if value.tzinfo else 86_400
        return time.time() - value.timestamp() > SETTLED_S + doubt_s
    return isinstance(value, int | float) and time.time() - value > SETTLED_S


class _Entry(NamedTuple):
    stamp: Stamp
    facts: dict[str, Any]


class Catalog:
    """The files of one source with what was found out about each.

    Threads may note facts at the same time, each about files of its own.

    Args:
        key: Which catalog, 32 hex digits: see `catalog_key`.

    Attributes:
        key: The same.
        listing: The files in order, `(name, path)`, for processes that do not list them again.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.listing: list[tuple[str, str]] | None = None
        self._entries: dict[str, _Entry] = {}
        self._shared: dict[str, Any] = {}
        self._is_changed = False

    def find(self, path: str, stamp: Stamp, fact: str) -> Any:
        """Return what is known of a file that looks like this; None = nothing."""
        entry = self._entries.get(_key_of(path))
        if entry is None or entry.stamp[:3] != stamp[:3]:
            return None  # what tells no version is found by its size: `save` keeps none of these
        return entry.facts.get(fact)

    def note(self, path: str, stamp: Stamp, fact: str, value: Any) -> None:
        """Remember something about a file, JSON-able."""
        entry = self._entries.get(_key_of(path))
        if entry is None or entry.stamp[:3] != stamp[:3]:
            entry = self._entries[_key_of(path)] = _Entry(stamp, {})
        entry.facts[fact] = value
        self._is_changed = True

    def stamp(self, path: str) -> Stamp:
        """Return the stamp of a file of the listing."""
        return self._entries[_key_of(path)].stamp

    def share(self, value: Any) -> str:
        """Return a short name for a value that many files have in common, such as their columns."""
        name = hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
        self._shared[name] = value
        return name

    def shared(self, name: str) -> Any:
        """Return the value of a name."""
        return self._shared[name]

    def merge(self, other: Catalog) -> None:
        """Take over what another catalog of the same key knows and this one does not."""
        self._shared = {**other._shared, **self._shared}
        for path, (stamp, facts) in other._entries.items():
            mine = self._entries.get(path)
            if mine is None:
                self._entries[path] = _Entry(stamp, facts)
            elif mine.stamp[:3] == stamp[:3]:
                both = {**facts, **mine.facts}
                self._entries[path] = _Entry(stamp, dict([*both.items()][-MAX_FACTS:]))
        self.listing = self.listing or other.listing

    # --- as bytes ---

    def to_bytes(self, paths: Iterable[str] | None = None) -> bytes:
        """Return the catalog as bytes.

        Args:
            paths: Only what is known of these files, and no listing; None = all.
        """
        chosen = self._entries if paths is None else map(_key_of, paths)
        entries = ((path, self._entries[path]) for path in chosen)
        body = json.dumps(
            {
                "shared": self._shared,
                "listing": self.listing if paths is None else None,
                "entries": [[path, *entry.stamp, entry.facts] for path, entry in entries],
            },
            separators=(",", ":"),
        ).encode()
        return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    def take(self, data: bytes) -> None:
        """Take over the content of `to_bytes`.

        Raises:
            ValueError: It is damaged, or of another version.
        """
        head, _, body = data.partition(b"\n")
        if head != _MAGIC + hashlib.sha256(body).hexdigest().encode():
            raise ValueError("its checksum is wrong, or it is of another version")
        content = json.loads(body)
        self._shared = content["shared"]
        if content["listing"] is not None:
            self.listing = [(name, path) for name, path in content["listing"]]
        self._entries = {
            path: _Entry(Stamp(size, version, whole, settled), facts)
            for path, size, version, whole, settled, facts in content["entries"]
        }

    # --- in the cache folder ---

    def load(self) -> None:
        """Take over what an earlier start has left, if it left anything that can be read."""
        folder = cache_folder()
        if folder is None:
            return
        path = folder / self.key
        try:
            self.take(path.read_bytes())
            os.utime(path)  # it was used
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.debug("the catalog %s is not used: %s", path, error)

    def save(self, paths: Iterable[str]) -> None:
        """Keep what is known of these files for the next start, if there is anything new.

        Files that changed a moment ago are left out. Where nothing can be written the next start
        looks at the files again, as this one did.
        """
        folder = cache_folder()
        if folder is None or not self._is_changed:
            return
        self._is_changed = False
        kept = [path for path in paths if self._is_kept(path)]
        before = Catalog(self.key)
        before.load()  # by now there may be more: of a job that reads other columns
        self.merge(before)
        data = self.to_bytes(kept)
        if len(data) > MAX_CATALOG_BYTES:
            logger.debug("a catalog of %d bytes is not kept: it is too large", len(data))
            return
        _put(folder, self.key, data)

    def _is_kept(self, path: str) -> bool:
        entry = self._entries.get(_key_of(path))
        return entry is not None and entry.stamp.is_settled


def keep_bytes(key: str, data: bytes) -> None:
    """Keep what was found out about one file, for later starts and other workers.

    Args:
        key: Which, from `catalog_key`; it must tell the file's version.
        data: What was found out; whoever finds it must see whether it is damaged.
    """
    folder = cache_folder()
    if folder is None or len(data) > MAX_CATALOG_BYTES:
        return
    _put(folder, key, data)


def kept_bytes(key: str) -> bytes | None:
    """Return what `keep_bytes` has kept by a key; None = nothing."""
    folder = cache_folder()
    if folder is None:
        return None
    path = folder / key
    try:
        data = path.read_bytes()
        os.utime(path)  # it was used
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.debug("what is known of a file is not used: %s: %s", path, error)
        return None
    return data


def _put(folder: Path, key: str, data: bytes) -> None:
    """Write a file of the cache folder; where that cannot be, it is done without."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Beside its place and moved there: another node finds the old one or this one, whole.
        fd, fresh = tempfile.mkstemp(dir=folder, prefix=".")
        try:
            with open(fd, "wb") as file:
                file.write(data)
            os.replace(fresh, folder / key)
        except BaseException:
            os.unlink(fresh)
            raise
        if _looks(len(data)):
            _make_room(folder)
    except OSError as error:
        logger.debug("what is known of files is not kept in %s: %s", folder, error)


def _looks(count: int) -> bool:
    """Tell, by chance, whether so many bytes are those after which the folder is looked at.

    By chance, as no process knows what others have written; and not by the generators of users.
    """
    return int.from_bytes(os.urandom(4), "big") % LOOK_BYTES < max(count, LEAST_BYTES)


def _key_of(path: str) -> str:
    """Return what stands for a path in a catalog: a hash, where it holds credentials."""
    if without_credentials(path) == path:
        return path
    return hashlib.sha256(path.encode()).hexdigest()


def _make_room(folder: Path) -> None:
    """Remove the catalogs that were used longest ago, above the bound; and what kills have left."""
    found: list[tuple[os.stat_result, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another node moves or removes it
                found.append((entry.stat(), entry.path))
    found.sort(key=lambda entry: entry[0].st_mtime, reverse=True)
    total = 0
    for stat, path in found:
        total += stat.st_size
        left = os.path.basename(path).startswith(".") and time.time() - stat.st_mtime > 3600
        if total > MAX_FOLDER_BYTES or left:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


# --- where catalogs are found ---------------------------------------------------------------------

_kept: list[Path | None] = []  # the folder that `keep_in` was told last
_handed: dict[str, memoryview] = {}  # in a worker, what its node has found


def catalog_key(*parts: Any) -> str:
    """Return the key of the catalog that belongs to these parameters of a source."""
    text = json.dumps([FORMAT, *parts], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def open_catalog(key: str) -> Catalog:
    """Return the catalog of a key: the node's, else the one in the cache folder, else an empty one.

    Called by sources as they open.
    """
    catalog = Catalog(key)
    if key in _handed:
        catalog.take(bytes(_handed[key]))
    else:
        catalog.load()
    return catalog


def handed(key: str) -> memoryview | None:
    """Return the bytes that this process's node has handed over by a key; None = none."""
    return _handed.get(key)


def keep_in(setting: str, base: Path) -> None:
    """Set where catalogs are kept from now on, in this process.

    Args:
        setting: The setting `hash_cache`: `auto`, `off`, or a folder.
        base: The folder that a relative path starts from.
    """
    _kept[:] = [_folder(setting, base)]


def cache_folder() -> Path | None:
    """Return the folder of the catalogs; None = nothing is kept."""
    return _kept[0] if _kept else _folder(os.environ.get(VARIABLE, AUTO), Path.cwd())


def cache_variable() -> dict[str, str]:
    """Return the environment variable by which processes that this one starts keep them there."""
    return {VARIABLE: str(cache_folder() or OFF)}


def _folder(setting: str, base: Path) -> Path | None:
    if setting == OFF:
        return None
    with contextlib.suppress(RuntimeError):  # a user without a home, as in a container
        if setting != AUTO:
            return base / Path(setting).expanduser()
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
        return cache.expanduser().absolute() / "penstock" / "files"
    return None


class HandedOver(Protocol):
    """What a process hands over to those that it starts, which take it by `handed`.

    Attributes:
        key: Its name, of ASCII.
    """

    key: str

    def to_bytes(self) -> bytes | memoryview:
        """Return all of it."""


def pack_catalogs(catalogs: Iterable[HandedOver]) -> int:
    """Return a memfd that holds catalogs, for processes that this one starts.

    It is sealed: no process can change it.

    Args:
        catalogs: What it is to hold; of those with one key that are not `Catalog`s, the first.

    Raises:
        OSError: There is no memory for it.
    """
    by_key: dict[str, HandedOver] = {}
    for catalog in catalogs:  # two jobs may read the same files
        if isinstance(catalog, Catalog):
            merged = by_key.setdefault(catalog.key, Catalog(catalog.key))
            assert isinstance(merged, Catalog)
            merged.merge(catalog)
        else:
            by_key.setdefault(catalog.key, catalog)
    fd = os.memfd_create("penstock-files", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(fd, "wb", closefd=False) as file:
            for key, catalog in by_key.items():
                data = catalog.to_bytes()
                # Each begins at a multiple of 8, so that numbers in it are aligned.
                space = -(file.tell() + _LENGTHS.size + len(key)) % 8
                padded = key.encode() + b" " * space
                file.write(_LENGTHS.pack(len(padded), len(data)) + padded)
                file.write(data)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


def take_catalogs(fd: int) -> None:
    """Take over what `pack_catalogs` has packed, before any source is opened; closes `fd`.

    Args:
        fd: What it returned; -1 = nothing was packed.
    """
    if fd < 0:
        return
    size = os.fstat(fd).st_size
    try:
        # Mapped, not read: all workers of a node share the memory.
        data = memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else b"")
    finally:
        os.close(fd)
    at = 0
    while at < len(data):
        key_length, length = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        key = bytes(data[at : at + key_length]).decode().rstrip()
        at += key_length
        _handed[key] = data[at : at + length]
        at += length
