"""Ranges of a web server that gives more than it is asked for."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.wire.errors import BadItem

MIB = 1 << 20


class TooMuch(BaseHTTPRequestHandler):
    """Gives 256 MiB, whatever range it is asked for."""

    def do_GET(self) -> None:
        """Give all with its length, or in chunks, or as a part of 8 bytes."""
        piece = b"01234567" * (MIB // 8)
        if self.path == "/length":
            self.send_response(200)
            self.send_header("Content-Length", str(256 * MIB))
        else:
            self.send_response(206 if self.path == "/part" else 200)
            if self.path == "/part":
                self.send_header("Content-Range", "bytes 0-7/8")
        self.end_headers()
        try:
            for _ in range(256):
                self.wfile.write(piece)
        except OSError:  # who asked has enough
            self.close_connection = True

    def log_message(self, *said: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TooMuch) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("path", ["length", "unknown", "part"])
def test_a_server_that_gives_too_much_takes_no_memory(address: str, path: str) -> None:
    """What it gives beyond the range is not kept, and what is too large is not read."""
    reader = MediaReader(MediaFiles(address, max_file_bytes=8 * MIB))
    tracemalloc.start()
    try:
        [medium] = reader.media([path])
        assert bytes(medium.head(8)) == b"01234567"
        if path != "part":
            with pytest.raises(BadItem, match=r"has [0-9,]+ bytes or more, and max_file_bytes"):
                medium.read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 * MIB
