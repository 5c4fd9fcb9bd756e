"""The built-in sources by name, each imported when it is asked for: a job has one or two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from penstock.server.roles.source import Source

PACKAGE = "penstock.server.sources"

PLACES: dict[str, tuple[str, str]] = {
    "parquet": ("parquet", "ParquetSource"),
    "jsonl": ("line_files", "JsonlSource"),
    "json": ("json_array", "JsonSource"),
    "csv": ("csv_files", "CsvSource"),
    "text": ("line_files", "TextSource"),
    "arrow": ("arrow_files", "ArrowSource"),
    "saved": ("saved", "SavedSource"),
    "webdataset": ("webdataset", "WebdatasetSource"),
    "mds": ("mds", "MdsSource"),
    "megatron": ("megatron", "MegatronSource"),
    "tokens": ("tokens", "TokensSource"),
    "meta": ("meta", "MetaSource"),
    "hf": ("hf", "HfSource"),
    "hf_stream": ("hf_stream", "HfStreamSource"),
    "torch": ("torch_dataset", "TorchDatasetSource"),
    "folder": ("folder", "FolderSource"),
    "lerobot": ("lerobot", "LerobotSource"),
    "items": ("item_list", "ItemsSource"),
}
"""By `type:`, the module here and its class."""


class SourceClasses(Mapping[str, type[Source]]):
    """The classes by `type:`; to ask whether there is one imports none."""

    def __getitem__(self, name: str) -> type[Source]:
        """Return a class, imported.

        Raises:
            KeyError: There is no such source.
        """
        module, of = PLACES[name]
        found: type[Source] = getattr(import_module(f"{PACKAGE}.{module}"), of)
        return found

    def __contains__(self, name: object) -> bool:
        """Tell whether there is a source of that name."""
        return name in PLACES

    def __iter__(self) -> Iterator[str]:
        """Yield the names, in the order of the reference."""
        return iter(PLACES)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(PLACES)


BUILTIN_SOURCES: Mapping[str, type[Source]] = SourceClasses()
"""The built-in names that `type:` in a job file knows."""
