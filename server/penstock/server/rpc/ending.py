"""How a call ends with an error: its status, its sentence, and its code and fields beside it."""

from __future__ import annotations

import grpc
import structlog

from penstock.server.usercode.frames import error_line
from penstock.wire.errors import Internal, PenstockError
from penstock.wire.sent_errors import ERROR_METADATA_KEY, encode_error, status_text

logger = structlog.get_logger("penstock.rpc")


def ending(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return status, sentence and metadata for `context.abort`: such that it accepts them.

    gRPC marks the status as sent before it encodes it, so a call whose abort fails would never end.
    So everything that can fail is done here, with a plain answer as a fallback.
    """
    if not isinstance(error, PenstockError):
        logger.exception("a bug", exc_info=error)
        error = Internal(f"a bug in the server: {error_line(error)}; its log has more")
    try:
        metadata = ((ERROR_METADATA_KEY, encode_error(error)),)
        return grpc.StatusCode[error.status], status_text(error), metadata
    except Exception as failure:
        logger.error("an error cannot be told", code=error.code, error=error_line(failure))
        plain = Internal(
            f"an error of the code {error.code} that cannot be told: the server's log has it"
        )
        return grpc.StatusCode.INTERNAL, plain.message, ((ERROR_METADATA_KEY, encode_error(plain)),)
