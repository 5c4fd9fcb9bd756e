"""What a worker says: at once, or the answer of a cheap ticket together with the next one's."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from penstock.server.node.demand.made_ahead import is_cheap
from penstock.server.node.protocol.channel import encode
from penstock.server.node.protocol.message_port import MessagePort
from penstock.server.node.protocol.messages import FromServer, FromWorker

HOLD_S = 0.002
"""How long a finished batch may wait for the next ones, where more tickets are here and cheap.

With 2 ms, and as many tickets and positions ahead, 200 KB lent to a process of the same host went
1.2 times as fast as with 1 ms (2 cores): each process works longer at a time, and waits less for
the others."""

LATE_S = 0.02
"""After this it goes without the next one, which takes longer than the ones before it."""


class Outbox:
    """Sends over a worker's port, and holds back what may wait.

    A wake-up of the server process costs as much as a cheap batch. So where tickets take next to no
    time, answers wait for each other.

    Args:
        port: The worker's.
        hold_s: How long an answer may wait for the next; 0 = none waits.
    """

    def __init__(self, port: MessagePort[FromWorker, FromServer], hold_s: float = HOLD_S) -> None:
        self._port, self._hold_s = port, hold_s
        self._sending = threading.Lock()  # guards the port and what is held
        self._held: list[FromWorker] = []
        self._holding = threading.Event()
        self._held_until = self._last_s = 0.0
        self._ticket_s = 1.0  # how long tickets take, in the mean

    def start(self) -> None:
        """Have a thread send what is held when the next ticket takes long: a role has this one."""
        if self._hold_s:
            threading.Thread(target=self._flush_late, name="penstock-late", daemon=True).start()

    def send(self, messages: Sequence[FromWorker], *, hold: bool = False) -> None:
        """Send messages, after all that is held; or hold them, too.

        Raises:
            OverflowError, TypeError, UnicodeEncodeError: A role's number or text is in them that no
                message can hold: they are dropped, and what was held before them is not.
            OSError: The server process is gone.
        """
        with self._sending:
            before = len(self._held)
            if hold:
                encode(messages)  # raises for these here, not later for others
                self._held += messages
                if not before:
                    self._holding.set()
                return
            self._held += messages
            try:
                self._flush()
            except (OverflowError, TypeError, UnicodeEncodeError):
                del self._held[before:]
                raise

    def may_hold(self) -> bool:
        """Tell whether the answer of a ticket that is done now may wait for the next one's."""
        now = time.monotonic()
        took_s, self._last_s = now - self._last_s, now
        self._ticket_s += 0.2 * (took_s - self._ticket_s)
        if not self._held:
            self._held_until = now + self._hold_s
        return is_cheap(self._ticket_s) and now < self._held_until

    def _flush_late(self) -> None:
        """Wake at most once in `LATE_S`, and not at all where nothing is held."""
        while True:
            self._holding.wait()
            self._holding.clear()
            time.sleep(LATE_S)
            try:
                with self._sending:
                    self._flush()
            except OSError:
                return  # the server process is gone; whoever hears it sees it, too

    def _flush(self) -> None:
        if self._held:
            self._port.send(self._held)
            self._held = []
