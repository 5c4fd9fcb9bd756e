"""Streams that ask for everything and read nothing, beside one that reads: what they cost it.

One node of two workers serves two jobs, whose batches cost a few milliseconds. Of one of them many
streams are opened at once, with a horizon beyond every number, and nobody takes what they are sent.
A reader of the other job counts its batches: before, meanwhile, and after they have hung up.

To see what a change has done to it, run this on both states in turn, as `small_batches.py` says.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from clock import own_cpu_s
from support import (
    ROUNDS,
    Column,
    compare,
    in_child,
    interleaved,
    middle,
    serving,
    spread,
    write_job,
)

from penstock.wire import MAX_MESSAGE_BYTES, PROTOCOL
from penstock.wire.v1 import feed_pb2, feed_pb2_grpc

STREAMS = (0, 60, 150)
ROW_BYTES, BUSY_S = {"flood": 32_000, "other": 32_000}, 0.005
PER_S, PREFETCH = 5.0, 16

ROWS = """
import time

import numpy as np


def busy(raw, nbytes):
    end = time.process_time() + {busy_s}
    while time.process_time() < end:
        pass
    return {{"x": np.full(nbytes, raw["n"] % 256, np.uint8)}}


def flood(raw):
    return busy(raw, {flood})


def other(raw):
    return busy(raw, {other})
"""


def run() -> None:
    """Print the table."""
    ways = {str(streams): partial(_round, streams) for streams in STREAMS}
    compare(
        f"A reader beside streams that read nothing: its batches/s before, with them, and after; "
        f"CPU us of the server process for each batch; its own memory in MB; and how long the "
        f"streams took to open; median of {ROUNDS} rounds",
        "streams",
        interleaved(ways),
        middle("before", "before", ",.0f"),
        middle("with", "during", ",.0f"),
        middle("after", "after", ",.0f"),
        Column(("range",), lambda found, way: [spread(found[way], "during", ",.0f")]),
        middle("us", "cpu_us", ",.0f"),
        middle("MB", "mb_before", ",.0f"),
        middle("with", "mb_during", ",.0f"),
        middle("after", "mb_after", ",.0f"),
        middle("opened s", "opened_s", ".1f"),
    )


def _round(streams: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows.py").write_text(ROWS.format(busy_s=BUSY_S, **ROW_BYTES))
        jobs = {
            job: {
                "source": {"type": "items", "items": [{"n": n} for n in range(64)]},
                "batch_size": 1,
                "lanes": 8,
                "function": f"./rows.py:{job}",
            }
            for job in ROW_BYTES
        }
        job_file = write_job(folder, jobs, workers=2, ready_bytes="64 MiB")
        with serving(job_file) as (address, process):
            found: dict[str, float] = {}
            found["before"], _ = _rate(address, process.pid)
            found["mb_before"] = _own_mb(process.pid)
            began = time.monotonic()
            channels: list[grpc.Channel] = []
            calls = [_open(address, channels, rank, streams) for rank in range(streams)]
            for call in calls:
                next(call)  # `opened`
            found["opened_s"] = time.monotonic() - began
            found["during"], found["cpu_us"] = _rate(address, process.pid)
            found["mb_during"] = _own_mb(process.pid)
            for call in calls:
                call.cancel()
            for channel in channels:
                channel.close()
            found["after"], _ = _rate(address, process.pid)
            found["mb_after"] = _own_mb(process.pid)
            return found


def _open(address: str, channels: list[grpc.Channel], rank: int, world: int) -> Any:
    """Open a stream that accepts everything, on a connection of its own."""
    channel = grpc.insecure_channel(
        address,
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.use_local_subchannel_pool", 1),
        ],
    )
    channels.append(channel)
    requests: queue.SimpleQueue[feed_pb2.ReadRequest] = queue.SimpleQueue()
    opening = feed_pb2.Open(
        protocol=PROTOCOL,
        job="flood",
        bundles=True,
        rank=rank,
        world_size=world,
        batches_per_step=world,
        horizon=2**62,
    )
    requests.put(feed_pb2.ReadRequest(open=opening))
    stub = feed_pb2_grpc.FeedStub(channel)  # type: ignore[no-untyped-call]
    return stub.Read(iter(requests.get, None))


def _rate(address: str, pid: int) -> tuple[float, float]:
    """Return the batches a second of a reader, and the CPU us of the server process for each."""
    found = in_child("flood", "read", address, pid)
    return found["rate"], found["cpu_us"]


def main(address: str, pid: int) -> None:
    """Read for a while, and print how fast it went."""
    from penstock.client import Loader

    count = 0
    with Loader(address, "other", prefetch=PREFETCH, as_numpy=True) as loader:
        batches = iter(loader)
        next(batches)
        began, cpu = time.monotonic(), own_cpu_s(pid)
        while time.monotonic() - began < PER_S:
            next(batches)
            count += 1
        lasted, spent = time.monotonic() - began, own_cpu_s(pid) - cpu
    print(json.dumps({"rate": count / lasted, "cpu_us": spent / max(1, count) * 1e6}))


def _own_mb(pid: int) -> float:
    """Return the memory of a process that is its own, in MB."""
    text = Path(f"/proc/{pid}/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        main(sys.argv[2], int(sys.argv[3]))
        os._exit(0)
    run()
