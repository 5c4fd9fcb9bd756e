"""Files that are read one after another, each looked at as often as its rows are given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from penstock.server.files.content import files_fingerprint
from penstock.server.sources.files import FileSet, reading
from penstock.server.sources.patterns import DataFile


class StreamFiles:
    """The files of a stream, in the order of reading.

    Args:
        names: Their paths or URLs.
        storage_options: Of the fsspec filesystem of URLs.

    Attributes:
        file_set: The files, ordered by name.
        read: The files in the order of reading.
    """

    def __init__(self, names: Sequence[str], storage_options: dict[str, Any] | None) -> None:
        self.file_set = FileSet(
            names,
            suffix="",
            storage_options=storage_options,
            key="source.data_files",
            hashes_each=True,
        )
        by_path = {_bare(file.path): file for file in self.file_set.files}
        self.read = [by_path[_bare(file)] for file in names]

    def of_shard(self, shard: int, shards: int) -> list[DataFile]:
        """Return the files that one of so many shards may lie in; none = they are not known."""
        if len(self.read) == shards:
            return [self.read[shard]]
        return self.read if self.file_set.is_local else []  # a look at a URL is a request

    def look_at(self, files: Sequence[DataFile]) -> Callable[[], list[tuple[int, ...]]]:
        """Return what looks at files of this machine, in 2 us for each; others look alike.

        One that is gone has no look, which is another one.
        """
        paths = [file.path for file in files] if self.file_set.is_local else []

        def look() -> list[tuple[int, ...]]:
            found: list[tuple[int, ...]] = []
            with contextlib.suppress(OSError):  # `check` says what it is
                for path in paths:
                    stat = os.stat(path)
                    found.append((stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino))
            return found

        return look

    def check(self, files: Sequence[DataFile]) -> None:
        """Refuse files that have changed.

        Raises:
            SourceChanged: Names the first one.
            SourceUnavailable: It cannot be looked at.
        """
        for file in files:
            with reading(file):
                self.file_set.watch(file)
                self.file_set.check(file)

    def fingerprint(self) -> dict[str, Any]:
        """Return names, sizes and hashes of the files, in the order of reading.

        Raises:
            SourceUnavailable: A file cannot be read at the moment.
        """

        def watch(file: DataFile) -> None:
            with reading(file):
                self.file_set.watch(file)

        self.file_set.map(watch, self.read)
        digests = self.file_set.map(self.file_set.content, self.read)
        self.file_set.remember(self.read)
        return files_fingerprint(
            (file.name, file.size, digest) for file, digest in zip(self.read, digests, strict=True)
        )


def name_of(url: str, files: Sequence[DataFile]) -> str:
    """Return the name of the file at a path or URL; its path there if it is none of these."""
    bare = _bare(url)
    return next((file.name for file in files if _bare(file.path) == bare), bare)


def _bare(path: str) -> str:
    """Return a path or URL as its filesystem names it, to compare both forms."""
    before, found, rest = path.partition("://")
    return (rest if found else os.path.abspath(before)).lstrip("/")
