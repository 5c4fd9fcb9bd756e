"""An Arrow Flight server that sends the same record batch over and over: the ceiling."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pyarrow.flight


class Server(pyarrow.flight.FlightServerBase):  # type: ignore[misc]
    """Answers DoGet with as many copies as the ticket says.

    Args:
        size: Bytes of one record batch.
    """

    def __init__(self, size: int) -> None:
        super().__init__("grpc://127.0.0.1:0")
        array = pa.array(np.arange(size, dtype=np.int64).astype(np.uint8))
        self.batch = pa.record_batch([array], names=["data"])

    def do_get(self, context: object, ticket: pyarrow.flight.Ticket) -> object:
        """Send the batch."""
        count = int(ticket.ticket)
        batches = (self.batch for _ in range(count))
        return pyarrow.flight.GeneratorStream(self.batch.schema, batches)


if __name__ == "__main__":
    server = Server(int(sys.argv[1]))
    print(f"127.0.0.1:{server.port}", flush=True)
    server.serve()
