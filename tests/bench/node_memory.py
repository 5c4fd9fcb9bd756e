"""Peak memory of real nodes beside what docs/operate.md states.

Memory is the sum of PSS over the node's processes, from `/proc/PID/smaps_rollup`, so that a page
that several of them map counts once. It is looked at every 50 ms, and the highest sum stands.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from support import HERE, corpus, serving, table, write_job

from penstock.server.node.books import KEPT_BATCHES, KEPT_SHARE
from penstock.wire import MAX_MESSAGE_BYTES, PROTOCOL
from penstock.wire.v1 import feed_pb2, feed_pb2_grpc

MIB = 1 << 20

SERVER_MIB, WORKER_MIB = 60, 33
"""A server process, and a worker, without packages of sources and roles."""

PACKAGES_MIB = {"pyarrow": 13, "tokenizers": 8, "torch": 130}
"""What each of these adds to the server process and to every worker."""

TOKENIZING_MIB, READING_MIB = 120, 30
"""What a worker takes besides while it tokenizes, and while it reads Parquet."""

SPREAD = 1.25
"""Memory that was touched, by what is in use at a time: of shared memory, and of row groups."""

AHEAD = 16
"""Items that a lane processes at a time, where they are processed to be planned."""


@dataclass(frozen=True)
class Case:
    """One node and what is known of its job; sizes in MiB.

    Attributes:
        job: Its job.
        packages: Those of `PACKAGES_MIB` that it imports.
        batch_mib: A batch.
        readers: How many read, all of them the same.
        batches: How many each of them takes.
        cache_mib: Decoded row groups that each worker keeps.
        sample_mib: A sample, on average.
        waiting: Samples that wait in a lane, pooled or processed ahead.
        tokenizes: Its workers tokenize.
        stalls: The readers take nothing until the node has made all that it may.
        ready_mib: Its bound on ready batches.
        workers: Its workers.
        lanes: Its lanes.
    """

    job: dict[str, Any]
    packages: tuple[str, ...]
    batch_mib: float
    readers: int
    batches: int
    cache_mib: float = 0
    sample_mib: float = 0
    waiting: int = 0
    tokenizes: bool = False
    stalls: bool = False
    ready_mib: int = 256
    workers: int = 2
    lanes: int = 48

    @property
    def stated_mib(self) -> float:
        """What docs/operate.md says that it takes."""
        packages = sum(PACKAGES_MIB[one] for one in self.packages)
        worker = WORKER_MIB + packages + SPREAD * self.cache_mib
        worker += self.tokenizes * TOKENIZING_MIB + ("pyarrow" in self.packages) * READING_MIB
        kept = min(KEPT_BATCHES * self.batch_mib, self.ready_mib / KEPT_SHARE)
        ready = (self.ready_mib if self.stalls else kept) + self.readers * self.batch_mib
        return (
            SERVER_MIB
            + packages
            + SPREAD * ready
            + self.workers * worker
            + self.lanes * self.waiting * self.sample_mib
        )


def pss_mib(pid: int) -> float:
    """Return a process's share of the memory that it maps, in MiB; 0 = it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


class Watch:
    """Looks at a node's memory until it is told to stop."""

    def __init__(self, pid: int) -> None:
        self.peak_mib, self._pid, self._ended = 0.0, pid, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def look(self) -> float:
        """Return what the node has now, in MiB."""
        found = [child.pid for child in psutil.Process(self._pid).children(recursive=True)]
        return sum(map(pss_mib, [self._pid, *found]))

    def _run(self) -> None:
        while not self._ended.wait(0.05):
            with contextlib.suppress(psutil.Error):
                self.peak_mib = max(self.peak_mib, self.look())

    def end(self) -> float:
        """Return the peak in MiB."""
        self._ended.set()
        self._thread.join()
        return self.peak_mib


