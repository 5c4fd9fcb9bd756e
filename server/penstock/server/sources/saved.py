"""Folders that `save_to_disk` of `datasets` wrote: their Arrow files, read as they are."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from penstock.server.roles.parameters import declared
from penstock.server.sources.arrow import ArrowRows, json_decoder
from penstock.server.sources.arrow_files import ArrowFiles
from penstock.server.sources.block_columns import ListRows
from penstock.server.sources.blocked import FileBlock
from penstock.server.sources.cache import BlockRows
from penstock.server.sources.files import FileSet, refusing
from penstock.server.sources.patterns import DataFile
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import BadItem, InvalidJob


@declared
class SavedSource(ArrowFiles):
    """The rows of a folder that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote.

    Its Arrow files are read as they are, from disks or by URL. Items are dicts as `ArrowRows`
    gives them; JSON that `datasets` stores as text becomes values. Images, audio and video are
    dicts of `bytes` and `path`; where their bytes lie in other files use type `hf`.

    Args:
        path: The folder, or its URL.
        split: Which split; required where there are several.
        columns: Which columns to read, in this order; None = all.

    Raises:
        InvalidJob: The folder was not written by `save_to_disk`, has no such split, or a file or a
            column is missing.
        MissingExtra: pyarrow, fsspec or the filesystem's package is not installed.
        SourceUnavailable: A file cannot be read at the moment.
    """

    type_name: ClassVar[str] = "saved"
    version: ClassVar[int | str | None] = 1
    path_params: ClassVar[tuple[str, ...]] = ("path",)
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", "state.json", "dataset_dict.json")

    path: str
    split: str | None = None
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        folder = self.path.rstrip("/")
        listed = FileSet(
            folder,
            suffix=self.suffixes[1:],
            storage_options=self.storage_options,
            key="source.path",
        )
        self._split = _saved_split(listed, self.path, self.split)
        self.open_arrow(f"{folder}/{self._split}" if self._split else folder, self.columns)
        self._decoders = self._json_columns()

    def data_files(self) -> list[DataFile]:
        """Return the files of rows in their order, and not what `map` has cached beside them."""
        [state] = [file for file in self.file_set.files if file.name == "state.json"]
        with refusing(state, "source.path"):
            data = self.file_set.read(state, 0, state.size)
        by_name = {file.name: file for file in self.file_set.files}
        try:
            names = _named_files(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise InvalidJob(
                f"{state.path} is not what save_to_disk writes ({error_line(error, 300)}): save "
                "the dataset again",
                key="source.path",
            ) from None
        if lost := [name for name in names if name not in by_name]:
            raise InvalidJob(
                f"{state.path} names {lost[0]}, which is not there: copy the folder again, whole",
                key="source.path",
            )
        return [by_name[name] for name in names]

    def parameters(self) -> dict[str, Any]:
        """Return the parameters that decide bytes, with the split that was chosen."""
        found = super().parameters()
        return {**found, "split": self._split} if self._split else found

    def items_of(self, block: FileBlock, rows: ArrowRows) -> BlockRows:
        """Return what makes items of a block's rows, with JSON decoded."""
        return _Decoded(rows, self._decoders, block.bad_value) if self._decoders else rows

    @override
    def list_block(self, rows: BlockRows) -> ListRows:
        return super().list_block(rows.rows if isinstance(rows, _Decoded) else rows)

    def _json_columns(self) -> dict[str, Callable[[Any], Any]]:
        start, stop = self.indexes[0].more["schema"]
        schema = self._ipc.read_schema(
            self._arrow.BufferReader(self.file_set.read(self.shards[0], start, stop))
        )
        found = {name: json_decoder(schema.field(name).type) for name in self.names}
        return {name: decode for name, decode in found.items() if decode is not None}


def _named_files(said: Any) -> list[str]:
    """Return the files that a `state.json` names.

    Raises:
        ValueError: It names none.
    """
    entries = said.get("_data_files") if isinstance(said, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError("it has no list of _data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if not all(isinstance(name, str) for name in names):
        raise ValueError("one of its _data_files has no filename")
    return [str(name) for name in names]


class _Decoded:
    def __init__(
        self,
        rows: ArrowRows,
        decoders: dict[str, Callable[[Any], Any]],
        bad: Callable[[int, str, Exception], BadItem],
    ) -> None:
        self.rows, self._decoders, self._bad = rows, decoders, bad

    def items(self, rows: Sequence[int]) -> list[Any]:
        """Return the items with the values of JSON in place of its text.

        Raises:
            BadItem: A text is not JSON.
        """
        items = self.rows.items(rows)
        for row, item in zip(rows, items, strict=True):
            for name, decode in self._decoders.items():
                try:
                    item[name] = decode(item[name])
                except (ValueError, RecursionError) as error:
                    raise self._bad(row, name, error) from None
        return items


def _saved_split(listed: FileSet, path: str, split: str | None) -> str | None:
    """Return which split of a saved folder is read; None = it has none."""
    named = {file.name: file for file in listed.files}
    if "state.json" in named:
        if split is not None:
            raise InvalidJob(
                f"{path!r} holds one dataset without splits: leave split out", key="source.split"
            )
        return None
    if "dataset_dict.json" not in named:
        raise InvalidJob(
            f"{path!r} has neither a state.json nor a dataset_dict.json: name the folder that "
            "save_to_disk wrote",
            key="source.path",
        )
    splits = [posixpath.dirname(name) for name in named if posixpath.basename(name) == "state.json"]
    if split is None and len(splits) == 1:
        return splits[0]
    if split not in splits:
        said = f"has no split {split!r}: it has" if split else "has the splits"
        raise InvalidJob(
            f"{path!r} {said} {', '.join(splits)}; choose one with split", key="source.split"
        )
    return split
