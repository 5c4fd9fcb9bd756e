"""What gRPC holds of messages that consumers have not taken: no bound of batches counts it."""

from __future__ import annotations

from penstock.server.rpc.call import ConsumerCall

MUCH_BYTES = 64 << 20
"""Of all streams together. With more of it, messages are no larger than chunks: a hundred streams
that nobody reads would else hold a wide message of 8 MB each."""


class Unsent:
    """Sends messages for all streams, and counts those that are on their way.

    Attributes:
        nbytes: What these have in sum.
    """

    def __init__(self) -> None:
        self.nbytes = 0

    @property
    def is_much(self) -> bool:
        """Tell whether no message may be wide now."""
        return self.nbytes >= MUCH_BYTES

    async def write(self, call: ConsumerCall, message: bytes) -> None:
        """Send a message; return when its stream takes the next one.

        Raises:
            HungUp: The connection broke.
        """
        nbytes = len(message)
        self.nbytes += nbytes
        try:
            await call.write(message)
        finally:
            self.nbytes -= nbytes
