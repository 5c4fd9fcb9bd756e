"""Web servers that are silent, slow, endless, or lie: named errors, in bounded time and memory."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.server.files import patience
from penstock.server.media.file_medium import FileMedium
from penstock.server.media.media_files import MediaFiles
from penstock.server.media.media_reader import MediaReader
from penstock.server.sources.line_files import JsonlSource
from penstock.wire.errors import BadItem, PenstockError, SourceChanged, SourceUnavailable

DATA = bytes(range(256)) * 16
HEAD = b"HTTP/1.1 206 Partial Content\r\n"

Answer = Callable[["HostileServer", socket.socket, str], None]


class HostileServer:
    """Answers each request by a function of the test's, from a socket of its own.

    Attributes:
        url: Its address.
        asked: The requests, as they came.
        ended: The test is over: whatever waits may go on.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[str] = []
        self.ended = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> HostileServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # the test is over
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            request = b""
            try:
                while b"\r\n\r\n" not in request:
                    if not (more := connection.recv(1 << 16)):
                        return
                    request += more
                self.asked.append(request.decode())
                self._answer(self, connection, self.asked[-1])
            except OSError:  # whoever asked has enough
                return

    def drip(self, connection: socket.socket, piece: bytes) -> None:
        """Send a piece again and again, slowly, up to the test's end."""
        while not self.ended.wait(0.02):
            connection.sendall(piece)


def silent(server: HostileServer, connection: socket.socket, request: str) -> None:
    """Say nothing."""
    server.ended.wait(120)


def endless_headers(server: HostileServer, connection: socket.socket, request: str) -> None:
    """Begin, and never come to an end of the headers."""
    connection.sendall(HEAD)
    server.drip(connection, b"X: y\r\n")


def trickling(server: HostileServer, connection: socket.socket, request: str) -> None:
    """Give a byte at a time."""
    connection.sendall(
        HEAD + b"Content-Range: bytes 0-65535/65536\r\nContent-Length: 65536\r\n\r\n"
    )
    server.drip(connection, b"x")


def stopping(server: HostileServer, connection: socket.socket, request: str) -> None:
    """Give half of it fast, and then nothing."""
    connection.sendall(
        HEAD + b"Content-Range: bytes 0-65535/65536\r\nContent-Length: 65536\r\n\r\n"
    )
    connection.sendall(bytes(1 << 15))
    server.ended.wait(120)


def medium_of(url: str, **parameters: Any) -> FileMedium:
    """Return the only medium of a server."""
    [medium] = MediaReader(MediaFiles(url, **parameters)).media(["a.jpg"])
    assert isinstance(medium, FileMedium)
    return medium


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for half a second in place of half a minute."""
    monkeypatch.setattr(patience, "SILENT_S", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("answer", [silent, endless_headers, trickling, stopping])
def test_no_server_holds_up_a_read(answer: Answer) -> None:
    """Whatever it does in place of giving bytes: the reply fails, with how long it was waited."""
    with HostileServer(answer) as server:
        medium = medium_of(server.url)
        began = time.monotonic()
        with pytest.raises(SourceUnavailable) as caught:
            medium.head()
        waited_s = time.monotonic() - began

    said = caught.value.message
    assert f"{server.url}/a.jpg cannot be read at the moment: TimeoutError: " in said
    assert " bytes came in " in said
    assert "a reply may be silent for 0.5 s, and gives at least 16,384 bytes a second" in said
    assert waited_s < 60


async def test_a_slow_reply_that_goes_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is one of each moment and of the rate, and not of all of a reply."""
    loop = asyncio.get_running_loop()
    now = [loop.time()]
    monkeypatch.setattr(loop, "time", lambda: now[0])

    async def goes_on(pieces: int, nbytes: int, after_s: float) -> None:
        async with patience.ReplyClock() as clock:
            for _ in range(pieces):
                now[0] += after_s
                await asyncio.sleep(0)  # what is due by now
                await asyncio.sleep(0)  # comes before this goes on
                clock.count(nbytes)

    await goes_on(100, 1 << 20, 29)
    with pytest.raises(TimeoutError, match=r"and none in the last 31\.0 s; a reply may be silent"):
        await goes_on(100, 1 << 20, 31)
    with pytest.raises(
        TimeoutError, match=r"bytes came in .* gives at least 16,384 bytes a second"
    ):
        await goes_on(100, 16_000 * 10, 20)


@pytest.mark.usefixtures("impatient")
def test_sources_have_the_same_bound() -> None:
    """A silent server holds up neither the look at a file of a source, nor its reading."""
    with HostileServer(silent) as server, pytest.raises(SourceUnavailable) as caught:
        JsonlSource(f"{server.url}/items.jsonl")
    assert "it was waited for 1 s, and no whole reply came" in caught.value.message


def reply(head: str, body: bytes = b"", status: str = "206 Partial Content") -> Answer:
    """Return an answer of these headers."""

    def answer(server: HostileServer, connection: socket.socket, request: str) -> None:
        lines = head.replace("; ", "\r\n")
        connection.sendall(f"HTTP/1.1 {status}\r\n{lines}\r\n\r\n".encode() + body)

    return answer


