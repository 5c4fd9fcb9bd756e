"""What three nodes ask of PostgreSQL while ranks read, many streams are open and nobody commits."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psycopg
import pytest

import postgres
from harness import Server, serving, write_job_file
from penstock.client import Loader
from penstock.client.calls.control import Control
from penstock.client.calls.grpc_transport import open_transport
from penstock.wire import PROTOCOL
from penstock.wire.v1 import feed_pb2

RANKS, IDLE, CHANNELS = 64, 1024, 32

SECONDS = 20.0

JOB = {
    "lanes": 192,
    "source": {"type": "items", "items": [{"x": number} for number in range(61)]},
    "batch_size": 2,
}


class Database:
    """A server that writes each statement to its log."""

    def __init__(self, server: postgres.Server) -> None:
        self.server, self._log = server, server.folder / "log"
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET log_statement = 'all'")
            connection.execute("SELECT pg_reload_conf()")

    def statements(self, seconds: float) -> Counter[str]:
        """Return the first words of the statements that come within a time."""
        start = self._log.stat().st_size
        threading.Event().wait(seconds)
        with self._log.open() as file:
            file.seek(start)
            found = re.findall(r"LOG:  (?:execute [^:]*|statement): (.*)", file.read())
        return Counter(" ".join(each.split()[:3]) for each in found)


@pytest.fixture
def database() -> Iterator[Database]:
    """A PostgreSQL of this test."""
    server = postgres.own_server()
    try:
        yield Database(server)
    finally:
        server.end()


@contextlib.contextmanager
def idle_streams(nodes: list[Server], count: int) -> Iterator[None]:
    """Have streams open that accept nothing, spread over nodes."""
    ready, over = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    async def hold() -> None:
        async with contextlib.AsyncExitStack() as stack:
            methods = []
            for number in range(CHANNELS):
                options = [("grpc.use_local_subchannel_pool", 1)]
                channel = grpc.aio.insecure_channel(nodes[number % len(nodes)].address, options)
                await stack.enter_async_context(channel)
                methods.append(
                    channel.stream_stream(
                        "/penstock.wire.v1.Feed/Read",
                        request_serializer=feed_pb2.ReadRequest.SerializeToString,
                        response_deserializer=feed_pb2.ReadReply.FromString,
                    )
                )
            opening = feed_pb2.Open(protocol=PROTOCOL, job="code", world_size=1)
            calls = [methods[number % CHANNELS]() for number in range(count)]
            for call in calls:
                await call.write(feed_pb2.ReadRequest(open=opening))
                reply = await call.read()
                assert reply.HasField("opened"), reply
            ready.set()
            await asyncio.to_thread(over.wait)
            for call in calls:
                call.cancel()

    def run() -> None:
        try:
            asyncio.run(hold())
        except BaseException as error:
            failed.append(error)
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait()
        assert not failed, failed
        yield
    finally:
        over.set()
        thread.join()
    assert not failed, failed


def streams(node: Server) -> int:
    """Return how many streams a node has."""
    with contextlib.closing(open_transport(node.address)) as transport:
        jobs = Control(transport, "code", node.address, 60.0).status()["jobs"]
        return sum(len(job["groups"]) for job in jobs)


def test_nodes_ask_the_store_once_a_second_where_nobody_commits(
    database: Database, tmp_path: Path
) -> None:
    """Three statements a second of three nodes, however many streams there are."""
    url = postgres.in_schema(database.server.url, postgres.new_schema())
    with contextlib.ExitStack() as stack:
        nodes = []
        for number in range(3):
            folder = tmp_path / f"node-{number}"
            folder.mkdir()
            settings = {"store": url, "node_id": f"node-{number}"}
            file = write_job_file(folder / "jobs.yaml", {"code": JOB}, **settings)
            nodes.append(stack.enter_context(serving(file)))
        loaders = [
            stack.enter_context(
                Loader(
                    [node.address for node in nodes],
                    "code",
                    group="run",
                    attempt="one",
                    rank=rank,
                    world_size=RANKS,
                    as_numpy=True,
                    deadline_s=120.0,
                )
            )
            for rank in range(RANKS)
        ]
        with ThreadPoolExecutor(RANKS) as pool:
            first = list(pool.map(lambda loader: next(iter(loader)).position, loaders))
        assert sorted(first) == list(range(RANKS))
        stack.enter_context(idle_streams(nodes, IDLE))
        open_ones = sum(map(streams, nodes))
        assert open_ones >= IDLE + RANKS
        database.statements(SECONDS / 2)  # snapshots and witnesses of what was read are written

        began = time.monotonic()
        found = database.statements(SECONDS)
        rate = found.total() / (time.monotonic() - began)

        print(f"{rate:.2f} statements/s with {open_ones:,} streams: {dict(found)}")  # noqa: T201
        assert 1.0 < rate < 10.0, found
