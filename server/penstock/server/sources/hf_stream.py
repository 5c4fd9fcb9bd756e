"""Rows that `datasets` reads one after another, without converting or downloading a whole file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from penstock.server.files.catalog import Catalog
from penstock.server.files.filesystems import require
from penstock.server.roles.samples import RawItem
from penstock.server.roles.source import StreamSource, unseen_sentence
from penstock.server.sources.factory import MadeObject
from penstock.server.sources.hf_builders import (
    DataFiles,
    builder_name,
    innermost,
    open_builder,
    quietly,
    silence,
)
from penstock.server.sources.patterns import DataFile
from penstock.server.sources.requirements import check_columns
from penstock.server.sources.stream_files import StreamFiles, name_of
from penstock.server.usercode.copies import own_copy
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import BadBatch, InvalidJob

MARK_ROWS = 256
"""Rows from one mark to the next. A mark is a number of rows, which `datasets` passes over without
making Python values of them; so more marks save little."""


class HfStreamSource(StreamSource):
    """The rows of a streaming dataset of Hugging Face `datasets` (an `IterableDataset`).

    Either the files of a builder, local ones or URLs, as `load_dataset(path, data_files=...,
    streaming=True)` opens them; or what a function of yours returns, with its own `map`, `filter`
    and `interleave_datasets`. What `datasets` calls a shard is a shard here: mostly a file.

    A row is found again by its shard and number: by opening the shard and passing over the rows
    before it, never by the state that a dataset gives, which forgets rows of its shuffle buffers.
    So shuffle by the distributor's `buffer_size`, and not in the dataset. Every pass over a shard
    must give the same rows: `penstockd check` tests that.

    Items are dicts; images, audio and video stay undecoded, `{"bytes": ..., "path": ...}` with the
    bytes in it and the path a bare file name.

    Args:
        path: The name of a builder (`json`, `parquet`, `csv`, `text`, `webdataset`, ...), or a
            folder of data files.
        data_files: Paths, globs and URLs for a builder: one, a list, or a dict of them by split.
        split: Which split; required where there are several.
        name: The builder's configuration, where it has several.
        columns: Which columns to keep, in this order; None = all.
        options: More parameters of the builder, for example `{delimiter: ";"}` of csv.
        storage_options: Options of the fsspec filesystem of URLs, such as endpoint and credentials.
            They do not decide bytes.
        reshard: Make a shard of each piece that the format can be read in (row groups of Parquet),
            where there are fewer files than lanes.
        factory: `./file.py:name` or `package.module:name`: a function that returns an
            `IterableDataset`, in place of `path`. It is identified by its module's source, and by
            its attribute `fingerprint`, a function that returns what identifies the data.
        dataset: An `IterableDataset`, in Python, in place of a factory.
        arguments: Passed to the factory by name.

    Raises:
        InvalidJob: Nothing of that name is here, `datasets` cannot open it, or the factory gives
            something else.
        MissingExtra: The package `datasets` is not installed.
    """

    type_name: ClassVar[str] = "hf_stream"
    version: ClassVar[int | str | None] = 1
    path_params: ClassVar[tuple[str, ...]] = ("path", "data_files", "factory")
    gives_fresh_items: ClassVar[bool] = True

    def __init__(
        self,
        path: str | None = None,
        data_files: DataFiles | None = None,
        split: str | None = None,
        name: str | None = None,
        columns: Sequence[str] | None = None,
        options: dict[str, Any] | None = None,
        storage_options: dict[str, Any] | None = None,
        reshard: bool = False,
        factory: str | None = None,
        dataset: Any = None,
        **arguments: Any,
    ) -> None:
        datasets = require("datasets")
        if path is not None and (factory, dataset) != (None, None):
            raise InvalidJob(
                "path and factory are both given: a source of type hf_stream opens the files of "
                "path, or what the factory returns; remove one of them",
                key="source.path",
            )
        if path is None and factory is None and dataset is None:
            raise InvalidJob(
                "a source of type hf_stream needs path: json and data_files, or factory: "
                "./data.py:make",
                key="source.path",
            )
        self._made: MadeObject | None = None
        self._files: StreamFiles | None = None
        self._builder: str | None = None
        self._split: str | None = split
        if path is None:
            self._made = MadeObject("hf_stream", factory, dataset, arguments)
            stream = self._made.object
            if not isinstance(stream, datasets.IterableDataset):
                raise InvalidJob(
                    f"{self._made.name()} gave a value of type {type(stream).__name__}, and not an "
                    "IterableDataset: return load_dataset(..., streaming=True), or "
                    "dataset.to_iterable_dataset(num_shards=...)",
                    key="source.factory",
                )
        else:
            if arguments:
                raise InvalidJob(
                    f"{', '.join(arguments)} is not a parameter of hf_stream: parameters of a "
                    "builder go into options",
                    key=f"source.{next(iter(arguments))}",
                )
            of_builder = dict(name=name, storage_options=storage_options, **(options or {}))
            stream = self._opened(path, data_files, split, of_builder)
        if reshard:
            stream = stream.reshard()
        if columns is not None:
            chosen = check_columns(columns, stream.column_names or columns, path or "the dataset")
            stream = stream.select_columns(chosen)
        self._features = stream.features
        self._media = [key for key, kind in (self._features or {}).items() if _is_media(kind)]
        self._stream = stream.decode(False) if self._media else stream
        self._names = self._shard_names(path)

    def _opened(
        self, path: str, data_files: DataFiles | None, split: str | None, options: dict[str, Any]
    ) -> Any:
        """Return the dataset of a builder, and look at its files."""
        self._builder = builder_name(path, data_files)
        with quietly(require("datasets"), path, data_files, self._builder):
            opened = open_builder(self._builder or path, path, data_files, split, options)
            self._split = opened.split
            self._files = StreamFiles(opened.files, options["storage_options"])
            return opened.builder.as_streaming_dataset(self._split)

    def _shard_names(self, path: str | None) -> list[str]:
        count = self._stream.num_shards
        if self._files is not None and len(self._files.read) == count:
            return [file.name for file in self._files.read]
        of = path if self._made is None else self._made.name()
        return [f"{of} {number} of {count}" for number in range(count)]

    def shards(self) -> Sequence[str]:
        """Return the files' names, where each is a shard; else numbers."""
        return self._names

    def open(self, shard: int, mark: Any) -> Iterator[tuple[RawItem, Any]]:
        """Yield the rows of a shard, from a number on; with a mark for every 256th.

        A local file is looked at after each of its rows was read, so that no row of another version
        is given. Files at URLs, and those that are not a shard each, are looked at as the shard
        is opened and as it ends; local ones also at each mark.

        Raises:
            SourceChanged: A file is not the one that was opened.
            BadBatch: A file is damaged, or is not like the others.
            Exception: Whatever else the dataset raises.
        """
        files = self._files.of_shard(shard, len(self._names)) if self._files else []
        look = self._files.look_at(files) if self._files else lambda: []
        seen = look()
        self._check(files)
        rows = self._stream.shard(num_shards=len(self._names), index=shard)
        begin = mark or 0
        if begin:
            rows = rows.skip(begin)
        if self._made is None:
            rows = self._parsed(rows, shard, begin)
        for number, row in enumerate(rows, begin + 1):
            # A generator of the user's may give a row that it keeps.
            item = own_copy(row) if self._made is not None else row
            self._settle(item)
            if (len(files) == 1 or number % MARK_ROWS == 0) and (now := look()) != seen:
                self._check(files)
                seen = now
            yield item, number if number % MARK_ROWS == 0 else None
        self._check(files)

    def _check(self, files: Sequence[DataFile]) -> None:
        if self._files is not None:
            self._files.check(files)

    def _parsed(self, rows: Iterable[Any], shard: int, number: int) -> Iterator[Any]:
        """Yield the rows of a file.

        What the library says of one that it cannot parse is a sentence: its own frames help nobody
        who has no code in them, and are not logged either where that shows with the first rows.

        Raises:
            BadBatch: A file is damaged, or is not like the others.
            Exception: Whatever else the library raises, such as OSErrors, which may be temporary.
        """
        found = iter(rows)
        try:
            with silence.kept(require("datasets")):
                first = list(islice(found, 1))
            for row in chain(first, found):
                yield row
                number += 1
        except ValueError as error:  # of parsers and casts; a ValueError may wrap a network's
            assert self._files is not None
            self._files.check(self._files.of_shard(shard, len(self._names)))
            if is_transient(error, reading=True):
                raise
            raise BadBatch(
                f"shard {self._names[shard]!r} cannot be read at row {number}: "
                f"{innermost(error)}; a source needs files of one kind with the same columns, so "
                "mend the file, or make others a source of their own"
            ) from error

    def _settle(self, item: Any) -> None:
        """Give media their bytes, and names in the place of paths, in a row."""
        for column in self._media:
            media = item.get(column)
            if not isinstance(media, dict) or not media.get("path"):
                continue
            if media["bytes"] is None:
                with require("fsspec").open(media["path"], "rb") as file:
                    media["bytes"] = file.read()
            media["path"] = Path(media["path"]).name
        if isinstance(item, dict) and isinstance(item.get("__url__"), str):  # webdataset's archive
            item["__url__"] = name_of(item["__url__"], self._files.read if self._files else ())

    def check_present(self) -> None:
        """Refuse local files that are gone or another.

        Raises:
            SourceChanged: Names the first one.
        """
        if self._files is not None:
            self._files.file_set.check_all()

    def columns_of_items(self) -> Mapping[str, str] | None:
        """Return the columns with the types that they are stored in, where they are known."""
        if self._features is None:
            return None
        schema = self._features.arrow_schema
        return {name: str(schema.field(name).type) for name in self._features}

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, with the resolved builder and split."""
        parameters = super().parameters()
        for name in ("storage_options", "dataset"):
            parameters.pop(name, None)
        if self._split is not None:
            parameters["split"] = self._split
        if self._builder is not None:
            parameters["builder"] = self._builder
        return parameters

    def content(self) -> dict[str, str]:
        """Return the factory and the hash of its module."""
        return {} if self._made is None else self._made.content()

    def fingerprint(self) -> Any:
        """Return names, sizes and hashes of the files in the order of reading.

        Local files up to 64 MiB are hashed whole, of others head, tail and 16 blocks. Of a factory:
        the number of shards, and what its own `fingerprint` returns.

        Raises:
            SourceUnavailable: A file cannot be read at the moment.
        """
        if self._made is not None:
            own = self._made.fingerprint()
            found: dict[str, Any] = {"shards": len(self._names)}
            return found if own is None else {**found, "dataset": own()}
        assert self._files is not None
        return self._files.fingerprint()

    def unseen(self) -> str | None:
        """Return what the log id does not know of a factory without a `fingerprint`."""
        if self._made is None or self._made.fingerprint() is not None:
            return None
        return unseen_sentence(self._made.name())

    def hand_over(self) -> Sequence[Catalog]:
        """Return the list of files and their hashes, for the workers of this node."""
        return () if self._files is None else (self._files.file_set.hand_over(),)


def _is_media(kind: Any) -> bool:
    """Tell whether a feature of `datasets` is decoded from bytes: an image, audio, a video."""
    return hasattr(kind, "decode")
