"""The text job through a penstock server: the trainer's side, in a process of its own.

As a trainer's, and as in the DataLoader's process, torch is imported before the clock starts.
"""

from __future__ import annotations

import json
import sys
import time

from rates import rates


def main(address: str, pid: int) -> None:
    """Read with the Loader's defaults; print the rates."""
    import torch  # noqa: F401

    from penstock.client import Loader

    began = time.perf_counter()
    with Loader(address, "text", rank=0, world_size=1) as loader:
        print(json.dumps(rates((batch.counts["tokens"] for batch in loader), began, pid)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
