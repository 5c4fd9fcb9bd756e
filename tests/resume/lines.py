"""A stream as somebody writes it: files of JSON lines, read from the start or from a mark.

Job files of tests name it `./lines.py:Lines`: the module is copied beside them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from penstock.server.roles import StreamSource


class Lines(StreamSource):
    """The lines of the files in a folder, each file a shard.

    Args:
        folder: Where the `.jsonl` files are.
        apart: There is a mark where a line begins in another stretch of so many bytes than the line
            before it; 0 = there is none.

    Attributes:
        read: How many lines this process has read.
    """

    version: ClassVar[int | str | None] = 1
    path_params: ClassVar[tuple[str, ...]] = ("folder",)
    gives_fresh_items: ClassVar[bool] = True

    def __init__(self, folder: str, apart: int = 1) -> None:
        self.folder, self.apart = Path(folder), apart
        self.read = 0
        self._names = sorted(path.name for path in self.folder.glob("*.jsonl"))

    def shards(self) -> list[str]:
        """Return the files' names."""
        return self._names

    def open(self, shard: int, mark: Any) -> Iterator[tuple[Any, Any]]:
        """Yield lines from a byte on."""
        with (self.folder / self._names[shard]).open("rb") as file:
            file.seek(mark or 0)
            for line in iter(file.readline, b""):
                self.read += 1
                end = file.tell()
                begin = end - len(line)
                marked = self.apart and end // self.apart != begin // self.apart
                yield json.loads(line), end if marked else None

    def fingerprint(self) -> Any:
        """Return names and hashes."""
        return {
            name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest()
            for name in self._names
        }
