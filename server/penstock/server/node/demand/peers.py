"""What the readers of one host may want together, and how hosts and logs take turns.

A host may open any number of streams, and each may accept everything. If each had a claim of its
own, many streams that ask for much would leave little to one that asks for what it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

MAX_PENDING, LEAST_PENDING = 1024, 32
"""Batches of one log that the readers of a host want at once, wherever their horizons lie: these
are only numbers. Each has an equal part, and never less than the second: a message holds as many
small batches."""

UNKNOWN_S = 0.01
"""What a ticket of a job is taken to last as long as none was answered."""


@dataclass(eq=False)
class Peer:
    """One host's readers of one log.

    Attributes:
        readers: How many there are.
        turn: As `Taking` says.
    """

    readers: int = 0
    turn: float = 0.0

    @property
    def pending_each(self) -> int:
        """Return how many batches each of its readers may want at once."""
        return max(LEAST_PENDING, MAX_PENDING // max(1, self.readers))


class Taking(Protocol):
    """What takes turns: a host, or a log.

    Attributes:
        turn: The worker time that it was given, in seconds, on the clock of its `FairTurns`.
    """

    turn: float


class FairTurns:
    """Deals the workers' time evenly to those who want some.

    Start-time fair queueing (Goyal, Vin and Cheng, "Start-time fair queuing: a scheduling algorithm
    for integrated services packet switching networks", 1996): each ticket costs what a ticket of
    its job usually takes, the next one goes to who was given least, and who wanted nothing for a
    while is owed nothing for that.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def of(self, taking: Taking) -> float:
        """Return when its turn is: whoever has the least is next."""
        return max(self._now, taking.turn)

    def give(self, taking: Taking, ticket_s: float) -> None:
        """Note that one of them is given a ticket.

        Args:
            taking: The one.
            ticket_s: What such a ticket usually takes; 0 = not known.
        """
        self._now = self.of(taking)
        taking.turn = self._now + (ticket_s or UNKNOWN_S)


class Peers:
    """The hosts that read one log.

    Attributes:
        turns: Theirs, where their batches are equally urgent.
    """

    def __init__(self) -> None:
        self._peers: dict[str, Peer] = {}
        self.turns = FairTurns()

    @property
    def are_one(self) -> bool:
        """Tell whether nobody takes turns: one host reads, or none does."""
        return len(self._peers) <= 1

    def join(self, host: str) -> Peer:
        """Return what a new reader shares with the others of its host."""
        peer = self._peers.setdefault(host, Peer())
        peer.readers += 1
        return peer

    def leave(self, peer: Peer) -> None:
        """A reader of a host is gone."""
        peer.readers -= 1
        if not peer.readers:
            self._peers = {host: other for host, other in self._peers.items() if other is not peer}
