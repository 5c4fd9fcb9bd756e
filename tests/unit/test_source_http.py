"""Files of a web server: a block is one request, and bytes of another version are refused."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.sources import JsonlSource, MetaSource, ParquetSource
from penstock.wire.errors import InvalidJob, SourceChanged, SourceUnavailable

ROWS = [{"n": n, "text": "x" * 30} for n in range(40)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


class Web(ThreadingHTTPServer):
    """A web server that gives ranges.

    Attributes:
        files: Content and version of each file, by path.
        tells: What it says of versions: `etag`, `weak`, `time` or nothing.
        compares: Whether it heeds `If-Match` and `If-Unmodified-Since`.
        tells_sizes: Whether it does.
        status: What it answers to everything; 0 = what is right.
        asked: The requests that came: method and path.
    """

    daemon_threads = True

    def __init__(self) -> None:
        self.files: dict[str, tuple[bytes, int]] = {}
        self.tells, self.compares, self.tells_sizes, self.status = "etag", True, True, 0
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, data: bytes) -> None:
        """Write a file, in a new version."""
        version = self.files.get(name, (b"", 0))[1] + 1
        self.files[name] = data, version


class _Answer(BaseHTTPRequestHandler):
    server: Web
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        found = self.server.files.get(self.path)
        if self.server.status or found is None:
            self._send(self.server.status or 404, {}, b"", with_body)
            return
        data, version = found
        tag, changed = f'"v{version}"', formatdate(10**9 + version, usegmt=True)
        told = {
            "etag": {"ETag": tag, "Last-Modified": changed},
            "weak": {"ETag": f"W/{tag}"},
            "time": {"Last-Modified": changed},
        }.get(self.server.tells, {})
        if self.server.compares and (
            self.headers.get("If-Match", tag) != tag
            or self.headers.get("If-Unmodified-Since", changed) != changed
        ):
            self._send(412, told, b"", with_body)
            return
        wanted = self.headers.get("Range")
        if wanted is None:
            self._send(200, told, data, with_body)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1]
        about = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        self._send(206, {**told, "Content-Range": about}, part, with_body)

    def _send(self, status: int, headers: dict[str, str], data: bytes, with_body: bool) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if self.server.tells_sizes:
            self.send_header("Content-Length", str(len(data)))
        else:
            self.send_header("Connection", "close")
        self.end_headers()
        if with_body:
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        server.put("/rows.jsonl", LINES)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("compares", [True, False])
@pytest.mark.parametrize("tells", ["etag", "weak", "time"])
def test_a_block_is_one_request_and_of_the_version_that_was_hashed(
    web: Web, tells: str, compares: bool
) -> None:
    """Whether the server heeds the condition, or only says what it gives."""
    web.tells, web.compares = tells, compares
    source = JsonlSource(f"{web.url}/rows.jsonl", block_bytes=500)
    source.identity()
    web.asked.clear()

    for number in (0, 12, 24):
        assert source.fetch([number]) == [ROWS[number]]
    assert web.asked == ["GET /rows.jsonl"] * 3

    web.put("/rows.jsonl", LINES)  # a copy of it: the same bytes
    assert source.fetch([36]) == [ROWS[36]]
    web.put("/rows.jsonl", LINES.replace(b"x", b"y"))
    source.keep_blocks(0)
    with pytest.raises(SourceChanged, match=r"rows\.jsonl changed under an open source"):
        source.fetch([12])
    assert "GET" in web.asked[-1]


def test_a_server_that_tells_no_version_is_known_by_its_sizes(web: Web) -> None:
    """More it does not say; one request tells that, too."""
    web.tells = ""
    source = JsonlSource(f"{web.url}/rows.jsonl", block_bytes=500)
    source.identity()
    web.asked.clear()

    assert source.fetch([12]) == [ROWS[12]]
    assert web.asked == ["GET /rows.jsonl"]
    web.put("/rows.jsonl", LINES + b"\n")
    with pytest.raises(SourceChanged):
        source.fetch([24])


def test_a_row_group_is_one_request(web: Web) -> None:
    """Once its file is open; nothing is asked beside it."""
    table = pa.Table.from_pylist(ROWS)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=10)
    web.put("/rows.parquet", sink.getvalue().to_pybytes())
    source = ParquetSource(f"{web.url}/rows.parquet")
    source.identity()
    source.fetch([0])
    web.asked.clear()

    assert [source.fetch([number]) for number in (10, 20, 30)] == [[ROWS[n]] for n in (10, 20, 30)]

    assert web.asked == ["GET /rows.parquet"] * 3
    web.put("/rows.parquet", sink.getvalue().to_pybytes()[::-1])
    source.keep_blocks(0)
    with pytest.raises(SourceChanged, match=r"rows\.parquet changed"):
        source.fetch([0])


@pytest.mark.parametrize("query", ["", "?X-Amz-Signature=0a1b", "?fields=*"])
def test_what_a_server_answers_is_told_as_what_it_is(query: str, web: Web) -> None:
    """No file, a refusal, and no answer are three things; only the first one is `no file`.

    What follows a question mark is the server's to read, and no pattern of names.
    """
    with pytest.raises(InvalidJob, match=r"no file matches 'http.*/none\.jsonl"):
        JsonlSource(f"{web.url}/none.jsonl{query}")
    web.status = 403
    with pytest.raises(InvalidJob, match=r"rows\.jsonl.* cannot be listed: .* answers 403"):
        JsonlSource(f"{web.url}/rows.jsonl{query}")
    web.status = 503
    with pytest.raises(SourceUnavailable, match=r"rows\.jsonl.* cannot be listed: no answer.*503"):
        JsonlSource(f"{web.url}/rows.jsonl{query}")
    with pytest.raises(SourceUnavailable, match=r"meta\.json cannot be read at the moment: 503"):
        MetaSource(f"{web.url}/meta.json")
    web.status, web.tells_sizes = 0, False
    web.put(f"/rows.jsonl{query}", LINES)
    with pytest.raises(InvalidJob, match="does not tell how large"):
        JsonlSource(f"{web.url}/rows.jsonl{query}")
    web.tells_sizes = True
    assert JsonlSource(f"{web.url}/rows.jsonl{query}").fetch([0]) == ROWS[:1]


@pytest.mark.parametrize("pattern", ["rows.jsonl", "rows.jsonl?sig=1", "*.jsonl"])
def test_a_connection_that_is_refused_is_no_missing_file(pattern: str) -> None:
    """Nobody listens: another attempt may succeed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{probe.getsockname()[1]}"

    with pytest.raises(SourceUnavailable, match=r"cannot be listed: .*(refused|Cannot connect)"):
        JsonlSource(f"{address}/{pattern}")


def test_a_listing_without_sizes_is_completed(web: Web) -> None:
    """A page of links says names alone: each file is asked for its size."""
    web.put("/", b'<a href="rows.jsonl">rows.jsonl</a>')

    source = JsonlSource(f"{web.url}/*.jsonl")

    assert len(source) == len(ROWS)
