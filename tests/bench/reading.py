"""Reading an epoch of real Parquet: what workers read of it, what they hold, how well it is mixed.

The corpus lies in a temporary folder: 512 MiB in row groups of 4 MiB, of bytes that do not
compress. One table counts what the workers of a node have read in an epoch, by their own count and
by the kernel's; two compare the order with a single window of 16 blocks that all lanes draw from,
as it was before reading groups. Another counts what is read of a small source and of few large row
groups, and how well the small one would be mixed if it were dealt to groups.
"""

from __future__ import annotations

import contextlib
import re
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from support import free_port, serving, table, write_job

from penstock.client import Loader
from penstock.server.core.permutation import Permutation
from penstock.server.jobs.load import load
from penstock.server.roles import SimpleBatcher
from penstock.server.roles.distributors.block_shuffle import BlockOrder


class Corpus(NamedTuple):
    """Parquet files of some row groups each, of some rows each."""

    name: str
    files: int
    groups: int
    rows: int

    @property
    def batches(self) -> int:
        """Return how many batches an epoch has."""
        return self.files * self.groups * self.rows // BATCH


ROW_BYTES = 16384
LARGE = Corpus("corpus", 8, 16, 256)
SMALL = Corpus("small", 1, 32, 64)
FEW = Corpus("few", 1, 7, 2048)
LANES, BATCH = 48, 8
STEPS = (48, 8, 1)
RUNS = [
    *((f"{workers} workers", workers, {}) for workers in (1, 2, 4, 16)),
    *(
        (f"{workers} workers, 16 groups of 2", workers, {"reading_groups": 16, "window_blocks": 2})
        for workers in (1, 2, 4, 16)
    ),
    *((f"{workers} workers, shuffle: none", workers, {"shuffle": "none"}) for workers in (1, 2, 4)),
]
SPECIAL = [
    (f"{what}, {workers} workers", corpus, workers, parameters)
    for what, corpus, parameters in (
        ("32 MiB in 32 row groups", SMALL, {}),
        ("32 MiB, reading_groups: 16", SMALL, {"reading_groups": 16, "window_blocks": 2}),
        ("224 MiB in 7 row groups", FEW, {}),
    )
    for workers in (1, 2, 4, 16)
]


def run() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        sizes = {each: write_corpus(Path(folder), each) for each in (LARGE, SMALL, FEW)}
        rows = [
            (name, *epoch(Path(folder), LARGE, sizes[LARGE], workers, parameters))
            for name, workers, parameters in RUNS
        ]
        special = [
            (name, *epoch(Path(folder), corpus, sizes[corpus], workers, parameters))
            for name, corpus, workers, parameters in SPECIAL
        ]
    columns = ("node", "read", "by the kernel", "held MiB", "as stated", "batches/s")
    table(
        f"An epoch of {sizes[LARGE] / 2**20:.0f} MiB of Parquet, {LARGE.files * LARGE.groups} row "
        "groups: bytes read / bytes of the corpus (goal: at most 1.15), and decoded blocks in "
        "memory",
        columns,
        rows,
    )
    table(
        "The first epoch of a small source, which every worker reads once and keeps, and of few "
        "row groups, of which two workers read each that lies on a border",
        columns,
        special,
    )
    small = [256] * 32
    mix(512, orders([256] * 512))
    mix(
        32,
        [
            (name, BlockOrder(small, groups, window, 7, 0, "main"), 32)
            for name, groups, window in (
                ("full shuffle, as by default", 1, 32),
                ("4 groups of 8", 4, 8),
                ("16 groups of 2", 16, 2),
            )
        ],
    )


def mix(blocks: int, orders: Iterable[tuple[str, Any, int]]) -> None:
    """Print how well some orders of a source of blocks of 256 rows mix it."""
    mixed = [(name, *mixing(order, held, 256 * blocks)) for name, order, held in orders]
    title = (
        f"How well an epoch is mixed: {LANES} lanes, {blocks} blocks of 256 rows, batches of "
        f"{BATCH}; distance in the source / distance by chance"
    )
    distances = ("order", "held", "global draws", "a lane's draws")
    table(title, distances, [row[:4] for row in mixed])
    table(
        f"{title}, within steps of {', '.join(map(str, STEPS))} batches, and a step's different "
        "blocks",
        ("order", *(f"{what}, {size}" for size in STEPS for what in ("draws", "blocks"))),
        [(row[0], *row[4:]) for row in mixed],
    )


def write_corpus(above: Path, corpus: Corpus) -> int:
    """Write a corpus; return its bytes."""
    folder = above / corpus.name
    folder.mkdir()
    random = np.random.default_rng(7)
    for number in range(corpus.files):
        schema = pa.schema([("data", pa.binary())])
        path = folder / f"{number:03}.parquet"
        with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
            for _ in range(corpus.groups):
                rows = [random.bytes(ROW_BYTES) for _ in range(corpus.rows)]
                writer.write_table(pa.table({"data": pa.array(rows, pa.binary())}))
    pq.write_table(
        pa.table({"data": [random.bytes(8)] * 4 * LANES * BATCH}), folder.with_name("first.parquet")
    )
    return sum(path.stat().st_size for path in folder.iterdir())


# --- what is read and held ------------------------------------------------------------------------


