"""A node takes the memory that `penstockd check` says of its job."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import children, serving, write_job_file
from penstock.client import Loader
from penstock.server.commands.memory_formula import NodeMemory, node_memory
from penstock.server.jobs.load import load
from penstock.wire import PROTOCOL
from penstock.wire.v1 import feed_pb2

WORKERS, LANES, BATCH, ROW_BYTES = 2, 8, 16, 16 << 10
BLOCKS, ROWS = 40, 256  # row groups of 4 MiB

ROLES = """
from penstock.server.roles import SimpleBatcher

class Looking(SimpleBatcher):
    version = 1
    needs_content = True
"""


def write_corpus(folder: Path) -> None:
    random = np.random.default_rng(5)
    path = folder / "blocks.parquet"
    schema = pa.schema([("x", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for _ in range(BLOCKS):
            rows = [random.bytes(ROW_BYTES) for _ in range(ROWS)]
            writer.write_table(pa.table({"x": pa.array(rows, pa.binary())}))


def taken_mib(server: int) -> float:
    """Return anonymous and shared memory of a node's processes, each page counted once."""
    said: list[str] = []
    for pid in [server, *children(server)]:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # it has just ended
            said += Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    lines = [line.split() for line in said]
    return sum(int(line[1]) for line in lines if line[0] in ("Pss_Anon:", "Pss_Shmem:")) / 1024


def stated(file: Path) -> NodeMemory:
    job = load(str(file)).job("main")
    return node_memory(
        job,
        workers=WORKERS,
        ready_bytes=256 << 20,
        imported=["pyarrow"],
        sample_bytes=ROW_BYTES,
        batch_bytes=BATCH * ROW_BYTES,
    )


def test_a_node_that_reads_storage_blocks_takes_what_is_stated(runtime: Path) -> None:
    """Within a quarter, with its windows full; the blocks are half of it."""
    write_corpus(runtime)
    (runtime / "roles.py").write_text(ROLES)
    job = {
        "lanes": LANES,
        "source": {"type": "parquet", "files": "blocks.parquet"},
        "distributor": {"type": "map", "reading_groups": 4, "window_blocks": 4},
        "batcher": {"type": "./roles.py:Looking", "batch_size": BATCH},
    }
    server_settings = {"workers": WORKERS, "ready_bytes": 256 << 20}
    file = write_job_file(runtime / "job.yaml", {"main": job}, **server_settings)
    most = 0.0
    with serving(file) as server, Loader(server.address, "main") as loader:
        for batch in loader:
            if batch.position % 32 == 0:
                most = max(most, taken_mib(server.process.pid))
            if batch.position == BLOCKS * ROWS // BATCH:
                break

    said = stated(file)

    assert said.blocks > 0.3 * said.keeping_up
    assert abs(most / (said.keeping_up + said.reader) - 1) < 0.25


def test_a_node_that_counts_takes_no_more_than_is_stated(runtime: Path) -> None:
    """While a finite job is read, and somebody asks for its length."""
    write_corpus(runtime)
    (runtime / "roles.py").write_text(ROLES)
    job = {
        "lanes": LANES,
        "epochs": 1,
        "source": {"type": "parquet", "files": "blocks.parquet"},
        "distributor": {"type": "map", "reading_groups": 4, "window_blocks": 4},
        "batcher": {"type": "./roles.py:Looking", "batch_size": BATCH},
    }
    server_settings = {"workers": WORKERS, "ready_bytes": 256 << 20}
    file = write_job_file(runtime / "job.yaml", {"main": job}, **server_settings)
    asks = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="main", count=True)
    most = 0.0
    with serving(file) as server, Loader(server.address, "main") as loader:
        for batch in loader:
            server.feed.Describe(asks)
            if batch.position % 16 == 0:
                most = max(most, taken_mib(server.process.pid))
        assert len(loader) == batch.position + 1

    said = stated(file)

    assert said.counting > 0.2 * said.keeping_up
    assert most < 1.25 * (said.keeping_up + said.reader)
