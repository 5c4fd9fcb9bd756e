"""One reader of the transfer benchmark, in a process of its own.

Nothing is tuned but what a row says: `depth` 0 leaves each side the depth of prefetching that it
has by itself.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from clock import Stopwatch, free_block


def penstock(address: str, pid: int, count: int, warm: int, depth: int) -> dict[str, float]:
    """Read `count` batches through the Loader."""
    from penstock.client import Loader

    nbytes = 0
    given = {"prefetch": depth} if depth else {}
    with Loader(address, "data", rank=0, world_size=1, **given) as loader:
        batches = iter(loader)
        for _ in range(warm):
            next(batches)
        watch = Stopwatch(pid)
        for _ in range(count):
            nbytes += next(batches)["data"].nbytes
        return watch.per_gb(nbytes)


def stacked(size: int, count: int, warm: int, depth: int) -> dict[str, float]:
    """Read `count` batches from one worker of a torch DataLoader, which stacks ready samples.

    Eight samples go by the default collator straight into shared memory: one copy.
    """
    import torch

    sample = torch.arange(size // 8, dtype=torch.int64).to(torch.uint8)
    return _drain(_ready(sample, 8 * (warm + count)), 8, count, warm, depth)


def ready(size: int, count: int, warm: int, depth: int) -> dict[str, float]:
    """Read `count` batches from one worker of a torch DataLoader, which has them as ready arrays.

    An array and not a tensor: one tensor that is handed over again and again is in shared memory
    from the second time on, and nothing would be copied. This way, too, costs one copy.
    """
    import numpy as np

    batch = np.arange(size, dtype=np.int64).astype(np.uint8)
    return _drain(_ready(batch, warm + count), None, count, warm, depth)


def _ready(item: Any, count: int) -> Any:
    from torch.utils.data import Dataset

    class Ready(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"data": item}

    return Ready()


def _drain(
    data: Any, batch_size: int | None, count: int, warm: int, depth: int
) -> dict[str, float]:
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        data, batch_size=batch_size, num_workers=1, prefetch_factor=depth or None
    )
    nbytes = 0
    batches = iter(loader)
    for _ in range(warm):
        next(batches)
    watch = Stopwatch(0)
    for _ in range(count):
        nbytes += next(batches)["data"].nbytes
    return watch.per_gb(nbytes)


def flight(address: str, pid: int, count: int, warm: int) -> dict[str, float]:
    """Read `count` record batches from an Arrow Flight server: nothing is produced."""
    import pyarrow.flight

    client = pyarrow.flight.connect(f"grpc://{address}")
    reader = client.do_get(pyarrow.flight.Ticket(str(count + warm).encode()))
    nbytes = 0
    for _ in range(warm):
        reader.read_chunk()
    watch = Stopwatch(pid)
    for _ in range(count):
        nbytes += reader.read_chunk().data.nbytes
    return watch.per_gb(nbytes)


if __name__ == "__main__":
    way, *rest = sys.argv[1:]
    place = rest[:1] if way in ("stacked", "ready") else rest[:2]
    freed, *numbers = map(int, rest[len(place) :])
    free_block(freed)
    if way in ("stacked", "ready"):
        local = {"stacked": stacked, "ready": ready}[way]
        print(json.dumps(local(int(place[0]), *numbers)))
    else:
        remote: Any = {"penstock": penstock, "flight": flight}[way]
        print(json.dumps(remote(place[0], int(place[1]), *numbers)))
