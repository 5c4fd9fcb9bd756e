"""The status page beyond the node's machine: over TLS, and to whoever shows a token."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from browser import CHROMIUM, browsing
from certificates import Authority, Pair
from harness import Server, run_command, serving, write_job_file
from invariants import eventually
from penstock.client import Loader, Tls
from penstock.server.access.callers import hash_of
from penstock.server.app import check_exposed
from penstock.server.jobs.load import load
from penstock.server.web.routes import FILE, policy
from penstock.wire.errors import InvalidJob, InvalidRequest

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="NOT RUN: chromium is not installed (Debian: apt install chromium)"
)

JOB: dict[str, Any] = {
    "lanes": 2,
    "source": {"type": "items", "items": [{"x": [n, n]} for n in range(40)]},
    "batch_size": 2,
}
JOBS = {"code": JOB, "secret": JOB}

TOKENS: dict[str, dict[str, Any]] = {
    "look": {"scopes": ["read"], "jobs": ["code"], "groups": ["run-*"]},
    "text": {"scopes": ["read+text"], "jobs": ["code"]},
    "boss": {"scopes": ["admin"]},
    "past": {"scopes": ["read+text"], "expires": "2020-01-31"},
}


def token_of(name: str) -> str:
    return f"pst_{name}-secret-of-the-test"


def write_tokens(folder: Path, *names: str) -> None:
    """Write the file of tokens."""
    listed = [
        {"name": name, "sha256": hash_of(token_of(name)), **TOKENS[name]}
        for name in names or TOKENS
    ]
    (folder / "tokens.yaml").write_text(yaml.safe_dump({"tokens": listed}))


class Reply(NamedTuple):
    """What a request is answered.

    Attributes:
        status: The status of HTTP.
        headers: By name, in lower case.
        text: The body.
    """

    status: int
    headers: dict[str, str]
    text: str


class Place(NamedTuple):
    """A node with a remote page.

    Attributes:
        node: It.
        ca: The authority that has signed its certificate.
        folder: Where its files are.
        remote: The address of the page.
        metrics: The address of the port of the metrics.
    """

    node: Server
    ca: Authority
    folder: Path
    remote: str
    metrics: str

    def context(self) -> ssl.SSLContext:
        """Return what a careful client verifies by."""
        return ssl.create_default_context(cafile=self.ca.path)

    def ask(self, path: str, method: str = "GET", **headers: str) -> Reply:
        """Send a request to the page."""
        host, port = self.remote.split(":")
        connection = http.client.HTTPSConnection(
            host, int(port), timeout=60, context=self.context()
        )
        try:
            connection.request(method, path, headers=headers)
            reply = connection.getresponse()
            found = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, found, reply.read().decode())
        finally:
            connection.close()

    def ask_as(self, name: str, path: str) -> Reply:
        """Send a request with a token."""
        return self.ask(path, Authorization=f"Bearer {token_of(name)}")

    def scrape(self, path: str = "/metrics", **headers: str) -> str:
        """Ask the port of the metrics, in plain HTTP and with no token."""
        request = urllib.request.Request(f"http://{self.metrics}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=60) as reply:
            return str(reply.read().decode())


def serve(folder: Path, ca: Authority, **settings: Any) -> Any:
    """Start a node with a remote page."""
    write_tokens(folder)
    found = {
        "tls": ca.sign("node")._asdict(),
        "tokens": "tokens.yaml",
        "metrics": "127.0.0.1:0",
        "remote_page": "127.0.0.1:0",
        **settings,
    }
    return serving(write_job_file(folder / "jobs.yaml", JOBS, **found))


def place_of(node: Server, ca: Authority, folder: Path) -> Place:
    [ready] = node.events("ready")
    return Place(node, ca, folder, ready["remote_page"], ready["metrics"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A node that all tests share; two groups read from it all the while."""
    folder = tmp_path_factory.mktemp("remote")
    ca = Authority(folder)
    shown = {"tls": Tls(ca=ca.path), "token": token_of("boss"), "rank": 0, "world_size": 1}
    over = threading.Event()
    with (
        serve(folder, ca) as node,
        Loader(node.address, "code", group="run-1", **shown) as one,
        Loader(node.address, "code", group="hidden", **shown) as other,
    ):
        batches = iter(one), iter(other)

        def train() -> None:
            while not over.wait(0.01):
                for each in batches:
                    next(each)

        thread = threading.Thread(target=train)
        thread.start()
        try:
            yield place_of(node, ca, folder)
        finally:
            over.set()
            thread.join()


