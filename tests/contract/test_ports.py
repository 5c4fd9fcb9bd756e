"""One contract for whatever joins the server process and a worker: a socket, or memory."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, get_args

import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.core.verdict import Verdict
from penstock.server.node.protocol.channel import FROM_SERVER, FROM_WORKER, ProtocolError
from penstock.server.node.protocol.message_port import MessagePort, SocketPort
from penstock.server.node.protocol.messages import (
    Body,
    CloseLine,
    Free,
    FromServer,
    FromWorker,
    LineSnapshot,
    MakeSooner,
    NewArena,
    OpenLine,
    Ready,
    Snapshot,
    Verified,
    Warned,
)
from penstock.server.node.workers.arena import ArenaWriter
from penstock.server.processes.shared_memory import Descriptor
from unit.memory_port import memory_ports

Ends = tuple[MessagePort[Any, Any], MessagePort[Any, Any]]

VERDICT = Verdict(
    "exit", ItemRef("main", 3, 1), "00ff", "ValueError: \u2028 ü ✓", True, 1, 2, 3, 4, 5
)

VALUES: dict[str, tuple[Any, Any]] = {
    "Whole": (0, (1 << 63) - 1),
    "Whole | None": (None, 7),
    "bool": (False, True),
    "str": ("", "\u2028 ü ✓"),
    "bytes": (b"", bytes(range(256))),
    "bytes | None": (None, b""),
    "tuple[tuple[Whole, Whole], ...]": ((), ((0, 64), (1, 0))),
    "Header": (b"", b"header"),
    "Plans": ((b"",), (b"", b"plan", b"")),
    "tuple[Snapshot, ...]": ((), (Snapshot(0, b""), Snapshot(9, b"at nine"))),
    "tuple[LineSnapshot, ...]": ((), (LineSnapshot(1, 2, b"\0"),)),
    "Body | None": (None, Body(1, 64, 100, 700)),
    "Verdict": (VERDICT, VERDICT._replace(released=None, every_epoch=False)),
    "tuple[Verdict, ...]": ((), (VERDICT, VERDICT)),
    "Counts": ({}, {"samples": 1, "a": -(1 << 63)}),
    "Seconds": ({}, {"fetch": 0.5}),
    "Versions": ({}, {"numpy": "2.0"}),
    "Mapping[str, Any]": ({}, {"a": [1, None, {"b": "c"}]}),
}


def every(messages: Any) -> list[Any]:
    """Return messages of every kind that one side hears, with little and with much in them."""
    kinds = [made for made in get_args(messages) if made is not NewArena]
    return [
        made(*(VALUES[kind][much] for kind in made.__annotations__.values()))
        for made in kinds
        for much in (0, 1)
    ]


def sockets() -> Ends:
    """Return ports over a socket pair."""
    ours, theirs = socket.socketpair()
    return SocketPort(ours, FROM_WORKER), SocketPort(theirs, FROM_SERVER)


@pytest.fixture(params=[sockets, memory_ports], ids=["socket", "memory"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """The ends of a server process and of a worker."""
    ours, theirs = request.param()
    yield ours, theirs
    ours.close()
    theirs.close()


def take(port: MessagePort[Any, Any], count: int) -> list[Any]:
    """Return so many messages, as they come."""
    found: list[Any] = []
    while len(found) < count:
        messages = port.receive(wait=True)
        assert messages is not None
        found += messages
    return found


class Listener:
    """The side of an event loop: hears all that comes."""

    def __init__(self, port: MessagePort[Any, Any]) -> None:
        self.port, self.heard = port, list[Any]()
        self.ended = asyncio.Event()
        self.error: Exception | None = None
        self.news = asyncio.Event()
        port.listen(asyncio.get_running_loop(), self._wake)

    def _wake(self) -> None:
        try:
            messages = self.port.receive(wait=False)
        except ProtocolError as error:
            self.error, messages = error, None
        if messages is None:
            self.ended.set()
            self.port.close()
        self.heard += messages or ()
        self.news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something."""
        async with asyncio.timeout(60):
            while not holds():
                self.news.clear()
                await self.news.wait()


@pytest.mark.parametrize(("way", "kinds"), [(0, FromServer), (1, FromWorker)], ids=["down", "up"])
def test_every_message_comes_out_as_it_went_in(ends: Ends, way: int, kinds: Any) -> None:
    """Each alone, and all together: in order, equal, and of the same types."""
    sender, receiver = ends[way], ends[1 - way]
    messages = every(kinds)

    alone = []
    for message in messages:
        sender.send([message])
        alone += take(receiver, 1)
    sender.send(messages)

    assert alone == messages
    assert take(receiver, len(messages)) == messages
    assert receiver.receive(wait=False) == () or receiver.receive(wait=False) == []


