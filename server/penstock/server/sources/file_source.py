"""What all sources share that keep the blocks of files in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar

from penstock.server.files.catalog import Catalog
from penstock.server.roles.parameters import declared
from penstock.server.roles.source import IndexedSource
from penstock.server.sources.files import FileSet

Files = str | Sequence[str]
"""What names the files of a source."""


@declared
class FileSource(IndexedSource):
    """Items of a set of files.

    A subclass finds them in its `__post_init__`, which calls `find_files`.

    Args:
        cache_bytes: The most bytes of blocks that one worker keeps in memory. None = as many as its
            reading groups draw from. A smaller bound saves memory, and blocks are then read and
            decoded again and again. It changes no batch.
        storage_options: Options of the fsspec filesystem, such as endpoint and credentials. They
            change no batch.

    Attributes:
        file_set: The files.
    """

    section: ClassVar[str] = "source"
    suffixes: ClassVar[tuple[str, ...]]
    gives_fresh_items: ClassVar[bool] = True
    may_read_ahead: ClassVar[bool] = True
    path_params: ClassVar[tuple[str, ...]] = ("files",)

    _: KW_ONLY
    cache_bytes: int | None = None
    storage_options: dict[str, Any] | None = None

    def find_files(
        self, patterns: Files, *, key: str = "source.files", among: Sequence[str] | None = None
    ) -> None:
        """Find the files that patterns name; in a folder those that end in `suffixes`.

        Args:
            patterns: The patterns.
            key: Their key path in a job file, for error messages.
            among: The names of those that are meant, as of `FileSet`.

        Raises:
            InvalidJob, MissingExtra, SourceUnavailable: As `FileSet`.
        """
        self.file_set = FileSet(
            patterns,
            suffix=self.suffixes,
            storage_options=self.storage_options,
            key=key,
            among=among,
        )
        self._read_bytes = 0
        # A lock of its own: asking what was read must not wait for what is being read.
        self._counting = threading.Lock()

    def most_cached_bytes(self) -> int | None:
        """Return `cache_bytes`."""
        return self.cache_bytes

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes."""
        return {
            name: value
            for name, value in super().parameters().items()
            if name not in ("cache_bytes", "storage_options")
        }

    def check_present(self) -> None:
        """Refuse files that are gone or changed, where they lie on this machine's disks.

        Raises:
            SourceChanged: Names the file.
        """
        self.file_set.check_all()

    def hand_over(self) -> list[Catalog]:
        """Return what is known of the files, for the workers of this node."""
        return [self.file_set.hand_over()]

    def count_read(self, nbytes: int) -> None:
        """Count bytes that were read from storage, as they lie there."""
        with self._counting:
            self._read_bytes += nbytes

    def read_bytes(self) -> int:
        """Return the bytes that were read from storage since the last call."""
        with self._counting:
            count, self._read_bytes = self._read_bytes, 0
        return count
