"""Where raw items come from: random access by index, with a fingerprint of the content.

| `type:` | Class | Opens | Blocks |
|---|---|---|---|
| `parquet` | `ParquetSource` | Parquet files | row groups |
| `jsonl` | `JsonlSource` | files with a JSON value in every line | lines of about 4 MiB |
| `json` | `JsonSource` | files that are one JSON array | elements of about 4 MiB |
| `csv` | `CsvSource` | CSV files | rows of about 4 MiB |
| `text` | `TextSource` | text, by lines, paragraphs or files | lines of about 4 MiB |
| `arrow` | `ArrowSource` | Arrow IPC files and streams | record batches |
| `saved` | `SavedSource` | folders of `save_to_disk` | record batches |
| `webdataset` | `WebdatasetSource` | WebDataset's tar files | samples of about 4 MiB |
| `mds` | `MdsSource` | MosaicML's MDS shards | samples of about 4 MiB, or whole shards |
| `megatron` | `MegatronSource` | Megatron's `.bin` with `.idx` | documents of about 4 MiB |
| `tokens` | `TokensSource` | flat `.npy` and `.bin` of token ids | documents of about 4 MiB |
| `meta` | `MetaSource` | a JSON or YAML list of data sets of these types | those of its data sets |
| `hf` | `HfSource` | what else `datasets` opens from local files | none |
| `hf_stream` | `HfStreamSource` | the same, URLs, and any `IterableDataset` | a stream |
| `torch` | `TorchDatasetSource` | a map-style Dataset: `__len__` and `__getitem__` | none |
| `folder` | `FolderSource` | a folder of pictures or sounds, by name and class | none |
| `lerobot` | `LerobotSource` | LeRobot's folders of robots' episodes | row groups |
| `items` | `ItemsSource` | a list, in the job file or in Python | none |

All down to `meta` take paths, globs, folders and the URLs of fsspec.

A source of your own is a subclass of `penstock.server.roles.IndexedSource` with `__len__` and
`fetch`, or of `StreamSource` with `shards`, `open` and `fingerprint`. Heavy packages (pyarrow,
datasets) are imported when a source is built that needs them.

* `patterns.py`: patterns to files with logical names; `requirements.py`: what every source checks,
  and the errors of files and columns.
* `file_blocks.py`: a table of blocks, noted files and conditions on columns, for all that lies in
  blocks; `blocked.py`: formats whose blocks are ranges of bytes; `row_groups.py` and `footers.py`:
  those of Parquet; `cache.py`: blocks in memory, bounded in bytes; `arrow.py`: Arrow rows to items.
* `lerobot_info.py`, `lerobot_episodes.py`: what `meta/` of a LeRobot folder says;
  `frame_places.py`: where its frames lie in row groups; `frame_rows.py`: these, decoded;
  `frame_windows.py`: windows around frames.
* `on_demand.py`: which class is where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.sources.on_demand import BUILTIN_SOURCES as BUILTIN_SOURCES
from penstock.server.sources.on_demand import PLACES
from penstock.wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.server.sources.arrow_files import ArrowSource as ArrowSource
    from penstock.server.sources.csv_files import CsvSource as CsvSource
    from penstock.server.sources.folder import FolderSource as FolderSource
    from penstock.server.sources.hf import HfSource as HfSource
    from penstock.server.sources.hf_stream import HfStreamSource as HfStreamSource
    from penstock.server.sources.item_list import ItemsSource as ItemsSource
    from penstock.server.sources.json_array import JsonSource as JsonSource
    from penstock.server.sources.lerobot import LerobotSource as LerobotSource
    from penstock.server.sources.line_files import JsonlSource as JsonlSource
    from penstock.server.sources.line_files import TextSource as TextSource
    from penstock.server.sources.mds import MdsSource as MdsSource
    from penstock.server.sources.megatron import MegatronSource as MegatronSource
    from penstock.server.sources.meta import MetaSource as MetaSource
    from penstock.server.sources.parquet import ParquetSource as ParquetSource
    from penstock.server.sources.saved import SavedSource as SavedSource
    from penstock.server.sources.tokens import TokensSource as TokensSource
    from penstock.server.sources.torch_dataset import TorchDatasetSource as TorchDatasetSource
    from penstock.server.sources.webdataset import WebdatasetSource as WebdatasetSource
else:  # all of them together take 50 ms
    _FILES = {of: module for module, of in PLACES.values()}
    __getattr__, __all__ = lazy_names(__name__, _FILES), ["BUILTIN_SOURCES", *_FILES]
