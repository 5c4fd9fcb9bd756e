"""What all sources share that keep the blocks of files in memory."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

from penstock.server.roles.base import IndexedSource
from penstock.server.sources.catalog import Catalog
from penstock.server.sources.files import FileSet


class FileSource(IndexedSource):
    """Items of a set of files.

    A subclass finds the files in its constructor, which calls `take_files`.

    Attributes:
        files: The files.
        cache_bytes: The most bytes of decoded blocks that one worker keeps; None = as many as are
            needed.
    """

    gives_fresh_items: ClassVar[bool] = True
    may_read_ahead: ClassVar[bool] = True
    path_params: ClassVar[tuple[str, ...]] = ("files",)

    def take_files(self, files: FileSet, cache_bytes: int | None) -> None:
        """Keep the files that were found, and the bound on what is kept of them."""
        self.files, self.cache_bytes = files, cache_bytes
        self._read_bytes = 0
        # A lock of its own: asking what was read must not wait for what is being read.
        self._counting = threading.Lock()

    def most_kept_bytes(self) -> int | None:
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
        self.files.check_all()

    def hand_over(self) -> list[Catalog]:
        """Return what is known of the files, for the workers of this node."""
        return [self.files.hand_over()]

    def count_read(self, nbytes: int) -> None:
        """Count bytes that were read from storage, as they lie there."""
        with self._counting:
            self._read_bytes += nbytes

    def read_bytes(self) -> int:
        """Return the bytes that were read from storage since the last call."""
        with self._counting:
            count, self._read_bytes = self._read_bytes, 0
        return count


__all__ = ["FileSource"]
