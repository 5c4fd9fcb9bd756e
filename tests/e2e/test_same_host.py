"""Processes on the node's host borrow bodies instead of being sent them: same bytes, any end."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import itertools
import multiprocessing
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import ENVIRONMENT, Server, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.client.bodies import borrowing
from penstock.client.bodies.borrower_socket import NotLent
from penstock.client.bodies.borrowing import LOOK_EVERY, Borrower, borrowed_bytes
from penstock.client.bodies.buffers import BufferPool
from penstock.client.bodies.lent_arenas import MAX_MAPPINGS
from penstock.server.node.demand.room import GAVE_WAY
from penstock.server.node.workers.arena import ArenaWriter
from penstock.wire import LENT_BYTES
from penstock.wire import memory_socket as memory
from penstock.wire.errors import BadFrame
from penstock.wire.v1 import feed_pb2

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


def test_readers_that_ask_for_all_and_take_nothing_keep_no_memory(
    runtime: Path, tmp_path: Path
) -> None:
    """What is made for others is not kept for them, on either way, and is made again in time."""
    bound, largest = 1 << 20, 301_000
    file = job_file(tmp_path, f"unix:{runtime}/node.sock", ready_bytes=str(bound))
    with serving(file) as server:
        hoarder = Hoarder(server.address)
        stalled = server.read("job", horizon=1 << 30)
        try:
            hoarder.read(1)
            early = stalled.take(1)
            used: list[int] = []
            bodies: dict[int, bytes] = {}
            with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
                for batch in itertools.islice(loader, 200):
                    assert batch.body is not None
                    bodies[batch.position] = batch.body.tobytes()
                    if batch.position % 20 == 0:
                        status = server.status()
                        [job] = status["jobs"]
                        used.append(job["ready_bytes"] + job["kept_bytes"] + status["lent_bytes"])
                    early += stalled.take(1) if batch.position == 150 else []
            # Of 22 MB that were read. Each of three readers may be owed one batch above the bound,
            # and what is lent while it is kept counts twice in this sum.
            assert max(used) <= 2 * bound + 4 * largest, used
            server.events(GAVE_WAY, at_least=1)
            late = {batch.header.position: batch.body for batch in [*early, *stalled.take(100)]}
            assert len(late) == 102, "each came once"
            assert late.items() <= bodies.items()
        finally:
            stalled.cancel()
            hoarder.close()


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


def test_all_that_is_lent_together_stays_below_its_bound(server: Server) -> None:
    """And whoever comes later is lent something, however much the earlier ones hold."""
    hoarders: list[Hoarder] = []
    try:
        for _ in range(4):
            hoarders.append(Hoarder(server.address))
            hoarders[-1].read(40)
            assert hoarders[-1].lent > 0
            assert lent_bytes(server) <= READY // 2
    finally:
        for hoarder in hoarders:
            hoarder.close()


def test_who_only_connects_takes_no_share(server: Server) -> None:
    """Others are lent as much as without them."""
    silent = [connected(server.address) for _ in range(6)]
    hoarder = Hoarder(server.address)
    try:
        hoarder.read(60)
        [event] = server.events("a reader holds its share of what may be lent", at_least=1)
        assert event["limit_bytes"] == READY // 4
    finally:
        hoarder.close()
        for sock in silent:
            sock.close()


def test_a_node_without_files_lets_borrowers_in_later(server: Server) -> None:
    """It refuses them while it has some left, waits while it has none, and serves all the same."""
    pid, (_, hard) = server.process.pid, resource.getrlimit(resource.RLIMIT_NOFILE)
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    crowd: list[socket.socket] = []
    try:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, hard))
        crowd = [connected(server.address) for _ in range(17)]
        answer = memory.parse(crowd[-1].recv(4096))
        assert isinstance(answer, memory.Refusal)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
        crowd.append(connected(server.address))
        server.events("nobody can be let in to borrow", at_least=1)
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        for sock in crowd:
            sock.close()
    digests(server.address, 10)
    [event] = server.events("reader joined", at_least=1)
    assert event["bodies"] == "lent"


def test_a_file_of_somebody_else_is_left_alone(runtime: Path, tmp_path: Path) -> None:
    """The node sends its batches, and says why."""
    theirs = runtime / "node.sock.memory"
    theirs.write_text("mine")
    with serving(job_file(tmp_path, f"unix:{runtime}/node.sock")) as server:
        digests(server.address, 10)
        server.events("no memory socket; batches for this host are sent", at_least=1)
        assert server.terminate() == 0
    assert theirs.read_text() == "mine"


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_a_socket_that_somebody_listens_on_is_left_alone(
    runtime: Path, tmp_path: Path, kind: int
) -> None:
    """Of any kind, also where nobody accepts; and one that has the node's name when it ends."""
    path = runtime / "node.sock.memory"
    with socket.socket(socket.AF_UNIX, kind) as theirs:
        theirs.bind(str(path))
        theirs.listen(0)
        before = path.stat().st_ino
        with serving(job_file(tmp_path, f"unix:{runtime}/node.sock")) as server:
            digests(server.address, 10)
            [told] = server.events("no memory socket; batches for this host are sent", at_least=1)
            assert "another process listens there" in told["error"]
            assert server.terminate() == 0
        assert path.stat().st_ino == before
    with serving(job_file(tmp_path, f"unix:{runtime}/node.sock")) as server:
        digests(server.address, 10)  # theirs is dead now, and replaced
        path.unlink()
        with socket.socket(socket.AF_UNIX, kind) as theirs:
            theirs.bind(str(path))
            before = path.stat().st_ino
            assert server.terminate() == 0
            assert path.stat().st_ino == before


