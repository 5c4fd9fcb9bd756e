"""From the patterns of a job to files with logical names, on any filesystem that fsspec knows."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from penstock.server.core.transient import is_transient
from penstock.server.sources.access import require
from penstock.server.sources.catalog import (
    Catalog,
    Stamp,
    catalog_key,
    local_stamp,
    open_catalog,
    remote_stamp,
)
from penstock.server.sources.content import (
    BLOCKS,
    WHOLE_BYTES,
    ReadAt,
    content_hash,
    files_fingerprint,
)
from penstock.wire.errors import InvalidJob, MissingExtra, SourceChanged, SourceUnavailable

T = TypeVar("T")

LOOKERS = 16
"""Threads that look at files: they wait for a disk or a store, and compute little."""

AHEAD_BYTES = 16 << 20
"""What is asked for at once of a store's file that is read from start to end."""


@dataclass(frozen=True)
class DataFile:
    """One file of a source.

    Attributes:
        name: Its logical name: the path below the common root of the patterns, with `/`.
        path: Where its filesystem finds it.
        size: Bytes.
    """

    name: str
    path: str
    size: int


class FileSet:
    """The files that some patterns name, ordered by logical name, bytewise.

    Args:
        patterns: Paths, globs, folders or URLs; one, or a list on one filesystem.
        suffix: What files in a folder end in; one, or several.
        storage_options: For the filesystem: endpoint, credentials.
        key: The key path of the patterns in a job file, for error messages.

    Attributes:
        files: The files, in order.
        catalog: What is known of them; in a worker it comes from the node, with the list of the
            files.

    Raises:
        InvalidJob: A pattern matches nothing, or the patterns lie on two filesystems.
        MissingExtra: The filesystem's package is not installed.
        SourceUnavailable: The filesystem does not answer.
    """

    def __init__(
        self,
        patterns: str | Sequence[str],
        *,
        suffix: str | tuple[str, ...],
        storage_options: dict[str, Any] | None = None,
        key: str = "source.files",
    ) -> None:
        given = [patterns] if isinstance(patterns, str) else list(patterns)
        if not given or not all(isinstance(pattern, str) and pattern for pattern in given):
            raise InvalidJob(
                f"files is {patterns!r}: give a path, a glob or a list of them", key=key
            )
        self.fs: Any = None
        self._key, self._suffix = key, suffix
        located: list[tuple[str, str]] = []
        for pattern in given:
            fs, path = self._filesystem(pattern, storage_options or {})
            if self.fs is not None and type(fs) is not type(self.fs):
                raise InvalidJob(
                    f"{given[0]!r} and {pattern!r} lie on different filesystems: a source "
                    "reads one",
                    key=key,
                )
            self.fs = fs
            located.append((pattern, path))
        self._seen: dict[str, Stamp] = {}  # by path, how a file looked
        paths = [path for _, path in located]
        self.catalog = open_catalog(
            catalog_key(type(self.fs).__name__, paths, suffix, storage_options)
        )
        if self.catalog.listing is None:
            self.files = self._list(located)
        else:
            self.files = [self._listed(name, path) for name, path in self.catalog.listing]

    def _listed(self, name: str, path: str) -> DataFile:
        """Return a file as the node's process has found it: nothing is looked at here."""
        stamp = self._seen[path] = self.catalog.stamp(path)
        return DataFile(name, path, stamp.size)

    def _list(self, located: Sequence[tuple[str, str]]) -> list[DataFile]:
        found: dict[str, dict[str, Any]] = {}
        roots: list[str] = []
        for pattern, path in located:
            try:
                root, matches = self._match(path)
            except FileNotFoundError:
                root, matches = "", {}
            except Exception as error:
                if not isinstance(error, OSError) and not is_transient(error):
                    raise
                raise SourceUnavailable(
                    f"{pattern!r} cannot be listed: {error}", item=pattern
                ) from error
            if not matches and root == path.rstrip("/"):
                endings = (self._suffix,) if isinstance(self._suffix, str) else self._suffix
                raise InvalidJob(
                    f"the folder {pattern!r} holds no file that ends in {' or '.join(endings)}: "
                    "name another folder, or the files by a glob, such as folder/*",
                    key=self._key,
                    pattern=pattern,
                )
            if not matches:
                raise InvalidJob(
                    f"no file matches {pattern!r}: check the path; in a job file, or in a meta "
                    "file, it is relative to that file",
                    key=self._key,
                    pattern=pattern,
                )
            roots.append(root)
            found.update(matches)
        common = posixpath.commonpath(roots) if all(roots) else ""
        above = common.rstrip("/") + "/"

        def name(path: str) -> str:
            if common and path.startswith(above):
                return path[len(above) :]  # as relpath, which takes 20 us
            return posixpath.relpath(path, common) if common else path

        return sorted(
            (DataFile(name(path), path, int(info["size"])) for path, info in found.items()),
            key=lambda file: file.name.encode(),
        )

    @cached_property
    def is_local(self) -> bool:
        """Tell whether the files lie on a disk of this machine."""
        protocol = self.fs.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def open(self, file: DataFile) -> Any:
        """Return the open file, a binary reader that seeks."""
        if self.is_local:
            return open(file.path, "rb")
        # Readers ask for exact ranges: a read-ahead would fetch megabytes that are not needed.
        return self.fs.open(file.path, "rb", cache_type="none")

    def read(self, file: DataFile, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)` of a file; may be called from several threads.

        Raises:
            OSError: They cannot be read, or the file ends before `stop`.
        """
        if start >= stop:
            return b""
        if self.is_local:
            with open(file.path, "rb", buffering=0) as stream:
                stream.seek(start)
                data = stream.read(stop - start)
                while len(data) < stop - start and (more := stream.read(stop - start - len(data))):
                    data += more  # a read gives 2 GiB at most
        else:
            data = self.fs.cat_file(file.path, start=start, end=stop)
        if len(data) != stop - start:
            raise OSError(f"{len(data)} bytes came where {stop - start} were asked for")
        return data

    def reader(self, file: DataFile) -> ReadAt:
        """Return what reads ranges of a file."""
        return lambda start, stop: self.read(file, start, stop)

    def from_start_to_end(self, file: DataFile) -> ReadAt:
        """Return what reads ranges of a file that follow one another, for one thread.

        A store is asked for more than each of them: a request takes a round trip.
        """
        if self.is_local:
            return self.reader(file)
        start, held = 0, b""

        def read_at(first: int, stop: int) -> bytes:
            nonlocal start, held
            if first < start or stop > start + len(held):
                start = first
                held = self.read(file, first, max(stop, min(file.size, first + AHEAD_BYTES)))
            return held[first - start : stop - start]

        return read_at

    def fingerprint(
        self, digest_of: Callable[[DataFile], str], read: Sequence[DataFile]
    ) -> dict[str, Any]:
        """Return names, sizes and hashes of the files, and keep what is known of them.

        Up to 64 MiB in all every byte counts; above it each file's head, tail, and up to 16 blocks
        of it, fewer where there are many files.

        Args:
            digest_of: What else stands for the content of a file: the hash of its footer or index.
            read: Files that were opened in this process, beside those that are hashed here.

        Raises:
            SourceUnavailable: A file cannot be read at the moment.
        """
        files = self.files
        whole = sum(file.size for file in files) <= WHOLE_BYTES
        blocks = max(1, min(BLOCKS, 1024 // max(1, len(files))))
        fact = "whole" if whole else f"sampled {blocks}"

        def hash_one(file: DataFile) -> None:
            with reading(file):
                content = content_hash(self.reader(file), file.size, whole=whole, blocks=blocks)
            self.note(file, fact, content)

        unread = [file for file in files if self.known(file, fact) is None]
        with ThreadPoolExecutor(LOOKERS) as pool:
            list(pool.map(hash_one, unread))
        entries = [
            (
                file.name,
                file.size,
                hashlib.sha256(f"{digest_of(file)}{self.known(file, fact)}".encode()).hexdigest(),
            )
            for file in files
        ]
        self.remember(list({file.path: file for file in (*read, *unread)}.values()))
        return files_fingerprint(entries)

    def watch(self, file: DataFile) -> None:
        """Remember which version of a file is there now, for `check`.

        In a worker it stays the version that its node's process has found.

        Raises:
            SourceChanged: It is not the one that was listed.
            OSError: It cannot be looked at.
        """
        if file.path in self._seen:
            return
        stamp = self._seen[file.path] = self._stamp(file)
        if stamp.size != file.size:
            raise self._changed(file, stamp)

    def check(self, file: DataFile) -> None:
        """Refuse a file that is not the one that `watch` saw.

        Raises:
            SourceChanged: Its size or its filesystem's stamp is another.
            OSError: It cannot be looked at.
        """
        stamp = self._stamp(file)
        if stamp[:2] != self._seen[file.path][:2]:
            raise self._changed(file, stamp)

    def check_all(self) -> None:
        """Refuse local files that are gone, or are not those that `watch` saw.

        Other errors may be gone when the files are read.

        Raises:
            SourceChanged: Names the first one.
        """
        for file in self.files if self.is_local else ():
            try:
                self.check(file)
            except FileNotFoundError as error:
                raise SourceChanged(
                    f"{file.path} is not there any more: put it back as it was, or restart with "
                    "the files that are there as a new job",
                    path=file.path,
                ) from error
            except OSError:
                continue

    def known(self, file: DataFile, fact: str) -> Any:
        """Return what an earlier look at this version of a file has found; None = nothing."""
        return self.catalog.find(file.path, self._seen[file.path], fact)

    def note(self, file: DataFile, fact: str, value: Any) -> None:
        """Keep what was found in a file, JSON-able, for `known`."""
        self.catalog.note(file.path, self._seen[file.path], fact, value)

    def remember(self, read: Sequence[DataFile]) -> None:
        """Keep what is noted for the next start.

        Args:
            read: The files that were read. For a file that has changed since, nothing is kept: it
                may have changed before it was read.
        """

        def has_changed(file: DataFile) -> bool:
            try:
                return self._stamp(file)[:3] != self._seen[file.path][:3]
            except OSError:
                return True

        changed = {
            file.path
            for file, is_so in zip(read, self.map(has_changed, read), strict=True)
            if is_so
        }
        self.catalog.save(file.path for file in self.files if file.path not in changed)

    def map(self, look: Callable[[DataFile], T], files: Sequence[DataFile]) -> list[T]:
        """Return what a look at each file gives; many at once where a look takes a round trip."""
        if self.is_local:  # it takes far less than handing it to a thread
            return [look(file) for file in files]
        with ThreadPoolExecutor(LOOKERS) as pool:
            return list(pool.map(look, files))

    def hand_over(self) -> Catalog:
        """Return the catalog, the list of files in it, for the processes that this one starts."""
        self.catalog.listing = [(file.name, file.path) for file in self.files]
        return self.catalog

    def _stamp(self, file: DataFile) -> Stamp:
        if self.is_local:
            return local_stamp(os.stat(file.path))
        # Asked by info, not taken from the listing: some filesystems tell times there otherwise.
        return remote_stamp(self.fs.info(file.path))

    def _changed(self, file: DataFile, now: Stamp) -> SourceChanged:
        return SourceChanged(
            f"{file.path} changed under an open source ({file.size} bytes then, {now.size} now): "
            "data files are immutable; restart with the new files as a new job",
            path=file.path,
        )

    def _filesystem(self, pattern: str, options: dict[str, Any]) -> tuple[Any, str]:
        fsspec = require("fsspec.core")
        try:
            fs, path = fsspec.url_to_fs(pattern, **options)
        except ImportError as error:  # the filesystem's own package: s3fs, gcsfs, adlfs
            package = getattr(error.__cause__, "name", None) or pattern.partition(":")[0]
            raise MissingExtra(
                f"{pattern!r} needs a package that is missing: pip install {package} ({error})",
                package=package,
                extra="",
            ) from None
        except ValueError as error:
            raise InvalidJob(f"{pattern!r} cannot be read: {error}", key=self._key) from None
        return fs, path

    def _match(self, path: str) -> tuple[str, dict[str, dict[str, Any]]]:
        """Return the root of a pattern and its files, by path."""
        magic = min((at for at in map(path.find, "*?[") if at >= 0), default=-1)
        if magic >= 0:
            root = posixpath.dirname(path[:magic])
            matches = self.fs.glob(path, detail=True)
        else:
            info = self.fs.info(path)
            if info["type"] != "directory":
                return posixpath.dirname(path), {path: info}
            root = path.rstrip("/")
            one = isinstance(self._suffix, str)
            matches = self.fs.glob(f"{root}/**/*{self._suffix if one else ''}", detail=True)
            matches = {name: info for name, info in matches.items() if name.endswith(self._suffix)}
        return root, {
            path: info
            for path, info in matches.items()
            # Hidden files are leftovers of tools: ._part.parquet, .part.parquet.crc
            if info["type"] == "file" and not posixpath.basename(path).startswith(".")
        }


@contextlib.contextmanager
def refusing(file: DataFile, key: str = "source.files") -> Iterator[None]:
    """Name the file that cannot be looked at or read as its source is opened.

    Raises:
        InvalidJob: It is not there, or may not be read.
        SourceUnavailable: It cannot be read at the moment.
    """
    try:
        yield
    except (FileNotFoundError, PermissionError) as error:
        raise InvalidJob(
            f"{file.path} cannot be read: {error.strerror or error}", key=key
        ) from error
    except Exception as error:
        if not is_transient(error, reading=isinstance(error, OSError)):
            raise
        raise unavailable(file, error, file.name) from error


@contextlib.contextmanager
def reading(file: DataFile, item: Any = None) -> Iterator[None]:
    """Name the file, and what is read of it, where that is not possible at the moment.

    Raises:
        SourceUnavailable: Another attempt may succeed.
    """
    try:
        yield
    except Exception as error:
        if not is_transient(error, reading=isinstance(error, OSError)):
            raise
        raise unavailable(file, error, file.name if item is None else item) from error


def unavailable(file: DataFile, error: Exception, item: Any) -> SourceUnavailable:
    """Return the error that says that a file cannot be read at the moment."""
    return SourceUnavailable(f"{file.path} cannot be read at the moment: {error}", item=item)


__all__ = ["LOOKERS", "DataFile", "FileSet", "reading", "refusing", "unavailable"]
