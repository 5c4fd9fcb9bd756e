"""What else `datasets` opens from local files: memory-mapped, with random access."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from penstock.server.files.catalog import Catalog, catalog_key, local_stamp, open_catalog
from penstock.server.files.content import files_fingerprint
from penstock.server.files.versions import Hashed, Versions, changed, is_same, read_unchanged
from penstock.server.roles.base import IndexedSource
from penstock.server.roles.parameters import declared
from penstock.server.sources.arrow import ArrowRows
from penstock.server.sources.prepared import (
    HashedFile,
    content_of,
    hash_files,
    load_builder,
    prepare,
)
from penstock.server.sources.requirements import check_columns, check_indices, plain_url, require
from penstock.server.usercode.frames import error_line, error_text
from penstock.server.usercode.transient import is_transient
from penstock.wire.errors import BadItem, InvalidJob, PenstockError, SourceUnavailable
from penstock.wire.plain import clean_text

Read = TypeVar("Read")

DataFiles = str | Sequence[str] | Mapping[str, str | Sequence[str]]

MAX_REASON = 300
"""Characters of what the library says in an error: it may list every column of a file."""


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
        self._catalog = open_catalog(
            catalog_key(
                "hf",
                os.path.abspath(self.path),
                plain_files(self.data_files),
                self.name,
                self.options,
            )
        )
        self._split: str | None
        self._hashed: list[HashedFile] | None
        with quietly(datasets, self.path, self.data_files, self._builder):
            if self._builder is None and _is_saved(self.path):
                saved = datasets.load_from_disk(self.path)
                self._split, dataset = _saved_split(datasets, self.path, saved, self.split)
                self._files = [Path(file["filename"]) for file in dataset.cache_files]
                self._hashed = None
                self._root = Path(self.path)
            else:
                builder = load_builder(
                    datasets,
                    self._builder or self.path,
                    self.name,
                    data_files=plain_files(self.data_files),
                    **(self.options or {}),
                )
                found = builder.config.data_files or {}
                by_split = {str(key): list(files) for key, files in found.items()}
                self._split, chosen = choose_splits(self.path, self.split, list(by_split))
                self._files = [_local(file) for key in chosen for file in by_split[key]]
                if not self._files:
                    raise InvalidJob(
                        f"no file matches {self.data_files or self.path!r}: check the path; in a "
                        "job file it is relative to the job file",
                        key="source.data_files",
                    )
                for file in self._files if self._builder == "json" else ():
                    _refuse_null(file)
                self._root = Path(os.path.commonpath([file.parent for file in self._files]))
                hashed = {
                    key: hash_files([*map(_local, names)], self._catalog)
                    for key, names in by_split.items()
                }
                self._hashed = [file for key in chosen for file in hashed[key]]
                self._catalog.save(os.path.abspath(f.path) for s in hashed.values() for f in s)
                prepare(datasets, builder, hashed)
                dataset = builder.as_dataset(self._split)
        self.names = check_columns(self.columns, dataset.column_names, self.path)
        self._media = [
            column for column in self.names if hasattr(dataset.features[column], "decode")
        ]
        self._every = dataset.with_format("arrow")
        self._dataset = self._every.select_columns(self.names)
        schema = dataset.features.arrow_schema
        self._texts = {
            column: decode
            for column in self.names
            if (decode := json_decoder(schema.field(column).type)) is not None
        }
        self._mapped = [os.path.abspath(file["filename"]) for file in dataset.cache_files]
        self._versions = self._watched()
        self._heads: tuple[list[str], Any] | None = None
        self._read_bytes = 0

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
        return self._rows(self._dataset, indices)

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
        return self._rows(self._heads[1], indices)

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
        return self._unchanged(self._mapped, lambda: chosen[start:stop].column(name))

    def _rows(self, dataset: Any, indices: Sequence[int]) -> list[dict[str, Any]]:
        check_indices(indices, len(self))
        if not indices:
            return []
        try:
            table, items = self._unchanged(self._mapped, lambda: self._copied(dataset, indices))
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
        self._read_bytes += table.nbytes
        return items

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
                opened = self._versions.seen[os.path.abspath(file.path)]
                if not is_same(file.stamp, opened):
                    raise changed(str(file.path), opened, file.stamp)
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
        self._versions.check_all([*self._versions.seen] if self._media else self._mapped)

    def hand_over(self) -> list[Catalog]:
        """Return the hashes of the data files, for the workers of this node."""
        return [self._catalog]

    def read_bytes(self) -> int:
        """Return the bytes of the rows that were copied from the map since the last call."""
        count, self._read_bytes = self._read_bytes, 0
        return count

    def close(self) -> None:
        """Forget the expected files; the maps are freed with their last reader."""
        self._mapped.clear()

    def _watched(self) -> Versions:
        """Return what notices changes of the files that are mapped, or read for their media."""
        found = Versions(lambda path: local_stamp(os.stat(path)), self._known_hash, content_of)
        for file in self._hashed or ():
            found.seen[os.path.abspath(file.path)] = file.stamp
        for path in self._mapped:
            found.seen[path] = local_stamp(os.stat(path))
        return found

    def _known_hash(self, path: str) -> Hashed | None:
        """Return what is known of a file's content; nothing of rows that `datasets` prepared."""
        files = self._hashed or ()
        return next((file.hashed for file in files if os.path.abspath(file.path) == path), None)

    def _unchanged(self, paths: Sequence[str], read: Callable[[], Read]) -> Read:
        """Return what was read while these files were as they were found.

        Raises:
            SourceChanged: One of them has changed.
            OSError: One cannot be looked at, or `read` raises it.
        """
        return read_unchanged(lambda _: read(), partial(self._all_as_before, paths))

    def _all_as_before(self, paths: Sequence[str]) -> bool:
        return all(self._versions.check(path) for path in paths)

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
                files = [path] if path in self._versions.seen else []
                media["bytes"] = self._unchanged(files, Path(path).read_bytes)
            media["path"] = Path(media["path"]).name
        for column, decode in self._texts.items():
            item[column] = decode(item[column])
        if isinstance(item.get("__url__"), str):  # webdataset: which archive
            item["__url__"] = Path(os.path.relpath(item["__url__"], self._root)).as_posix()


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