def test_a_node_that_comes_back_lends_again(server: Server) -> None:
    """A trainer that outlives its node is not sent its batches for the rest of its life."""
    expected = digests(server.address, 80)
    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
        batches = iter(loader)
        got = [batch_digest(next(batches)) for _ in range(40)]
        server.kill()
        server.start()
        got += [batch_digest(next(batches)) for _ in range(40)]
        assert got == expected
        eventually(
            lambda: [event["bodies"] for event in server.events("reader joined")][-1:] == ["lent"],
            30,
            "bodies are lent again",
        )


def test_a_collector_takes_no_more_files_and_mappings(server: Server) -> None:
    """Nor do programs that it starts have the node's memory."""
    expected = digests(server.address, 700)
    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(700)]
        mapped = Counter(fields[4] for fields in arenas_mapped())
        descriptors = [
            int(entry.name)
            for entry in Path("/proc/self/fd").iterdir()
            if "penstock-arena" in link(entry)
        ]
        # One more while a body is copied, on the feed's thread, just now.
        assert max(mapped.values()) <= MAX_MAPPINGS + 1
        assert not any(os.get_inheritable(number) for number in descriptors)
    assert [batch_digest(batch) for batch in held] == expected


def test_what_a_closed_loader_lent_is_freed_as_it_ends(server: Server) -> None:
    """One batch that is left does not keep the memory of all the others."""
    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True, prefetch=16) as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(15)]
    many = own_bytes()
    del held[:14], loader, batches
    gc.collect()
    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        assert own_bytes() <= max(400_000, many // 4)
    assert len(held) == 1


def test_memory_that_is_locked_is_not_lent_again(server: Server) -> None:
    """What a process locks stays its own, so the rest is sent, and every byte is right."""
    expected = digests(server.address, 100)
    system = ctypes.CDLL(None, use_errno=True)
    with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
        batches = iter(loader)
        batch = next(item for item in batches if item["x"].nbytes == 300_000)
        position = expected.index(batch_digest(batch)) + 1
        where = ctypes.c_void_p(batch["x"].ctypes.data)
        assert system.mlock(where, ctypes.c_size_t(300_000)) == 0
        del batch
        got = [batch_digest(next(batches)) for _ in range(position, 100)]
    assert got == expected[position:]


def test_a_process_without_files_is_sent_its_batches(runtime: Path) -> None:
    """The kernel drops a descriptor that does not fit: that is said, and is no broken message."""
    path = str(runtime / "node.sock.memory")
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(path)
    listening.listen()
    arena = ArenaWriter(0, 1 << 20)
    theirs: list[socket.socket] = []

    def serve() -> None:
        sock, _ = listening.accept()
        theirs.append(sock)
        sock.send(memory.pack(memory.Hello(b"t" * memory.TOKEN_BYTES)))
        socket.send_fds(sock, [memory.pack(memory.ArenaSent(1, 1 << 20))], [arena.fd])

    serving = threading.Thread(target=serve)
    serving.start()
    borrower = Borrower(path)
    serving.join()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with open(os.devnull) as next_free:
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_free.fileno(), before[1]))
        with pytest.raises(NotLent, match="ulimit -n"):
            borrower.take(feed_pb2.Lent(loan=1, arena=1), 70_000, BufferPool(1).lease)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        borrower.close()
        for sock in [listening, *theirs]:
            sock.close()
        os.close(arena.fd)


