"""Bodies that a node on this host lends: views of its workers' memory, and nothing is copied.

A lease ends with its last view, as that of a buffer does, and its pages go back to what the node
has there. Where a device copies from the loan, it goes back when every copy is over, and so does
the connection.

Whatever must outlive the loan is **kept**: the kernel makes the lease's pages this process's own,
in place (`MADV_POPULATE_WRITE` breaks the sharing, changing no byte), and then the loan goes back.
So a consumer that collects batches fills its own memory and not the node's, a connection may end
under leases, and a forked child sees what its parent saw. A consumer that has kept so many that
they lie in the way of new loans everywhere is given copies.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.borrower_socket import BorrowerSocket, NotLent, close_all
from penstock.client.bodies.buffers import BodyAllocator, Lease, Pinner
from penstock.client.bodies.lent_arenas import MADV_POPULATE_WRITE, LentArena, LentBody
from penstock.client.bodies.lifetimes import Lifetimes, Passing, keep_until, release_kept
from penstock.client.calls.background_thread import in_background
from penstock.wire import memory_socket as memory
from penstock.wire.errors import BadFrame
from penstock.wire.v1 import feed_pb2

ANSWER_S = 10.0
"""How long the node may take to send a packet that it has to, beside the first."""

LOOK_EVERY = 64
"""So many batches later at most the memory of an arena that the node gave up is given back here."""


class _Lent:
    """A body as a device may read it: a `buffers.Lent`."""

    def __init__(self, borrower: Borrower, lease: LentBody, nbytes: int) -> None:
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
        self._arenas: dict[int, LentArena] = {}
        self._leases: Lifetimes[LentBody] = Lifetimes()  # of arrays
        self._out: dict[int, LentBody] = {}  # those that are not kept, by loan, oldest first
        # No view is left, and an event was not complete when it was looked at.
        self._awaited: deque[LentBody] = deque()
        self._due: deque[int] = deque()  # loans to give back
        self._read_on: list[LentBody] = []  # kept, and a device copies from the loan
        self._guard = threading.Lock()  # for leases: a fork comes from another thread
        self._is_closed = self._is_ended = self._is_stranded = False
        self._socket = BorrowerSocket()
        # Before it is connected: a child that had the connection too would keep it from ending.
        _living[id(self)] = self
        try:
            self.token = self._socket.connect(path)
        except BaseException:
            self.close()
            raise

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
            self._take_packet()
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
                found = LentBody(lent.loan, arena, mapping, start, stop)
                body = found.array(nbytes)
                self._out[lent.loan] = found
                self._leases.watch(body, found)
                return Lease(body, found.events, lent=_Lent(self, found, nbytes))
        copy = room(nbytes)
        try:
            arena.copy(start, stop, copy.array)
        except OSError as error:
            raise NotLent(f"{nbytes} bytes cannot be mapped: {error}") from error
        self.refuse(lent)
        return copy

    def source(
        self, lease: LentBody, nbytes: int, pinner: Pinner, end: Passing
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
        self._socket.give_back(self._due)
        self._settled += 1
        if self._settled % LOOK_EVERY == 0:
            # Packets that came without being waited for: of arenas that the node gave up.
            while self._socket.has_packet():
                self._take_packet()

    def leased_bytes(self, pool: BodyAllocator) -> int:
        """Return the bytes of what is held beside a pool: of bodies that somebody may still read.

        It takes no lock, as the consumer asks.
        """
        if self._pool is None or self._pool() is not pool:
            return 0
        return sum(each.stop - each.start for each in self._leases.alive())

    def sort_out(self) -> None:
        """Free what nobody reads any more; a connection that is closed leaves that to others."""
        with self._guard:
            self._awaited.extend(self._leases.take_ended())
            for _ in range(len(self._awaited)):
                lease = self._awaited[0]
                is_over = lease.is_over()
                self._awaited.popleft()
                if not is_over:
                    self._awaited.append(lease)
                    continue
                lease.end()
                if self._out.pop(lease.loan, None) is not None:
                    self._due.append(lease.loan)
            read_on = [lease for lease in self._read_on if not lease.is_over()]
            self._due.extend(lease.loan for lease in self._read_on if lease not in read_on)
            self._read_on = read_on
            if self._is_ended and not self._leases.values() and not self._awaited:
                _living.pop(id(self), None)

    def _keep(self, lease: LentBody) -> bool:
        """Make a lease's pages this process's own; False if there is no memory for them."""
        try:
            lease.keep()
        except OSError:
            return False
        del self._out[lease.loan]
        if lease.is_over():
            self._due.append(lease.loan)
        else:
            self._read_on.append(lease)
        return True

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
            _stranded.append(self._socket)
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
            if not self._is_ended and all(lease.is_over() for lease in copied):
                self._is_ended = True
                if not self._is_stranded:
                    self._socket.end()
                for arena in self._arenas.values():
                    arena.close()
                self._arenas.clear()
            return self._is_ended
        finally:
            self._guard.release()

    def leave_to_parent(self) -> None:
        """Close the connection in a forked child; the parent goes on using its own."""
        self._guard = threading.Lock()  # its thread may have held it
        self._socket.close()
        for arena in self._arenas.values():
            arena.forget()
        self._arenas.clear()

    def _take_packet(self) -> None:
        packet, fds = self._socket.receive(ANSWER_S)
        match packet:
            case memory.ArenaSent(number, size_bytes) if number not in self._arenas:
                self._arenas[number] = LentArena(fds.pop(), size_bytes)
            case memory.Gone(number) if number in self._arenas:
                self._arenas.pop(number).close()
            case _:
                close_all(fds)
                raise BadFrame(f"the node's memory socket says {packet} out of turn")


def _require_keeping() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
        try:
            page.madvise(MADV_POPULATE_WRITE)
        except OSError as error:
            raise NotLent(f"this kernel is older than Linux 5.14 ({error})") from error


_living: dict[int, Borrower] = {}
"""Borrowers with a connection, or with leases, by id: the calls of a dict are whole or not at all,
whichever threads make them."""

_stranded: list[BorrowerSocket] = []


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
    for connection in _stranded:
        connection.close()
    _stranded.clear()


os.register_at_fork(before=_before_fork, after_in_child=_in_child)
