"""A worker process seen from the server: what cannot be understood or started costs no waiting."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from msgspec import msgpack as pack

from penstock.server.core.refs import ItemRef
from penstock.server.node.node import Node
from penstock.server.node.protocol.channel import FROM_WORKER, encode
from penstock.server.node.protocol.message_port import SocketPort
from penstock.server.node.protocol.messages import FromWorker, Ready
from penstock.server.node.supply.program import Started
from penstock.server.node.supply.worker_process import WorkerProcess
from penstock.server.processes.page import PAGE_BYTES, Page
from penstock.server.processes.shared_memory import sealed_memory
from penstock.server.processes.start import start
from penstock.server.store import SqliteStore


def frame(rows: object) -> bytes:
    """Return the bytes of messages as they go over the socket."""
    data = pack.encode(rows)
    return struct.pack("<I", len(data)) + data


class Wired(WorkerProcess):
    """A worker whose end of the socket the test holds; its process only sleeps."""

    def _launch(self) -> Started:
        ours, self.theirs = socket.socketpair()
        fd = sealed_memory("page", PAGE_BYTES)
        page = Page(fd)
        os.close(fd)
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return Started(process, SocketPort(ours, FROM_WORKER), page)

    def close(self) -> None:
        """End the process."""
        super().close()
        self.theirs.close()


@pytest.mark.parametrize(
    "said",
    [frame([["NewArena", 0, 4096, None]]), b"\x02\0\0\0}{"],
    ids=["an arena without memory", "no message"],
)
async def test_a_worker_that_cannot_be_understood_is_gone(said: bytes) -> None:
    """It is said once, so that its tickets go to another."""
    heard: list[str] = []
    ready, gone = asyncio.Event(), asyncio.Event()

    def on_message(_worker: WorkerProcess, message: FromWorker) -> None:
        heard.append(type(message).__name__)
        ready.set()

    def on_death(_worker: WorkerProcess) -> None:
        heard.append("gone")
        gone.set()

    worker = Wired(0, on_message, on_death)
    worker.start(asyncio.get_running_loop())
    try:
        worker.theirs.sendall(encode([Ready()])[0])
        async with asyncio.timeout(30):
            await ready.wait()
            worker.theirs.sendall(said)
            await gone.wait()
        worker.kill()
        worker.process.wait()
        worker.notice_end()

        assert heard == ["Ready", "gone"]
        assert worker.dead
    finally:
        worker.kill()
        worker.close()


async def test_a_start_that_fails_leaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as the system refuses a process: no file descriptor stays open."""
    worker = WorkerProcess(0, lambda *_: None, lambda *_: None)
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    monkeypatch.setenv("SOMEBODY_SAID", "this")  # so that nothing is there which could fork it
    with pytest.raises(FileNotFoundError):
        worker.start(asyncio.get_running_loop())
    gc.collect()  # else what earlier tests left may be closed meanwhile
    before = sorted(os.listdir("/proc/self/fd"))

    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            worker.start(asyncio.get_running_loop())

    assert sorted(os.listdir("/proc/self/fd")) == before


def test_ctrl_c_does_not_end_a_process_that_still_starts(capfd: pytest.CaptureFixture[str]) -> None:
    """It reaches the whole terminal, and only the node says that it stops."""
    process, _page, ours = start("penstock.server.node.workers.worker_main")

    os.kill(process.pid, signal.SIGINT)
    ours.close()
    status = process.wait(60)

    assert (status, capfd.readouterr().err) == (0, "")


async def test_workers_that_do_not_listen_are_ended_together(tmp_path: Path) -> None:
    """All in the middle of something long: the node ends after one moment of grace, not many."""
    store = SqliteStore(tmp_path / "store.db")
    node = Node({}, store, workers=0, bound_bytes=0)
    loop = asyncio.get_running_loop()
    node.pool.workers = [Wired(number, lambda *_: None, lambda *_: None) for number in range(8)]
    for worker in node.workers:
        worker.start(loop)
    began = time.monotonic()

    await node.close()

    assert time.monotonic() - began < 8  # one after another they would take 16 s
    assert all(worker.process.poll() == -9 for worker in node.workers)


@pytest.mark.parametrize(
    "text", [b'["fetch"', b'["fetch", "code", 3, 5]', b'["fetch", "code", 3, ["a"]]', b"7"]
)
def test_a_torn_note_is_no_note(text: bytes, tmp_path: Path) -> None:
    """A note may be read while it is written: whatever it looks like, reading it is no error."""
    with (tmp_path / "page").open("w+b") as file:
        file.truncate(PAGE_BYTES)
        writer, reader = Page(file.fileno(), write=True), Page(file.fileno())
    writer.note("process", "code", 3, ItemRef("main", 5, 0))
    assert reader.read()[1:] == ("process", "code", 3, ItemRef("main", 5, 0))

    writer._map[12 : 12 + len(text)] = text
    writer._map[8:12] = len(text).to_bytes(4, "little")

    assert reader.read()[1:] == ("", None, None, None)
