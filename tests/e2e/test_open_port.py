"""What anybody may send to an open port: the node serves on, with flat memory."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from certificates import Authority
from crowd import HELLO, PREFACE, SETTINGS, Crowd, Took, room_for, took
from harness import Server, serving, write_job_file
from invariants import eventually
from penstock.client import Loader, Tls
from penstock.server.rpc.connections import MAX_CONNECTIONS

HANGING, PIECES = 300, 400
BEYOND, TEN_THOUSAND = 400, 10_000
GROWTH_MB, KEPT_MB, CROWD_MB = 40, 80, 250
FEW = 8
"""Descriptors of calls and of readers that are ending."""

JOB = {
    "lanes": 2,
    "source": {"type": "items", "items": [{"x": [n, n]} for n in range(40)]},
    "batch_size": 2,
}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("port"))


@pytest.fixture(scope="module", params=["plain", "tls"])
def node(
    request: pytest.FixtureRequest, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp(request.param)
    tls = authority.sign("node")._asdict() if request.param == "tls" else None
    file = write_job_file(folder / "penstock.yaml", {"small": JOB}, tls=tls)
    # What gRPC logs is decided before it is imported: a fresh interpreter.
    with serving(file, environment={}) as server:
        yield server


def own_mb(server: Server) -> float:
    """Return the node's own memory, in MB."""
    return took(server.process.pid).mb


def reads(server: Server, authority: Authority) -> list[int]:
    """Read as a rank does; return the positions."""
    tls = Tls(ca=authority.path) if server.events("TLS") else None
    with Loader(server.address, "small", tls=tls, rank=0, world_size=1) as loader:
        return [batch.position for _, batch in zip(range(4), loader, strict=False)]


def open_socket(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), 20)


class Reading:
    """A rank that reads all the while; its batches are in order, on one connection."""

    def __init__(self, server: Server, authority: Authority) -> None:
        self._tls = Tls(ca=authority.path) if server.events("TLS") else None
        self._address, self._stop = server.address, threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self.positions: list[int] = []

    def __enter__(self) -> Reading:
        self._done = self._pool.submit(self._read)
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()

    def _read(self) -> Any:
        with Loader(self._address, "small", tls=self._tls, rank=0, world_size=1) as loader:
            for batch in loader:
                self.positions.append(batch.position)
                if self._stop.wait(0.001):  # a step
                    return loader.stats()["reconnects"]

    def goes_on(self) -> None:
        """Wait for further batches."""
        seen = len(self.positions)
        eventually(
            lambda: self._done.done() or len(self.positions) > seen + 50, 60, "batches go on"
        )

    def end(self) -> int:
        """Stop; return how often it had to connect again."""
        self._stop.set()
        reconnects: int = self._done.result(60)
        assert self.positions == list(range(len(self.positions)))
        return reconnects


OPENINGS = (b"", PREFACE[:10], PREFACE, HELLO, HELLO[:2])
"""Nothing, and what stops in the middle."""


def test_connections_that_never_finish_a_handshake_are_closed(
    node: Server, authority: Authority
) -> None:
    """Silent ones, and ones that stop in the middle, keep nobody out until then."""
    assert reads(node, authority) == [0, 1, 2, 3]
    before = took(node.process.pid)

    with room_for(HANGING), Crowd(node.address, HANGING, OPENINGS) as crowd:
        crowd.say(100)
        assert reads(node, authority) == [0, 1, 2, 3]
        assert crowd.open_ones() > 0
        grown = took(node.process.pid).mb - before.mb
        eventually(lambda: crowd.open_ones() == 0, 60, "the node closes them")

    assert grown < GROWTH_MB
    eventually(
        lambda: took(node.process.pid).files <= before.files + FEW, 60, "descriptors are given back"
    )
    assert reads(node, authority) == [0, 1, 2, 3]


