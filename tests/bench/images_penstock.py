"""Pictures through a penstock server: the trainer's side, in a process of its own."""

from __future__ import annotations

import json
import sys

from images_files import rates


def main(address: str, pid: int, job: str, width: int) -> None:
    """Read with the Loader's defaults; print the rates."""
    import torch  # noqa: F401

    from penstock.client import Loader

    with Loader(address, job, rank=0, world_size=1) as loader:
        print(json.dumps(rates((len(batch["image"]) for batch in loader), pid, width)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