def epoch(
    folder: Path, corpus: Corpus, nbytes: int, workers: int, parameters: dict[str, Any]
) -> Sequence[str]:
    """Read one epoch; return what it took."""
    job = {
        "lanes": LANES,
        "source": {"type": "parquet", "files": str(folder / corpus.name / "*.parquet")},
        "distributor": {"type": "map", **parameters},
        # Batches are planned from what was processed, as with a tokenizer.
        "batcher": {"type": f"{Path(__file__).resolve()}:Looking", "batch_size": BATCH},
        "collator": "default",
        "epochs": 1,
    }
    # What a worker takes before it holds a block: its libraries, and the job itself.
    first = {**job, "source": {**job["source"], "files": str(folder / "first.parquet")}}
    port = free_port()
    file = write_job(folder, {"job": job, "first": first}, metrics=f"127.0.0.1:{port}")
    with serving(file, "--workers", str(workers)) as (address, process):
        children = psutil.Process(process.pid).children()
        assert len(children) == workers
        with Loader(address, "first", prefetch=2) as loader:
            for batch in loader:
                del batch
        before = sum(map(read_chars, children))
        with Loader(address, "job", prefetch=2) as loader, peak(children) as held:
            begin = time.perf_counter()
            for batch in loader:
                del batch
            took_s = time.perf_counter() - begin
        kernel = sum(map(read_chars, children)) - before
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    sums = re.findall(r'^penstock_source_(\w+)_bytes_total\{.*"job"\} (\S+)$', text, re.M)
    found = {name: float(value) for name, value in sums}
    stated = stated_bytes(file, workers)
    return (
        f"{found['read'] / found['drawn']:.3f}",
        f"{kernel / nbytes:.3f}",
        f"{held[0] / 2**20:.0f}",
        f"{stated / 2**20:.0f}",
        f"{corpus.batches / took_s:.0f}",
    )


def stated_bytes(file: Path, workers: int) -> float:
    """Return what docs/operate.md says that the workers of a node hold of decoded blocks."""
    reading = load(str(file)).job("job").role_sets[0].distributor.reading()
    assert reading is not None
    kept = reading.held * (1 if reading.groups else workers)
    return (kept + 2 * workers) * reading.block_bytes


class Looking(SimpleBatcher):
    """Looks at its samples: so they are processed where batches are planned."""

    needs_content = True


def read_chars(process: psutil.Process) -> int:
    """Return how many bytes a process has asked the kernel for."""
    return int(process.io_counters().read_chars)


@contextlib.contextmanager
def peak(processes: list[psutil.Process]) -> Iterator[list[int]]:
    """Yield a list whose one number is, afterwards, the most memory that was added by all."""
    done = threading.Event()

    def used() -> int:
        return sum(process.memory_full_info().uss for process in processes)

    found, first = [0], used()

    def watch() -> None:
        while not done.wait(0.1):
            found[0] = max(found[0], used() - first)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        done.set()
        thread.join()


# --- how well it is mixed -------------------------------------------------------------------------


class OneWindow:
    """The order before reading groups: windows of blocks, rows mixed within, for all lanes."""

    def __init__(self, sizes: Sequence[int], window: int) -> None:
        self._first = np.concatenate([[0], np.cumsum(sizes)])
        blocks = Permutation(len(sizes), 7, 0, "blocks main").take(np.arange(len(sizes)))
        self._items: list[int] = []
        for number, start in enumerate(range(0, len(sizes), window)):
            rows = np.concatenate(
                [
                    np.arange(self._first[b], self._first[b + 1])
                    for b in blocks[start : start + window]
                ]
            )
            order = Permutation(len(rows), 7, 0, f"rows {number} main")
            self._items += rows[order.take(np.arange(len(rows)))].tolist()

    def __getitem__(self, position: int) -> int:
        return self._items[position]


def orders(sizes: Sequence[int]) -> Iterator[tuple[str, Any, int]]:
    """Yield orders of the same blocks, with how many of them each holds at a time."""
    yield "full shuffle", Permutation(256 * 512, 7), 512
    yield "one window of 16 (before)", OneWindow(sizes, 16), 32
    for groups, window in ((48, 2), (16, 2), (24, 4), (48, 4), (16, 8), (48, 16), (16, 16)):
        order = BlockOrder(sizes, groups, window, 7, 0, "main")
        yield f"{groups} groups, windows of {window}", order, groups * (window + 1)


def mixing(order: Any, held: int, count: int) -> Sequence[str]:
    """Return the measures of one order of so many rows."""
    items = np.array([order[position] for position in range(count)])
    # As lanes draw them: batch n of a lane, BATCH draws of it.
    usable = count - count % (LANES * BATCH)
    lanes = items[:usable].reshape(-1, BATCH, LANES).transpose(0, 2, 1)  # (offset, lane, draw)
    batches = lanes.reshape(-1, BATCH)  # by position
    chance = count / 3
    by_lane = lanes.transpose(1, 0, 2).reshape(LANES, -1)
    found = [
        f"{held}",
        f"{np.abs(np.diff(items)).mean() / chance:.2f}",
        f"{np.abs(np.diff(by_lane)).mean() / chance:.2f}",
    ]
    random = np.random.default_rng(7)
    for size in STEPS:
        steps = batches[: len(batches) // size * size].reshape(-1, size * BATCH)
        shuffled = random.permuted(steps, axis=1)
        blocks = np.mean([len(np.unique(step // 256)) for step in steps])
        found += [f"{np.abs(np.diff(shuffled)).mean() / chance:.2f}", f"{blocks:.1f}"]
    return found


if __name__ == "__main__":
    run()
