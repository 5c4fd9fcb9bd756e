"""What a user writes: a source and the four roles, small classes with one required method each.

```
Source            DataDistributor ->  RawItemProcessor  ->  SampleBatcher  ->  BatchCollator
fetches items     which item next     raw item -> samples   samples -> rows    rows -> named values
```

| class | required | often overridden |
|---|---|---|
| `IndexedSource` | `__len__`, `fetch` | `fingerprint`, `heads`, `blocks`, `episode_table` |
| `StreamSource` | `shards`, `open`, `fingerprint` | `close` |
| `DataDistributor` | `draw` or `open` | `draws` |
| `RawItemProcessor` | `process` | `size`, `process_batch`, `setup`, `cut` |
| `SampleBatcher` | `add` | `flush`, `pending`, `size_of`, `dropped`, `facts` |
| `BatchCollator` | `collate` | `specs`, `blank` |

Every role is a pure function of what it is given. None of them knows a rank, a worker or a node.

`docs/roles.md` shows how to bring your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.server.core.refs import ItemRef, Row, Rows, SampleRef
from penstock.server.roles.batcher import BatcherFacts, SampleBatcher
from penstock.server.roles.collator import BatchCollator, KeySpec, ValueLayout
from penstock.server.roles.context import CollateContext, ProcessContext
from penstock.server.roles.distributor import DataDistributor, Target
from penstock.server.roles.draws import LaneDraws, NumberedDraws
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.processor import MediaProcessor, RawItemProcessor
from penstock.server.roles.reading import Blocks, Reading
from penstock.server.roles.role import Role
from penstock.server.roles.samples import RawItem, Sample, SampleSizes
from penstock.server.roles.source import IndexedSource, Source, StreamSource
from penstock.wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.server.roles.batchers import *
    from penstock.server.roles.collators import *
    from penstock.server.roles.distributors import *
    from penstock.server.roles.processors import *

__all__ = [
    "BalancedPackingBatcher",
    "BatchCollator",
    "BatcherFacts",
    "BestFitDecreasingPackingBatcher",
    "BestFitPackingBatcher",
    "Blocks",
    "ChatProcessor",
    "CollateContext",
    "ConcatPackingBatcher",
    "ConversationProcessor",
    "DataDistributor",
    "DefaultBatchCollator",
    "EpisodeTable",
    "EpisodesDistributor",
    "FirstFitPackingBatcher",
    "FunctionCollator",
    "FunctionProcessor",
    "IdentityProcessor",
    "ImageProcessor",
    "IndexedSource",
    "ItemRef",
    "IterableDistributor",
    "KeySpec",
    "KnapsackPackingBatcher",
    "LaneDraws",
    "ListsCollator",
    "MapDistributor",
    "MediaProcessor",
    "MixtureDistributor",
    "NextFitPackingBatcher",
    "NumberedDraws",
    "OpenBestFitPackingBatcher",
    "PackedCollator",
    "PaddedCollator",
    "PoolPackingBatcher",
    "ProcessContext",
    "RankPartitionedDistributor",
    "RawItem",
    "RawItemProcessor",
    "Reading",
    "RobotProcessor",
    "Role",
    "Row",
    "Rows",
    "Sample",
    "SampleBatcher",
    "SampleRef",
    "SampleSizes",
    "SequentialPackingBatcher",
    "SimpleBatcher",
    "SoundProcessor",
    "Source",
    "StreamSource",
    "Target",
    "TokenizeProcessor",
    "ValueLayout",
    "VideoProcessor",
    "VlmCollator",
    "WindowPackingBatcher",
]

if not TYPE_CHECKING:  # sources and built-ins import the ABCs through this package
    _ROOMS = {
        "Batcher": "batchers",
        "Collator": "collators",
        "Distributor": "distributors",
        "Processor": "processors",
    }
    __getattr__ = lazy_names(
        __name__,
        {
            name: room
            for name in __all__
            for kind, room in _ROOMS.items()
            if name.endswith(kind) and name not in globals()
        },
    )
