"""What one call, stream or statement costs: what `scale.py` multiplies by thousands.

CPU is that of the node's processes, of PostgreSQL's, or of this one; memory is private memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import grpc
import psutil
from several_nodes import cpu_s, database_processes
from support import (
    Rounds,
    constant,
    in_child,
    interleaved,
    median,
    node,
    postgresql,
    spread,
    table,
)

from penstock.client.calls.grpc_transport import open_transport
from penstock.client.nodes.dealing import deal
from penstock.client.nodes.placement import Placement
from penstock.server.store import open_store
from penstock.server.store.records import BeginRequest, JobRecord, SnapshotRecord
from penstock.wire import PROTOCOL
from penstock.wire.v1 import feed_pb2, feed_pb2_grpc

CALLS, STREAMS, MESSAGES, LOOKS, WRITES, IDLE_S, CHANNELS = 1000, 256, 20, 2000, 300, 10.0, 64

KIB = 1024


def run() -> None:
    """Print the table."""
    with postgresql() as url:
        ways: dict[str, Callable[[], dict[str, float]]] = {
            "a node": _node,
            "a reader": partial(in_child, "scale_costs"),
        }
        if url is not None:
            ways["PostgreSQL"] = partial(_looks, url)
        results = interleaved(ways)
    rows = [
        (f"{way}: {key}", f"{median(rounds, key):,.2f}", _range(rounds, key))
        for way, rounds in results.items()
        for key in rounds[0]
    ]
    table("What one costs", ("what", "median", "range"), rows)


def _range(rounds: Rounds, key: str) -> str:
    return spread(rounds, key, ",.2f")


def private_kib(pid: int) -> float:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(
        float(line.split()[1])
        for line in text.splitlines()
        if line.startswith(("Private_Clean:", "Private_Dirty:"))
    )


class IdleStream:
    """A stream that accepts nothing, on a channel of its own, as each rank has it to each node.

    Args:
        address: Of the node.
        rank: Which of `world_size` ranks it is of.
        world_size: How many ranks there are.
    """

    def __init__(self, address: str, rank: int, world_size: int = STREAMS) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(address, options=options)
        self.requests: SimpleQueue[feed_pb2.ReadRequest | None] = SimpleQueue()
        opening = feed_pb2.Open(
            protocol=PROTOCOL, job="main", rank=rank, world_size=world_size, horizon=0
        )
        self.requests.put(feed_pb2.ReadRequest(open=opening))
        stub = feed_pb2_grpc.FeedStub(self._channel)  # type: ignore[no-untyped-call]
        self._call = stub.Read(iter(self.requests.get, None))

    def wait_open(self) -> None:
        """Wait until the node has accepted it."""
        assert next(iter(self._call)).HasField("opened")

    def close(self) -> None:
        """End it."""
        self._call.cancel()
        self.requests.put(None)
        self._channel.close()


def _node() -> dict[str, float]:
    with node({"main": constant(64)}) as (address, pid):
        server = [psutil.Process(pid)]
        with grpc.insecure_channel(address) as channel:
            stub = feed_pb2_grpc.FeedStub(channel)  # type: ignore[no-untyped-call]
            request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="main")
            stub.Describe(request)
            began = cpu_s(server)
            for _ in range(CALLS):
                stub.Describe(request)
            found = {"us of CPU, a Describe": (cpu_s(server) - began) / CALLS * 1e6}
        warm = IdleStream(address, 0)
        warm.wait_open()
        memory, began = private_kib(pid), cpu_s(server)
        streams = [IdleStream(address, rank) for rank in range(STREAMS)]
        for stream in streams:
            stream.wait_open()
        found["us of CPU, a stream that opens"] = (cpu_s(server) - began) / STREAMS * 1e6
        found["KiB, an idle stream"] = (private_kib(pid) - memory) / STREAMS
        began = cpu_s(server)
        time.sleep(IDLE_S)
        found["us of CPU a second, an idle stream"] = (
            (cpu_s(server) - began) / STREAMS / IDLE_S * 1e6
        )
        began = cpu_s(server)
        for step in range(1, MESSAGES + 1):
            message = feed_pb2.Horizon(horizon=0, finished_step=step)
            for stream in streams:
                stream.requests.put(feed_pb2.ReadRequest(horizon=message))
        before = -1.0
        while (now := cpu_s(server)) != before:  # until it has nothing to do any more
            before = now
            time.sleep(0.5)
        found["us of CPU, a moved horizon"] = (now - began) / STREAMS / MESSAGES * 1e6
        for stream in [*streams, warm]:
            stream.close()
    return found


def _reader() -> dict[str, float]:
    with node({"main": constant(64)}, listen="0.0.0.0:0") as (address, _):
        port = address.rpartition(":")[2]
        request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="main").SerializeToString()
        gc.collect()
        memory = private_kib(os.getpid())
        with contextlib.ExitStack() as stack:
            began = time.process_time()
            for _ in range(CHANNELS):
                transport = open_transport(f"127.0.0.1:{port}")
                stack.callback(transport.close)
                transport.unary("Feed/Describe", request, 10.0)
            found = {"ms of CPU, a node that is asked first": _ms(began) / CHANNELS}
            found["KiB, a node that is known"] = (private_kib(os.getpid()) - memory) / CHANNELS
    weights = {f"penstock-{number}": 16 for number in range(64)}
    began = time.process_time()
    deal(10_000, weights, salt=os.urandom(8))
    found["ms of CPU, 10,000 units are dealt to 64 nodes"] = _ms(began)
    placement = Placement(10_000, 160_000)
    placement.know(weights, 0.0)
    placement.settle(0.0, 0, 1)
    began = time.process_time()
    for _ in range(100):
        placement.settle(1.0, 0, 1)
    found["ms of CPU, half a second's look at 10,000 units"] = _ms(began) / 100
    return found


def _ms(began: float) -> float:
    return (time.process_time() - began) * 1e3


def _looks(url: str) -> dict[str, float]:
    import postgres

    return asyncio.run(_look(postgres.in_schema(url, postgres.new_schema())))


async def _look(url: str) -> dict[str, float]:
    store = open_store(url, Path(tempfile.gettempdir()))
    await store.open()
    job = JobRecord("code", bytes(32), {"lanes": 48})
    await store.begin(BeginRequest(job, "run", "t", 0, 64))
    logs, groups = [bytes(32)], [("code", "run")]
    await store.followed(logs, groups, "node")
    backends = database_processes(url)
    cpu, wall, own = cpu_s(backends), time.perf_counter(), time.process_time()
    for _ in range(LOOKS):
        await store.followed(logs, groups, "node")
    found = {
        "us of its CPU, a look of a node": (cpu_s(backends) - cpu) / LOOKS * 1e6,
        "us of the node's CPU, a look": (time.process_time() - own) / LOOKS * 1e6,
        "ms, a look, one after another": (time.perf_counter() - wall) / LOOKS * 1e3,
    }
    await store.put_snapshots([SnapshotRecord(bytes(32), 99, 0, b"")])
    backends = database_processes(url)  # it has a connection more now
    cpu, wall = cpu_s(backends), time.perf_counter()
    for offset in range(WRITES):
        # As many lanes as one of 64 nodes has that come to a snapshot within two seconds.
        await store.put_snapshots(
            [SnapshotRecord(bytes(32), lane, offset, bytes(1000)) for lane in range(8)]
        )
    found["us of its CPU, a write of 8 snapshots"] = (cpu_s(backends) - cpu) / WRITES * 1e6
    found["ms, such a write, one after another"] = (time.perf_counter() - wall) / WRITES * 1e3
    await store.close()
    return found


if __name__ == "__main__":
    print(json.dumps(_reader()))