class Reader:
    """Reads by generated stubs, and takes nothing before it is told to: a trainer that stalls."""

    def __init__(self, address: str, count: int) -> None:
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._requests: SimpleQueue[feed_pb2.ReadRequest | None] = SimpleQueue()
        self._count, self._last = count, -1
        opening = feed_pb2.Open(protocol=PROTOCOL, job="main", world_size=1, horizon=count)
        self._requests.put(feed_pb2.ReadRequest(open=opening))
        stub = feed_pb2_grpc.FeedStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Read(iter(self._requests.get, None))

    def take(self) -> None:
        """Read to the end of what was asked for."""
        complete = 0
        for reply in self._call:
            complete += reply.HasField("header")
            if complete == self._count and reply.HasField("chunk"):
                left = reply.chunk.start + len(reply.chunk.data)
                if left == self._last:
                    break
            if reply.HasField("header"):
                self._last = reply.header.body_bytes
        self._call.cancel()
        self._requests.put(None)
        self._channel.close()


def measure(case: Case) -> tuple[float, float]:
    """Return a node's memory with nothing to do, and its peak, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        job_file = write_job(Path(folder), {"main": case.job}, ready_bytes=case.ready_mib * MIB)
        with serving(job_file, "--workers", str(case.workers)) as (address, process):
            watch = Watch(process.pid)
            idle = watch.look()
            readers = [Reader(address, case.batches) for _ in range(case.readers)]
            if case.stalls:
                _wait_until_full(watch)
            threads = [threading.Thread(target=reader.take) for reader in readers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return idle, watch.end()


def _wait_until_full(watch: Watch) -> None:
    """Return when the node has stopped to grow: it makes nothing more while nobody takes."""
    peak, since = watch.peak_mib, time.monotonic()
    while time.monotonic() - since < 3:
        time.sleep(0.1)
        if watch.peak_mib > peak + 1:
            peak, since = watch.peak_mib, time.monotonic()


def cases(folder: Path) -> dict[str, Case]:
    """Return the nodes that are measured."""
    files = corpus()
    text = {
        "source": {"type": "parquet", "files": f"{files}/corpus/*.parquet", "columns": ["text"]},
        "processor": {
            "type": "tokenize",
            "tokenizer": f"{files}/tokenizer.json",
            "column": "text",
        },
        "batcher": {"type": "best_fit", "max_tokens": 8192, "overlong": "split"},
        "collator": {"type": "packed", "pad_to": 8192},
    }
    large = {
        "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
        "function": f"{HERE / 'cheap.py'}:two_megabytes",
        "batch_size": 4,
    }
    blocks = {
        "source": {"type": "parquet", "files": str(_blocks(folder)), "cache_bytes": 96 * MIB},
        "function": f"{HERE / 'cheap.py'}:array_of",
        "batch_size": 64,
    }
    return {
        "text": Case(
            text,
            ("pyarrow", "tokenizers"),
            batch_mib=0.2,
            readers=2,
            batches=400,
            cache_mib=30,
            sample_mib=0.02,
            waiting=64 + AHEAD // 2,
            tokenizes=True,
        ),
        "8 MB, readers stall": Case(
            large,
            (),
            batch_mib=7.6,
            readers=4,
            batches=100,
            sample_mib=1.9,
            waiting=AHEAD - 4,
            stalls=True,
        ),
        "row groups": Case(
            blocks, ("pyarrow",), batch_mib=0.25, readers=2, batches=1500, cache_mib=96
        ),
    }


def _blocks(folder: Path) -> Path:
    """Write 64 row groups of 4 MiB."""
    path = folder / "blocks.parquet"
    draws = random.Random(7)
    with pq.ParquetWriter(path, pa.schema([("b", pa.binary())]), compression="none") as writer:
        for _ in range(64):
            rows = [draws.randbytes(4096) for _ in range(1024)]
            writer.write_table(pa.table({"b": pa.array(rows, pa.binary())}))
    return path


def run() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for name, case in cases(Path(folder)).items():
            idle, peak = measure(case)
            stated = case.stated_mib
            rows.append(
                (name, f"{idle:.0f}", f"{peak:.0f}", f"{stated:.0f}", f"{peak / stated - 1:+.0%}")
            )
    table(
        "Memory of a node (PSS of all processes, MiB) (goal: peak within 10 % of docs/operate.md)",
        ("node", "idle", "peak", "stated", "difference"),
        rows,
    )


if __name__ == "__main__":
    run()
