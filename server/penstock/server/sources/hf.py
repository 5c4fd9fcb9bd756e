"""What else `datasets` opens from local files: memory-mapped, with random access."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from penstock.server.files.catalog import Catalog, catalog_key, open_catalog
from penstock.server.files.content import files_fingerprint
from penstock.server.files.filesystems import require
from penstock.server.files.versions import changed, is_same
from penstock.server.roles.parameters import declared
from penstock.server.roles.source import IndexedSource
from penstock.server.sources.hf_builders import (
    DataFiles,
    builder_name,
    choose_splits,
    open_builder,
    plain_files,
    quietly,
)
from penstock.server.sources.hf_rows import MappedRows
from penstock.server.sources.prepared import HashedFile, hash_files, prepare
from penstock.server.sources.requirements import check_columns, check_indices
from penstock.wire.errors import InvalidJob

Read = TypeVar("Read")


@declared
class HfSource(IndexedSource):
    """The rows of a dataset that Hugging Face `datasets` opens, without the hub.

    Files are converted to Arrow once for each content, in the folder `penstock` of the cache of
    `datasets` (`HF_DATASETS_CACHE`), and memory-mapped from there; what no running job reads may be
    removed there. A folder of `save_to_disk` is mapped as it lies. Items are dicts as
    `ArrowRows` gives them: images, audio and video stay undecoded, `{"bytes": ..., "path": ...}`
    with the bytes in it and the path a bare file name, so that an item does not depend on where its
    files lie.

    Args:
        path: The name of a builder (`arrow`, `csv`, `json`, `text`, `webdataset`, `imagefolder`,
            ...), or a folder: one that `save_to_disk` wrote, or one of data files.
        data_files: Paths and globs for a builder: one, a list, or a dict of them by split.
        split: Which split, such as `train` or `train[:10%]`; required where there are several.
        name: The builder's configuration, where it has several.
        columns: Which columns to keep, in this order; None = all.
        options: More parameters of the builder, for example `{delimiter: ";"}` of csv.

    Raises:
        InvalidJob: Nothing of that name is here, or `datasets` cannot open it.
        MissingExtra: The package `datasets` is not installed.
    """

    type_name: ClassVar[str] = "hf"
    version: ClassVar[int | str | None] = 2  # 2: values of JSON, where 1 gave their text
    path_params: ClassVar[tuple[str, ...]] = ("path", "data_files")
    gives_fresh_items: ClassVar[bool] = True
    may_read_ahead: ClassVar[bool] = True

    path: str
    data_files: DataFiles | None = None
    split: str | None = None
    name: str | None = None
    columns: Sequence[str] | None = None
    options: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        datasets = require("datasets")
        self._builder = builder_name(self.path, self.data_files)
        files = plain_files(self.data_files)
        self._catalog = open_catalog(
            catalog_key("hf", os.path.abspath(self.path), files, self.name, self.options)
        )
        self._split: str | None
        self._hashed: list[HashedFile] | None
        with quietly(datasets, self.path, self.data_files, self._builder):
            if self._builder is None and _is_saved(self.path):
                self._split, dataset = _saved_split(datasets, self.path, self.split)
                self._files = [Path(file["filename"]) for file in dataset.cache_files]
                self._hashed = None  # until the log id is wanted
                self._root = Path(self.path)
            else:
                dataset = self._prepare(datasets)
        self.names = check_columns(self.columns, dataset.column_names, self.path)
        self._rows = MappedRows(dataset, self.names, self._files, self._hashed or (), self._root)
        self._every = dataset.with_format("arrow")
        self._dataset = self._every.select_columns(self.names)
        self._heads: tuple[list[str], Any] | None = None

    def _prepare(self, datasets: Any) -> Any:
        """Return the dataset that a builder makes of files, which are converted where they are new.

        Raises:
            InvalidJob: No file is given, or one of them would crash the process.
        """
        opened = open_builder(
            self._builder or self.path,
            self.path,
            self.data_files,
            self.split,
            dict(name=self.name, **(self.options or {})),
        )
        self._split = opened.split
        self._files = [_local(file) for file in opened.files]
        for file in self._files if self._builder == "json" else ():
            _refuse_null(file)
        self._root = Path(os.path.commonpath([file.parent for file in self._files]))
        hashed = {
            key: hash_files([*map(_local, names)], self._catalog)
            for key, names in opened.by_split.items()
        }
        self._hashed = [file for key in opened.chosen for file in hashed[key]]
        self._catalog.save(os.path.abspath(f.path) for s in hashed.values() for f in s)
        prepare(datasets, opened.builder, hashed)
        return opened.builder.as_dataset(self._split)

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows at `indices`, in that order.

        Raises:
            IndexError: An index is negative or not below the length.
            SourceUnavailable: The bytes cannot be read at the moment; `item` is the first index.
            SourceChanged: A mapped file is not the one that was opened.
            BadItem: What is mapped there cannot be decoded.
        """
        check_indices(indices, len(self))
        return self._rows.take(self._dataset, indices)

    def heads(
        self, indices: Sequence[int], columns: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Return only some columns of the rows at `indices`; only these are copied from the map.

        Raises:
            IndexError, SourceUnavailable, SourceChanged, BadItem: As `fetch`.
        """
        if columns is None or not self.has_heads(columns):
            return self.fetch(indices)
        chosen = [name for name in self.names if name in columns]
        if self._heads is None or self._heads[0] != chosen:
            self._heads = chosen, self._dataset.select_columns(chosen)
        check_indices(indices, len(self))
        return self._rows.take(self._heads[1], indices)

    def has_heads(self, columns: Sequence[str] | None) -> bool:
        """Tell whether these are some of the columns that are read, and not all."""
        return columns is not None and set(columns) < set(self.names)

    def has_column(self, name: str) -> bool:
        """Tell whether the dataset has this column, whether or not it is read into items."""
        return name in self._every.column_names

    def column(self, name: str, start: int, stop: int) -> Any:
        """Return a column of the rows `[start, stop)` as an Arrow array; the others stay mapped.

        Raises:
            SourceChanged: A mapped file is not the one that was opened.
        """
        chosen = self._every.select_columns([name])
        return self._rows.unchanged(lambda: chosen[start:stop].column(name))

    def columns_of_items(self) -> dict[str, str]:
        """Return the columns, with the types that their values are stored in."""
        schema = self._dataset.features.arrow_schema
        return {name: str(schema.field(name).type) for name in self.names}

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, with the resolved builder and split."""
        parameters = super().parameters()
        if self._split is not None:
            parameters["split"] = self._split
        if self._builder is not None:
            parameters["builder"] = self._builder
        return parameters

    def fingerprint(self) -> dict[str, Any]:
        """Return logical names, sizes and content hashes of the data files, and the length.

        Up to 64 MiB a file is hashed whole, above it head, tail and 16 blocks.

        Raises:
            SourceChanged: A file is not the one that was opened.
            SourceUnavailable: It cannot be read at the moment.
        """
        if self._hashed is None:
            self._hashed = hash_files(self._files, self._catalog)
            for file in self._hashed:
                opened = self._rows.versions.seen[os.path.abspath(file.path)]
                if not is_same(file.stamp, opened):
                    raise changed(str(file.path), opened, file.stamp)
            self._rows.know(self._hashed)
            self._catalog.save(map(os.path.abspath, self._files))
        entries = (
            (Path(os.path.relpath(file.path, self._root)).as_posix(), file.size, file.digest)
            for file in self._hashed
        )
        return {"length": len(self), **files_fingerprint(entries)}

    def check_present(self) -> None:
        """Refuse files that are mapped, or read for their media, and are gone or changed.

        Raises:
            SourceChanged: Names the file.
        """
        self._rows.check_present()

    def hand_over(self) -> list[Catalog]:
        """Return the hashes of the data files, for the workers of this node."""
        return [self._catalog]

    def read_bytes(self) -> int:
        """Return the bytes of the rows that were copied from the map since the last call."""
        count, self._rows.read_bytes = self._rows.read_bytes, 0
        return count

    def close(self) -> None:
        """Forget the expected files; the maps are freed with their last reader."""
        self._rows.close()


def _refuse_null(file: Path) -> None:
    """Refuse JSON that begins with null: the reader of pyarrow, as of 26, ends the process.

    Raises:
        InvalidJob: Names the file.
    """
    with file.open("rb") as stream:
        head = stream.read(4096)
    if re.match(rb"(\xef\xbb\xbf)?\s*null\b", head):
        raise InvalidJob(
            f"{file} begins with null and not with an item: take that line out, or write the file "
            "again",
            key="source.data_files",
        )


def _is_saved(path: str) -> bool:
    return (Path(path) / "state.json").exists() or (Path(path) / "dataset_dict.json").exists()


def _saved_split(datasets: Any, path: str, split: str | None) -> tuple[str | None, Any]:
    """Return the name of a split that was saved, None if there are none, and its dataset."""
    saved = datasets.load_from_disk(path)
    if not isinstance(saved, datasets.DatasetDict):
        if split is not None:
            raise InvalidJob(
                f"{path!r} holds one dataset without splits: leave split out", key="source.split"
            )
        return None, saved
    splits = [*map(str, saved)]
    if split is not None and split not in splits:
        raise InvalidJob(
            f"{path!r} has no split {split!r}: it has {', '.join(splits)}", key="source.split"
        )
    name, _ = choose_splits(path, split, splits)
    return name, saved[name]


def _local(file: str) -> Path:
    if "://" in file:
        raise InvalidJob(
            f"{file!r} is not a local file: this source reads local files; for remote Parquet "
            "there is type: parquet",
            key="source.data_files",
        )
    return Path(file)
