"""Bodies that a node on this host lends: views of its workers' memory, and nothing is copied.

The protocol is `penstock.wire.memory`'s. What a node lends is mapped privately: a loop that writes
into a batch writes into pages of his own, and neither the node nor another reader sees it. A lease
ends with its last view, as that of a buffer does, and its pages go back to what the node has there.

A device copies from beside that: from a shared, read-only mapping of the whole arena, which is
pinned once. Pinning a private one would have the kernel copy its pages. A loan goes back when every
copy from there is over, and so does the connection.

Whatever must outlive the loan is **kept**: the kernel makes the lease's pages this process's own,
in place (`MADV_POPULATE_WRITE` breaks the sharing, changing no byte), and then the loan goes back.
So a consumer that collects batches fills its own memory and not the node's, a connection may end
under leases, and a forked child sees what its parent saw. A consumer that has kept so many that
they lie in the way of new loans everywhere is given copies.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import select
import socket
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.buffers import BodyAllocator, Lease, Pinner
from penstock.client.bodies.lifetimes import Passing, keep_until, release_kept
from penstock.client.calls.background_thread import in_background, log_in_background
from penstock.wire import memory
from penstock.wire.errors import BadFrame, PenstockError, Unreachable
from penstock.wire.v1 import feed_pb2

logger = logging.getLogger("penstock")

HELLO_S, ANSWER_S = 2.0, 10.0
"""How long the node may take to answer a connection, without which bodies are sent, and with any
other packet that it owes."""

MADV_POPULATE_WRITE = 23
"""Of Linux 5.14 and later; Python has no name for it."""

_MSG_CMSG_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # memory is lent on Linux alone

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Private pages are the exception: none are set aside for a whole arena."""


class NotLent(Exception):
    """Bodies cannot be lent, or no more of them; says why, for people."""


class Absent(NotLent):
    """Nothing listens on the memory socket now: the node may be about to start."""


HEAR_EVERY = 64
"""So many batches later at most the memory of an arena that the node gave up is given back here."""

MAX_MAPPINGS = 8
"""Views of one arena. Each costs a file descriptor and as many addresses as the arena has bytes."""


class _Mapping:
    """One view of an arena; there are several where what was kept lies in the way of a new loan.

    Args:
        fd: The arena's descriptor.
        size_bytes: Its size.

    Attributes:
        kept: (start, stop) of pages of our own, and of those that cannot be given back.

    Raises:
        OSError: This process may map no more memory.
    """

    def __init__(self, fd: int, size_bytes: int) -> None:
        self.map: mmap.mmap | None
        self.map = mmap.mmap(fd, size_bytes, mmap.MAP_PRIVATE | _MAP_NORESERVE)
        self._reference = weakref.ref(self.map)
        self.kept: set[tuple[int, int]] = set()

    def is_free(self, start: int, stop: int) -> bool:
        return not any(first < stop and start < last for first, last in self.kept)

    def advise(self, advice: int, start: int, stop: int) -> None:
        """Call madvise, if anything is left to be read there.

        Raises:
            OSError: The kernel refuses.
        """
        found = self._reference()
        if found is not None:
            found.madvise(advice, start, stop - start)

    def leave_to_arrays(self) -> None:
        """Lend no more from it: it lives as long as arrays over it do."""
        self.map = None


