"""What a user writes: a source and the four roles, small classes with one required method each.

```
Source            DataDistributor ->  RawItemProcessor  ->  SampleBatcher  ->  BatchCollator
fetches items     which item next     raw item -> samples   samples -> rows    rows -> named values
```

| class | required | often overridden |
|---|---|---|
| `IndexedSource` | `__len__`, `fetch` | `fingerprint`, `heads`, `sizes`, `blocks`, `close` |
| `StreamSource` | `shards`, `open`, `fingerprint` | `close` |
| `DataDistributor` | `draw` or `open` | `draws` |
| `RawItemProcessor` | `process` | `size`, `process_batch`, `setup`, `cut` |
| `SampleBatcher` | `add` | `flush`, `pending`, `size_of`, `dropped` |
| `BatchCollator` | `collate` | `specs`, `blank` |

Every role is a pure function of what it is given. None of them knows a rank, a worker or a node.

`docs/roles.md` shows how to bring your own.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.server.core.refs import ItemRef, Row, Rows, SampleRef
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.collator import BatchCollator, KeySpec, ValueLayout
from penstock.server.roles.context import CollateContext, ProcessContext
from penstock.server.roles.distributor import DataDistributor, Target
from penstock.server.roles.draws import LaneDraws, NumberedDraws
from penstock.server.roles.processor import MediaProcessor, RawItemProcessor
from penstock.server.roles.reading import Blocks, Reading
from penstock.server.roles.role import Role
from penstock.server.roles.samples import RawItem, Sample, SampleSizes
from penstock.server.roles.source import IndexedSource, Source, StreamSource

if TYPE_CHECKING:
    from penstock.server.roles.batchers import (
        BalancedPackingBatcher,
        BestFitDecreasingPackingBatcher,
        BestFitPackingBatcher,
        ConcatPackingBatcher,
        FirstFitPackingBatcher,
        KnapsackPackingBatcher,
        NextFitPackingBatcher,
        OpenBestFitPackingBatcher,
        PoolPackingBatcher,
        SequentialPackingBatcher,
        SimpleBatcher,
        WindowPackingBatcher,
    )
    from penstock.server.roles.collators import (
        DefaultBatchCollator,
        FunctionCollator,
        ListsCollator,
        PackedCollator,
        PaddedCollator,
    )
    from penstock.server.roles.distributors import (
        IterableDistributor,
        MapDistributor,
        MixtureDistributor,
        RankPartitionedDistributor,
    )
    from penstock.server.roles.processors import (
        ChatProcessor,
        FunctionProcessor,
        IdentityProcessor,
        SoundProcessor,
        TokenizeProcessor,
    )

# Sources and built-ins import the ABCs through this package: they come when they are asked for.
_BUILTINS = {
    "BalancedPackingBatcher": "batchers",
    "BestFitDecreasingPackingBatcher": "batchers",
    "BestFitPackingBatcher": "batchers",
    "ConcatPackingBatcher": "batchers",
    "FirstFitPackingBatcher": "batchers",
    "KnapsackPackingBatcher": "batchers",
    "NextFitPackingBatcher": "batchers",
    "OpenBestFitPackingBatcher": "batchers",
    "PoolPackingBatcher": "batchers",
    "SequentialPackingBatcher": "batchers",
    "SimpleBatcher": "batchers",
    "WindowPackingBatcher": "batchers",
    "DefaultBatchCollator": "collators",
    "FunctionCollator": "collators",
    "ListsCollator": "collators",
    "PackedCollator": "collators",
    "PaddedCollator": "collators",
    "IterableDistributor": "distributors",
    "MapDistributor": "distributors",
    "MixtureDistributor": "distributors",
    "RankPartitionedDistributor": "distributors",
    "ChatProcessor": "processors",
    "FunctionProcessor": "processors",
    "IdentityProcessor": "processors",
    "SoundProcessor": "processors",
    "TokenizeProcessor": "processors",
}


if not TYPE_CHECKING:  # a type checker shall miss what is not there

    def __getattr__(name: str) -> Any:
        if name not in _BUILTINS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_BUILTINS[name]}"), name)
        globals()[name] = value
        return value


__all__ = [
    "BalancedPackingBatcher",
    "BatchCollator",
    "BestFitDecreasingPackingBatcher",
    "BestFitPackingBatcher",
    "Blocks",
    "ChatProcessor",
    "CollateContext",
    "ConcatPackingBatcher",
    "DataDistributor",
    "DefaultBatchCollator",
    "FirstFitPackingBatcher",
    "FunctionCollator",
    "FunctionProcessor",
    "IdentityProcessor",
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
    "WindowPackingBatcher",
]