@pytest.mark.parametrize("what", ["pipe", "file", "arena twice"])
def test_what_is_no_memory_of_a_node_is_refused(runtime: Path, what: str) -> None:
    """Whoever listens there may hand over anything; no descriptor of it stays open."""
    path = str(runtime / "node.sock.memory")
    arena = ArenaWriter(0, 1 << 20)
    packet = memory.pack(memory.ArenaSent(1, 1 << 20))
    held = os.listdir("/proc/self/fd")
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening,
        tempfile.TemporaryFile() as file,
    ):
        listening.bind(path)
        listening.listen()
        ends = os.pipe()

        def serve() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.send(memory.pack(memory.Hello(b"t" * memory.TOKEN_BYTES)))
                if what == "arena twice":
                    socket.send_fds(sock, [packet], [arena.fd])
                given = {"pipe": ends[0], "file": file.fileno(), "arena twice": arena.fd}[what]
                socket.send_fds(sock, [packet], [given])
                sock.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        borrower = Borrower(path)
        wanted = 2 if what == "arena twice" else 1
        with pytest.raises(BadFrame, match=r"not memory|may become less|out of turn"):
            borrower.take(feed_pb2.Lent(loan=1, arena=wanted), 70_000, BufferPool(1).lease)
        borrower.close()
        serving.join()
        for end in ends:
            os.close(end)
    assert os.listdir("/proc/self/fd") == held
    os.close(arena.fd)


def test_an_arena_that_the_node_gave_up_is_given_up_here(runtime: Path) -> None:
    """Though nothing new is lent: its memory goes with the last process that has it."""
    path = str(runtime / "node.sock.memory")
    arena = ArenaWriter(0, 1 << 20)
    mapped = len(arenas_mapped())
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        told = threading.Event()

        def serve() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.send(memory.pack(memory.Hello(b"t" * memory.TOKEN_BYTES)))
                socket.send_fds(sock, [memory.pack(memory.ArenaSent(1, 1 << 20))], [arena.fd])
                sock.recv(memory.MAX_PACKET_BYTES)  # the loan comes back
                sock.send(memory.pack(memory.Gone(1)))
                told.set()
                sock.recv(1)

        serving = threading.Thread(target=serve)
        serving.start()
        pool = BufferPool(1)
        borrower = Borrower(path, pool)
        lease = borrower.take(feed_pb2.Lent(loan=1, arena=1), 70_000, pool.lease)
        assert borrowed_bytes(pool) >= 70_000
        assert borrowed_bytes(BufferPool(1)) == 0
        assert len(arenas_mapped()) == mapped + 1
        del lease
        assert borrowed_bytes(pool) == 0
        borrower.settle(0)
        assert told.wait(30)

        for _ in range(LOOK_EVERY):
            borrower.settle(0)

        assert len(arenas_mapped()) == mapped
        borrower.close()
        serving.join()
    os.close(arena.fd)