FIGURES = ("/status.json", "/history.json")
BATCH = "/batch.json?job=code"


@pytest.mark.parametrize("path", [*FIGURES, BATCH])
def test_no_figure_is_for_who_shows_no_good_token(place: Place, path: str) -> None:
    """None, nobody's, one that has expired, one in the address or a cookie, another scheme."""
    token = token_of("text")
    between = "&" if "?" in path else "?"
    strangers: list[tuple[str, dict[str, str]]] = [
        (path, {}),
        (path, {"Authorization": "Bearer pst_nobody"}),
        (path, {"Authorization": f"Bearer {token_of('past')}"}),
        (path, {"Authorization": f"Bearer {token[:-1]}"}),
        (path, {"Authorization": f"Basic {token}"}),
        (path, {"Authorization": token}),
        (path, {"Authorization": "Bearer"}),
        (path, {"Authorization": "Bearer \xff\xfe"}),
        (path, {"Cookie": f"token={token}"}),
        (path, {"X-Forwarded-For": "127.0.0.1", "Host": "localhost"}),
        (f"{path}{between}token={token}&access_token={token}", {}),
    ]

    for asked, headers in strangers:
        reply = place.ask(asked, **headers)

        assert reply.status == 401, (asked, headers)
        assert reply.headers["www-authenticate"] == "Bearer"
        assert reply.text.endswith(" [unauthenticated]\n")
        assert "secret-of-the-test" not in reply.text
        assert "code" not in reply.text
    assert "secret-of-the-test" not in "".join(place.node.lines)


def test_a_token_shows_its_own_jobs_and_groups(place: Place) -> None:
    """In the status, the strip and the history."""
    eventually(
        lambda: len(json.loads(place.ask_as("boss", "/history.json").text)["samples"]) > 0,
        60,
        "a sample",
    )
    seen = {}
    for name in ("look", "boss"):
        now = json.loads(place.ask_as(name, "/status.json").text)
        past = json.loads(place.ask_as(name, "/history.json").text)
        seen[name] = (
            {job["name"] for job in now["status"]["jobs"]},
            {each["group"] for job in now["status"]["jobs"] for each in job["groups"]},
            set(now["strip"]),
            {job for sample in past["samples"] for job in sample["jobs"]},
        )

    both = {"code", "secret"}
    assert seen["look"] == ({"code"}, {"run-1"}, {"code"}, {"code"})
    assert seen["boss"] == (both, {"run-1", "hidden"}, both, both)


def test_texts_need_their_scope_and_the_job(place: Place) -> None:
    def batch() -> Any:
        return json.loads(place.ask_as("text", BATCH).text)["batch"]

    eventually(lambda: batch() is not None, 60, "a batch is in memory")
    refused = place.ask_as("look", BATCH)
    other = place.ask_as("text", "/batch.json?job=secret")
    admin = place.ask_as("boss", BATCH)

    assert (refused.status, other.status, admin.status) == (403, 403, 403)
    assert refused.text == (
        "'look' cannot see the texts of a batch: that needs the scope read+text, and it has read; "
        "ask the operator of the node [forbidden]\n"
    )
    assert "'text' is for jobs code, and not for job 'secret'" in other.text
    assert "it has read, commit, admin" in admin.text
    assert batch()["position"] >= 0


def test_the_page_itself_holds_no_figure_and_is_as_strict_as_at_home(place: Place) -> None:
    """It is the file of the repository; its policy has no exception for the form."""
    page = place.ask("/")

    assert (page.status, page.text) == (200, FILE.read_text())
    assert page.headers["content-security-policy"] == policy(FILE.read_text())
    assert "form-action 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    for path, name in (("/", None), (FIGURES[0], None), (FIGURES[0], "look"), (BATCH, "look")):
        reply = place.ask(path) if name is None else place.ask_as(name, path)
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"


