"""A worker's link to the server process: what it hears, what it says, and where batches go."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from penstock.server.core.verdict import Verdict
from penstock.server.node.protocol.message_port import MessagePort
from penstock.server.node.protocol.messages import (
    Free,
    FromServer,
    FromWorker,
    GoneArena,
    ItemQuarantined,
    Make,
    MakeSooner,
    NewArena,
    PlanAhead,
    Produce,
    QuarantineItem,
    Ready,
    Refused,
)
from penstock.server.node.workers.arena import Arenas, ArenaWriter
from penstock.server.node.workers.outbox import HOLD_S, Outbox
from penstock.server.processes.child import MARK
from penstock.server.processes.shared_memory import Descriptor
from penstock.wire.errors import ERRORS, Internal


class ServerGone(BaseException):
    """The server process has ended, and with it whoever wanted what this worker makes."""


class Link:
    """The worker's side of its port.

    Args:
        port: To the server process.
        check_fork: Called before anything is said: ends a process that a role has forked.
        hold_s: How long the answer of a cheap ticket may wait for the next; 0 = none waits.

    Attributes:
        inbox: What was heard and is not yet done.
        arenas: Where batches are written; what the server process has done with is free on receipt.
        log_id: The log that the worker works for now.
    """

    def __init__(
        self,
        port: MessagePort[FromWorker, FromServer],
        check_fork: Callable[[], None],
        hold_s: float = HOLD_S,
    ) -> None:
        self.port, self._check_fork = port, check_fork
        self.inbox: deque[FromServer] = deque()
        self.arenas = Arenas(self._announce, self._give_up)
        self.log_id: bytes | None = None
        self._outbox = Outbox(port, hold_s)

    def begin(self) -> None:
        """Say that this worker is ready, and from now on send what is held."""
        self._outbox.start()
        self.say(Ready())

    def next(self) -> FromServer | None:
        """Return the next message, or wait for it; None = the server process is gone."""
        while not self.inbox:
            if not self.take_in(wait=True):
                return None
        return self.inbox.popleft()

    def take_in(self, *, wait: bool) -> bool:
        """Put what the server process has said into the inbox; False where it is gone.

        Raises:
            ProtocolError: A role has read what was meant for this process.
        """
        messages = self.port.receive(wait=wait)
        if messages is None:
            return False
        for message in messages:
            if isinstance(message, Free):
                for arena, start in message.spans:
                    self.arenas.give_back(arena, start)
            else:
                self.inbox.append(message)
        return True

    def say(self, *messages: FromWorker, hold: bool = False) -> None:
        """Send messages, after all that is held; or hold them, too."""
        if not (MARK and MARK[0]):
            self._check_fork()
        self._outbox.send(messages, hold=hold)

    def may_hold(self) -> bool:
        """Tell whether a finished batch may wait a moment for the next one, of the same job."""
        cheap = self._outbox.may_hold()
        if not (cheap and self.inbox):
            return False
        following = self.inbox[0]
        return isinstance(following, Produce | PlanAhead | Make) and following.log_id == self.log_id

    def may_wait(self) -> bool:
        """Tell whether a retry harms nobody: no other job waits for this worker.

        Whoever reads the job whose storage is away asks again by and by, to a deadline of their
        own; the readers of another job must not wait for it meanwhile.
        """
        before = -1
        while len(self.inbox) != before:
            before = len(self.inbox)
            if not self.take_in(wait=False):
                return False
        for message in self.inbox:
            match message:
                case MakeSooner():
                    if message.log_id == self.log_id:
                        return False
                case Produce() | PlanAhead() | Make():
                    if message.log_id != self.log_id:
                        return False
        return True

    def quarantine(self, log_id: bytes, line: int | None, verdict: Verdict) -> Verdict:
        """Make a verdict durable before anything that depends on it is released.

        Raises:
            PenstockError: The server process refuses it.
            ServerGone: It is gone.
        """
        self.say(QuarantineItem(log_id, line, verdict))
        meanwhile: list[FromServer] = []
        while (message := self.next()) is not None:
            match message:
                case ItemQuarantined():
                    self.inbox.extendleft(reversed(meanwhile))
                    return message.verdict
                case Refused():
                    self.inbox.extendleft(reversed(meanwhile))
                    cls = ERRORS.get(message.code, Internal)
                    raise cls.with_fields(message.message, message.fields)
            meanwhile.append(message)
        raise ServerGone

    def _announce(self, arena: ArenaWriter) -> None:
        memory = Descriptor(os.dup(arena.fd))
        self._outbox.send([])  # what is held goes first, and this alone
        self._outbox.send([NewArena(arena.number, arena.size_bytes, memory)])

    def _give_up(self, arena: ArenaWriter) -> None:
        self._outbox.send([GoneArena(arena.number)])
