"""Bodies that a node on this host lends: views of its workers' memory, and nothing is copied.

The protocol is `penstock.wire.memory`'s. What a node lends is mapped privately: whoever writes into
a batch writes into pages of his own, and neither the node nor another reader sees it. A lease ends
with its last view, as that of a buffer does, and its pages go back to what the node has there.

Whatever must outlive the loan is **kept**: the kernel makes the lease's pages this process's own,
in place (`MADV_POPULATE_WRITE` breaks the sharing, changing no byte), and then the loan goes back.
So a consumer that collects batches fills its own memory and not the node's, a connection may end
under leases, and a forked child sees what its parent saw.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading
import weakref
from array import array
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock.client.reading.buffers import Event, Lease
from penstock.wire import memory
from penstock.wire.errors import BadFrame, PenstockError, Unreachable
from penstock.wire.v1 import feed_pb2

ANSWER_S = 10.0
"""How long the node may take with a packet that it owes."""

MADV_POPULATE_WRITE = 23
"""Of Linux 5.14 and later; Python has no name for it."""

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Private pages are the exception: none are set aside for a whole arena."""


class NotLent(Exception):
    """Bodies cannot be lent, or no more of them; says why, for people."""


@dataclass(eq=False)
class _Mapping:
    """One view of an arena; there are several where what was kept lies in the way of a new loan."""

    map: mmap.mmap
    kept: set[tuple[int, int]] = field(default_factory=set)  # (start, stop) of pages of our own

    def is_free(self, start: int, stop: int) -> bool:
        return not any(first < stop and start < last for first, last in self.kept)


@dataclass(eq=False)
class _Arena:
    """Memory of the node: its descriptor, its size, and the mappings of it."""

    fd: int
    size_bytes: int
    mappings: list[_Mapping] = field(default_factory=list)

    def mapping(self, start: int, stop: int) -> _Mapping:
        for found in self.mappings:
            if found.is_free(start, stop):
                return found
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
        fresh = _Mapping(mmap.mmap(self.fd, self.size_bytes, flags))
        self.mappings.append(fresh)
        return fresh


@dataclass(eq=False)
class _Lease:
    """A body that somebody, or a device, may still read."""

    reference: weakref.ref[NDArray[np.uint8]]
    events: list[Event]
    loan: int | None  # None = kept
    mapping: _Mapping
    start: int
    stop: int

    def keep(self) -> None:
        """Make its pages this process's own."""
        self.mapping.map.madvise(MADV_POPULATE_WRITE, self.start, self.stop - self.start)
        self.mapping.kept.add((self.start, self.stop))
        self.loan = None

    def end(self) -> None:
        """Nobody reads it any more: give pages of our own back, and see the node's again."""
        self.mapping.map.madvise(mmap.MADV_DONTNEED, self.start, self.stop - self.start)
        self.mapping.kept.discard((self.start, self.stop))