def test_pages_of_others_get_nothing(place: Place) -> None:
    """A name that leads here asks for a token as any; no other origin may send or read one."""
    for headers in (
        {"Host": "evil.example"},
        {"Host": "localhost"},
        {"Host": "evil.example", "Origin": "https://evil.example"},
    ):
        assert place.ask(FIGURES[0], **headers).status == 401
    asked = {
        "Origin": "https://evil.example",
        "Access-Control-Request-Method": "GET",
        "Access-Control-Request-Headers": "authorization",
    }
    preflight = place.ask(FIGURES[0], "OPTIONS", **asked)
    good = place.ask(
        FIGURES[0], Origin="https://evil.example", Authorization=f"Bearer {token_of('look')}"
    )
    assert preflight.status == 405
    assert good.status == 200
    for reply in (preflight, good):
        assert not [name for name in reply.headers if name.startswith("access-control-")]
    for method in ("POST", "PUT", "DELETE"):
        assert place.ask(FIGURES[0], method).status == 405
    for path in ("/metrics", "/healthz", "/readyz", "/../jobs.yaml", "/tokens.yaml"):
        assert place.ask(path).status == 404


def test_the_port_of_the_metrics_is_as_without_it(place: Place) -> None:
    """Plain HTTP without a token for probes and Prometheus; the page for this machine alone."""
    for path in ("/metrics", "/healthz", "/readyz"):
        assert place.scrape(path, Host="node.example")
    assert place.scrape("/")
    assert json.loads(place.scrape("/status.json"))["status"]["jobs"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        place.scrape("/status.json", Host="node.example", Authorization=token_of("text"))
    with caught.value as refused:
        assert (refused.code, b"server.remote_page" in refused.read()) == (403, True)


def test_refusals_are_counted_by_the_names_of_tokens(place: Place) -> None:
    def refused(code: str, name: str) -> float:
        series = f'penstock_calls_refused_total{{code="{code}",token="{name}"}} '
        [line] = [each for each in place.scrape().splitlines() if each.startswith(series)]
        return float(line.split()[-1])

    kinds = (("unauthenticated", ""), ("unauthenticated", "past"), ("forbidden", "boss"))
    before = [refused(*kind) for kind in kinds]
    place.ask(FIGURES[0])
    place.ask_as("past", FIGURES[0])
    place.ask_as("boss", BATCH)
    assert [refused(*kind) for kind in kinds] == [count + 1 for count in before]


def test_nobody_reads_along(place: Place) -> None:
    """Plain HTTP gets no answer there, and TLS 1.2 no handshake."""
    url = f"http://{place.remote}/status.json"
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token_of('look')}"})
    with pytest.raises((OSError, http.client.HTTPException)):
        urllib.request.urlopen(request, timeout=60)
    context = place.context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError, match="SSL"):
        urllib.request.urlopen(f"https://{place.remote}/", timeout=60, context=context)


def test_no_session_is_resumed(place: Place) -> None:
    """It would show no certificate: who was let in once would be let in after a change."""
    host, port = place.remote.split(":")
    context = place.context()
    sessions = []
    for _ in range(2):
        before = sessions[-1] if sessions else None
        with (
            socket.create_connection((host, int(port)), timeout=60) as plain,
            context.wrap_socket(plain, server_hostname=host, session=before) as secure,
        ):
            secure.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert secure.recv(1 << 16).startswith(b"HTTP/1.1 200 ")  # tickets come before it
            sessions.append(secure.session)
            assert not secure.session_reused
            assert not secure.session.has_ticket


def shown_until(place: Place) -> str:
    """Return the last day of the certificate that a new connection gets."""
    host, port = place.remote.split(":")
    with (
        socket.create_connection((host, int(port)), timeout=60) as plain,
        place.context().wrap_socket(plain, server_hostname=host) as secure,
    ):
        found = secure.getpeercert()
        assert found is not None
        return str(found["notAfter"])


