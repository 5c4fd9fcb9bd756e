"""One batch that a reader wants, or that is kept: where it stands, who wants it, where it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from penstock.wire.errors import PenstockError

if TYPE_CHECKING:
    from penstock.server.node.reader import Reader


class State(Enum):
    """What is known of a wanted batch."""

    WANTED = "wanted"
    MAKING = "making"
    READY = "ready"
    FAILED = "failed"


class Key(NamedTuple):
    """What an entry is: a position, and the address whose batch stands there."""

    position: int
    lane: int
    offset: int
    blank: bool


@dataclass(eq=False)
class Entry:
    """One batch that somebody wants, or that is kept for late readers.

    Attributes:
        key: Its address.
        readers: Who wants it.
        pins: Streams that are writing it to the network right now.
        body: Its bytes, in shared memory.
        release: Gives the shared memory back.
    """

    key: Key
    state: State = State.WANTED
    readers: set[Reader] = field(default_factory=set)
    pins: int = 0
    header: bytes = b""
    body: memoryview | None = None
    nbytes: int = 0
    tokens: int = 0
    release: Callable[[], None] | None = None
    error: PenstockError | None = None
    evicted: bool = False

    def free(self) -> None:
        """Let the bytes go as soon as no stream writes them."""
        self.evicted = True
        if self.pins == 0 and self.release is not None:
            release, self.release, self.body = self.release, None, None
            release()

    def unpin(self) -> None:
        """One stream has written this batch."""
        self.pins -= 1
        if self.evicted:
            self.free()


__all__ = ["Entry", "Key", "State"]
