"""Peak memory of real nodes beside what `penstockd check` says of their jobs.

Memory is the sum of `Pss_Anon` and `Pss_Shmem` of `/proc/PID/smaps_rollup` over the node's
processes: a page that several of them map counts once, and pages of files do not count. It is
looked at every 50 ms, and the highest sum stands. The constants of the formula in
`penstock.server.commands.memory_formula` were fitted to the first table; those of the second were
in view when they were chosen, so a new kind of node is the better test.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from support import HERE, corpus, serving, table, write_job

from penstock.client import Loader
from penstock.wire import MAX_MESSAGE_BYTES, PROTOCOL, frame
from penstock.wire.v1 import feed_pb2, feed_pb2_grpc

MIB = 1 << 20


@dataclass(frozen=True)
class Case:
    """One node.

    Attributes:
        job: Its job.
        readers: How many read: ranks of one run.
        batches: How many they take together; the ranks divide them.
        stalls: The readers take nothing until the node has made all that it may.
        ready_mib: Its bound on ready batches.
        workers: Its workers.
    """

    job: dict[str, Any]
    workers: int = 2
    readers: int = 2
    batches: int = 400
    stalls: bool = False
    ready_mib: int = 256


def stated(job_file: Path, case: Case) -> tuple[float, dict[str, float]]:
    """Return what `penstockd check` says that the node takes, in MiB, and its parts."""
    command = [sys.executable, "-m", "penstock.server.cli", "check", str(job_file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said: dict[str, float] = json.loads(done.stdout)["jobs"][0]["memory"]
    if case.stalls:
        return said["stalled"], said
    return said["keeping_up"] + case.readers * said["reader"], said


def memory_mib(pid: int) -> float:
    """Return a process's share of anonymous and shared memory, in MiB; 0 = it has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        parts = [line.split() for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))]
        return sum(int(part[1]) for part in parts) / 1024
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
        return sum(map(memory_mib, [self._pid, *found]))

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
    """Reads by generated stubs, and takes nothing before it is told to: a rank that stalls."""

    def __init__(self, address: str, case: Case, rank: int) -> None:
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
        ]
        self._channel = grpc.insecure_channel(address, options=options)
        self._requests: SimpleQueue[feed_pb2.ReadRequest | None] = SimpleQueue()
        self._count, self._last = case.batches // case.readers, -1
        opening = feed_pb2.Open(
            protocol=PROTOCOL,
            job="main",
            rank=rank,
            world_size=case.readers,
            horizon=case.batches,
        )
        self._requests.put(feed_pb2.ReadRequest(open=opening))
        stub = feed_pb2_grpc.FeedStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Read(iter(self._requests.get, None))

    def take(self) -> None:
        """Read to the end of what was asked for."""
        complete = 0
        for reply in self._call:
            if reply.HasField("header"):
                complete, self._last = complete + 1, frame.sent_bytes(reply.header)
            if complete == self._count and reply.HasField("chunk"):
                left = reply.chunk.start + len(reply.chunk.data)
                if left == self._last:
                    break
        self._call.cancel()
        self._requests.put(None)
        self._channel.close()


@dataclass(frozen=True)
class Found:
    """What was found of one node, in MiB.

    Attributes:
        stated: What was said that it takes.
        parts: What that is made of.
        idle: What it took with nothing to do.
        peak: The most that it took.
    """

    stated: float
    parts: dict[str, float]
    idle: float
    peak: float


