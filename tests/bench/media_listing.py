"""What listing a directory of media takes: time to list and hash, and the memory of the list."""

from __future__ import annotations

import os
import tempfile
import time
from functools import partial
from pathlib import Path

from support import interleaved, median, spread, table

COUNTS = (10_000, 100_000)
FILE_BYTES = 1000


def write(folder: Path, count: int) -> Path:
    """Write so many small files, a thousand to a folder."""
    for number in range(count):
        if number % 1000 == 0:
            (folder / f"{number // 1000:04}").mkdir(parents=True)
        path = folder / f"{number // 1000:04}" / f"{number:08}.jpg"
        path.write_bytes(b"%08d" % number * (FILE_BYTES // 8))
    return folder


def measure(folder: Path) -> dict[str, float]:
    """List it once, with nothing kept from before."""
    from penstock.server.media.media_files import MediaFiles
    from penstock.server.media.media_reader import MediaReader

    began_s = time.monotonic()
    reader = MediaReader(MediaFiles(str(folder)))
    seconds = time.monotonic() - began_s
    nbytes = sum(len(listing.to_bytes()) for listing in reader.hand_over())
    return {"seconds": seconds, "mib": nbytes / (1 << 20)}


def run() -> None:
    """Print the table."""
    os.environ["PENSTOCK_HASH_CACHE"] = "off"
    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        folders = {count: write(Path(name) / str(count), count) for count in COUNTS}
        found = interleaved(
            {f"{count:,}": partial(measure, folder) for count, folder in folders.items()}, 3
        )
    rows = [
        (files, spread(rounds, "seconds", ".2f"), f"{median(rounds, 'mib'):.1f}")
        for files, rounds in found.items()
    ]
    table("A directory of media", ("files", "listed and hashed, s", "list, MiB"), rows)


if __name__ == "__main__":
    run()
