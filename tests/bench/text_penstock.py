"""The text job through a penstock server: the trainer's side, in a process of its own.

As a trainer's, and as in the DataLoader's process, torch is imported before the clock starts.
Batches that travel as seams are completed here, on the CPU, as a trainer without a GPU would do it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from rates import rates

if TYPE_CHECKING:
    from penstock.client import Batch


def main(address: str, pid: int) -> None:
    """Read with the Loader's defaults; print the rates."""
    import torch  # noqa: F401

    from penstock.client import Loader
    from penstock.client.packed import complete

    def tokens(batch: Batch) -> int:
        if "row_tokens" in batch:
            complete(batch)
        return batch.counts["tokens"]

    began = time.perf_counter()
    with Loader(address, "text", rank=0, world_size=1) as loader:
        print(json.dumps(rates(map(tokens, loader), began, pid)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
