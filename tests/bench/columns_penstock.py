"""The pre-tokenized job through a penstock server: the trainer's side, in a process of its own."""

from __future__ import annotations

import json
import sys

from columns_rates import rates


def main(address: str, pid: int) -> None:
    """Read with the Loader's defaults; print the rates."""
    import torch  # noqa: F401

    from penstock.client import Loader

    with Loader(address, "ids", rank=0, world_size=1) as loader:
        print(json.dumps(rates((batch.counts["tokens"] for batch in loader), pid)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