def test_who_waits_is_woken(ends: Ends) -> None:
    """A message that is sent later ends the wait, and so does the end of the other side."""
    ours, theirs = ends
    heard: list[Any] = []
    waiting = threading.Thread(target=lambda: heard.extend(take(theirs, 2)))
    waiting.start()

    ours.send([MakeSooner(b"log")])
    ours.send([CloseLine(3)])
    waiting.join(60)

    assert heard == [MakeSooner(b"log"), CloseLine(3)]
    last = threading.Thread(target=lambda: heard.append(theirs.receive(wait=True)))
    last.start()
    ours.close()
    last.join(60)
    assert heard[2:] == [None]


def test_what_was_sent_before_the_end_arrives(ends: Ends) -> None:
    """Then None, as often as one asks; and what is sent to a closed end is an error."""
    ours, theirs = ends
    theirs.send([Ready(), Warned("last words")])
    theirs.close()

    assert take(ours, 2) == [Ready(), Warned("last words")]
    assert [ours.receive(wait=True), ours.receive(wait=False)] == [None, None]
    with pytest.raises(OSError):  # noqa: PT011 - whichever the system says
        ours.send([MakeSooner(b"log")])


async def test_a_loop_hears_all_of_it(ends: Ends) -> None:
    """From a thread, as a worker's is, and the end once everything was heard."""
    ours, theirs = ends
    listener = Listener(ours)
    messages = every(FromWorker)

    def say() -> None:
        for message in messages:
            theirs.send([message])
        theirs.close()

    await asyncio.to_thread(say)
    await listener.until(listener.ended.is_set)

    assert listener.heard == messages
    assert listener.error is None


async def test_a_loop_never_waits_for_who_does_not_read(ends: Ends) -> None:
    """Far more than a socket holds is sent at once, and comes in order when it is read."""
    ours, theirs = ends
    Listener(ours)
    large = [OpenLine(n, b"log", 0, bytes([n]) * (1 << 20)) for n in range(8)]

    for message in large:
        ours.send([message])
    ours.send([MakeSooner(b"log")])

    assert await asyncio.to_thread(take, theirs, 9) == [*large, MakeSooner(b"log")]


async def test_a_loop_that_sends_to_nobody_hears_of_it_once(ends: Ends) -> None:
    """No error comes out of `send`: `receive` says that the other end is closed."""
    ours, theirs = ends
    listener = Listener(ours)
    theirs.close()

    ours.send([MakeSooner(b"log")])
    await listener.until(listener.ended.is_set)

    assert listener.heard == []


async def test_what_is_not_meant_for_an_end_comes_after_all_good_messages(ends: Ends) -> None:
    """It is refused by name, and nothing follows it."""
    ours, theirs = ends
    listener = Listener(ours)

    theirs.send([Ready(), Verified(1, b"header")])
    theirs.send([MakeSooner(b"log")])
    with suppress(OSError):  # it may have been closed for what came before
        theirs.send([Ready()])
    await listener.until(listener.ended.is_set)

    assert listener.heard == [Ready(), Verified(1, b"header")]
    assert "MakeSooner" in str(listener.error)


def test_memory_comes_with_its_message(ends: Ends) -> None:
    """Each arena is mapped by its own message, whatever is said between them."""
    ours, theirs = ends
    arenas = [ArenaWriter(number, 4096 * (number + 1)) for number in range(3)]
    for arena in arenas:
        arena.view[:4] = b"arn%d" % arena.number
        theirs.send([Warned("x" * 1000)] * arena.number)
        memory = Descriptor(os.dup(arena.fd))
        theirs.send([NewArena(arena.number, arena.size_bytes, memory)])

    found = [message for message in take(ours, 6) if isinstance(message, NewArena)]

    assert [(one.number, one.size_bytes) for one in found] == [(0, 4096), (1, 8192), (2, 12288)]
    for one in found:
        fd = one.memory.take()
        with mmap.mmap(fd, one.size_bytes, prot=mmap.PROT_READ) as mapped:
            assert mapped[:4] == b"arn%d" % one.number
        os.close(fd)
    for arena in arenas:
        arena.view.release()
        os.close(arena.fd)


def test_memory_that_nobody_takes_is_closed(ends: Ends) -> None:
    """Heard or not, no file descriptor stays open."""
    ours, theirs = ends
    arena = ArenaWriter(0, 4096)
    gc.collect()
    before = sorted(os.listdir("/proc/self/fd"))

    for number in range(4):
        theirs.send([NewArena(number, 4096, Descriptor(os.dup(arena.fd)))])
    heard = take(ours, 2)
    del heard
    ours.receive(wait=False)
    gc.collect()

    assert sorted(os.listdir("/proc/self/fd")) == before
    arena.view.release()
    os.close(arena.fd)


def test_freed_spans_need_no_answer(ends: Ends) -> None:
    """They are told with whatever is sent, before it."""
    ours, theirs = ends

    ours.send([Free(((0, 0), (0, 128))), MakeSooner(b"log")])

    assert take(theirs, 2) == [Free(((0, 0), (0, 128))), MakeSooner(b"log")]
