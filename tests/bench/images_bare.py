"""Decoding and resizing alone, by the functions that the `image` processor calls, in 2 processes.

What a way through a node costs more is what penstock adds to it: reading and naming files, batches,
the node, and the trainer's side.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterator
from pathlib import Path

from images_files import SIDE, files, rates


def main(folder: str, width: int, scale: str, kernel: str) -> None:
    """Decode in two processes, as two workers do; print the mean of their rates."""
    told = (folder, width, scale, kernel)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        both = pool.starmap(decode, [told, told], chunksize=1)
    print(json.dumps({name: (both[0][name] + both[1][name]) / 2 for name in both[0]}))


def decode(folder: str, width: int, scale: str, kernel: str) -> dict[str, float]:
    """Decode in turn; return the rates."""
    from penstock.server.media.geometry import Extent
    from penstock.server.media.image_header import parse_header
    from penstock.server.media.picture import Decoding
    from penstock.server.media.resize import resize

    paths, decoding, size = files(folder), Decoding(), Extent(SIDE, SIDE)
    least = None if scale == "full" else Extent(int(scale) * SIDE, int(scale) * SIDE)

    def batches() -> Iterator[int]:
        while True:
            for path in paths:
                data = Path(path).read_bytes()
                pixels = decoding.decode(data, parse_header(data, path), path, least)
                resize(pixels, size, kernel)
                yield 1

    if kernel == "torch":
        import torch

        torch.set_num_threads(1)
    elif kernel == "opencv":
        import cv2

        cv2.setNumThreads(1)
    return rates(batches(), 0, width)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