def test_certificates_and_tokens_change_while_the_node_runs(tmp_path: Path) -> None:
    """New connections get the new certificate; a token that was taken out is refused."""
    ca = Authority(tmp_path)
    with serve(tmp_path, ca) as node:
        place = place_of(node, ca, tmp_path)
        first = shown_until(place)
        pair = ca.sign("node", ends=timedelta(days=60))
        second = shown_until(place)
        Path(pair.key).write_text("no key")
        third = shown_until(place)
        with socket.create_connection(place.remote.split(":"), timeout=60):  # and stays silent
            assert place.ask_as("look", FIGURES[0]).status == 200
        write_tokens(tmp_path, "text")
        node.events("the file of tokens has changed", 1)

        assert place.ask_as("look", FIGURES[0]).status == 401
        assert place.ask_as("text", FIGURES[0]).status == 200
    assert first != second
    assert second == third


def test_a_node_that_asks_clients_for_certificates_asks_browsers_too(tmp_path: Path) -> None:
    """And for a token beside it; a changed authority holds for the next connection."""
    ca, other = Authority(tmp_path), Authority(tmp_path, "other")
    (tmp_path / "clients.pem").write_bytes(Path(ca.path).read_bytes())
    known, foreign = ca.sign("viewer", ["viewer"]), other.sign("foreign", ["x"])
    tls = {**ca.sign("node")._asdict(), "client_ca": "clients.pem"}
    with serve(tmp_path, ca, tls=tls) as node:
        place = place_of(node, ca, tmp_path)

        def look(pair: Pair | None, token: str = "look") -> int | None:
            """Return the status; None = the handshake has failed."""
            context = place.context()
            if pair is not None:
                context.load_cert_chain(pair.cert, pair.key)
            headers = {"Authorization": f"Bearer {token_of(token)}"}
            request = urllib.request.Request(f"https://{place.remote}/status.json", headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=60, context=context) as reply:
                    return int(reply.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code
            except OSError:
                return None

        found = [look(None), look(foreign), look(known), look(known, "nobody")]
        (tmp_path / "clients.pem").write_bytes(Path(other.path).read_bytes())
        changed = [look(known), look(foreign)]

    assert found == [None, None, 200, 401]
    assert changed == [None, 200]


def test_a_node_on_a_unix_socket_has_one_too(tmp_path: Path) -> None:
    """Readers on the socket are asked nothing, as ever; browsers elsewhere are."""
    ca = Authority(tmp_path)
    with serve(tmp_path, ca, listen=f"unix:{tmp_path}/node.sock") as node:
        with Loader(node.address, "code", rank=0, world_size=1) as loader:
            next(iter(loader))
        place = place_of(node, ca, tmp_path)

        assert place.ask(FIGURES[0]).status == 401
        assert place.ask_as("look", FIGURES[0]).status == 200


def test_it_is_served_without_a_port_for_metrics(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    with serve(tmp_path, ca, metrics="off") as node:
        place = place_of(node, ca, tmp_path)

        assert place.metrics is None
        assert place.ask_as("look", FIGURES[0]).status == 200


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {},
            r"server\.remote_page on 0\.0\.0\.0:9443 without TLS: tokens would travel .*cert: FILE",
        ),
        (
            {"tls": {"cert": "a", "key": "b"}},
            r"server\.remote_page on 0\.0\.0\.0:9443 without tokens: whoever .*penstockd token new",
        ),
        ({"tokens": "t.yaml"}, r"server\.remote_page on .* without TLS: tokens would travel"),
    ],
)
def test_without_tls_and_tokens_a_node_does_not_start(
    tmp_path: Path, settings: dict[str, Any], sentence: str
) -> None:
    """Not even on a Unix socket, and `insecure: true` is no excuse."""
    for more in ({}, {"listen": "unix:/tmp/x"}, {"insecure": True, "listen": "0.0.0.0:0"}):
        file = write_job_file(
            tmp_path / "jobs.yaml", JOBS, remote_page="0.0.0.0:9443", **{**settings, **more}
        )
        with pytest.raises(InvalidRequest, match=sentence):
            check_exposed(load(str(file), environ={}).server)


