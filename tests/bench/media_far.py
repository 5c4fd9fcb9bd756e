"""JPEGs behind HTTP with 50 ms a request beside the same store with none: is the time hidden?

The store is `far_store.py` in a process of its own, the node has two workers, and a processor
decodes with simplejpeg. The first batch of a run is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from support import HERE, interleaved, median, serving, spread, table, write_job

PICTURES, BATCH, LANES, WORKERS = 3_000, 32, 4, 2

ROLES = """
import simplejpeg

from penstock.server.roles import MediaProcessor


class Decoded(MediaProcessor):
    one_to_one = True
    uses_global_rng = False

    def references(self, raw):
        return [raw["path"]]

    def process(self, raw, context):
        return {"x": simplejpeg.decode_jpeg(context.media[0].read())[::2, ::2].copy()}
"""


def write(folder: Path) -> None:
    """Write the pictures, the table that names them, and the role."""
    import numpy as np
    import simplejpeg
    from skimage import data

    picture = simplejpeg.encode_jpeg(np.ascontiguousarray(data.astronaut()[:375, :500]), 92)
    (folder / "media").mkdir()
    for number in range(PICTURES):
        (folder / "media" / f"{number}.jpg").write_bytes(picture)
    rows = (json.dumps({"path": f"{number}.jpg"}) for number in range(PICTURES))
    (folder / "items.jsonl").write_text("".join(f"{row}\n" for row in rows))
    (folder / "roles.py").write_text(ROLES)


def measure(folder: Path, delay_s: float) -> Mapping[str, float]:
    """Read an epoch from a store that takes so long for each reply."""
    from penstock.client import Loader

    command = [sys.executable, str(HERE.parent / "far_store.py"), str(folder / "media")]
    store = subprocess.Popen(
        [*command, str(delay_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert store.stdout is not None
        job = {
            "source": {"type": "jsonl", "files": str(folder / "items.jsonl")},
            "processor": {"type": f"{folder}/roles.py:Decoded"},
            "media": {"dir": store.stdout.readline().strip()},
            "batch_size": BATCH,
            "lanes": LANES,
            "epochs": 1,
        }
        with tempfile.TemporaryDirectory(prefix="pst-") as name:
            file = write_job(Path(name), {"main": job}, workers=WORKERS)
            with serving(file) as (address, _), Loader(address, "main") as loader:
                batches = iter(loader)
                next(batches)
                began_s, count = time.monotonic(), 0
                for batch in batches:
                    count += len(batch["x"])
                return {"rate": count / (time.monotonic() - began_s)}
    finally:
        store.kill()
        store.wait()


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        write(Path(name))
        ways = {"none": 0.0, "50 ms": 0.05}
        found = interleaved(
            {label: partial(measure, Path(name), delay) for label, delay in ways.items()}
        )
    usual = median(found["none"], "rate")
    rows = [
        (label, spread(rounds, "rate", ",.0f"), f"{median(rounds, 'rate') / usual:.2f}x")
        for label, rounds in found.items()
    ]
    table("A store that is far", ("a request takes", "pictures a second", "of none"), rows)


if __name__ == "__main__":
    run()
