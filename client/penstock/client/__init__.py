"""Read a job's batches in a training loop.

```python
from penstock.client import Loader

loader = Loader("dns:///penstock:50051", job="code", group="run-7", device="cuda")
for step in loader.steps():                       # or: for batch in loader
    n = step.total("loss_tokens")                 # over all ranks and micro batches
    for batch in step:                            # a dict of tensors; batch.position, batch.counts
        (loss_sum(model(**batch)) * world / n).backward()
    if step.index % 1000 == 999:
        save({"model": ..., "data": loader.state_dict()})
        loader.commit()                           # after the model checkpoint is durable
```

The README has a whole script. Models of transformers need `use_cache=False`, or packed documents
see each other.

The package is light: grpcio, protobuf, numpy. torch is imported when the first batch is made, where
it is installed. The path of a batch: `reading` (`route` in a background thread, `stream`, `slots`),
`values`, `loop` (`intake`, `reader`, `batches`). `loader` is what users call.
"""

from penstock.client import errors
from penstock.client.calls.node_address import Tls
from penstock.client.loader import Loader
from penstock.client.loop.steps import Batch, BatchInfo, BatchLayout, Step
from penstock.client.run.options import Limits
from penstock.client.run.ranks import Ranks
from penstock.common.malloc import keep_memory

__all__ = [
    "Batch",
    "BatchInfo",
    "BatchLayout",
    "Limits",
    "Loader",
    "Ranks",
    "Step",
    "Tls",
    "errors",
    "keep_memory",
]
