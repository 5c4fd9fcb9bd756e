"""Processes on the node's host borrow bodies instead of being sent them: same bytes, any end."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import ENVIRONMENT, Server, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.wire import memory

ROLES = """
import numpy

class Items:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        draws = numpy.random.default_rng(index)
        size = (1_000, 70_000, 300_000, 65_536)[index % 4]
        return {"n": numpy.int64(index), "x": draws.integers(0, 256, size, numpy.uint8)}

    def fingerprint(self):
        return "v1"
"""
LANES, READY = 4, 8 << 20


def job_file(folder: Path, listen: str, **server: Any) -> Path:
    """Write a job of four lanes; three bodies of four are large enough to be lent."""
    (folder / "data.py").write_text(ROLES)
    job = {
        "lanes": LANES,
        "source": {"type": "torch", "factory": "./data.py:Items"},
        "distributor": {"type": "map", "shuffle": "full"},
        "batch_size": 1,
    }
    server = {"listen": listen, "workers": 2, "ready_bytes": str(READY), **server}
    return write_job_file(folder / "jobs.yaml", {"job": job}, **server)


@pytest.fixture
def server(runtime: Path, tmp_path: Path) -> Iterator[Server]:
    """A node behind a Unix socket."""
    with serving(job_file(tmp_path, f"unix:{runtime}/node.sock")) as server:
        yield server


def batch_digest(batch: dict[str, Any]) -> str:
    """Return a hash of the item's bytes: each has its own."""
    return hashlib.sha1(batch["x"]).hexdigest()


def digests(target: str, count: int, **options: Any) -> list[str]:
    with Loader(target, "job", rank=0, world_size=1, as_numpy=True, **options) as loader:
        batches = iter(loader)
        return [batch_digest(next(batches)) for _ in range(count)]


def lent_bytes(server: Server) -> int:
    return int(server.status()["lent_bytes"])


def is_settled(server: Server) -> bool:
    return lent_bytes(server) == 0


def test_lent_batches_are_those_that_are_sent(server: Server, tmp_path: Path) -> None:
    """Byte for byte, and the node's log says which way they went."""
    (tmp_path / "wire").mkdir()
    with serving(job_file(tmp_path / "wire", "127.0.0.1:0")) as wire:
        sent = digests(wire.address, 200)
        [event] = wire.events("reader joined", at_least=1)
        assert event["bodies"] == "sent"

    assert digests(server.address, 200) == sent
    [event] = server.events("reader joined", at_least=1)
    assert event["bodies"] == "lent"
    eventually(lambda: is_settled(server), 30, "everything has come back")


def test_what_is_held_stays_as_it_was_and_fills_no_arena(server: Server) -> None:
    """A consumer that keeps every batch has them in its own memory, and the node gets its back."""
    expected = digests(server.address, 120)
    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(120)]
        largest = 300_000 + 1000
        # What waits for it, what it may hold, and what comes back with the next message.
        assert lent_bytes(server) <= (4 + 4 + 5) * largest
        assert [batch_digest(batch) for batch in held] == expected
    assert [batch_digest(batch) for batch in held] == expected, "after the Loader is closed, too"
    eventually(lambda: is_settled(server), 30, "everything has come back")


def test_who_writes_into_a_batch_writes_for_himself(server: Server) -> None:
    """Two ranks read the same, and one zeroes all that it gets; memory is used again and again."""
    expected = digests(server.address, 100)
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "as_numpy": True}
    with (
        Loader(server.address, "job", group="a", **options) as writing,
        Loader(server.address, "job", group="b", **options) as reading,
    ):
        ours, theirs = iter(writing), iter(reading)
        for number in range(100):
            batch = next(ours)
            got = batch_digest(batch)
            batch["x"][...] = 0
            assert (number, got) == (number, expected[number])
            assert (number, batch_digest(next(theirs))) == (number, expected[number])


def test_a_forked_child_sees_what_its_parent_saw(server: Server) -> None:
    """Also when the parent has long given it back, and the node has written there."""
    context = multiprocessing.get_context("fork")
    expected = digests(server.address, 8)
    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(8)]
        ours, theirs = context.Pipe()

        def child(held: list[dict[str, Any]]) -> None:
            theirs.recv()
            theirs.send([batch_digest(batch) for batch in held])
            theirs.recv()
            os._exit(0)

        process = context.Process(target=child, args=(held,))
        process.start()
        del held
        for _ in range(200):
            next(batches)
        ours.send("look")
        assert ours.poll(60)
        assert ours.recv() == expected
    ours.send("end")
    process.join(60)
    assert process.exitcode == 0


def test_a_laggard_that_holds_its_share_slows_nobody(runtime: Path, tmp_path: Path) -> None:
    """A process that gives nothing back is sent what is above its share; another one reads on."""
    file = job_file(tmp_path, f"unix:{runtime}/node.sock", ready_bytes=str(1 << 20))
    with serving(file) as server:
        hoarder = Hoarder(server.address)
        try:
            hoarder.read(40)
            assert hoarder.lent > 0
            assert hoarder.sent > 0, "its share is all that it is lent"
            assert lent_bytes(server) <= (1 << 20) // 2
            [event] = server.events("a reader holds its share of what may be lent", at_least=1)
            assert event["lent_bytes"] <= event["limit_bytes"]
            digests(server.address, 150)
        finally:
            hoarder.close()
        eventually(lambda: is_settled(server), 30, "the end of its connection gives all back")


