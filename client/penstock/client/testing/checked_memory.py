"""The memory that a simulated device uses, and what is done wrong with it.

Writes of the host into a source are found by a sum of its bytes, memory that is gone by a weak
reference: at the next call of anybody.
"""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.client.bodies.lifetimes import Lifetimes
from penstock.client.testing.misuse import Misuse, Site
from penstock.client.testing.work_queues import Clock, SimulatedStream, Work
from penstock.wire.frame import crc32c

NOT_WRITTEN = 0xA5
"""What memory of the device holds before its copy is over."""

FREED = 0x5A
"""What it holds when its last view is gone and nothing uses it."""


class HostSpan:
    """Memory of the host that the device may read."""

    def __init__(self, address: int, nbytes: int, storage: Any, where: Site) -> None:
        self.address, self.nbytes, self.storage, self.site = address, nbytes, storage, where


class DeviceBlock:
    """Memory of the device."""

    def __init__(self, nbytes: int, stream: SimulatedStream, where: Site) -> None:
        self.storage = bytearray([NOT_WRITTEN]) * max(1, nbytes)
        self.nbytes, self.stream, self.site = nbytes, stream, where
        self.used: list[tuple[Work, bool]] = []  # and whether it writes
        self.kept_for: set[int] = set()  # streams that the memory outlives its views for

    def bytes(self) -> NDArray[np.uint8]:
        """Return its bytes, as the device sees them."""
        return np.ndarray((self.nbytes,), np.uint8, self.storage)


class SourceRead:
    """A copy that reads a source, until the host knows that its event is complete."""

    def __init__(self, work: Work, span: HostSpan, source: NDArray[np.uint8]) -> None:
        self.work, self.span, self.crc = work, span, crc32c(source)
        self.source = source


class CheckedMemory:
    """Memory of the host that the device may read, and memory of the device.

    Args:
        host: What the host knows to be done; others add to it.

    Attributes:
        used_bytes: How much memory of the device is in use.
    """

    def __init__(self, host: Clock) -> None:
        self._host = host
        self._reads: list[SourceRead] = []
        self._spans: Lifetimes[HostSpan] = Lifetimes()
        self._registered: dict[int, HostSpan] = {}
        self._blocks: Lifetimes[DeviceBlock] = Lifetimes()
        self._by_address: dict[int, DeviceBlock] = {}
        self._retired: list[DeviceBlock] = []
        self.used_bytes = 0
        self._last: Site | None = None

    def pin(self, nbytes: int, where: Site) -> NDArray[np.uint8]:
        """Return memory that copies may read, as long as it is there."""
        storage = mmap.mmap(-1, max(1, nbytes))
        array: NDArray[np.uint8] = np.ndarray((nbytes,), np.uint8, storage)
        self._spans.watch(array, HostSpan(_address(array), nbytes, storage, where))
        return array

    def register(self, array: NDArray[np.uint8], where: Site) -> None:
        """Let copies read memory of others.

        Raises:
            Misuse: It is not whole pages, or is registered.
        """
        address = _address(array)
        if address % mmap.PAGESIZE or address in self._registered:
            known = self._registered.get(address)
            kind = "registered memory is whole pages, and registered once"
            raise Misuse(kind, where if known is None else known.site, where)
        self._registered[address] = HostSpan(address, array.nbytes, array, where)

    def unregister(self, array: NDArray[np.uint8], where: Site) -> None:
        """Let copies read it no more.

        Raises:
            Misuse: It is not registered, or is read.
        """
        span = self._registered.pop(_address(array), None)
        if span is None:
            raise Misuse("what is unregistered was registered", where, where)
        self._end_span(span, where)

    def allocate(self, nbytes: int, stream: SimulatedStream, where: Site) -> NDArray[np.uint8]:
        """Return memory of the device."""
        block = DeviceBlock(nbytes, stream, where)
        self.used_bytes += nbytes
        memory = block.bytes()
        self._blocks.watch(memory, block)
        self._by_address[id(block.storage)] = block
        return memory

    def block(self, memory: NDArray[np.uint8], where: Site) -> DeviceBlock:
        """Return what is known of memory of the device.

        Raises:
            Misuse: It is none.
        """
        storage: Any = memory.base
        block = self._by_address.get(id(storage))
        if block is None or block.storage is not storage:
            raise Misuse("no memory of this device", where, where)
        return block

    def source(
        self, source: NDArray[np.uint8], nbytes: int, where: Site
    ) -> tuple[HostSpan, NDArray[np.uint8]]:
        """Return the span that a copy reads, and the bytes of it.

        Raises:
            Misuse: It is not pinned.
        """
        address = _address(source)
        for span in [*self._spans.alive(), *self._registered.values()]:
            if span.address <= address and address + nbytes <= span.address + span.nbytes:
                start = address - span.address
                return span, np.ndarray((nbytes,), np.uint8, span.storage, start)
        raise Misuse("a source that is not pinned, or not any more", where, where)

    def note_read(self, work: Work, span: HostSpan, source: NDArray[np.uint8]) -> None:
        """Note that a copy reads a source from now on."""
        self._reads.append(SourceRead(work, span, source))

    def use(self, block: DeviceBlock, work: Work, *, writes: bool) -> None:
        """Note that a piece of work uses memory of the device.

        Raises:
            Misuse: Nothing orders it after another use.
        """
        for other, wrote in block.used:
            if (wrote or writes) and other is not work and not other.is_before(work.clock):
                kind = "read before its copy" if not writes else "a second writer"
                raise Misuse(f"memory of the device: {kind}", other.site, work.site)
        if not writes and not any(wrote for _, wrote in block.used):
            raise Misuse("memory of the device: read before its copy", block.site, work.site)
        block.used.append((work, writes))

    def look(self, where: Site) -> None:
        """Find out what has happened since the last call that was not a call.

        Raises:
            Misuse: Something is wrong.
        """
        for span in self._spans.take_ended():
            self._end_span(span, where)
        for reading in self._reads:
            is_known = reading.work.is_before(self._host)
            if not is_known and crc32c(reading.source) != reading.crc:
                reading.crc = crc32c(reading.source)  # taken once
                raise Misuse(
                    "the source of a copy was written", reading.work.site, where, self._last
                )
        self._reads = [r for r in self._reads if not r.work.is_before(self._host)]
        for block in self._blocks.take_ended():
            del self._by_address[id(block.storage)]
            self._retired.append(block)
            for work, _ in block.used:
                is_kept = work.stream is block.stream or work.stream.number in block.kept_for
                if not is_kept and not work.is_before(self._host):
                    raise Misuse(
                        "memory of the device: freed while another stream may use it",
                        work.site,
                        where,
                        self._last,
                    )
        for block in list(self._retired):
            if not any(work.is_queued for work, _ in block.used):
                self._retired.remove(block)
                self.used_bytes -= block.nbytes
                block.bytes()[:] = FREED

    def passed(self, where: Site) -> None:
        """Note which call was the last."""
        self._last = where

    def left(self) -> list[Site]:
        """Return where what is left was made."""
        return [
            *(found.site for found in self._spans.alive()),
            *(found.site for found in self._registered.values()),
            *(found.site for found in self._blocks.alive()),
        ]

    def _end_span(self, span: HostSpan, where: Site) -> None:
        for reading in self._reads:
            if reading.span is span and not reading.work.is_before(self._host):
                raise Misuse(
                    "the source of a copy was unpinned", reading.work.site, where, self._last
                )


def _address(array: NDArray[np.uint8]) -> int:
    return int(array.__array_interface__["data"][0])