@pytest.mark.parametrize("address", ["9443", "unix:/tmp/page", "0.0.0.0:99999", ":9443", "yes"])
def test_an_address_that_cannot_be_is_refused(tmp_path: Path, address: str) -> None:
    file = write_job_file(tmp_path / "jobs.yaml", JOBS, remote_page=address)

    with pytest.raises(InvalidJob, match=r"server\.remote_page is .*: give an address: host:port"):
        load(str(file), environ={})


def test_a_port_that_is_taken_is_said_by_the_key(tmp_path: Path) -> None:
    ca = Authority(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        write_tokens(tmp_path)
        file = write_job_file(
            tmp_path / "jobs.yaml",
            JOBS,
            tls=ca.sign("node")._asdict(),
            tokens="tokens.yaml",
            remote_page=address,
        )

        done = run_command(["penstock.server.cli", "serve", str(file)])

    assert done.returncode != 0
    assert f"cannot serve the status page on {address}: " in done.stderr
    assert "give another server.remote_page (off for none) [port_in_use]" in done.stderr


# --- in a browser ---


@needs_chromium
async def test_a_browser_asks_for_a_token_and_keeps_it_to_itself(place: Place) -> None:
    """In no address, no report and no other tab; a reload keeps it, and a click forgets it."""
    url = f"https://{place.remote}"
    async with browsing() as tab:
        # Its authority is known to this test alone.
        await tab.call("Security.setIgnoreCertificateErrors", ignore=True)
        said = "document.getElementById('refused').innerText"
        figures = "document.getElementById('ranks').offsetParent"
        rows = "document.getElementById('rows').innerText"

        async def enter(token: str) -> None:
            await tab.until("document.activeElement.id === 'token'")
            await tab.run(f"document.getElementById('token').value = {json.dumps(token)}")
            await tab.press("Enter")

        await tab.open(f"{url}/")
        assert "asks for a token" in await tab.until(said)
        assert await tab.run(f"{figures} === null")
        await enter("not one token")
        await tab.until(f"{said}.includes('This is not a token')")
        await enter(token_of("nobody"))
        await tab.until(f"{said}.includes('is not one of this node')")
        assert await tab.run(f"{figures} === null && sessionStorage.length === 0")

        # Figures without texts.
        await enter(token_of("look"))
        await tab.until(f"{figures} !== null && document.getElementById('ranks').innerText")
        await tab.until(f"{rows}.includes('that needs the scope read+text')")
        assert await tab.run("document.getElementById('door').hidden")
        ranks = await tab.run("document.getElementById('ranks').innerText")
        assert ("run-1" in ranks, "hidden" in ranks) == (True, False)
        assert await tab.run("document.title") == "code · penstock"
        assert await tab.run("document.getElementById('token').value") == ""
        asked = len(tab.requested)
        await tab.until(
            "performance.getEntriesByType('resource').filter(e=>e.name.endsWith('/status.json'))"
            ".length > 2"
        )
        polled = [each for each in tab.requested[asked:] if "/batch.json" in each]
        assert polled == []  # what was refused is not asked for again

        # A click forgets it, another one shows texts, and a reload keeps that.
        await tab.run("document.getElementById('leave').click()")
        assert await tab.run(f"{figures} === null && sessionStorage.length === 0")
        await enter(token_of("text"))
        await tab.until(f"{rows}.includes('content')")
        await tab.open(f"{url}/")
        await tab.until(f"{rows}.includes('content')")
        await tab.run(
            "window.blobs=[]; const make=URL.createObjectURL;"
            "URL.createObjectURL=blob=>{window.blobs.push(blob);return make(blob)}"
        )
        await tab.run("document.getElementById('save').click()")
        report = await tab.until("window.blobs[0] && window.blobs[0].text()")
        await tab.run("document.getElementById('leave').click()")
        left = "document.getElementById('rows').textContent"
        assert await tab.run(f"{left}.includes('content')") is False

        assert "secret-of-the-test" not in report
        assert not [each for each in tab.requested if "secret-of-the-test" in each]
        assert [
            each for each in tab.requested if not each.startswith((url, "blob:", "data:"))
        ] == []
        # A browser complains about each 401 and 403 by itself; about nothing else.
        assert [
            each for each in tab.complaints if " 401 " not in each and " 403 " not in each
        ] == []
