"""Where raw items come from: random access by index, with a fingerprint of the content.

| `type:` | Class | Opens | Blocks |
|---|---|---|---|
| `parquet` | `ParquetSource` | Parquet files, local or by an fsspec URL, unconverted | row groups |
| `hf` | `HfSource` | what `datasets` opens from local files, and its saved folders | none |
| `hf_stream` | `HfStreamSource` | the same, URLs, and any `IterableDataset` | a stream |
| `torch` | `TorchDatasetSource` | a map-style Dataset: `__len__` and `__getitem__` | none |
| `items` | `ItemsSource` | a list, in the job file or in Python | none |

A source of your own is a subclass of `penstock.server.roles.IndexedSource` with `__len__` and
`fetch`, or of `StreamSource` with `shards`, `open` and `fingerprint`. Heavy packages (pyarrow,
datasets) are imported when a source is built that needs them.

* `files.py`: patterns to files with logical names; `content.py`: hashes of their content.
* `arrow.py`: Arrow rows to Python items; `cache.py`: decoded blocks, bounded in bytes.
"""

from penstock.server.roles.base import Source
from penstock.server.sources.hf import HfSource
from penstock.server.sources.hf_stream import HfStreamSource
from penstock.server.sources.items import ItemsSource
from penstock.server.sources.parquet import ParquetSource
from penstock.server.sources.torch_dataset import TorchDatasetSource

BUILTIN_SOURCES: dict[str, type[Source]] = {
    "parquet": ParquetSource,
    "hf": HfSource,
    "hf_stream": HfStreamSource,
    "torch": TorchDatasetSource,
    "items": ItemsSource,
}
"""The built-in names that `type:` in a job file knows."""

__all__ = [
    "BUILTIN_SOURCES",
    "HfSource",
    "HfStreamSource",
    "ItemsSource",
    "ParquetSource",
    "TorchDatasetSource",
]