def json_decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Return what turns stored values of an Arrow type into those that `datasets` gives.

    JSON objects that differ in their keys or types, as the turns of a conversation some of which
    call tools, are stored as text of the type `arrow.json`.

    Args:
        kind: The type of a column.

    Returns:
        The decoder; None if the type has no JSON in it.
    """
    import pyarrow as pa

    if getattr(kind, "extension_name", "") == "arrow.json":
        return lambda value: json.loads(value) if isinstance(value, str) else value
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        inner = json_decoder(kind.value_type)
        if inner is not None:
            return lambda values: None if values is None else [inner(value) for value in values]
    if pa.types.is_struct(kind):
        fields = {field.name: json_decoder(field.type) for field in kind}
        found = {name: decode for name, decode in fields.items() if decode is not None}
        if found:
            return lambda value: (
                value
                and {
                    name: found[name](inner) if name in found else inner
                    for name, inner in value.items()
                }
            )
    return None


def builder_name(path: str, data_files: DataFiles | None) -> str | None:
    """Return the builder that `path` names, or None if it is a folder.

    A job file's relative paths arrive absolute, so `json` may arrive as `/jobs/json`: the last part
    is a builder's name unless there is such a folder and no data files.
    """
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as BUILDERS

    last = Path(path).name
    if last in BUILDERS and (data_files is not None or not Path(path).is_dir()):
        if data_files is None:
            raise InvalidJob(
                f"the builder {last!r} needs data_files: give a path, a glob or a list",
                key="source.data_files",
            )
        return last
    if Path(path).is_dir():
        return None
    raise InvalidJob(
        f"{path!r} is neither a folder nor a builder ({', '.join(BUILDERS)}); the hub is not "
        "read over the network: download it first and name the folder",
        key="source.path",
    )


def _is_saved(path: str) -> bool:
    return (Path(path) / "state.json").exists() or (Path(path) / "dataset_dict.json").exists()


def _saved_split(datasets: Any, path: str, saved: Any, split: str | None) -> tuple[Any, Any]:
    """Return the name of a saved split, None if it has none, and its dataset."""
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


def choose_splits(path: str, split: str | None, splits: Sequence[str]) -> tuple[str, list[str]]:
    """Return the split to read, and which of the dataset's splits it is made of."""
    if split is None:
        if len(splits) != 1:
            raise InvalidJob(
                f"{path!r} has the splits {', '.join(splits)}: choose one with split",
                key="source.split",
            )
        return splits[0], [*splits]
    # `train`, `train[:10%]`, `train[:100]+test`, `all`: the names before the brackets.
    named = re.findall(r"[^\W\d][\w.-]*", re.sub(r"\[[^]]*\]|\([^)]*\)", "", split))
    unknown = [name for name in named if name not in (*splits, "all")]
    if unknown or not named:
        raise InvalidJob(
            f"{path!r} has no split {split!r}: it has {', '.join(splits)}", key="source.split"
        )
    return split, [name for name in splits if name in named or "all" in named]