class Borrower:
    """One connection to a node's memory socket. The thread that reads batches uses it.

    Args:
        path: Where the socket lies.
        most: How many loans are left with consumers; beyond them the oldest are kept.

    Attributes:
        token: For `Open.borrower`.

    Raises:
        NotLent: The node has no such socket or lends nothing to this process, or this kernel lacks
            what keeping takes.
    """

    def __init__(self, path: str, most: int) -> None:
        _require_keeping()
        self._most = most
        self._arenas: dict[int, _Arena] = {}
        self._leases: dict[
            int, _Lease
        ] = {}  # by the id of the reference to its array, oldest first
        # The end of an array comes anywhere, maybe within any call here or where a signal handler
        # raises: it takes no lock and runs no Python, it appends the reference here.
        self._ended: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        self._awaited: list[_Lease] = []  # no view is left, and an event has not come to pass
        self._due: list[int] = []  # loans to give back
        self._guard = threading.Lock()  # for leases: a fork comes from another thread
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._sock.settimeout(ANSWER_S)
            self._sock.connect(path)
            said = self._receive()
        except (OSError, PenstockError) as error:
            self._sock.close()
            raise NotLent(str(error)) from error
        if not isinstance(said, memory.Hello):
            self._sock.close()
            reason = said.reason if isinstance(said, memory.Refusal) else f"it says {said}"
            raise NotLent(reason)
        self.token = said.token
        _open.add(self)

    @property
    def lent(self) -> int:
        """Return how many loans have not come back."""
        held = [*self._leases.values(), *self._awaited]
        return sum(lease.loan is not None for lease in held)

    def take(self, lent: feed_pb2.Lent, nbytes: int) -> Lease:
        """Return a lent body, writable, page-aligned; the loan goes back when the lease has ended.

        Raises:
            BadFrame: The loan does not lie in memory that the node has handed over.
            NotLent: This process may map no more memory.
            Unreachable: The node is gone.
        """
        while lent.arena not in self._arenas:
            self._hear()
        arena = self._arenas[lent.arena]
        start, stop = lent.start, lent.start + -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if not nbytes or start % mmap.PAGESIZE or stop > arena.size_bytes:
            raise BadFrame(
                f"a batch is lent at bytes {start} to {stop} of an arena of {arena.size_bytes}; "
                "check that both sides run the same version"
            )
        with self._guard:
            try:
                mapping = arena.mapping(start, stop)
            except OSError as error:
                raise NotLent(f"{arena.size_bytes} bytes cannot be mapped: {error}") from error
            body = np.frombuffer(mapping.map, np.uint8, count=nbytes, offset=start)
            reference = weakref.ref(body, self._ended.append)
            events: list[Event] = []
            self._leases[id(reference)] = _Lease(reference, events, lent.loan, mapping, start, stop)
        return Lease(body, events)

    def refuse(self, lent: feed_pb2.Lent) -> None:
        """Give back what nobody has read."""
        self._due.append(lent.loan)

    def settle(self) -> None:
        """Give back what has ended, and keep what has been out for long."""
        with self._guard:
            self._sort_out()
            out = [lease for lease in self._leases.values() if lease.loan is not None]
            for lease in out[: max(0, len(out) - self._most)]:
                if not self._keep(lease):
                    break
        self._give_back()

    def _keep(self, lease: _Lease) -> bool:
        """Make a lease's pages this process's own; False where there is no memory for them."""
        loan = lease.loan
        if loan is None:
            return True
        try:
            lease.keep()
        except OSError:
            return False
        self._due.append(loan)
        return True

    def _sort_out(self) -> None:
        ended, self._awaited = self._awaited, []
        while self._ended:
            ended.append(self._leases.pop(id(self._ended.popleft())))
        for lease in ended:
            if not all(event.query() for event in lease.events):
                self._awaited.append(lease)
                continue
            lease.end()
            if lease.loan is not None:
                self._due.append(lease.loan)

    def _give_back(self) -> None:
        while self._due:
            now, self._due = (
                self._due[: memory.RETURNS_AT_ONCE],
                self._due[memory.RETURNS_AT_ONCE :],
            )
            try:
                self._sock.send(memory.pack_returns(now))
            except OSError:
                # The node is gone, or will say so on the stream; everything has come back then.
                self._due.clear()

    def keep_all(self) -> bool:
        """Make everything that is lent this process's own; the loans go back with `settle`.

        False where there was no memory for all of it.
        """
        with self._guard:
            self._sort_out()
            held = [*self._leases.values(), *self._awaited]
            return all([self._keep(lease) for lease in held])  # noqa: C419

    def close(self) -> None:
        """Keep what somebody may still read, and end the connection; idempotent."""
        if self.keep_all():
            self._sock.close()
        else:
            # The connection is what keeps the rest as it is: it ends with this process.
            _stranded.append(self._sock)
        _open.discard(self)
        for arena in self._arenas.values():
            os.close(arena.fd)
        # Mappings live as long as arrays over them do.
        self._arenas.clear()

    def leave_to_parent(self) -> None:
        """Let go of the connection in a forked child: it is the parent's."""
        self._sock.close()

    def _hear(self) -> None:
        match self._receive():
            case memory.Arena(number, size_bytes):
                self._arenas[number] = _Arena(self._fds.pop(), size_bytes)
            case memory.Gone(number) if number in self._arenas:
                os.close(self._arenas.pop(number).fd)
            case said:
                raise BadFrame(f"the node's memory socket says {said} out of turn")

    def _receive(self) -> memory.Said:
        """Return the node's next packet; descriptors that come with it lie in `_fds`."""
        fds = array("i")
        self._fds: list[int] = []
        try:
            packet, ancillary, _, _ = self._sock.recvmsg(
                memory.MAX_PACKET_BYTES, socket.CMSG_SPACE(fds.itemsize)
            )
        except OSError as error:
            raise Unreachable(f"no answer on the node's memory socket: {error}") from error
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        self._fds = list(fds)
        if not packet:
            raise Unreachable("the node's memory socket was closed")
        said = memory.parse(packet)
        if len(self._fds) != isinstance(said, memory.Arena):
            for fd in self._fds:
                os.close(fd)
            raise BadFrame(f"the node's memory socket says {said} with {len(fds)} descriptors")
        if isinstance(said, memory.Arena):
            _check_sealed(self._fds[0], said.size_bytes)
        return said


def _check_sealed(fd: int, size_bytes: int) -> None:
    """Refuse memory that may shrink: reading behind its end would end this process."""
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    if os.fstat(fd).st_size < size_bytes or not seals & fcntl.F_SEAL_SHRINK:
        os.close(fd)
        raise BadFrame(f"the node lends {size_bytes} bytes of memory that may become less")


def _require_keeping() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        try:
            page.madvise(MADV_POPULATE_WRITE)
        except OSError as error:
            raise NotLent(f"this kernel is older than Linux 5.14 ({error})") from error


_open: weakref.WeakSet[Borrower] = weakref.WeakSet()
_stranded: list[socket.socket] = []


def _before_fork() -> None:
    # A child knows nothing of loans: what it reads may not change when its parent gives them back.
    for borrower in list(_open):
        borrower.keep_all()


def _in_child() -> None:
    for borrower in list(_open):
        borrower.leave_to_parent()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)


__all__ = ["Borrower", "NotLent"]