@pytest.mark.parametrize(
    ("head", "said"),
    [
        ("Content-Range: bytes 8-4095/4096; Content-Length: 4088", "the part 'bytes 8-4095/4096'"),
        ("Content-Range: bytes 0-4095/*; Content-Length: 4096", "not tell how large the file is"),
        ("Content-Range: bytes 0-99/4096; Content-Length: 100", "the part 'bytes 0-99/4096'"),
        ("Content-Range: bytes 0-4095/10; Content-Length: 4096", "the part 'bytes 0-4095/10'"),
        ("Content-Length: 4096; Content-Range: nonsense", "the part 'nonsense'"),
        ("Content-Length: 4096", "the part 'none'"),
        ("Content-Range: bytes 0-4095/4096; Content-Length: 4000", "4,000 bytes came of the 4,096"),
        (
            "Content-Range: bytes 0-4095/4096; Content-Length: 4096; Content-Encoding: gzip",
            "gives it as 'gzip'",
        ),
    ],
)
def test_ranges_that_lie_are_no_bytes_of_the_file(head: str, said: str) -> None:
    """Another part than was asked for, or one of nobody knows what, is never taken for it."""
    length = int(head.partition("Length: ")[2].partition(";")[0] or 0)
    with (
        HostileServer(reply(head, DATA[:length])) as server,
        pytest.raises(SourceUnavailable) as caught,
    ):
        medium_of(server.url).head()
    assert said in caught.value.message


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified", "302 Found", "203 Odd"])
def test_replies_without_a_file_are_no_empty_file(status: str) -> None:
    """Only 200 and 206 give bytes of one."""
    with (
        HostileServer(reply('ETag: "a"; Content-Length: 0', status=status)) as server,
        pytest.raises(SourceUnavailable, match=f"the server answers {status}, and gives no file"),
    ):
        medium_of(server.url).read()


def test_an_endless_reply_is_counted_up_to_the_bound() -> None:
    """Of a reply in chunks without a length no more is read than a medium may have."""
    sent = threading.Event()
    counts = [0]

    def endless(server: HostileServer, connection: socket.socket, request: str) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while not server.ended.is_set():
                connection.sendall(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
                counts[0] += 1 << 16
        finally:
            sent.set()

    with HostileServer(endless) as server:
        medium = medium_of(server.url, max_file_bytes=1 << 20)
        with pytest.raises(BadItem, match="has 1,048,577 bytes or more, and max_file_bytes"):
            medium.read()
        assert sent.wait(60), "the server is left alone"
    assert counts[0] < 64 << 20  # what the kernel takes for a connection is beyond the bound


def test_a_file_that_changes_between_two_ranges_is_never_mixed() -> None:
    """The second range is asked for by the version of the first, and refused where it changed."""

    def changing(server: HostileServer, connection: socket.socket, request: str) -> None:
        asked = request.lower().partition("range: bytes=")[2].partition("\r\n")[0]
        first, last = map(int, asked.split("-"))
        last = min(last, (3 << 20) - 1)
        tag = len(server.asked)
        connection.sendall(
            HEAD
            + f'Content-Range: bytes {first}-{last}/{3 << 20}\r\nETag: W/"{tag}"\r\n'.encode()
            + f"Content-Length: {last + 1 - first}\r\n\r\n".encode()
            + bytes(last + 1 - first)
        )

    with HostileServer(changing) as server, pytest.raises(SourceChanged):
        medium_of(server.url).read()


@pytest.mark.parametrize(
    "target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x", "http://[", "/a"]
)
def test_redirects_lead_to_web_servers_alone(target: str) -> None:
    """Another scheme, no address, or a ring: nothing of it is followed."""
    with (
        HostileServer(
            reply(f"Location: {target}; Content-Length: 0", status="302 Found")
        ) as server,
        pytest.raises((BadItem, SourceUnavailable)) as caught,
    ):
        medium_of(server.url).read()
    assert "a.jpg cannot be read" in caught.value.message
    assert "root:" not in caught.value.message


def test_credentials_of_a_url_are_in_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a password nor what a query signs, whatever the server answers."""
    caplog.set_level(0)
    for answer in (
        reply("Content-Length: 0", status="404 Not Found"),
        reply("Content-Length: 0", status="503 Busy"),
        reply("Content-Length: 0", status="403 Forbidden"),
        reply("Content-Range: nonsense; Content-Length: 0"),
    ):
        with HostileServer(answer) as server:
            url = server.url.replace("http://", "http://user:secret1@")
            reader = MediaReader(MediaFiles(url))
            [medium] = reader.media([f"{url}/a.jpg?X-Amz-Signature=secret2&sig=secret3"])
            with pytest.raises(PenstockError) as caught:
                medium.read()
        assert "secret" not in str(caught.value)


def test_links_out_of_the_directory_are_its_owners(tmp_path: Path) -> None:
    """A link below it is followed, and .. in a name is not."""
    (tmp_path / "media").mkdir()
    (tmp_path / "out.jpg").write_bytes(DATA)
    (tmp_path / "media" / "in.jpg").symlink_to("../out.jpg")
    reader = MediaReader(MediaFiles(str(tmp_path / "media")))

    [medium] = reader.media(["in.jpg"])
    assert bytes(medium.read()) == DATA
    for name in ("../out.jpg", "x/../../out.jpg", "./../out.jpg", f"{tmp_path}/media/../out.jpg"):
        with pytest.raises(BadItem, match="lies outside of the directories of media"):
            reader.media([name])
