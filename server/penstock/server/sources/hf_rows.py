"""Rows that `datasets` has mapped into memory, as items, of files that have not changed since."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.server.files.catalog import Stamp, local_stamp
from penstock.server.files.versions import Hashed, Versions, read_unchanged
from penstock.server.sources.arrow import ArrowRows, json_decoder
from penstock.server.sources.hf_builders import MAX_REASON
from penstock.server.sources.prepared import HashedFile, content_of
from penstock.server.usercode.frames import error_line
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import BadItem, SourceUnavailable
from penstock.wire.plain import clean_text

Read = TypeVar("Read")


class MappedRows:
    """Makes items of rows: with the bytes of media in them, and without the paths of files.

    Args:
        dataset: The dataset of `datasets`.
        names: The columns that are read.
        files: The data files, for messages.
        hashed: What is known of them.
        root: The folder that names of files are relative to.

    Attributes:
        versions: How the files looked that are mapped, or read for their media.
        read_bytes: The bytes of rows that were copied from the map.
    """

    def __init__(
        self,
        dataset: Any,
        names: Sequence[str],
        files: Sequence[Path],
        hashed: Iterable[HashedFile],
        root: Path,
    ) -> None:
        self._files, self._root = files, root
        self.know(hashed)
        self._media = [name for name in names if hasattr(dataset.features[name], "decode")]
        schema = dataset.features.arrow_schema
        found = {name: json_decoder(schema.field(name).type) for name in names}
        self._texts = {name: decode for name, decode in found.items() if decode is not None}
        self._mapped = [os.path.abspath(file["filename"]) for file in dataset.cache_files]
        self.versions = Versions(_look, self._known_hash, content_of)
        self.versions.seen |= {path: file.stamp for path, file in self._known.items()}
        self.versions.seen |= {path: _look(path) for path in self._mapped}
        self.read_bytes = 0

    def know(self, hashed: Iterable[HashedFile]) -> None:
        """Take the hashes of data files: one that is touched later is compared with its own."""
        self._known = {os.path.abspath(file.path): file for file in hashed}

    def take(self, dataset: Any, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices` of the mapped dataset, or of some of its columns.

        Raises:
            SourceUnavailable: The bytes cannot be read at the moment; `item` is the first index.
            SourceChanged: A mapped file is not the one that was opened.
            BadItem: What is mapped there cannot be decoded.
        """
        if not indices:
            return []
        try:
            table, items = self.unchanged(lambda: self._copied(dataset, indices))
            for item in items:
                self._settle(item)
        except OSError as error:
            if not is_transient(error):  # raised by Arrow: what it has read makes no sense
                raise BadItem(
                    f"the prepared rows {indices[0]} ... of {self._named_files()} cannot be "
                    f"decoded: {error_line(error)}",
                    reason=error_line(error),
                ) from error
            raise SourceUnavailable(
                f"items {indices[0]} ... of {self._named_files()} cannot be read at the moment: "
                f"{error}",
                item=indices[0],
            ) from error
        self.read_bytes += table.nbytes
        return items

    def unchanged(self, read: Callable[[], Read], media: str = "") -> Read:
        """Return what was read while files were as they were found.

        Args:
            read: Reads it.
            media: The file that it reads; empty = the map.

        Raises:
            SourceChanged: One of the files has changed.
            OSError: One cannot be looked at, or `read` raises it.
        """
        paths = [media] if media else self._mapped
        known = [path for path in paths if path in self.versions.seen]
        return read_unchanged(
            lambda _: read(), lambda: all(self.versions.check(path) for path in known)
        )

    def check_present(self) -> None:
        """Refuse files that are mapped, or read for their media, and are gone or changed.

        Raises:
            SourceChanged: Names the file.
        """
        self.versions.check_all([*self.versions.seen] if self._media else self._mapped)

    def close(self) -> None:
        """Forget the expected files; the maps are freed with their last reader."""
        self._mapped.clear()

    def _known_hash(self, path: str) -> Hashed | None:
        """Return what is known of a file's content; nothing of rows that `datasets` prepared."""
        return self._known[path].hashed if path in self._known else None

    def _copied(self, dataset: Any, indices: Sequence[int]) -> tuple[Any, list[dict[str, Any]]]:
        """Return rows of a mapped dataset, as a table and as items."""
        table = dataset[[int(index) for index in indices]]
        return table, ArrowRows(table, partial(self._bad_value, indices)).items(range(len(indices)))

    def _bad_value(
        self, indices: Sequence[int], row: int, column: str, error: Exception
    ) -> BadItem:
        said = clean_text(f"column {column!r} cannot be decoded: {error_line(error)}", MAX_REASON)
        return BadItem(f"item {indices[row]} of {self._named_files()}: {said}", reason=said)

    def _named_files(self) -> str:
        """Return names for a sentence: `datasets` does not tell which file a row came from."""
        first, last = self._files[0].name, self._files[-1].name
        if len(self._files) == 1:
            return clean_text(first, MAX_REASON)
        return clean_text(f"{len(self._files)} files, {first} to {last}", MAX_REASON)

    def _settle(self, item: dict[str, Any]) -> None:
        """Make an item what `datasets` gives, without the paths of files.

        Media get their bytes, and paths become names; JSON that is stored as text becomes values.
        """
        for column in self._media:
            media = item.get(column)
            if not isinstance(media, dict) or not media.get("path"):
                continue
            if media["bytes"] is None:
                path = os.path.abspath(media["path"])
                media["bytes"] = self.unchanged(Path(path).read_bytes, path)
            media["path"] = Path(media["path"]).name
        for column, decode in self._texts.items():
            item[column] = decode(item[column])
        if isinstance(item.get("__url__"), str):  # webdataset: which archive
            item["__url__"] = Path(os.path.relpath(item["__url__"], self._root)).as_posix()


def _look(path: str) -> Stamp:
    return local_stamp(os.stat(path))