def test_a_port_takes_so_many_connections_and_no_more(node: Server, authority: Authority) -> None:
    """Beyond that they are closed at once: who reads goes on, and who comes later gets in."""
    before = took(node.process.pid)
    seen = [before]

    def closes_those_beyond() -> bool:
        seen.append(took(node.process.pid))
        return crowd.open_ones() <= MAX_CONNECTIONS

    with Reading(node, authority) as reading:
        with (
            room_for(MAX_CONNECTIONS + BEYOND),
            Crowd(node.address, MAX_CONNECTIONS + BEYOND, OPENINGS[:1]) as crowd,
        ):
            eventually(closes_those_beyond, 60, "those beyond it are closed")
            reading.goes_on()
        most = Took(*map(max, *seen))
        assert reads(node, authority) == [0, 1, 2, 3]
        reconnects = reading.end()

    assert most.files <= before.files + MAX_CONNECTIONS + FEW
    assert most.mb - before.mb < CROWD_MB
    assert reconnects == 0


def test_ten_thousand_connections_twice_cost_what_they_cost_once(
    node: Server, authority: Authority
) -> None:
    """A byte at a time, until the node has closed them all."""
    before, waves = took(node.process.pid), []

    with Reading(node, authority) as reading, room_for(TEN_THOUSAND):
        for _ in range(2):
            most = before
            with Crowd(node.address, TEN_THOUSAND, OPENINGS) as crowd:
                end = time.monotonic() + 60
                while crowd.open_ones():
                    assert time.monotonic() < end, f"{crowd.open_ones()} are open still"
                    crowd.say(1)
                    most = Took(*map(max, most, took(node.process.pid)))
                    reading.goes_on()
            waves.append(most)
        assert reads(node, authority) == [0, 1, 2, 3]
        reconnects = reading.end()

    assert max(wave.files for wave in waves) <= before.files + MAX_CONNECTIONS + FEW
    assert max(wave.mb for wave in waves) - before.mb < CROWD_MB
    # A reader has left: what malloc has kept is given back.
    eventually(
        lambda: took(node.process.pid).mb - before.mb < KEPT_MB, 60, "the memory is given back"
    )
    assert reconnects == 0
    assert not [line for line in node.lines if '"level": "error"' in line]


def test_what_is_no_http_costs_the_connection_alone(
    node: Server, authority: Authority, record_property: Callable[[str, object], None]
) -> None:
    """A port scan, and bytes that are right at first and then are not."""
    seed = random.randrange(1 << 32)
    record_property("seed", seed)
    draw = random.Random(seed)
    beginnings = (b"", PREFACE + SETTINGS, b"GET / HTTP/1.1\r\n\r\n", PREFACE[:10], HELLO)
    assert reads(node, authority) == [0, 1, 2, 3]
    before, lines = own_mb(node), len(node.lines)

    for _ in range(PIECES):
        junk = draw.randbytes(draw.choice((0, 1, 9, 100, 5000)))
        data = draw.choice(beginnings) + junk
        with contextlib.suppress(ConnectionError, ssl.SSLError), contextlib.ExitStack() as stack:
            connection = stack.enter_context(open_socket(node))
            if node.events("TLS") and draw.random() < 0.5:
                context = ssl.create_default_context(cafile=authority.path)
                context.set_alpn_protocols(["h2"])
                wrapped = context.wrap_socket(connection, server_hostname="127.0.0.1")
                connection = stack.enter_context(wrapped)
            connection.sendall(data)

    assert reads(node, authority) == [0, 1, 2, 3]
    assert own_mb(node) - before < GROWTH_MB
    assert [line for line in node.lines[lines:] if '"reader ' not in line] == []


def test_a_megabyte_of_metadata_is_refused(node: Server, authority: Authority) -> None:
    before, lines = own_mb(node), len(node.lines)
    if node.events("TLS"):
        credentials = grpc.ssl_channel_credentials(Path(authority.path).read_bytes())
        channel = grpc.secure_channel(node.address, credentials)
    else:
        channel = grpc.insecure_channel(node.address)
    with channel:
        call = channel.unary_unary("/penstock.wire.v1.Feed/Status")
        for _ in range(5):
            with pytest.raises(grpc.RpcError) as caught:
                call(b"", metadata=(("authorization", "Bearer " + "x" * (1 << 20)),), timeout=20)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    assert reads(node, authority) == [0, 1, 2, 3]
    assert own_mb(node) - before < GROWTH_MB
    assert [line for line in node.lines[lines:] if '"reader ' not in line] == []
