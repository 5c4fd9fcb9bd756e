"""A finite job that packs or filters is read and processed once, to its end."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import Server, serving, write_job_file
from penstock.client import Loader

ROLES = '''
import os
import pathlib

CALLS = os.open(pathlib.Path(__file__).parent / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def some(raw):
    """Give the tokens of an item, of every seventh none; note it."""
    number = raw["x"]
    os.write(CALLS, b"%d\\n" % number)
    return {"input_ids": [number] * (1 + number % 37)} if number % 7 else None
'''

ITEMS = 3000
MOST = 1.3
"""What may be processed, by what is drawn: what a reader before the others looked at, and one batch
in 1,000 that is compared, are processed twice."""


def make_jobs(folder: Path) -> Path:
    (folder / "roles.py").write_text(ROLES)
    job = {
        "epochs": 1,
        "lanes": 8,
        "batches_per_step": 4,
        "source": {"type": "items", "items": [{"x": number} for number in range(ITEMS)]},
        "function": "./roles.py:some",
    }
    packer = {"type": "best_fit", "max_tokens": 64, "pool_size": 16}
    packed = {**job, "batcher": packer, "collator": {"type": "packed", "pad_to": 64}}
    padded = {**job, "batch_size": 4, "collator": {"type": "padded"}}
    return write_job_file(folder / "jobs.yaml", {"packed": packed, "filtered": padded}, workers=2)


def processed(folder: Path) -> float:
    """Return how often each item was processed, in the mean."""
    return len((folder / "calls").read_text().splitlines()) / ITEMS


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("job", ["packed", "filtered"])
def test_a_pass_over_a_finite_job_processes_each_item_once(
    tmp_path: Path, job: str, world: int
) -> None:
    """By ranks that go batch by batch together, as collectives make them; all end at one step."""
    together, found = threading.Barrier(world), dict[int, int]()

    def read(address: str, rank: int) -> None:
        options = {"rank": rank, "world_size": world, "mode": "eval", "as_numpy": True}
        with Loader(address, job, **options) as loader:
            assert loader.world_rank.rank == rank
            found[rank] = sum(together.wait(60) >= 0 for _ in loader)

    with serving(make_jobs(tmp_path)) as server:
        ranks = [threading.Thread(target=read, args=(server.address, n)) for n in range(world)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()

    assert len(found) == world
    assert len(set(found.values())) == 1
    assert 1.0 <= processed(tmp_path) <= MOST


@pytest.mark.parametrize("job", ["packed", "filtered"])
def test_a_pass_in_this_process_processes_each_item_once(tmp_path: Path, job: str) -> None:
    """`local:` plans by the lines that make its batches."""
    with Loader(f"local:{make_jobs(tmp_path)}", job, mode="eval", as_numpy=True) as loader:
        batches = sum(1 for _ in loader)

    assert batches
    assert 1.0 <= processed(tmp_path) <= MOST


def scraped(server: Server, metric: str) -> float:
    """Return the value of a metric of job `main`; its labels may be given, too."""
    address = server.events("ready")[0]["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    [found] = [line for line in lines if line.startswith(metric)]
    return float(found.rsplit(" ", 1)[1])


@pytest.mark.parametrize("asks", [False, True])
def test_what_counting_reads_is_in_the_metrics(tmp_path: Path, *, asks: bool) -> None:
    """A pass reads storage once; who asks for the length first has it read twice, and sees that."""
    (tmp_path / "roles.py").write_text(ROLES)
    with pq.ParquetWriter(tmp_path / "x.parquet", pa.schema([("x", pa.int64())])) as writer:
        for group in range(64):
            rows = pa.array(range(group * 100, group * 100 + 100), pa.int64())
            writer.write_table(pa.table({"x": rows}))
    job = {
        "epochs": 1,
        "lanes": 4,
        "source": {"type": "parquet", "files": "x.parquet"},
        "distributor": {"type": "map", "reading_groups": 4, "window_blocks": 2},
        "function": "./roles.py:some",
        "batch_size": 8,
        "collator": {"type": "padded"},
    }
    file = write_job_file(tmp_path / "jobs.yaml", {"main": job}, workers=1, metrics="127.0.0.1:0")
    with serving(file) as server, Loader(server.address, "main", mode="eval") as loader:
        counted = len(loader) if asks else None
        batches = sum(1 for _ in loader)
        amplification = scraped(server, "penstock_source_read_bytes_total") / scraped(
            server, "penstock_source_drawn_bytes_total"
        )

        assert counted in (None, batches)
        if asks:
            stage = 'penstock_decode_duration_seconds_sum{penstock_job="main",stage="count"}'
            assert scraped(server, stage) > 0
            assert 1.9 < amplification < 2 * MOST
        else:
            assert 0.9 < amplification < MOST


FETCHED_ROLES = """
import json
from pathlib import Path

from penstock.server.roles import RawItemProcessor
from penstock.server.sources import ItemsSource

LOG = Path(__file__).parent / "fetched"


class Logged(ItemsSource):
    version = 1

    def __init__(self):
        super().__init__([{"input_ids": [n] * (1 + n % 9)} for n in range(4000)])

    def fetch(self, indices):
        with LOG.open("a") as log:
            log.write(json.dumps(list(indices)) + "\\n")
        return super().fetch(indices)


class Sized(RawItemProcessor):
    version = 1
    one_to_one = True
    uses_global_rng = False

    def process(self, raw, context):
        return raw

    def size(self, raw):
        return len(raw["input_ids"])
"""


def test_a_server_fetches_each_draw_once(tmp_path: Path) -> None:
    """54 batches over the wire, sizes from size(): every index at most once in an epoch."""
    (tmp_path / "roles.py").write_text(FETCHED_ROLES)
    job = {
        "lanes": 2,
        "source": {"type": "./roles.py:Logged"},
        "processor": {"type": "./roles.py:Sized"},
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 16},
        "collator": {"type": "packed"},
    }
    with serving(write_job_file(tmp_path / "jobs.yaml", {"main": job})) as server:
        found = server.read("main", horizon=54).take(54)

    delivered = [sample.index for batch in found for sample in batch.header.samples]
    lines = (tmp_path / "fetched").read_text().splitlines()
    fetched = Counter(index for line in lines for index in json.loads(line))
    assert set(delivered) <= set(fetched)
    assert fetched.most_common(1)[0][1] == 1
