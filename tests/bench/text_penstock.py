"""The text job through a penstock server: the trainer's side, in a process of its own."""

from __future__ import annotations

import json
import sys
import time


def main(address: str, tokens: int, warm: int) -> None:
    """Read until `tokens` tokens have come; print the rate."""
    from penstock.client import Loader

    with Loader(address, "text", rank=0, world_size=1, batches_per_step=1, prefetch=32) as loader:
        batches = iter(loader)
        for _ in range(warm):
            next(batches)
        seen, start = 0, time.perf_counter()
        while seen < tokens:
            seen += next(batches).counts["tokens"]
        wall = time.perf_counter() - start
    print(json.dumps({"tokens_per_s": seen / wall}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