def test_a_consumer_that_returns_what_it_has_not_borrowed_is_lent_no_more(server: Server) -> None:
    """And what it holds stays as it is until it hangs up."""
    hoarder = Hoarder(server.address)
    try:
        hoarder.read(4)
        hoarder.sock.send(memory.pack_returns([1 << 40]))
        server.events("a consumer gives back what it has not borrowed", at_least=1)
        held = lent_bytes(server)
        assert held > 0
        hoarder.sock.send(memory.pack_returns([1]))
        hoarder.read(4)
        assert lent_bytes(server) == held
    finally:
        hoarder.close()
    eventually(lambda: is_settled(server), 30, "the end of its connection gives all back")


class Hoarder:
    """A consumer that speaks the protocol by generated stubs and sockets, and returns nothing."""

    def __init__(self, target: str) -> None:
        import grpc

        from penstock.wire import PROTOCOL
        from penstock.wire.v1 import feed_pb2, feed_pb2_grpc

        self.lent = self.sent = 0
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = memory.memory_path(target)
        assert path is not None
        self.sock.connect(path)
        hello = memory.parse(self.sock.recv(4096))
        assert isinstance(hello, memory.Hello)
        self._channel = grpc.insecure_channel(target)
        opening = feed_pb2.Open(
            protocol=PROTOCOL, job="job", horizon=1 << 30, borrower=hello.token, bytes_limit=0
        )
        stub = feed_pb2_grpc.FeedStub(self._channel)  # type: ignore[no-untyped-call]
        self._replies = stub.Read(iter([feed_pb2.ReadRequest(open=opening)]))

    def read(self, count: int) -> None:
        """Read until so many batches were lent or sent."""
        goal = self.lent + self.sent + count
        for reply in self._replies:
            self.lent += reply.HasField("lent")
            self.sent += reply.HasField("header") and not reply.HasField("lent")
            if self.lent + self.sent >= goal:
                return

    def close(self) -> None:
        """Hang up on both."""
        self._replies.cancel()
        self._channel.close()
        self.sock.close()


READER = """
import sys
from penstock.client import Loader
import hashlib

target, start = sys.argv[1], int(sys.argv[2])
with Loader(target, "job", rank=0, world_size=1, as_numpy=True, start=start) as loader:
    held = []
    for position, batch in enumerate(loader, start):
        held = held[-6:] + [(position, batch)]
        for at, one in held:
            print(at, hashlib.sha1(one["x"]).hexdigest(), flush=True)
"""


def test_kills_of_all_three_leave_nothing_lent_and_no_wrong_byte(
    runtime: Path, tmp_path: Path
) -> None:
    """Client, worker or server, by SIGKILL, at random moments; what was held is looked at again."""
    kills = int(os.environ.get("TEST_KILLS", "12"))
    seed = int(os.environ.get("TEST_SEED", "7"))
    rng = random.Random(seed)
    listen = f"unix:{runtime}/node.sock"
    file = job_file(tmp_path, listen)
    with serving(file) as server:
        expected = digests(server.address, 400)
        reader, start = None, 0
        try:
            for number in range(kills):
                if reader is None:
                    start = rng.randrange(0, 200)
                    reader = read_from(server.address, start)
                assert reader.stdout is not None
                for _ in range(rng.randrange(1, 60)):
                    line = reader.stdout.readline().split()
                    assert line, f"the reader ended, seed {seed}, kill {number}"
                    at, digest = int(line[0]), line[1]
                    assert (at, digest) == (at, expected[at]), f"seed {seed}, kill {number}"
                victim = rng.choice(["client", "worker", "server"])
                if victim == "client":
                    reader.kill()
                    reader.wait()
                    reader.stdout.close()
                    reader = None
                    eventually(lambda: is_settled(server), 60, f"all is back, seed {seed}")
                elif victim == "worker":
                    pids = server.worker_pids()
                    if pids:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(rng.choice(pids), signal.SIGKILL)
                else:
                    server.process.kill()
                    server.process.wait()
                    server.start()
        finally:
            if reader is not None:
                reader.kill()
                reader.wait()
                assert reader.stdout is not None
                reader.stdout.close()
        eventually(lambda: is_settled(server), 60, f"nothing stays lent, seed {seed}")


def read_from(target: str, start: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", READER, target, str(start)],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )


def test_memory_and_descriptors_stay_flat(server: Server) -> None:
    """Of the client, the server and its workers, however many batches were lent."""
    rounds = int(os.environ.get("TEST_LENT_BATCHES", "1600")) // 2

    def count(pid: int) -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
        batches = iter(loader)
        for _ in range(rounds):
            next(batches)
        pids = [os.getpid(), server.process.pid, *server.worker_pids()]
        before = {pid: count(pid) for pid in pids}
        mapped = Path("/proc/self/maps").read_text().count("penstock-arena")
        for _ in range(rounds):
            next(batches)
        after = {pid: count(pid) for pid in pids}
        assert all(after[pid] <= before[pid] + 2 for pid in pids), (before, after)
        assert Path("/proc/self/maps").read_text().count("penstock-arena") <= mapped + 1
        assert lent_bytes(server) <= 12 * 301_000


def test_another_user_is_sent_what_he_reads(server: Server) -> None:
    """The socket says why, and the Loader reads on."""
    path = memory.memory_path(server.address)
    assert path is not None
    os.unlink(path)
    stand_in = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stand_in.bind(path)
    stand_in.listen(4)
    try:
        import threading

        def refuse() -> None:
            with contextlib.suppress(OSError):
                while True:
                    found, _ = stand_in.accept()
                    found.send(memory.pack(memory.Refusal("the node runs as user 1000")))
                    found.close()

        threading.Thread(target=refuse, daemon=True).start()
        got = digests(server.address, 10)
        [event] = server.events("reader joined", at_least=1)
        assert event["bodies"] == "sent"
        assert len(set(got)) == 10
    finally:
        stand_in.shutdown(socket.SHUT_RDWR)
        stand_in.close()
