"""Who is let in, and to what: decided before a message is read or memory is taken for it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import grpc

from penstock.server.access.caller import ADMIN, CALLER, COMMIT, READ, TEXT, Caller
from penstock.server.access.callers import Access
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.rpc.ending import ending
from penstock.wire.errors import PenstockError

OPEN = "/grpc.health.v1.Health/"
"""Probes have no token."""

PREFIX = "/penstock.wire.v1."

NEEDS: dict[str, tuple[str, str]] = {
    "Feed/Describe": (READ, "look at jobs"),
    "Feed/Status": (READ, "look at the node"),
    "Feed/Read": (READ, "read"),
    "Cursors/List": (READ, "look at groups"),
    "Cursors/Begin": (COMMIT, "begin a run"),
    "Cursors/Commit": (COMMIT, "commit"),
    "Cursors/Checkpoint": (COMMIT, "name a step"),
    "Cursors/Restore": (COMMIT, "move a cursor"),
    "Cursors/Seek": (COMMIT, "move a cursor"),
    "Cursors/ListVerdicts": (TEXT, "see which items were left out"),
    "Cursors/Delete": (ADMIN, "delete a group"),
    "Cursors/ReleaseItem": (ADMIN, "release an item"),
}
"""By method: the scope that it needs at least, and what the caller would do."""

TOKEN_KEY = "authorization"


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in grpc-stubs alone
    """Asks every call but those of the health service who makes it.

    A good token is seen here. For all others the call is needed, as a certificate is known there
    alone; and gRPC reads the message of a unary call before its handler runs. So they are served as
    a stream, whose messages are read when they are asked for; on the wire the two are one.

    Args:
        access: Who may do what.
        metrics: Where refused calls are counted.
    """

    def __init__(self, access: Access, metrics: Metrics) -> None:
        self._access, self._metrics = access, metrics

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        """Return the handler of a call, behind the question who makes it."""
        handler = await continuation(details)
        if details.method.startswith(OPEN):
            return handler
        method, shown = details.method.removeprefix(PREFIX), details.invocation_metadata or ()
        if handler is not None and any(key == TOKEN_KEY for key, _ in shown):
            with contextlib.suppress(PenstockError):  # told below, where there is a call to end
                # The handler runs in this task.
                CALLER.set(self._allowed(method, shown, {}))
                return handler

        async def serve(messages: Any, context: Any) -> None:
            try:
                caller = self.caller(method, context)
            except PenstockError as error:
                await context.abort(*ending(error))
                raise AssertionError from error  # abort has raised
            CALLER.set(caller)
            if handler is None:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
            elif handler.unary_unary is None:
                await handler.stream_stream(messages, context)
            else:
                message = await context.read()
                if message is not grpc.aio.EOF:  # type: ignore[attr-defined]
                    await context.write(await handler.unary_unary(message, context))

        return grpc.stream_stream_rpc_method_handler(serve)

    def caller(self, method: str, context: Any) -> Caller:
        """Return who makes a call; a refusal is counted.

        Raises:
            Unauthenticated: Nobody that the node knows.
            Forbidden: Somebody without the scope that the method needs.
        """
        try:
            return self._allowed(
                method, context.invocation_metadata() or (), context.auth_context()
            )
        except PenstockError as error:
            self._metrics.refused(getattr(error, "name", None) or "", error.code)
            raise

    def _allowed(self, method: str, shown: Iterable[tuple[str, Any]], properties: Any) -> Caller:
        found = self._who(shown, properties)
        scope, what = NEEDS.get(method, (READ, "call this"))
        found.need(scope, what)
        return found

    def _who(self, shown: Iterable[tuple[str, Any]], properties: Any) -> Caller:
        for key, value in shown:
            if key == TOKEN_KEY:
                return self._access.of_header(str(value))
        return self._access.of_certificate(certificate_names(properties))


def certificate_names(properties: Any) -> list[str]:
    """Return the names in the certificate of a connection's client; empty = it has shown none."""
    names: list[str] = []
    for key in ("x509_subject_alternative_name", "x509_common_name"):
        names += [bytes(value).decode("utf-8", "replace") for value in properties.get(key, ())]
    return names
