"""A folder of pictures or sounds, each an item; the folders in it are their classes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from typing import Any, ClassVar

from penstock.server.core.shown import shown
from penstock.server.files.catalog import HandedOver, catalog_key, handed
from penstock.server.files.filesystems import located
from penstock.server.files.ranges import HttpRanges, ranges_of
from penstock.server.media.listing import (
    DATABASES,
    ENDINGS,
    MediaListing,
    holds_nothing,
    is_listed,
    listed_for,
    listing_of,
    stamps_below,
)
from penstock.server.media.name_list import NameList
from penstock.server.roles.parameters import declared
from penstock.server.roles.samples import RawItem
from penstock.server.roles.source import IndexedSource
from penstock.server.sources.requirements import check_indices
from penstock.wire.errors import InvalidJob


@declared
class FolderSource(IndexedSource):
    """The pictures, or other media, of a folder and of the folders in it, ordered by name.

    An item names its file, in the column `key`, relative to `path`; `class` is the folder
    directly below `path` that it lies in, and `label` the number of that, in the order of their
    names. Files that lie in `path` itself have the class "" and the label -1.

    Args:
        path: The folder, or its URL on a store that lists its files.
        endings: What names of the files end in, such as `[.jpg, .png]`; default: those of pictures,
            sounds and films.
        key: What items call their file.
        storage_options: Options of the fsspec filesystem, such as endpoint and credentials. They
            change no batch.

    Raises:
        InvalidJob: The folder is not there, or has no such file.
        SourceUnavailable: It cannot be listed at the moment.
    """

    type_name: ClassVar[str] = "folder"
    version: ClassVar[int | str | None] = 1
    gives_fresh_items: ClassVar[bool] = True
    may_read_ahead: ClassVar[bool] = True
    path_params: ClassVar[tuple[str, ...]] = ("path",)

    path: str
    _: KW_ONLY
    endings: Sequence[str] | None = None
    key: str = "image"
    storage_options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise InvalidJob(f"path is {self.path!r}: give a folder", key="source.path")
        if isinstance(self.endings, str):
            raise InvalidJob(
                f"endings is {self.endings!r}: give a list, such as [.jpg, .png]",
                key="source.endings",
            )
        if not isinstance(self.key, str) or self.key in ("", "class", "label"):
            raise InvalidJob(
                f"key is {shown(self.key)}: give a name other than class and label",
                key="source.key",
            )
        self._names, self._listing = self._listed()
        folders = {name.partition("/")[0] for name in self._names if "/" in name}
        self.classes = sorted(folders, key=lambda name: name.encode(errors="surrogateescape"))
        self._labels = {"": -1, **{name: number for number, name in enumerate(self.classes)}}

    def _listed(self) -> tuple[NameList, MediaListing]:
        endings = ENDINGS if self.endings is None else tuple(self.endings)
        chosen = tuple(each for each in endings if each not in DATABASES)
        key = catalog_key("folder", self.path, chosen, self.storage_options)
        what, where = "the folder", "source.path"
        with listed_for(what, self.path, where):
            fs, path = located(self.path, self.storage_options)
            ranges = ranges_of(fs)
            if isinstance(ranges, HttpRanges):
                raise ValueError("a web server does not list its files: name them in a table")
            listing = listing_of(ranges, path, endings, self.storage_options or {})
            if (known := handed(key)) is not None:
                return NameList(key, known), listing
            names = [name for name, _ in stamps_below(ranges, path) if is_listed(name, chosen)]
        if not names:
            raise holds_nothing(what, self.path, chosen, where)
        return NameList.of(key, names), listing

    def __len__(self) -> int:
        return len(self._names)

    def fetch(self, indices: Sequence[int]) -> list[RawItem]:
        """Return the items at `indices`, in that order; no file is opened for that.

        Raises:
            IndexError: An index is negative or not below the length.
        """
        check_indices(indices, len(self))
        return [self._item(self._names[index]) for index in indices]

    def _item(self, name: str) -> dict[str, Any]:
        folder, slash, _ = name.partition("/")
        folder = folder if slash else ""
        return {self.key: name, "class": folder, "label": self._labels[folder]}

    def columns_of_items(self) -> Mapping[str, str]:
        """Return the three columns."""
        return {self.key: "string", "class": "string", "label": "int64"}

    def has_column(self, name: str) -> bool:
        """Tell whether items have this column: none of them takes reading a file."""
        return name in self.columns_of_items()

    def media_dirs(self) -> dict[str, str]:
        """Return the folder: what items name is relative to it."""
        return {"": self.path}

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, beside the names of the files."""
        return {
            name: value
            for name, value in super().parameters().items()
            if name not in ("endings", "storage_options")
        }

    def fingerprint(self) -> dict[str, Any]:
        """Return how many files there are, a hash of their names, and one of sizes and content."""
        names = hashlib.sha256(self._names.blob()).hexdigest()
        return {"files": len(self), "names": names, "content": self._listing.fingerprint}

    def hand_over(self) -> Sequence[HandedOver]:
        """Return names, and what is known of the files, for the workers of this node."""
        return [self._names, self._listing]
