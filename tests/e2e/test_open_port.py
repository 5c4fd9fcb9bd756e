"""What anybody may send to an open port: the node serves on, with flat memory."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from certificates import Authority
from harness import Server, serving, write_job_file
from penstock.client import Loader, Tls

HANGING, PIECES = 300, 400
GROWTH_MB = 40

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
    with serving(write_job_file(folder / "penstock.yaml", {"small": JOB}, tls=tls)) as server:
        yield server


def own_mb(server: Server) -> float:
    """Return the node's own memory, in MB."""
    text = Path(f"/proc/{server.process.pid}/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024


def reads(server: Server, authority: Authority) -> list[int]:
    """Read as a rank does; return the positions."""
    tls = Tls(ca=authority.path) if server.events("TLS") else None
    with Loader(server.address, "small", tls=tls, rank=0, world_size=1) as loader:
        return [batch.position for _, batch in zip(range(4), loader, strict=False)]


def open_socket(server: Server) -> socket.socket:
    host, _, port = server.address.rpartition(":")
    return socket.create_connection((host, int(port)), 20)


def test_connections_that_never_finish_a_handshake_keep_nobody_out(
    node: Server, authority: Authority
) -> None:
    """Silent ones, and ones that stop in the middle; they are closed after a while."""
    assert reads(node, authority) == [0, 1, 2, 3]
    before = own_mb(node)

    with contextlib.ExitStack() as stack:
        for number in range(HANGING):
            hanging = stack.enter_context(open_socket(node))
            if number % 3 == 0:
                hanging.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # a ClientHello begins so
        assert reads(node, authority) == [0, 1, 2, 3]
        grown = own_mb(node) - before

    assert grown < GROWTH_MB
    assert reads(node, authority) == [0, 1, 2, 3]


def test_what_is_no_http_costs_the_connection_alone(
    node: Server, authority: Authority, record_property: Callable[[str, object], None]
) -> None:
    """A port scan, and bytes that are right at first and then are not."""
    seed = random.randrange(1 << 32)
    record_property("seed", seed)
    draw = random.Random(seed)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    assert reads(node, authority) == [0, 1, 2, 3]
    before = own_mb(node)

    for _ in range(PIECES):
        junk = draw.randbytes(draw.choice((0, 1, 9, 100, 5000)))
        data = draw.choice((b"", preface, b"GET / HTTP/1.1\r\n\r\n", preface[:10])) + junk
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


def test_a_megabyte_of_metadata_is_refused(node: Server, authority: Authority) -> None:
    before = own_mb(node)
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
