"""One reader of the transfer benchmark, in a process of its own."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from support import cpu_s


def penstock(address: str, count: int, warm: int, prefetch: int) -> dict[str, float]:
    """Read `count` batches through the Loader."""
    from penstock.client import Loader
    from penstock.wire.malloc import keep_memory

    keep_memory()
    nbytes = 0
    with Loader(
        address, "data", rank=0, world_size=1, batches_per_step=8, prefetch=prefetch
    ) as loader:
        batches = iter(loader)
        for _ in range(warm):
            next(batches)
        start, cpu = time.perf_counter(), cpu_s()
        for _ in range(count):
            nbytes += next(batches)["data"].nbytes
        return result(start, cpu, count, nbytes)


def stacked(size: int, count: int, warm: int, prefetch: int) -> dict[str, float]:
    """Read `count` batches from one worker of a torch DataLoader, which stacks ready samples.

    Eight samples go by the default collator straight into shared memory: one copy.
    """
    import torch
    from torch.utils.data import DataLoader

    sample = torch.arange(size // 8, dtype=torch.int64).to(torch.uint8)
    loader = DataLoader(
        _ready(sample, 8 * (warm + count)), batch_size=8, num_workers=1, prefetch_factor=prefetch
    )
    return _drain(loader, count, warm)


def ready(size: int, count: int, warm: int, prefetch: int) -> dict[str, float]:
    """Read `count` batches from one worker of a torch DataLoader, which has them as ready arrays.

    An array and not a tensor: one tensor that is handed over again and again is in shared memory
    from the second time on, and nothing would be copied. This way, too, costs one copy.
    """
    import numpy as np
    from torch.utils.data import DataLoader

    batch = np.arange(size, dtype=np.int64).astype(np.uint8)
    loader = DataLoader(
        _ready(batch, warm + count), batch_size=None, num_workers=1, prefetch_factor=prefetch
    )
    return _drain(loader, count, warm)


def _ready(item: Any, count: int) -> Any:
    from torch.utils.data import Dataset

    class Ready(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return count

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"data": item}

    return Ready()


def _drain(loader: Any, count: int, warm: int) -> dict[str, float]:
    nbytes = 0
    batches = iter(loader)
    for _ in range(warm):
        next(batches)
    start, cpu = time.perf_counter(), cpu_s()
    for _ in range(count):
        nbytes += next(batches)["data"].nbytes
    return result(start, cpu, count, nbytes)


def flight(address: str, count: int, warm: int, prefetch: int) -> dict[str, float]:
    """Read `count` record batches from an Arrow Flight server: nothing is produced."""
    del prefetch  # a stream of HTTP/2 has a window instead
    import pyarrow.flight

    client = pyarrow.flight.connect(f"grpc://{address}")
    reader = client.do_get(pyarrow.flight.Ticket(str(count + warm).encode()))
    nbytes = 0
    for _ in range(warm):
        reader.read_chunk()
    start, cpu = time.perf_counter(), cpu_s()
    for _ in range(count):
        nbytes += reader.read_chunk().data.nbytes
    return result(start, cpu, count, nbytes)


def result(start: float, cpu: float, count: int, nbytes: int) -> dict[str, float]:
    """Return rates and CPU seconds per GB."""
    wall = time.perf_counter() - start
    return {
        "batches_per_s": count / wall,
        "gb_per_s": nbytes / wall / 1e9,
        "cpu_s_per_gb": (cpu_s() - cpu) / (nbytes / 1e9),
    }


if __name__ == "__main__":
    way, where, *numbers = sys.argv[1:]
    count, warm, prefetch = map(int, numbers)
    if way in ("stacked", "ready"):
        reader = {"stacked": stacked, "ready": ready}[way]
        print(json.dumps(reader(int(where), count, warm, prefetch)))
    else:
        remote = {"penstock": penstock, "flight": flight}[way]
        print(json.dumps(remote(where, count, warm, prefetch)))
