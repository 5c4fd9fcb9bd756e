"""A gRPC call as the handler of a Read uses it."""

from __future__ import annotations

from typing import Any

import grpc

from penstock.server.usercode.frames import error_line

EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # grpc-stubs leave it out


class HungUp(Exception):
    """The consumer is gone, or its connection is."""


class ConsumerCall:
    """A gRPC call as a handler uses it: a failure in it means that the consumer has gone.

    gRPC raises several errors for that, and may not know yet that the call is done.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    async def read(self) -> Any:
        """Return the consumer's next message, or EOF.

        Raises:
            HungUp: The connection broke.
        """
        try:
            return await self._context.read()
        except Exception as error:
            raise HungUp(error_line(error)) from error

    async def write(self, data: bytes) -> None:
        """Send a message.

        Raises:
            HungUp: The connection broke.
        """
        try:
            await self._context.write(data)
        except Exception as error:
            raise HungUp(error_line(error)) from error
