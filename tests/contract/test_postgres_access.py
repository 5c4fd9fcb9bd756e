"""How a node is let into PostgreSQL: TLS, files of passwords, services; and no secret is shown."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import psycopg
import pytest

import ports
import postgres
from certificates import Authority
from harness import Server, children, serving, write_job_file
from penstock.server.store import open_store
from penstock.wire.errors import StoreUnavailable

SECRET = "open-sesame"


class Guarded(NamedTuple):
    """A server that lets nobody in by TCP but with TLS and a password.

    Attributes:
        address: Where it listens.
        ca: The file of the authority that signed its certificate.
        passfile: A file that has the password of its role `trainer`.
    """

    address: str
    ca: str
    passfile: Path

    def url(self, *options: str, host: str = "localhost") -> str:
        """Return an address of it."""
        given = "&".join((f"passfile={self.passfile}", *options))
        return f"postgresql://trainer@{host}:{self.address.partition(':')[2]}/postgres?{given}"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Debian's server, since that of PyPI has no TLS."""
    folder = tmp_path_factory.mktemp("guarded")
    server = postgres.own_server_15()
    try:
        port, ca = ports.free_port(), Authority(folder)
        pair = ca.sign("db", ["localhost"])
        for source, name in ((pair.cert, "server.crt"), (pair.key, "server.key")):
            put = server.folder / name
            put.write_bytes(Path(source).read_bytes())
            put.chmod(0o600)
            if os.geteuid() == 0:
                nobody = pwd.getpwnam("nobody")
                os.chown(put, nobody.pw_uid, nobody.pw_gid)
        with Path(server.data, "postgresql.conf").open("a") as settings:
            settings.write(
                f"listen_addresses = 'localhost'\nport = {port}\nssl = on\n"
                f"ssl_cert_file = '{server.folder}/server.crt'\n"
                f"ssl_key_file = '{server.folder}/server.key'\n"
            )
        rules = "local all all trust\nhostssl all all all scram-sha-256\n"
        Path(server.data, "pg_hba.conf").write_text(rules)
        server.stop("fast")
        server.start()
        with psycopg.connect(f"{server.url}&port={port}", autocommit=True) as connection:
            connection.execute(f"CREATE ROLE trainer LOGIN PASSWORD '{SECRET}'")
            connection.execute("GRANT CREATE ON DATABASE postgres TO trainer")
        passfile = folder / "pgpass"
        passfile.write_text(f"localhost:{port}:*:trainer:{SECRET}\n")
        passfile.chmod(0o600)
        yield Guarded(f"localhost:{port}", ca.path, passfile)
    finally:
        server.end()


async def used(url: str) -> str:
    """Open a store and close it; return what it says of its place."""
    store = open_store(url, Path())
    await store.open()
    await store.close()
    return store.where


async def refused(url: str) -> str:
    """Return why a store cannot be opened."""
    with pytest.raises(StoreUnavailable) as caught:
        await used(url)
    assert SECRET not in caught.value.message
    return caught.value.message


async def test_a_server_is_checked_by_its_certificate(guarded: Guarded, tmp_path: Path) -> None:
    """Each refusal says which check failed, and what to name."""
    other = Authority(tmp_path, "other")
    checked = "sslmode=verify-full"
    remedy = "name the file of the authority that signed the server's certificate by sslrootcert"

    assert guarded.address in await used(guarded.url(checked, f"sslrootcert={guarded.ca}"))
    by_other = await refused(guarded.url(checked, f"sslrootcert={other.path}"))
    no_file = await refused(guarded.url(checked, f"sslrootcert={tmp_path}/none.pem"))
    elsewhere = await refused(guarded.url(checked, f"sslrootcert={guarded.ca}", host="127.0.0.1"))

    assert "certificate verify failed" in by_other
    assert f"{tmp_path}/none.pem" in no_file
    assert 'does not match host name "127.0.0.1"' in elsewhere
    assert all(remedy in said for said in (by_other, no_file, elsewhere))


async def test_a_server_that_wants_tls_says_so(guarded: Guarded) -> None:
    """And the sentence says how to ask for it."""
    said = await refused(guarded.url("sslmode=disable"))

    assert "no pg_hba.conf entry" in said
    assert said.endswith("or connect as it asks, say with sslmode=require")


async def test_a_server_without_tls_is_named() -> None:
    """Where the address demands it."""
    port = ports.free_port()
    server = postgres.own_server(settings=["listen_addresses = 'localhost'", f"port = {port}"])
    try:
        said = await refused(f"postgresql://postgres@localhost:{port}/postgres?sslmode=require")
    finally:
        server.end()

    assert "server does not support SSL, but SSL was required" in said
    assert "turn TLS on in the server" in said


async def test_a_password_file_that_others_may_read_is_not_used(
    guarded: Guarded, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is ignored; the sentence says who may read it."""
    open_to_all = tmp_path / "pgpass"
    open_to_all.write_bytes(guarded.passfile.read_bytes())
    open_to_all.chmod(0o644)

    said = await refused(guarded._replace(passfile=open_to_all).url())

    assert "no password supplied" in said
    assert "which its owner alone may read" in said
    assert SECRET not in "".join(capfd.readouterr())


async def test_a_service_names_all_of_it(
    guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Host, role and password come from its file; one that is not there is said."""
    host, _, port = guarded.address.partition(":")
    file = tmp_path / "services"
    file.write_text(
        f"[prod]\nhost={host}\nport={port}\nuser=trainer\ndbname=postgres\n"
        f"sslmode=verify-full\nsslrootcert={guarded.ca}\npassfile={guarded.passfile}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(file))

    assert "service prod" in await used("postgresql:///?service=prod")
    other = await refused("postgresql:///?service=test")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "none"))
    no_file = await refused("postgresql:///?service=prod")

    assert 'definition of service "test" not found' in other
    assert str(tmp_path / "none") in no_file
    assert all("name one that the file of PGSERVICEFILE has" in said for said in (other, no_file))


@pytest.mark.parametrize("by", ["PENSTOCK_STORE", "PGPASSWORD", "PGPASSFILE"])
def test_a_node_shows_its_password_nowhere(guarded: Guarded, tmp_path: Path, by: str) -> None:
    """Neither in the arguments of its processes, nor in its log, its status and its metrics."""
    url = f"postgresql://trainer@{guarded.address}/postgres"
    environment = {"PENSTOCK_STORE": url}
    if by == "PENSTOCK_STORE":
        environment["PENSTOCK_STORE"] = url.replace("@", f":{SECRET}@")
    elif by == "PGPASSWORD":
        environment["PGPASSWORD"] = SECRET
    else:
        environment["PGPASSFILE"] = str(guarded.passfile)
    job = {"source": {"type": "items", "items": [{"n": 1}]}, "batch_size": 1}
    file = write_job_file(tmp_path / "penstock.yaml", {"numbers": job}, metrics="127.0.0.1:0")

    with serving(file, environment=environment) as node:
        node.read("numbers", group="", horizon=1).take(1)
        with urlopen(f"http://{_metrics(node)}/metrics", timeout=60) as answer:
            shown = [answer.read().decode(), json.dumps(node.status())]
        zygotes = children(node.process.pid, zygotes=True)
        processes = [node.process.pid, *zygotes, *node.worker_pids()]
        shown += [Path(f"/proc/{pid}/cmdline").read_text() for pid in processes]

    assert len(processes) >= 2
    assert all(SECRET not in text for text in [*shown, *node.lines])


def _metrics(node: Server) -> str:
    """Return where a node's metrics are."""
    [ready] = node.events("ready")
    return str(ready["metrics"])
