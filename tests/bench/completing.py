"""What a trainer takes to complete batches that travel as seams, on the CPU.

`penstock.client.packed.complete` on rows of 8,192 tokens, with NumPy, as it does on a CPU, and with
the operations of torch that it uses on other devices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import torch
from support import table

from penstock.client.packed import completed, on_device

WIDTH, DOCUMENTS, REPEATS = 8192, 12, 300


def run() -> None:
    """Print the table."""
    rows = []
    for height in (1, 4):
        for dtype in (torch.int32, torch.int64):
            batch = _batch(height, dtype)
            with_numpy, with_torch = (
                _us(partial(way, *batch, False)) for way in (completed, on_device)
            )
            size = f"{height} x {WIDTH:,}, {dtype}".replace("torch.", "")
            rows.append(
                (size, f"{with_numpy:.0f}", f"{with_torch:.0f}", f"{with_torch / with_numpy:.1f}x")
            )
    table(
        "Completing batches of the layout seams: us of CPU time",
        ("batch", "NumPy", "torch", "torch to NumPy"),
        rows,
    )


def _batch(height: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(7)
    cuts = random.integers(1, height * WIDTH, height * DOCUMENTS)
    seams = np.unique([*cuts, *range(0, (height + 1) * WIDTH, WIDTH)]).astype(np.int32)
    ids = torch.from_numpy(random.integers(0, 50_000, (height, WIDTH))).to(dtype)
    return ids, torch.from_numpy(seams), torch.full((height,), WIDTH, dtype=torch.int32)


def _us(way: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        began = time.process_time()
        way()
        found.append(time.process_time() - began)
    return median(found) * 1e6


if __name__ == "__main__":
    run()