def measure(case: Case) -> Found:
    """Run a node, and return its memory."""
    with tempfile.TemporaryDirectory() as folder:
        job_file = write_job(
            Path(folder),
            {"main": case.job},
            ready_bytes=case.ready_mib * MIB,
            workers=case.workers,
        )
        total, parts = stated(job_file, case)
        with serving(job_file) as (address, process):
            watch = Watch(process.pid)
            idle = watch.look()
            takers: list[Callable[[], None]]
            if case.stalls:
                takers = [Reader(address, case, rank).take for rank in range(case.readers)]
                _wait_until_full(watch)
            else:
                takers = [
                    partial(_follow, address, case, rank=rank) for rank in range(case.readers)
                ]
            threads = [threading.Thread(target=take) for take in takers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return Found(total, parts, idle, watch.end())


def _follow(address: str, case: Case, *, rank: int) -> None:
    """Read as a rank does that waits for data."""
    with Loader(address, "main", rank=rank, world_size=case.readers) as loader:
        for batch in loader:
            if batch.position >= case.batches - case.readers:
                return


def _wait_until_full(watch: Watch) -> None:
    """Return when the node has stopped to grow: it makes nothing more while nobody takes."""
    peak, since = watch.peak_mib, time.monotonic()
    while time.monotonic() - since < 3:
        time.sleep(0.1)
        if watch.peak_mib > peak + 1:
            peak, since = watch.peak_mib, time.monotonic()


def fitted(folder: Path) -> dict[str, Case]:
    """Return the nodes that the constants were chosen by."""
    blocks = _blocks(folder / "blocks.parquet", 64, 4 * MIB)
    return {
        "items, batches of 1 KB, 2 workers": Case(_small(), batches=2000),
        "text, 8 lanes, 2 workers": Case(_text(8, 64), batches=1700),
        "batches of 8 MB, readers stall": Case(_large(), readers=4, batches=100, stalls=True),
        "16 groups of 2 x 4 MiB, 1 worker": Case(_rows(blocks, 16, 2), workers=1, batches=1500),
        "16 groups of 2 x 4 MiB, 4 workers": Case(_rows(blocks, 16, 2), workers=4, batches=1500),
    }


def others(folder: Path) -> dict[str, Case]:
    """Return nodes that had no part in that."""
    blocks = _blocks(folder / "blocks.parquet", 64, 4 * MIB)
    large = _blocks(folder / "large.parquet", 40, 12 * MIB)
    tokens = _tokens(folder / "tokens.parquet")
    return {
        "text, 16 lanes, 8 workers": Case(_text(16, 16), workers=8, batches=700),
        "items, batches of 1 KB, 16 workers": Case(_small(), workers=16, batches=2000),
        "images of 600 KB, 4 workers": Case(_images(), workers=4),
        "images of 600 KB, readers stall": Case(_images(), workers=4, stalls=True),
        "batches of 8 MB, readers keep up": Case(_large(), workers=1, batches=150),
        "batches of 100 MB, readers keep up": Case(_large(50), workers=1, batches=40),
        "batches of 100 MB, readers stall": Case(
            _large(50), workers=1, readers=1, batches=20, stalls=True, ready_mib=512
        ),
        "16 groups of 2 x 4 MiB, 16 workers": Case(_rows(blocks, 16, 2), workers=16, batches=1500),
        "4 groups of 4 x 12 MiB, 2 workers": Case(_rows(large, 4, 4), batches=1500),
        "token ids, compressed, 4 workers": Case(_packed(tokens), workers=4, batches=1500),
    }


def _small() -> dict[str, Any]:
    return {
        "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
        "function": f"{HERE / 'cheap.py'}:document",
        "batcher": {"type": "best_fit", "max_tokens": 256, "pool_size": 64},
        "collator": {"type": "packed", "pad_to": 256},
    }


def _large(samples: int = 4) -> dict[str, Any]:
    return {
        "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
        "function": f"{HERE / 'cheap.py'}:two_megabytes",
        "batch_size": samples,
    }


def _images() -> dict[str, Any]:
    return {
        "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
        "function": f"{HERE / 'cheap.py'}:image",
        "batcher": {"type": f"{HERE / 'reading.py'}:Looking", "batch_size": 8},
        "lanes": 24,
    }


def _text(lanes: int, pool: int) -> dict[str, Any]:
    """Return a job of few lanes, or small pools: they are full when each lane made 4 x 64 rows."""
    files = corpus()
    return {
        "lanes": lanes,
        "source": {"type": "parquet", "files": f"{files}/corpus/*.parquet", "columns": ["text"]},
        "processor": {
            "type": "tokenize",
            "tokenizer": f"{files}/tokenizer.json",
            "column": "text",
        },
        "batcher": {
            "type": "best_fit",
            "max_tokens": 8192,
            "overlong": "split",
            "pool_size": pool,
        },
        "collator": {"type": "packed", "pad_to": 8192},
    }


def _rows(path: Path, groups: int, window: int) -> dict[str, Any]:
    return {
        "source": {"type": "parquet", "files": str(path)},
        "distributor": {"type": "map", "reading_groups": groups, "window_blocks": window},
        "function": f"{HERE / 'cheap.py'}:array_of",
        "batch_size": 64,
    }


def _packed(path: Path) -> dict[str, Any]:
    return {
        "source": {"type": "parquet", "files": str(path)},
        "distributor": {"type": "map", "reading_groups": 24, "window_blocks": 2},
        "batcher": {"type": "best_fit", "max_tokens": 4096, "overlong": "split"},
        "collator": {"type": "packed", "pad_to": 4096},
    }


def _blocks(path: Path, count: int, nbytes: int) -> Path:
    """Write so many row groups of so many bytes, in rows of 4 KiB."""
    draws = random.Random(7)
    schema = pa.schema([("b", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for _ in range(count):
            rows = [draws.randbytes(4096) for _ in range(nbytes // 4096)]
            writer.write_table(pa.table({"b": pa.array(rows, pa.binary())}))
    return path


def _tokens(path: Path) -> Path:
    """Write 150 row groups of token ids, of 1 to 3 MiB each."""
    draws = np.random.default_rng(7)
    schema = pa.schema([("input_ids", pa.list_(pa.int32()))])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for _ in range(150):
            lengths = draws.integers(64, 1024, draws.integers(500, 1500))
            rows = [draws.integers(0, 32000, length, np.int32) for length in lengths]
            writer.write_table(pa.table({"input_ids": pa.array(rows, schema.field(0).type)}))
    return path


def run() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as folder:
        _print("that the constants were chosen by", fitted(Path(folder)))
        _print("that were in view", others(Path(folder)))


def _print(which: str, nodes: dict[str, Case]) -> None:
    parts: Sequence[str] = ("processes", "blocks", "samples")
    rows = []
    for name, case in nodes.items():
        found = measure(case)
        rows.append(
            (
                name,
                f"{found.idle:.0f}",
                f"{found.peak:.0f}",
                f"{found.stated:.0f}",
                f"{found.peak / found.stated - 1:+.0%}",
                *(f"{found.parts[part]:.0f}" for part in parts),
            )
        )
    table(
        f"Memory of nodes {which}: all processes, and as `penstockd check` states it, MiB "
        "(goal: peak within 10 %)",
        ("node", "idle", "peak", "stated", "difference", *parts),
        rows,
    )


if __name__ == "__main__":
    run()
