"""The calls of a port as text, to be compared with those that were kept."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.client.device.port import DeviceMemory, Event, Port, Stream


class RecordingPort:
    """A `Port` before another, which notes each call and the handles that it is about.

    Args:
        port: Where calls go on to.

    Attributes:
        lines: The calls, such as `copy memory 3 <- pinned 1, 4,096 bytes on copies`.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self.lines: list[str] = []
        self._counts: dict[str, int] = {}
        self._names: dict[int, tuple[Any, str]] = {}
        self._spans: list[tuple[int, int, str]] = []

    def pin(self, nbytes: int) -> NDArray[np.uint8]:
        """Note and pass on."""
        array = self._port.pin(nbytes)
        self._counts["pinned"] = number = self._counts.get("pinned", 0) + 1
        start = array.ctypes.data
        self._spans.append((start, start + nbytes, f"pinned {number}"))
        self.lines.append(f"pin {nbytes:,} bytes -> pinned {number}")
        return array

    def register(self, array: NDArray[np.uint8]) -> None:
        """Note and pass on."""
        self.lines.append(f"register {array.nbytes:,} bytes")
        self._spans.append((array.ctypes.data, array.ctypes.data + array.nbytes, "registered"))
        self._port.register(array)

    def unregister(self, array: NDArray[np.uint8]) -> None:
        """Note and pass on."""
        self.lines.append(f"unregister {array.nbytes:,} bytes")
        self._port.unregister(array)

    def allocate(self, nbytes: int, stream: Stream) -> DeviceMemory:
        """Note and pass on."""
        memory = self._port.allocate(nbytes, stream)
        name = self._name("memory", memory)
        self.lines.append(f"allocate {nbytes:,} bytes on {_stream(stream)} -> {name}")
        return memory

    def copy(
        self, memory: DeviceMemory, source: NDArray[np.uint8], nbytes: int, stream: Stream
    ) -> None:
        """Note and pass on."""
        address = source.ctypes.data
        names = [name for start, end, name in self._spans if start <= address < end]
        self.lines.append(
            f"copy {self._known(memory)} <- {names[-1] if names else 'the host'}, {nbytes:,} bytes "
            f"on {_stream(stream)}"
        )
        self._port.copy(memory, source, nbytes, stream)

    def record(self, stream: Stream) -> Event:
        """Note and pass on."""
        event = self._port.record(stream)
        self.lines.append(f"record on {_stream(stream)} -> {self._name('event', event)}")
        return event

    def wait(self, stream: Stream, event: Event, *memory: DeviceMemory) -> None:
        """Note and pass on."""
        use = "".join(f", for {self._known(kept)}" for kept in memory)
        self.lines.append(f"wait on {_stream(stream)} for {self._known(event)}{use}")
        self._port.wait(stream, event, *memory)

    def query(self, event: Event) -> bool:
        """Note and pass on."""
        is_over = self._port.query(event)
        self.lines.append(f"query {self._known(event)} -> {'over' if is_over else 'not over'}")
        return is_over

    def synchronize(self, event: Event) -> None:
        """Note and pass on."""
        self.lines.append(f"synchronize {self._known(event)}")
        self._port.synchronize(event)

    def _name(self, kind: str, handle: Any) -> str:
        self._counts[kind] = number = self._counts.get(kind, 0) + 1
        # Held weakly: noting a handle must not keep memory.
        self._names[id(handle)] = (weakref.ref(handle), f"{kind} {number}")
        return f"{kind} {number}"

    def _known(self, handle: Any) -> str:
        reference, name = self._names.get(id(handle), (None, "unknown"))
        return name if reference is not None and reference() is handle else "unknown"


def _stream(stream: Stream) -> str:
    return str(getattr(stream, "name", "a stream"))