def test_who_borrows_never_waits_for_what_need_not_come(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node says nothing, and reads nothing until the end: each loan comes back to it once."""
    monkeypatch.setattr(borrowing, "ANSWER_S", 3600.0)  # a wait here would outlast the test
    path, loans = str(runtime / "node.sock.memory"), 12_000
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        reads, back = threading.Event(), Counter[int]()

        def serve() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.send(memory.pack(memory.Hello(b"t" * memory.TOKEN_BYTES)))
                reads.wait()
                while packet := sock.recv(memory.MAX_PACKET_BYTES):
                    back.update(memory.parse_returns(packet))

        serving = threading.Thread(target=serve)
        serving.start()
        borrower = Borrower(path)
        for loan in range(loans):
            borrower.refuse(feed_pb2.Lent(loan=loan, arena=1))
            borrower.settle(0)
        reads.set()

        def all_came_back() -> bool:
            borrower.settle(0)
            return len(back) == loans

        eventually(all_came_back, 60, "all loans have come back")
        borrower.close()
        serving.join()
    assert set(back.values()) == {1}


class FailsOnce:
    """An event of a device that fails as it is asked the first time, and has come to pass."""

    def __init__(self) -> None:
        self.asked = 0

    def query(self) -> bool:
        """Fail, or tell that it has come to pass."""
        self.asked += 1
        if self.asked == 1:
            raise OSError("the device is gone")
        return True


def test_a_device_that_fails_keeps_no_loan(runtime: Path) -> None:
    """What could not be asked is asked again, and the loan goes back then; others read on."""
    path = str(runtime / "node.sock.memory")
    arena = ArenaWriter(0, 1 << 20)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        returned: list[bytes] = []

        def serve() -> None:
            with listening.accept()[0] as sock:
                sock.send(memory.pack(memory.Hello(b"t" * memory.TOKEN_BYTES)))
                socket.send_fds(sock, [memory.pack(memory.ArenaSent(1, 1 << 20))], [arena.fd])
                returned.append(sock.recv(memory.MAX_PACKET_BYTES))

        serving = threading.Thread(target=serve)
        serving.start()
        pool = BufferPool(1)
        borrower = Borrower(path, pool)
        lease = borrower.take(feed_pb2.Lent(loan=1, arena=1), 70_000, pool.lease)
        event = FailsOnce()
        lease.events.append(event)
        del lease

        borrower.settle(4)
        assert event.asked == 1
        assert serving.is_alive()
        borrower.settle(4)

        serving.join(60)
        assert returned, "the loan is not given back"
        assert returned[0]
        borrower.close()
    os.close(arena.fd)


def test_statistics_know_of_what_is_lent(server: Server) -> None:
    """What the loop holds counts, whosever memory it is; a Loader has no part in another's."""
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "as_numpy": True}
    with (
        Loader(server.address, "job", prefetch=2, **options) as loader,
        Loader(server.address, "job", prefetch=2, **options) as other,
    ):
        batches = iter(loader)
        held = [next(batches) for _ in range(40)]
        nbytes = sum(batch["x"].nbytes for batch in held if batch["x"].nbytes >= LENT_BYTES)
        assert loader.stats()["pool_leased_bytes"] >= nbytes > 0
        next(iter(other))
        assert other.stats()["pool_leased_bytes"] < nbytes
        held.clear()
        eventually(
            lambda: loader.stats()["pool_leased_bytes"] < nbytes / 2, 30, "they are given back"
        )


def connected(target: str) -> socket.socket:
    """Return a connection to the node's memory socket that has said nothing."""
    path = memory.memory_path(target)
    assert path is not None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(30)
    sock.connect(path)
    return sock


def arenas_mapped() -> list[list[str]]:
    """Return the lines of this process's map that show a node's memory, in fields."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line.split() for line in lines if "penstock-arena" in line]


def own_bytes() -> int:
    """Return how many bytes this process has to itself where it has mapped a node's memory."""
    found, is_arena = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_arena = "penstock-arena" in line
        elif is_arena and line.startswith("Anonymous:"):
            found += int(line.split()[1]) << 10
    return found


def link(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except OSError:  # it was that of the folder itself
        return ""


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
