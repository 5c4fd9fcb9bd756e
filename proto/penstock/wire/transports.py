"""What a Loader talks to: a server over gRPC, or a job in its own process, by the same messages.

`local:` and `spawn:` are found through the entry point group `penstock.transports`, so that the
halves never import each other: the entry point is an `TransportOpener`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from penstock.wire.frame import Reply


class ReadCall(Protocol):
    """An open `Feed.Read`: an iterator over messages.

    One thread iterates, and goes on until the iteration ends, also after a `cancel`: only then is
    everything released.
    """

    def __iter__(self) -> Iterator[Sequence[Reply]]:
        """Return itself."""
        ...

    def __next__(self) -> Sequence[Reply]:
        """Return the next message's replies: one, or all of a bundle.

        The data of a chunk may be a view of the message, or of mapped memory, which it keeps alive.

        Raises:
            BadFrame, ChecksumMismatch: What came is not a message of the feed.
            PenstockError: What the server says is wrong; `Unreachable` if the connection broke.
            StopIteration: The server has closed the stream.
        """
        ...

    def send(self, request: bytes) -> None:
        """Send a serialized `ReadRequest` with a horizon, from any thread.

        A horizon includes every earlier one, so one that was not sent yet may be left out.
        The thread that reads batches calls it, where a signal handler may raise between any two
        bytecodes: it takes no lock of Python code (`queue.SimpleQueue.put` is such a way).
        """
        ...

    def cancel(self) -> None:
        """End the call from any thread; a waiting `__next__` returns soon after. Idempotent.

        Like everything but `send` it is called where no signal handler runs, and may take locks.
        """
        ...


class Transport(Protocol):
    """A way to one loader node. Thread-safe.

    Attributes:
        memory: The path of the node's memory socket (`penstock.wire.memory_socket`), if it is on
            this host
            and has one; None = bodies are sent.
    """

    memory: str | None

    def unary(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Call `Feed/Describe`, `Cursors/Begin`, ... with serialized messages.

        Raises:
            PenstockError: What the server says is wrong; `Unreachable` if none answered in time.
        """
        ...

    def read(self, opening: bytes) -> ReadCall:
        """Open `Feed/Read` with a serialized `ReadRequest` that holds `open`."""
        ...

    def close(self) -> None:
        """Close connections; idempotent."""
        ...


@dataclass(frozen=True)
class Endpoint:
    """The address of a node that was started for this process.

    Attributes:
        target: What the gRPC transport connects to, for example `unix:/run/.../node.sock`.
        close: Called when the Loader closes.
    """

    target: str
    close: Callable[[], None]


@runtime_checkable
class Addresses(Protocol):
    """Where the nodes of a target are, for as long as it is read: an engine that places them knows.

    Attributes:
        every_s: How many seconds lie between two looks; infinite = they stay as they are.
    """

    every_s: float

    def look(self) -> Sequence[str]:
        """Return the addresses of now: `host:port` or `unix:/path`, in any order.

        One thread calls it, on which no signal handler runs; it may take a while.

        Raises:
            PenstockError: They are not known now, where its status is UNAVAILABLE: then it is asked
                again, and until then those that were known before hold. Any other is final at the
                first look.
        """
        ...

    def close(self) -> None:
        """Release what it holds; idempotent."""
        ...


class TransportOpener(Protocol):
    """An entry point of that group."""

    def __call__(self, rest: str, *, job: str, grouped: bool) -> Transport | Endpoint | Addresses:
        """Return a way to a node, or where nodes are.

        Args:
            rest: What follows the colon of the target.
            job: The job that is asked for; empty = any.
            grouped: Cursors or verdicts are used.
        """
