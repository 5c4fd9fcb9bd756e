"""One reader of the transfer benchmark, in a process of its own."""

from __future__ import annotations

import json
import sys
import time

from support import cpu_s

PREFETCH = 32


def penstock(address: str, count: int, warm: int) -> dict[str, float]:
    """Read `count` batches through the Loader."""
    from penstock.client import Loader
    from penstock.wire.malloc import keep_memory

    keep_memory()
    nbytes = 0
    with Loader(
        address, "data", rank=0, world_size=1, batches_per_step=8, prefetch=PREFETCH
    ) as loader:
        batches = iter(loader)
        for _ in range(warm):
            next(batches)
        start, cpu = time.perf_counter(), cpu_s()
        for _ in range(count):
            nbytes += next(batches)["data"].nbytes
        return result(start, cpu, count, nbytes)


def dataloader(size: int, count: int, warm: int) -> dict[str, float]:
    """Read `count` batches from one worker of a torch DataLoader, which collates ready samples.

    Eight samples are stacked by the default collator straight into shared memory: the least
    copying that a DataLoader knows for a batch that is new each time.
    """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Ready(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.data = torch.arange(size // 8, dtype=torch.int64).to(torch.uint8)

        def __len__(self) -> int:
            return 8 * (warm + count)

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"data": self.data}

    nbytes = 0
    loader = DataLoader(Ready(), batch_size=8, num_workers=1, prefetch_factor=PREFETCH)
    batches = iter(loader)
    for _ in range(warm):
        next(batches)
    start, cpu = time.perf_counter(), cpu_s()
    for _ in range(count):
        nbytes += next(batches)["data"].nbytes
    return result(start, cpu, count, nbytes)


def flight(address: str, count: int, warm: int) -> dict[str, float]:
    """Read `count` record batches from an Arrow Flight server: nothing is produced."""
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
    way, where, count, warm = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    if way == "dataloader":
        print(json.dumps(dataloader(int(where), count, warm)))
    else:
        print(json.dumps({"penstock": penstock, "flight": flight}[way](where, count, warm)))
