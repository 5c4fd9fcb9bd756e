"""A queue of copies like a device's, on the host: what a machine without one tests copiers with.

Its "device" is fresh memory of the process. A copy is done by a thread of its own, in order and as
late as a test wants, and until then the memory holds other bytes: whoever looks too early, or
writes into what is still being copied, is found out.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import torch

from penstock.client.reading.buffers import PlainMemory

DEADLINE_S = 60.0

NOT_THERE = 0xA5
"""What memory on the device holds before the copy."""


class CopiedFrom(PlainMemory):
    """Memory that says of itself what pinned memory does."""

    is_pinned = True


class HostMark:
    """The end of a copy. The loop waits for it, and may be broken off: so it takes no lock."""

    def __init__(self) -> None:
        self._is_over = False

    def query(self) -> bool:
        """Tell whether it has come to pass."""
        return self._is_over

    def synchronize(self) -> None:
        """Wait until it has come to pass."""
        end = time.monotonic() + DEADLINE_S
        while not self._is_over:
            assert time.monotonic() < end, "a test holds a copy up for ever"
            time.sleep(1e-4)

    def come(self) -> None:
        """Have it come to pass."""
        self._is_over = True


class HostQueue:
    """Copies in order, beside the host: a `Queue`.

    Args:
        device: Ignored: a `torch.device` of type cpu.
        copy_s: How long each copy takes.

    Attributes:
        goes: Copies are done while it is set.
        accepts: Copies are queued while it is set: a device that hangs does not return.
        sent: How many copies were queued.
        copied: How many are over.
        refuses: Numbers of copies that are refused, once each, as a full device refuses them.
        received: How many of them the loop has received.
    """

    def __init__(self, device: Any = None, *, copy_s: float = 0.0) -> None:
        self.memory = CopiedFrom()
        self._copy_s = copy_s
        self.goes, self.accepts = threading.Event(), threading.Event()
        self.goes.set()
        self.accepts.set()
        self.sent = self.copied = self.received = 0
        self.refuses: set[int] = set()
        self._loop: int | None = None
        self._waiting: queue.SimpleQueue[tuple[Any, Any, HostMark]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="device", daemon=True).start()

    def settle(self) -> None:
        """Note which thread is the loop's."""
        assert self._loop is None, "settled twice"
        self._loop = threading.get_ident()

    def send(self, host: Any) -> tuple[Any, HostMark]:
        """Queue a copy, once it is settled."""
        assert self._loop is not None, "not settled"
        assert self.accepts.wait(DEADLINE_S), "a test lets a device hang for ever"
        number, self.sent = self.sent, self.sent + 1
        if number in self.refuses:
            raise torch.OutOfMemoryError("no room on the device")
        body, mark = torch.full_like(host, NOT_THERE), HostMark()
        self._waiting.put((body, host, mark))
        return body, mark

    def receive(self, body: Any, mark: HostMark) -> None:
        """Wait for the copy: what the loop does on this device, it does by itself."""
        assert self._loop == threading.get_ident(), "received on another thread than the loop's"
        mark.synchronize()
        self.received += 1

    def _run(self) -> None:
        while True:
            body, host, mark = self._waiting.get()
            assert self.goes.wait(DEADLINE_S), "a test holds a copy up for ever"
            time.sleep(self._copy_s)
            body.copy_(host)
            del body, host
            mark.come()
            self.copied += 1


__all__ = ["NOT_THERE", "CopiedFrom", "HostMark", "HostQueue"]