@dataclass(eq=False)
class _Arena:
    """Memory of the node: its descriptor, its size, and the mappings of it."""

    fd: int
    size_bytes: int
    mappings: list[_Mapping]
    pinner: Pinner | None = None
    pinned: NDArray[np.uint8] | None = None  # all of it, read-only
    cannot_pin: bool = False

    def mapping(self, start: int, stop: int) -> _Mapping | None:
        """Return a mapping in which nothing that was kept lies there; None = in each something.

        Raises:
            OSError: This process may map no more memory.
        """
        for found in self.mappings:
            if found.is_free(start, stop):
                return found
        if len(self.mappings) == MAX_MAPPINGS:
            return None
        fresh = _Mapping(self.fd, self.size_bytes)
        self.mappings.append(fresh)
        return fresh

    def copy(self, start: int, stop: int, into: NDArray[np.uint8]) -> None:
        """Copy what lies there, by a view that is gone afterwards.

        Raises:
            OSError: This process may map no more memory.
        """
        flags, readable = mmap.MAP_SHARED, mmap.PROT_READ
        with mmap.mmap(self.fd, stop - start, flags, readable, offset=start) as view:
            into[:] = np.frombuffer(view, np.uint8, count=len(into))

    def pin(self, pinner: Pinner, nbytes: int) -> NDArray[np.uint8] | None:
        """Return all of it, pinned once for bodies of `nbytes`; None = it cannot be."""
        if self.pinned is None and not self.cannot_pin:
            try:
                view = mmap.mmap(self.fd, self.size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
            except OSError as error:
                self.cannot_pin = True
                log_in_background(
                    logger.warning, "lent batches are copied within the host: %s", error
                )
                return None
            whole = np.frombuffer(view, np.uint8)
            if pinner.register(whole, nbytes):
                self.pinner, self.pinned = pinner, whole
            else:
                self.cannot_pin = True
        return self.pinned

    def close(self) -> None:
        """Unpin it, and lend no more from it: no copy reads on."""
        if self.pinner is not None and self.pinned is not None:
            self.pinner.unregister(self.pinned)
        self.forget()

    def forget(self) -> None:
        """Lend no more from it: in a forked child, to which the device is not known."""
        self.pinner = self.pinned = None
        os.close(self.fd)
        for mapping in self.mappings:
            mapping.leave_to_arrays()


@dataclass(eq=False)
class _Lease:
    """A body that somebody, or a device, may still read."""

    reference: weakref.ref[NDArray[np.uint8]]
    events: list[Passing]
    loan: int
    arena: _Arena
    mapping: _Mapping
    start: int
    stop: int
    held: mmap.mmap | None = None

    def outlive_views(self) -> None:
        """Keep the memory where more than views may need it, although nothing more is lent."""
        if self.events:
            self.held = self.mapping.map

    def keep(self) -> None:
        """Make its pages this process's own.

        Raises:
            OSError: There is no memory for them.
        """
        self.mapping.advise(MADV_POPULATE_WRITE, self.start, self.stop)
        self.mapping.kept.add((self.start, self.stop))

    def end(self) -> None:
        """Nobody reads it any more: give pages of our own back, and see the node's again."""
        try:
            self.mapping.advise(mmap.MADV_DONTNEED, self.start, self.stop)
        except OSError:  # they were locked into memory meanwhile, and stay
            self.mapping.kept.add((self.start, self.stop))
        else:
            self.mapping.kept.discard((self.start, self.stop))


def _is_over(lease: _Lease) -> bool:
    try:
        return all(event.query() for event in lease.events)
    except Exception:  # the device failed, and nobody knows what it still reads; see `settle`
        return False


class _Lent:
    """A body as a device may read it: a `buffers.Lent`."""

    def __init__(self, borrower: Borrower, lease: _Lease, nbytes: int) -> None:
        self._borrower, self._lease, self._nbytes = borrower, lease, nbytes

    def source(self, pinner: Pinner, end: Passing) -> NDArray[np.uint8] | None:
        """Return the body in pinned memory; None = the loan goes back, or it is not pinned."""
        return self._borrower.source(self._lease, self._nbytes, pinner, end)


class _Ending:
    """The end of a connection that copies still need: a `Passing`, which ends it."""

    def __init__(self, borrower: Borrower) -> None:
        self._borrower = borrower

    def query(self) -> bool:
        """End it if no copy needs it any more; tell whether that is done."""
        if not self._borrower.end():
            return False
        self._borrower.sort_out()
        return True


class Borrower:
    """One connection to a node's memory socket. The thread that reads batches uses it.

    Args:
        path: Where the socket lies.
        pool: The memory of its own that the Loader has beside it.

    Attributes:
        token: For `Open.borrower`.

    Raises:
        NotLent: The node has no such socket or lends nothing to this process, or this kernel lacks
            what keeping takes.
    """

    def __init__(self, path: str, pool: BodyAllocator | None = None) -> None:
        _require_keeping()
        # Not to be kept by it: a borrower whose Loader is gone may live until others sort it out.
        self._pool = None if pool is None else weakref.ref(pool)
        self._settled = 0
        self._arenas: dict[int, _Arena] = {}
        # By the id of the reference to its array.
        self._leases: dict[int, _Lease] = {}
        self._out: dict[int, _Lease] = {}  # those that are not kept, by loan, oldest first
        # The end of an array comes anywhere, maybe within any call here or where a signal handler
        # raises: it takes no lock and runs no Python, it appends the reference here.
        self._ended: deque[weakref.ref[NDArray[np.uint8]]] = deque()
        # No view is left, and an event had not come to pass when it was looked at.
        self._awaited: deque[_Lease] = deque()
        self._due: deque[int] = deque()  # loans to give back
        self._read_on: list[_Lease] = []  # kept, and a device copies from the loan
        self._guard = threading.Lock()  # for leases: a fork comes from another thread
        self._is_closed = self._is_ended = self._is_stranded = False
        try:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise NotLent(f"no socket can be opened: {error}") from error
        # Before it is connected: a child that had the connection too would keep it from ending.
        _living[id(self)] = self
        try:
            self._sock.settimeout(HELLO_S)
            self._sock.connect(path)
            # What is sent, and a look at what is there, must not wait. Of a socket with a timeout
            # Python waits before each call, whatever MSG_DONTWAIT says.
            self._sock.setblocking(False)
            said = self._receive(HELLO_S)
            if isinstance(said, memory.Refusal):
                raise NotLent(said.reason)
            if not isinstance(said, memory.Hello):
                raise NotLent(f"{path} says {said}")
        except (FileNotFoundError, ConnectionRefusedError) as error:
            self.close()
            raise Absent(f"nothing listens at {path} ({error.strerror})") from error
        except (OSError, PenstockError) as error:
            self.close()
            raise NotLent(f"{path}: {error}") from error
        except BaseException:
            self.close()
            raise
        self.token = said.token

    def take(self, lent: feed_pb2.Lent, nbytes: int, room: Callable[[int], Lease]) -> Lease:
        """Return a lent body, writable, page-aligned; the loan goes back when the lease has ended.

        Args:
            lent: Where it lies.
            nbytes: How long it is.
            room: Returns storage of that length for a copy, where what was kept lies in the way.

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
            try:
                if mapping is not None:
                    # Pages of our own would hide what the node has written there since. There are
                    # none, but where something makes all of a process's memory its own: `mlockall`
                    # does, and then the kernel refuses this.
                    mapping.advise(mmap.MADV_DONTNEED, start, stop)
            except OSError as error:
                raise NotLent(f"this process locks what it maps (mlockall): {error}") from error
            if mapping is not None:
                return self._leased(lent.loan, arena, mapping, start, stop, nbytes)
        copy = room(nbytes)
        try:
            arena.copy(start, stop, copy.array)
        except OSError as error:
            raise NotLent(f"{nbytes} bytes cannot be mapped: {error}") from error
        self.refuse(lent)
        return copy

    def _leased(
        self, loan: int, arena: _Arena, mapping: _Mapping, start: int, stop: int, nbytes: int
    ) -> Lease:
        assert mapping.map is not None
        body = np.frombuffer(mapping.map, np.uint8, count=nbytes, offset=start)
        reference = weakref.ref(body, self._ended.append)
        lease = _Lease(reference, [], loan, arena, mapping, start, stop)
        self._leases[id(reference)] = self._out[loan] = lease
        return Lease(body, lease.events, lent=_Lent(self, lease, nbytes))

    def source(
        self, lease: _Lease, nbytes: int, pinner: Pinner, end: Passing
    ) -> NDArray[np.uint8] | None:
        """Return a body where a device may read it until `end`; None = there it is not, or no more.

        Any thread but the loop's calls.
        """
        with self._guard:
            if self._is_ended or self._out.get(lease.loan) is not lease:
                return None  # the loan goes back, and the node may write there
            whole = lease.arena.pin(pinner, nbytes)
            if whole is None:
                return None
            lease.events.append(end)
            return whole[lease.start : lease.start + nbytes]

    def refuse(self, lent: feed_pb2.Lent) -> None:
        """Give back what nobody reads there."""
        self._due.append(lent.loan)

    def settle(self, most: int) -> None:
        """Give back what has ended, and keep what has been out for long.

        What others have borrowed is looked at, too, and their devices: what fails there is theirs,
        and they find it when they copy.

        Args:
            most: How many loans are left with consumers; beyond them the oldest are kept.
        """
        release_kept()
        for other in list(_living.values()):
            other.sort_out()
        with self._guard:
            for lease in list(self._out.values())[: max(0, len(self._out) - most)]:
                if not self._keep(lease):
                    break
        self._give_back()
        self._settled += 1
        if self._settled % HEAR_EVERY == 0:
            self._hear_what_is_there()

    def leased_bytes(self, pool: BodyAllocator) -> int:
        """Return the bytes of what is held beside a pool: of bodies that somebody may still read.

        It takes no lock, as the consumer asks.
        """
        if self._pool is None or self._pool() is not pool:
            return 0
        ended = {id(reference) for reference in list(self._ended)}
        leases = list(self._leases.items())
        return sum(each.stop - each.start for key, each in leases if key not in ended)

    def sort_out(self) -> None:
        """Free what nobody reads any more; a connection that is closed leaves that to others."""
        with self._guard:
            while self._ended:
                self._awaited.append(self._leases.pop(id(self._ended.popleft())))
            for _ in range(len(self._awaited)):
                lease = self._awaited[0]
                is_over = _is_over(lease)
                self._awaited.popleft()
                if not is_over:
                    self._awaited.append(lease)
                    continue
                lease.end()
                if self._out.pop(lease.loan, None) is not None:
                    self._due.append(lease.loan)
            read_on = [lease for lease in self._read_on if not _is_over(lease)]
            self._due.extend(lease.loan for lease in self._read_on if lease not in read_on)
            self._read_on = read_on
            if self._is_ended and not self._leases and not self._awaited:
                _living.pop(id(self), None)

    def _keep(self, lease: _Lease) -> bool:
        """Make a lease's pages this process's own; False if there is no memory for them."""
        try:
            lease.keep()
        except OSError:
            return False
        del self._out[lease.loan]
        if _is_over(lease):
            self._due.append(lease.loan)
        else:
            self._read_on.append(lease)
        return True

    def _give_back(self) -> None:
        while self._due:
            count = min(len(self._due), memory.RETURNS_AT_ONCE)
            now = [self._due.popleft() for _ in range(count)]
            try:
                self._sock.send(memory.pack_returns(now))
            except BlockingIOError:  # the node has not looked for long: with the next message
                self._due.extendleft(reversed(now))
                return
            except OSError:
                # The node is gone, or will say so on the stream; everything has come back then.
                self._due.clear()

    def keep_all(self) -> bool:
        """Make everything that is lent this process's own; the loans go back with `settle`.

        False where there was no memory for all of it.
        """
        with self._guard:
            return all([self._keep(lease) for lease in list(self._out.values())])  # noqa: C419

    def close(self) -> None:
        """Keep what somebody may still read, and end the connection; idempotent.

        Where a device still copies from what is lent, it ends when that is over.
        """
        if self._is_closed:
            return
        self.sort_out()
        if not self.keep_all():
            # The connection is what keeps the rest as it is: it ends with this process.
            self._is_stranded = True
            _stranded.append(self._sock)
        self._is_closed = True
        for lease in [*self._leases.values(), *self._awaited]:
            lease.outlive_views()
        if not self.end():
            keep_until(self, [_Ending(self)])
        self.sort_out()

    def end(self) -> bool:
        """End the connection of a closed borrower, and tell whether that is done.

        Any thread but the loop's calls, also one that holds the guard.
        """
        if not self._guard.acquire(blocking=False):
            return False
        try:
            copied = [*self._read_on, *self._out.values()]
            if not self._is_ended and all(_is_over(lease) for lease in copied):
                self._is_ended = True
                if not self._is_stranded:
                    # For other holders of it, too: a child that was forked by other means.
                    with contextlib.suppress(OSError):
                        self._sock.shutdown(socket.SHUT_RDWR)
                    self._sock.close()
                for arena in self._arenas.values():
                    arena.close()
                self._arenas.clear()
            return self._is_ended
        finally:
            self._guard.release()

    def leave_to_parent(self) -> None:
        """Close the connection in a forked child; the parent goes on using its own."""
        self._guard = threading.Lock()  # its thread may have held it
        self._sock.close()
        for arena in self._arenas.values():
            arena.forget()
        self._arenas.clear()

    def _hear_what_is_there(self) -> None:
        """Take in packets that came without being waited for: of arenas that the node gave up.

        Raises:
            Unreachable, BadFrame, NotLent: As `take`.
        """
        while True:
            try:
                if not self._sock.recv(1, socket.MSG_PEEK):
                    return  # it is closed, and the stream says so
            except OSError:
                return  # nothing is there, or the node is gone
            self._hear()

    def _hear(self) -> None:
        match self._receive(ANSWER_S):
            case memory.Arena(number, size_bytes) if number not in self._arenas:
                self._arenas[number] = _Arena(self._fds.pop(), size_bytes, [])
            case memory.Gone(number) if number in self._arenas:
                self._arenas.pop(number).close()
            case said:
                for fd in self._fds:
                    os.close(fd)
                raise BadFrame(f"the node's memory socket says {said} out of turn")

    def _receive(self, within_s: float) -> memory.Said:
        """Return the node's next packet; descriptors that come with it lie in `_fds`.

        Args:
            within_s: How long it is waited for.

        Raises:
            Unreachable: None comes, or the node is gone.
            BadFrame, NotLent: As `take`.
        """
        fds = array("i")
        self._fds: list[int] = []
        try:
            coming = select.poll()
            coming.register(self._sock, select.POLLIN)
            if not coming.poll(within_s * 1000):
                raise Unreachable(f"no answer on the node's memory socket for {within_s:g} s")
            # Without CLOEXEC programs that this process starts would have the node's memory, too.
            packet, ancillary, flags, _ = self._sock.recvmsg(
                memory.MAX_PACKET_BYTES, socket.CMSG_SPACE(fds.itemsize), _MSG_CMSG_CLOEXEC
            )
        except OSError as error:
            raise Unreachable(f"no answer on the node's memory socket: {error}") from error
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        self._fds = fds.tolist()
        if not packet:
            raise Unreachable("the node's memory socket was closed")
        said = memory.parse(packet)
        if not self._fds and flags & socket.MSG_CTRUNC:
            raise NotLent("this process may open no more files (ulimit -n)")
        if len(self._fds) != isinstance(said, memory.Arena):
            for fd in self._fds:
                os.close(fd)
            raise BadFrame(f"the node's memory socket says {said} with {len(fds)} descriptors")
        if isinstance(said, memory.Arena):
            _check_sealed(self._fds[0], said.size_bytes)
        return said


def _check_sealed(fd: int, size_bytes: int) -> None:
    """Refuse memory that may shrink: reading past its end would kill this process.

    Raises:
        BadFrame: It may shrink, or is not memory, such as a pipe or a file.
    """
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        os.close(fd)
        raise BadFrame(
            f"the node's memory socket hands over something that is not memory ({error.strerror})"
        ) from None
    if os.fstat(fd).st_size < size_bytes or not seals & fcntl.F_SEAL_SHRINK:
        os.close(fd)
        raise BadFrame(f"the node lends {size_bytes} bytes of memory that may become less")


def _require_keeping() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        try:
            page.madvise(MADV_POPULATE_WRITE)
        except OSError as error:
            raise NotLent(f"this kernel is older than Linux 5.14 ({error})") from error


_living: dict[int, Borrower] = {}
"""Borrowers with a connection, or with leases, by id: the calls of a dict are whole or not at all,
whichever threads make them."""

_stranded: list[socket.socket] = []


def borrowed_bytes(pool: BodyAllocator) -> int:
    """Return the bytes of lent bodies that are held beside a Loader's own memory."""
    return sum(borrower.leased_bytes(pool) for borrower in list(_living.values()))


def _before_fork() -> None:
    # A child knows nothing of loans: what it reads may not change when its parent gives them back.
    living = list(_living.values())
    if living:
        in_background(lambda _: [borrower.keep_all() for borrower in living])


def _in_child() -> None:
    for borrower in _living.values():
        borrower.leave_to_parent()
    _living.clear()
    for sock in _stranded:
        sock.close()
    _stranded.clear()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)


__all__ = ["Absent", "Borrower", "NotLent", "borrowed_bytes"]
