"""TLS on a real node: who gets in, what everybody else is told, and certificates that change."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from cryptography.hazmat.primitives import serialization

from certificates import DAY, Authority, Pair
from harness import Server, call_command, serving, write_job_file
from invariants import eventually
from penstock.client import Loader, Tls
from penstock.client.calls.grpc_transport import open_transport
from penstock.client.calls.node_address import address_of
from penstock.common.certificates import MAX_FILE_BYTES, validity
from penstock.server.access.tls import NodeTls
from penstock.server.app import check_exposed
from penstock.server.jobs.load import load
from penstock.server.jobs.settings import TlsSettings
from penstock.wire.errors import InvalidJob, InvalidRequest, TlsFailed, Unreachable

JOBS: dict[str, Any] = {
    "small": {
        "lanes": 2,
        "source": {"type": "items", "items": [{"x": [n, n]} for n in range(40)]},
        "batch_size": 2,
    }
}


class Place(NamedTuple):
    """A folder with two authorities, and who has certificates of them."""

    folder: Path
    ca: Authority
    other: Authority
    client: Pair

    def node(self, name: str, **server: Any) -> Path:
        """Write a job file in a folder of its own, so that it has a store of its own."""
        folder = self.folder / name
        folder.mkdir()
        return write_job_file(folder / "penstock.yaml", JOBS, **server)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("tls")
    ca = Authority(folder)
    return Place(folder, ca, Authority(folder, "other"), ca.sign("trainer", ["trainer.local"]))


@pytest.fixture(scope="module")
def node(place: Place) -> Iterator[Server]:
    """A node that asks clients for certificates."""
    pair = place.ca.sign("node")
    tls = {**pair._asdict(), "client_ca": place.ca.path}
    with serving(place.node("mutual", tls=tls)) as server:
        yield server


def ask(target: str, tls: Tls | None) -> Exception | None:
    """Ask a node for its status, once; return what came in place of it."""
    transport = open_transport(address_of(target, tls, environ={}))
    try:
        transport.unary("Feed/Status", b"", 10)
    except Unreachable as error:
        return error
    finally:
        transport.close()
    return None


def test_a_rank_with_a_certificate_reads_and_commits(place: Place, node: Server) -> None:
    tls = Tls(ca=place.ca.path, cert=place.client.cert, key=place.client.key)

    with Loader(
        node.address, "small", group="g", tls=tls, rank=0, world_size=1, max_steps=None
    ) as loader:
        first = [batch.position for _, batch in zip(range(5), loader, strict=False)]
        cursor = loader.commit()

    assert first == list(range(5))
    assert cursor == 5


REFUSED: dict[str, tuple[Callable[[Place], Tls | None], str]] = {
    "without TLS": (
        lambda place: None,
        "speaks TLS, and this client does not: pass tls=",
    ),
    "another authority": (
        lambda place: Tls(ca=place.other.path),
        r"is signed by none of the authorities in .*other\.pem",
    ),
    "the public authorities": (
        lambda place: Tls(),
        "is signed by none of the public authorities",
    ),
    "another name": (
        lambda place: Tls(ca=place.ca.path, name="node.example"),
        r"is for 127\.0\.0\.1, localhost, and not for node\.example: .*name=",
    ),
    "no client certificate": (
        lambda place: Tls(ca=place.ca.path),
        "asks for a client certificate, and this client has none: pass Tls",
    ),
    "a client certificate of another authority": (
        lambda place: _client(place, place.other.sign("foreign", ["x"])),
        r"refuses the client certificate .*foreign\.crt: it is not signed by",
    ),
    "a client certificate that has expired": (
        lambda place: _client(place, place.ca.sign("late", ["x"], begins=-9 * DAY, ends=-DAY)),
        r"refuses the client certificate .*late\.crt, which has expired: it was valid until",
    ),
}


def _client(place: Place, pair: Pair) -> Tls:
    return Tls(ca=place.ca.path, cert=pair.cert, key=pair.key)


@pytest.mark.parametrize("who", REFUSED)
def test_who_is_not_let_in_is_told_why(place: Place, node: Server, who: str) -> None:
    """Of all of it gRPC says UNAVAILABLE."""
    made, sentence = REFUSED[who]

    error = ask(node.address, made(place))

    assert isinstance(error, TlsFailed)
    assert error.code == "tls_failed"
    assert re.search(sentence, error.message), error.message


def test_a_node_with_another_name_or_an_old_certificate_is_not_believed(place: Place) -> None:
    """A server of gRPC shows what `penstockd` would refuse to start with."""
    for name, dates, sentence in (
        ("old", {"begins": -9 * DAY, "ends": -DAY}, "has expired: it was valid until"),
        ("early", {"begins": DAY}, "is not valid yet: it begins at"),
    ):
        with gate(place.ca.sign(name, **dates)) as address:
            error = ask(address, Tls(ca=place.ca.path))

        assert isinstance(error, TlsFailed)
        assert f"the certificate of {address} {sentence}" in error.message


@contextlib.contextmanager
def gate(pair: Pair) -> Iterator[str]:
    """A port that speaks TLS with any certificate, and nothing else."""
    server = grpc.server(ThreadPoolExecutor(1))
    credentials = grpc.ssl_server_credentials(
        [(Path(pair.key).read_bytes(), Path(pair.cert).read_bytes())]
    )
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


def test_a_client_with_tls_is_told_of_a_node_without(place: Place) -> None:
    with serving(place.node("plain")) as server:
        error = ask(server.address, Tls(ca=place.ca.path))

    assert isinstance(error, TlsFailed)
    assert "does not speak TLS, and this client does: leave tls=" in error.message


def test_a_node_that_hangs_up_without_a_word_is_away_and_no_mistake(place: Place) -> None:
    """It is ending, or has no room for a connection: a client that is new tries again."""
    with socket.create_server(("127.0.0.1", 0)) as port, ThreadPoolExecutor(1) as pool:

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = port.accept()
                    with connection:
                        connection.recv(1 << 16)  # a ClientHello, so that this is no reset

        hanging = pool.submit(hang_up)
        error = ask(f"127.0.0.1:{port.getsockname()[1]}", Tls(ca=place.ca.path))
        port.shutdown(socket.SHUT_RDWR)
        hanging.result(60)

    assert type(error) is Unreachable


def test_a_mistake_in_tls_is_told_at_once(place: Place, node: Server) -> None:
    """Nobody waits for `deadline_s`: a command and a Loader end within seconds."""
    began = time.monotonic()
    said = call_command("penstock", "ping", node.address, "--timeout", "60")
    with pytest.raises(TlsFailed, match="speaks TLS"), Loader(node.address, "small") as loader:
        next(iter(loader))

    assert said.returncode == 1
    assert said.stderr.endswith("[tls_failed]\n")
    assert time.monotonic() - began < 30


def locked(key: str) -> bytes:
    """Return a key with a password, as many tools write one unless they are told not to."""
    return serialization.load_pem_private_key(Path(key).read_bytes(), None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"word"),
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"key": "none.key"}, r"server\.tls\.key: .*none\.key: it cannot be read \(No such file"),
        ({"cert": "junk"}, r"server\.tls\.cert: .*junk: it holds no certificate in PEM"),
        ({"key": "junk"}, r"server\.tls\.key: .*junk: it is not a private key in PEM"),
        ({"key": "trainer.key"}, r"server\.tls\.key: .*: it is not the key of .*good\.crt"),
        ({"key": "open.key"}, r"server\.tls\.key: .*: every user .* may read it: chmod o-rwx"),
        ({"cert": "past.crt", "key": "past.key"}, r"server\.tls\.cert: .* has expired: it was"),
        ({"cert": "next.crt", "key": "next.key"}, r"server\.tls\.cert: .* is not valid yet: it"),
        ({"key": "locked.key"}, r"server\.tls\.key: .*locked\.key: it has a password: give a key"),
        ({"cert": "large"}, r"server\.tls\.cert: .*large: it has more than 1 MiB"),
        ({"client_ca": "junk"}, r"server\.tls\.client_ca: .*: it holds no certificate"),
        ({"client_ca": "past.crt"}, r"server\.tls\.client_ca: .*its certificate has expired: it"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_refused_at_the_start(
    place: Place, tmp_path: Path, change: dict[str, str], sentence: str
) -> None:
    """Where the value stands, in one sentence."""
    ca = place.ca
    good, readable = ca.sign("good"), ca.sign("open")
    os.chmod(readable.key, 0o644)
    ca.sign("past", begins=-9 * DAY, ends=-DAY)
    ca.sign("next", begins=DAY)
    (place.folder / "junk").write_bytes(b"-----BEGIN CERTIFICATE-----\njunk\n")
    (place.folder / "large").write_bytes(Path(good.cert).read_bytes() + b"\n" * MAX_FILE_BYTES)
    (place.folder / "locked.key").write_bytes(locked(good.key))
    changed = {name: str(place.folder / file) for name, file in change.items()}
    if change.get("key") == "open.key":
        changed["cert"] = readable.cert
    settings = TlsSettings(**{**good._asdict(), **changed})

    with pytest.raises(InvalidJob, match=sentence):
        NodeTls(settings, tmp_path)


@pytest.mark.parametrize(
    ("tls", "sentence"),
    [
        ({"cert": "x"}, r"jobs\.yaml:2: server\.tls\.key is missing: give the path of a private"),
        ({"cert": "x", "key": "y", "keys": 1}, r"server\.tls\.keys is not a key of server\.tls"),
        ({"cert": "x", "key": "y", "min_version": 1.3}, r"min_version is 1\.3: give \"1\.2\" or"),
        ("on", r"server\.tls is 'on': give a certificate: \{cert: FILE, key: FILE"),
    ],
)
def test_a_section_that_is_wrong_is_refused_with_its_line(
    tmp_path: Path, tls: Any, sentence: str
) -> None:
    (tmp_path / "jobs.yaml").write_text(
        f"server:\n  tls: {json.dumps(tls)}\njobs: {json.dumps(JOBS)}\n"
    )

    with pytest.raises(InvalidJob, match=sentence):
        load(str(tmp_path / "jobs.yaml"), environ={})


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "node.example:50051"])
def test_beyond_this_machine_a_node_needs_tls_or_a_word(tmp_path: Path, listen: str) -> None:
    """It ends before its workers start, with what to do; `insecure: true` lets it warn instead."""
    file = write_job_file(tmp_path / "jobs.yaml", JOBS, listen=listen)
    with pytest.raises(InvalidRequest, match=r"listening on .* without TLS: .*insecure: true"):
        check_exposed(load(str(file), environ={}).server)
    check_exposed(load(str(file), environ={"PENSTOCK_INSECURE": "true"}).server)

    for near in ("127.0.0.1:0", "127.9.9.9:0", "localhost:0", "[::1]:0", "unix:/tmp/x"):
        check_exposed(load(str(file), overrides={"listen": near}, environ={}).server)


def test_an_open_node_says_that_it_is(place: Place) -> None:
    with serving(place.node("open", listen="0.0.0.0:0", insecure=True)) as server:
        [told] = server.events(
            "listening beyond this machine without TLS and without a token: whoever reaches the "
            "port can read every job and move every cursor; keep it inside a trusted network"
        )
    assert told["level"] == "warning"


def test_commands_take_certificates_by_flags_and_by_variables(place: Place, node: Server) -> None:
    flags = ("--tls-ca", place.ca.path, "--tls-cert", place.client.cert)
    flags = (*flags, "--tls-key", place.client.key)
    variables = {
        "PENSTOCK_TLS_CA": place.ca.path,
        "PENSTOCK_TLS_CERT": place.client.cert,
        "PENSTOCK_TLS_KEY": place.client.key,
    }

    for command in (
        ("ping", node.address),
        ("cat", node.address, "small", "--count", "2"),
        ("cat", node.address, "small", "--group", "c", "--commit", "--count", "2"),
        ("cursors", node.address, "small"),
        ("top", node.address, "--once", "--interval", "0.1"),
        ("bench", node.address, "small", "--seconds", "0.1", "--warm", "1"),
    ):
        at = command.index(node.address) + 1
        by_flags = call_command("penstock", *command[:at], *flags, *command[at:])
        assert by_flags.returncode == 0, by_flags.stderr
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        said = call_command("penstock", "ping", node.address)
        # A node of this machine, started or in this process, needs none of it.
        local = call_command("penstock", "cat", f"local:{node.file}", "small", "--count", "1")

    assert said.returncode == 0, said.stderr
    assert local.returncode == 0, local.stderr


@pytest.mark.parametrize(
    ("oldest", "ciphers", "spoken"),
    [
        ("1.2", "DEFAULT", True),
        ("1.2", "ECDHE-ECDSA-AES128-SHA", False),
        ("1.3", "DEFAULT", False),
    ],
)
def test_a_node_takes_the_oldest_version_that_it_is_told(
    place: Place, oldest: str, ciphers: str, spoken: bool
) -> None:
    """TLS 1.2 with ciphers that nobody doubts, or not at all; a Loader speaks 1.3."""
    tls = {**place.ca.sign("aged")._asdict(), "min_version": oldest}
    # Ciphers are chosen before gRPC is imported: a fresh interpreter.
    with serving(place.node(f"aged-{oldest}-{ciphers}", tls=tls), environment={}) as server:
        host, _, port = server.address.rpartition(":")
        context = ssl.create_default_context(cafile=place.ca.path)
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        context.set_ciphers(ciphers)
        version = None
        with (
            contextlib.suppress(ssl.SSLError, ConnectionError),
            socket.create_connection((host, int(port)), 10) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            version = connection.version()

        assert version == ("TLSv1.2" if spoken else None)
        assert ask(server.address, Tls(ca=place.ca.path)) is None


ROTATIONS = 50


def test_certificates_change_under_load_and_no_batch_is_lost(place: Place) -> None:
    """Open streams go on; new connections get the newest; a half-written pair changes nothing."""
    pair = place.ca.sign("turning")
    tls = Tls(ca=place.ca.path)
    with serving(place.node("turning", tls=pair._asdict(), metrics="127.0.0.1:0")) as server:
        with Loader(server.address, "small", tls=tls, rank=0, world_size=1) as loader:
            batches = iter(loader)
            taken = [next(batches).position]
            for turn in range(ROTATIONS):
                place.ca.sign("turning", ends=(40 + turn) * DAY)
                taken += [next(batches).position for _ in range(20)]
                eventually(
                    lambda: shown(server.address) == validity(Path(pair.cert).read_bytes()).ends,
                    30,
                    "new connections get the new certificate",
                )
                if turn % 10 == 0:
                    _half_written(place, server.address, pair)
            stats = loader.stats()
        told = server.events("the certificate has changed: new connections get it")
        left_s = metric(server, "penstock_certificate_expires_seconds")

    assert taken == list(range(1 + 20 * ROTATIONS))
    assert stats["reconnects"] == 0
    assert ROTATIONS <= len(told) <= ROTATIONS + ROTATIONS // 10
    assert abs(left_s / 86400 - (40 + ROTATIONS - 1)) < 0.1


def _half_written(place: Place, address: str, pair: Pair) -> None:
    """A certificate is there before its key: the pair before is shown, and then the new one."""
    before = shown(address)
    key = Path(pair.key).read_bytes()
    place.ca.sign("turning", ends=35 * DAY)
    new = Path(pair.key).read_bytes()
    Path(pair.key).write_bytes(key)
    assert shown(address) == before
    Path(pair.key).write_bytes(new)
    eventually(lambda: shown(address) != before, 30, "the new pair is shown")


def shown(address: str) -> datetime:
    """Return until when the certificate is valid that a new connection gets."""
    host, _, port = address.rpartition(":")
    return validity(ssl.get_server_certificate((host, int(port))).encode()).ends


def metric(server: Server, name: str) -> float:
    [event] = server.events("ready")
    with urllib.request.urlopen(f"http://{event['metrics']}/metrics") as answer:
        text = answer.read().decode()
    [line] = [line for line in text.splitlines() if line.startswith(name)]
    return float(line.split()[-1])


def test_a_client_reads_its_files_again_when_it_connects_again(place: Place) -> None:
    """The authority of nodes changes while a run reads: the run goes on after the node is back."""
    folder = place.folder / "moved"
    folder.mkdir()
    first, second = Authority(folder, "first"), Authority(folder, "second")
    known = folder / "known.pem"
    known.write_bytes(Path(first.path).read_bytes())
    pair = first.sign("node")
    file = write_job_file(folder / "penstock.yaml", JOBS, tls=pair._asdict())
    with serving(file) as server:
        port = server.address
        with Loader(port, "small", tls=Tls(ca=known), rank=0, world_size=1) as loader:
            batches = iter(loader)
            taken = [next(batches).position for _ in range(3)]
            server.terminate()
            second.sign("node")
            # It is back with a certificate that the client does not know yet.
            server.command += ["--listen", port]
            server.start()
            known.write_bytes(Path(second.path).read_bytes())
            taken += [next(batches).position for _ in range(30)]

    assert taken == list(range(33))