def _local(file: str) -> Path:
    if "://" in file:
        raise InvalidJob(
            f"{file!r} is not a local file: this source reads local files; for remote Parquet "
            "there is type: parquet",
            key="source.data_files",
        )
    return Path(file)


def plain_files(data_files: DataFiles | None) -> Any:
    """Return `data_files` in lists and dicts, as `datasets` takes them."""
    if data_files is None:
        return None
    if isinstance(data_files, str):
        return plain_url(data_files)
    if isinstance(data_files, Mapping):
        return {split: plain_files(files) for split, files in data_files.items()}
    return [plain_url(file) for file in data_files]


@contextlib.contextmanager
def quietly(
    datasets: Any, path: str, data_files: DataFiles | None, builder: str | None
) -> Iterator[None]:
    """Open without progress bars, and turn what `datasets` raises into one sentence."""
    try:
        with silence.kept(datasets):
            yield
    except PenstockError:
        raise
    except Exception as error:
        what = repr(path if data_files is None else data_files)
        what = what if len(what) <= 300 else f"{what[:300]} ..."
        kind = "" if builder is None else f" as {builder}"
        raise InvalidJob(
            f"datasets cannot read {what}{kind}: {innermost(error)}; a source needs files of one "
            "kind with the same columns, and at least one item in them",
            key="source.path" if data_files is None else "source.data_files",
        ) from error


def innermost(error: BaseException) -> str:
    """Return what went wrong, on one line: the library wraps a parser's error in its own."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = " ".join(error_text(error, MAX_REASON).split())
    return f"{type(error).__name__}: {text or 'no rows, or nothing that can be parsed'}"


class _Silence:
    """Switches off what `datasets` writes, for the whole process, while any thread wants that.

    A meta file opens several data sets at once: the first to begin notes how it was, and the last
    to end restores that. If each did so, one would restore what another had switched off.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = 0
        self._before = (True, 0)

    @contextlib.contextmanager
    def kept(self, datasets: Any) -> Iterator[None]:
        """Switch it off within the block."""
        with self._lock:
            if not self._wanted:
                bars = not datasets.are_progress_bars_disabled()
                self._before = bars, datasets.logging.get_verbosity()
                datasets.disable_progress_bars()
                # It logs what it raises as well.
                datasets.logging.set_verbosity(datasets.logging.CRITICAL)
            self._wanted += 1
        try:
            yield
        finally:
            with self._lock:
                self._wanted -= 1
                if not self._wanted:
                    bars, verbosity = self._before
                    datasets.logging.set_verbosity(verbosity)
                    if bars:
                        datasets.enable_progress_bars()


silence = _Silence()


__all__ = [
    "DataFiles",
    "HfSource",
    "builder_name",
    "choose_splits",
    "innermost",
    "plain_files",
    "quietly",
    "silence",
]
