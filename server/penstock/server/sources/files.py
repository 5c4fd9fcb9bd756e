"""The files of a source: read as they were found, and what is known of each."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

from penstock.server.files.catalog import Catalog, catalog_key, open_catalog
from penstock.server.files.content import (
    BLOCKS,
    WHOLE_BYTES,
    ReadAt,
    content_hash,
    files_fingerprint,
)
from penstock.server.files.ranges import LOOKERS, LocalRanges, RangeStream, ranges_of, windowed
from penstock.server.files.versions import Hashed, Versions, changed, is_same, read_unchanged
from penstock.server.sources.patterns import DataFile, listed, located_by
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import InvalidJob, SourceUnavailable

T = TypeVar("T")

AHEAD_BYTES = 16 << 20
"""What is asked for at once of a store's file that is read from start to end."""


class _Rule(NamedTuple):
    """How the content of a file is hashed: the name of the hash in the catalog, and what counts."""

    fact: str
    whole: bool
    blocks: int


class FileSet:
    """The files that some patterns name, ordered by logical name, bytewise.

    Args:
        patterns: Paths, globs, folders or URLs; one, or a list on one filesystem.
        suffix: What files in a folder end in; one, or several.
        storage_options: For the filesystem: endpoint, credentials.
        key: The key path of the patterns in a job file, for error messages.
        hashes_each: Whether each file of at most 64 MiB is hashed whole, rather than all files
            where they have no more together. It is in the log id.
        among: The logical names of those that are meant, where others match, too; a name that ends
            in `/` is of all below it. None = all that match.

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
        hashes_each: bool = False,
        among: Sequence[str] | None = None,
    ) -> None:
        self.fs, located = located_by(patterns, storage_options or {}, key)
        self._ranges = ranges_of(self.fs)
        self._versions = Versions(self._ranges.look, self._known_hash, self._hash_again)
        self._hashes_each = hashes_each
        paths = [path for _, path in located]
        chosen = () if among is None else (list(among),)
        self.catalog = open_catalog(
            catalog_key(type(self.fs).__name__, paths, suffix, storage_options, *chosen)
        )
        if self.catalog.listing is None:
            self.files = listed(self.fs, self._ranges, located, suffix, key)
            if among is not None:
                names, above = set(among), tuple(name for name in among if name.endswith("/"))
                self.files = [
                    file for file in self.files if file.name in names or file.name.startswith(above)
                ]
        else:
            self.files = [self._listed(name, path) for name, path in self.catalog.listing]
        self._by_path = {file.path: file for file in self.files}
        self._bytes = sum(file.size for file in self.files)

    def _listed(self, name: str, path: str) -> DataFile:
        """Return a file as the node's process has found it: nothing is looked at here."""
        stamp = self._versions.seen[path] = self.catalog.stamp(path)
        return DataFile(name, path, stamp.size)

    @cached_property
    def is_local(self) -> bool:
        """Tell whether the files lie on a disk of this machine."""
        return isinstance(self._ranges, LocalRanges)

    def open(self, file: DataFile) -> RangeStream:
        """Return a file as a binary stream that seeks; each read of it is one as of `read`."""
        return RangeStream(self.reader(file), file.size)

    def read(self, file: DataFile, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)` of a file; may be called from several threads.

        They are of the version that was there when the file was first looked at.

        Raises:
            SourceChanged: That version is gone.
            OSError: They cannot be read, or the file ends before `stop`.
        """
        if start >= stop:
            return b""
        self.watch(file)

        def once(_: bool) -> tuple[bytes, bool]:
            wanted = self._versions.now(file.path)
            data, stamp = self._ranges.read(file.path, start, stop, wanted)
            return data, is_same(stamp, wanted)

        # A stamp that does not come with the bytes is that of a look after the read.
        data, _ = read_unchanged(once, partial(self._versions.check, file.path), itemgetter(1))
        if len(data) != stop - start:
            raise OSError(f"{len(data)} bytes came where {stop - start} were asked for")
        return data

    def reader(self, file: DataFile) -> ReadAt:
        """Return what reads ranges of a file, as `read`."""
        return lambda start, stop: self.read(file, start, stop)

    def from_start_to_end(self, file: DataFile) -> ReadAt:
        """Return what reads ranges of a file that follow one another, for one thread.

        A store is asked for more than each of them: a request takes a round trip.
        """
        read_at = self.reader(file)
        return read_at if self.is_local else windowed(read_at, file.size, AHEAD_BYTES)

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
        unread = [file for file in files if self._known_hash(file.path) is None]
        with ThreadPoolExecutor(LOOKERS) as pool:
            list(pool.map(self.content, unread))
        entries = [
            (
                file.name,
                file.size,
                hashlib.sha256(f"{digest_of(file)}{self.content(file)}".encode()).hexdigest(),
            )
            for file in files
        ]
        self.remember(list({file.path: file for file in (*read, *unread)}.values()))
        return files_fingerprint(entries)

    def content(self, file: DataFile) -> str:
        """Return the hash of a file's content, and note it.

        Raises:
            SourceChanged: The file is not the one that was found.
            SourceUnavailable: It cannot be read at the moment.
        """
        if (known := self._known_hash(file.path)) is not None:
            return known.digest
        rule = self._rule(file)
        with reading(file):
            digest = content_hash(
                self.reader(file), file.size, whole=rule.whole, blocks=rule.blocks
            )
        self.note(file, rule.fact, digest)
        return digest

    def watch(self, file: DataFile) -> None:
        """Remember which version of a file is there now: that one is read from now on.

        In a worker it stays the version that its node's process has found.

        Raises:
            SourceChanged: It is not the one that was listed.
            OSError: It cannot be looked at.
        """
        if file.path in self._versions.seen:
            return
        # Asked for here, and not taken from `_list`: some filesystems tell times there otherwise.
        stamp = self._versions.seen[file.path] = self._ranges.look(file.path, listed=True)
        if stamp.size != file.size:
            raise changed(file.path, stamp._replace(size=file.size), stamp)

    def check(self, file: DataFile) -> bool:
        """Refuse a file that is not the one that `watch` saw, where it is not read by `read`.

        Returns:
            Whether it looks as it did. False = it was touched, and has the same content: read
            again what was read before this call.

        Raises:
            SourceChanged: Its content is another.
            OSError: It cannot be looked at.
        """
        return self._versions.check(file.path)

    def check_all(self) -> None:
        """Refuse local files that are gone, or are not those that `watch` saw.

        Other errors may be gone when the files are read.

        Raises:
            SourceChanged: Names the first one.
        """
        if self.is_local:
            self._versions.check_all(file.path for file in self.files)

    def known(self, file: DataFile, fact: str) -> Any:
        """Return what an earlier look at this version of a file has found; None = nothing."""
        return self.catalog.find(file.path, self._versions.seen[file.path], fact)

    def note(self, file: DataFile, fact: str, value: Any) -> None:
        """Keep what was found in a file, JSON-able, for `known`."""
        self.catalog.note(file.path, self._versions.seen[file.path], fact, value)

    def remember(self, read: Sequence[DataFile]) -> None:
        """Keep what is noted for the next start.

        Args:
            read: The files that were read. For a file that has changed since, nothing is kept: it
                may have changed before it was read.
        """

        def has_changed(file: DataFile) -> bool:
            try:
                found = self._ranges.look(file.path, listed=True)
                return not is_same(found, self._versions.seen[file.path])
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

    # --- hashes ---

    def _rule(self, file: DataFile) -> _Rule:
        """Return how the content of a file is hashed."""
        if self._hashes_each:
            return _Rule("content", self.is_local and file.size <= WHOLE_BYTES, BLOCKS)
        blocks = max(1, min(BLOCKS, 1024 // max(1, len(self.files))))
        whole = self._bytes <= WHOLE_BYTES
        return _Rule("whole" if whole else f"sampled {blocks}", whole, blocks)

    def _known_hash(self, path: str) -> Hashed | None:
        file = self._by_path[path]
        rule = self._rule(file)
        digest = self.known(file, rule.fact)
        return None if digest is None else Hashed(digest, rule.whole)

    def _hash_again(self, path: str) -> str:
        """Return the hash of what is there now, whichever version that is."""
        file, now = self._by_path[path], self._ranges.look(path)
        rule = self._rule(file)

        def read_at(start: int, stop: int) -> bytes:
            return self._ranges.read(path, start, stop, now)[0]

        return content_hash(read_at, file.size, whole=rule.whole, blocks=rule.blocks)


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
