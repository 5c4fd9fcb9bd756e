"""The text job through a penstock server: the trainer's side, in a process of its own."""

from __future__ import annotations

import json
import sys

from clock import Stopwatch


def main(address: str, pid: int, tokens: int, warm: int) -> None:
    """Read until `tokens` tokens have come; print the rate."""
    from penstock.client import Loader

    with Loader(address, "text", rank=0, world_size=1) as loader:
        batches = iter(loader)
        for _ in range(warm):
            next(batches)
        seen, watch = 0, Stopwatch(pid)
        while seen < tokens:
            seen += next(batches).counts["tokens"]
        found = watch.per_million(seen)
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
