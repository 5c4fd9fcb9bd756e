"""An error on its way, beside a gRPC status: code, sentence and fields, within what peers take."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf.message import DecodeError

from penstock.wire.errors import ERRORS, BadFrame, PenstockError
from penstock.wire.plain import clean_json, clean_text
from penstock.wire.v1 import error_pb2

ERROR_METADATA_KEY = "penstock-error-bin"

_SENTENCE_BYTES = 1500
_FIELDS_BYTES = 2500
_STATUS_BYTES = 1000
# HTTP/2 peers refuse metadata above 8 KiB, where base64 costs a third, the sentence is sent twice,
# and the status writes every byte that is not ASCII as three.


def status_text(error: PenstockError) -> str:
    """Return the sentence that the gRPC status itself carries: whole Unicode, and short enough."""
    limit = _STATUS_BYTES
    # 64 characters of 12 bytes fit, so this ends.
    while _percent_bytes(text := clean_text(error.message, limit)) > _STATUS_BYTES:
        limit = max(64, limit * 3 // 4)
    return text


def _percent_bytes(text: str) -> int:
    """Return how long a text is in a gRPC status: bytes outside of ASCII are written as `%E2`."""
    return sum(1 if 32 <= byte < 127 and byte != ord("%") else 3 for byte in text.encode())


def encode_error(error: PenstockError) -> bytes:
    """Return the bytes that travel in the trailing metadata `ERROR_METADATA_KEY`."""
    sentence = clean_text(error.message, _SENTENCE_BYTES).encode()[:_SENTENCE_BYTES]
    return error_pb2.Error(
        code=error.code, message=sentence.decode("utf-8", "ignore"), fields=_fields_json(error)
    ).SerializeToString()


def _fields_json(error: PenstockError) -> str:
    """The fields as JSON, cut if needed: a traceback must not displace code and sentence."""
    cleaned = {name: _clean_field(name, value) for name, value in error.fields.items()}
    text = json.dumps(cleaned, sort_keys=True)
    for limit in (1000, 300, 100, 30):
        if len(text) <= _FIELDS_BYTES:
            return text
        cut = {name: _cut(name, value, limit) for name, value in cleaned.items()}
        text = json.dumps(cut, sort_keys=True)
    return text if len(text) <= _FIELDS_BYTES else "{}"


def _clean_field(name: str, value: Any) -> Any:
    if name == "traceback" and isinstance(value, str):
        value = value[-_FIELDS_BYTES:]  # its end says most
    return clean_json(value, _FIELDS_BYTES)


def _cut(name: str, value: Any, limit: int) -> Any:
    text = value if isinstance(value, str) else json.dumps(value, default=str, sort_keys=True)
    if len(text) <= limit:
        return value if isinstance(value, str) else json.loads(text)
    # The last lines of a traceback say what was raised and where.
    return "..." + text[-limit:] if name == "traceback" else text[:limit] + "..."


def decode_error(data: bytes) -> PenstockError:
    """Return the error that `encode_error` wrote.

    An unknown code gives the base class; bytes that are not such an error give a `BadFrame`.
    """
    try:
        message = error_pb2.Error.FromString(data)
        given = json.loads(message.fields or "{}")
    except (DecodeError, ValueError, RecursionError) as error:
        return BadFrame(f"the other side's error cannot be read ({error}): look into its output")
    cls = ERRORS.get(message.code, PenstockError)
    return cls.with_fields(message.message, given if isinstance(given, dict) else {})
