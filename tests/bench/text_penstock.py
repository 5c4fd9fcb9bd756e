"""The text job through a penstock server: the trainer's side, in a process of its own."""

from __future__ import annotations

import json
import sys
import time

from rates import rates


def main(address: str, tokens: int, warm: int, prefetch: int) -> None:
    """Read until `tokens` tokens have come; print the rates."""
    from penstock.client import Loader

    began = time.perf_counter()
    with Loader(
        address, "text", rank=0, world_size=1, batches_per_step=1, prefetch=prefetch
    ) as loader:
        found = rates((batch.counts["tokens"] for batch in loader), began, tokens, warm)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
