"""How a batch lies in bytes: the only room that knows it.

A batch is a **header** (the protobuf message `BatchHeader`) and a **body**: its tensors, one after
another, each at a multiple of 64 bytes, zeros between them. It travels as `ReadReply` messages.

* `layout`: where each value of a batch is put.
* `record`: its body and its header, written.
* `seal`: the header gets its position and its own checksum, and is read by it.
* `messages`: the messages of a stream, out and in.
* `entries`: what a header says of each value.
* `checks`: what a client refuses of what came.
* `completing`: packed rows that travel in place of a body, and the body made of them.
* `decode`: the values, read from header and body.
* `octets`: views, checksums and protobuf's fields by hand, for all of these.

In the order of a batch's way:

* the maker: `Layout` -> `write_body` -> `write_header`; `with_position`;
* the server's edge: `batch_messages`, or `bundle` for several small batches;
* the client: `parse_replies` -> `check_sealed` -> `check_header` -> `check_chunk` -> `check_crc` ->
  `complete` -> `decode_entries`.

What comes from the network is checked before anything is allocated by it, and `BadFrame` or
`ChecksumMismatch` is all that it can cause.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.wire.frame.checks import check_chunk, check_crc, check_header
    from penstock.wire.frame.completing import complete, completed, sent_bytes
    from penstock.wire.frame.decode import (
        TensorMaker,
        bfloat16_dtype,
        decode_entries,
        decode_values,
        numpy_maker,
    )
    from penstock.wire.frame.entries import Entries, Entry, read_entries, tensors_of
    from penstock.wire.frame.layout import Layout
    from penstock.wire.frame.messages import (
        ChunkView,
        Reply,
        batch_messages,
        bundle,
        parse_replies,
        parse_reply,
    )
    from penstock.wire.frame.octets import Buffer, crc32c, extend_crc32c
    from penstock.wire.frame.record import MAX_HEADER_BYTES, write_body, write_header
    from penstock.wire.frame.seal import check_sealed, read_header, with_position, without_samples

_FILES = {
    "check_chunk": "checks",
    "check_crc": "checks",
    "check_header": "checks",
    "complete": "completing",
    "completed": "completing",
    "sent_bytes": "completing",
    "TensorMaker": "decode",
    "bfloat16_dtype": "decode",
    "decode_entries": "decode",
    "decode_values": "decode",
    "numpy_maker": "decode",
    "Entries": "entries",
    "Entry": "entries",
    "read_entries": "entries",
    "tensors_of": "entries",
    "Layout": "layout",
    "ChunkView": "messages",
    "Reply": "messages",
    "batch_messages": "messages",
    "bundle": "messages",
    "parse_replies": "messages",
    "parse_reply": "messages",
    "Buffer": "octets",
    "crc32c": "octets",
    "extend_crc32c": "octets",
    "MAX_HEADER_BYTES": "record",
    "write_body": "record",
    "write_header": "record",
    "check_sealed": "seal",
    "read_header": "seal",
    "with_position": "seal",
    "without_samples": "seal",
}
"""Whoever only writes batches loads nothing that reads them."""


def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "MAX_HEADER_BYTES",
    "Buffer",
    "ChunkView",
    "Entries",
    "Entry",
    "Layout",
    "Reply",
    "TensorMaker",
    "batch_messages",
    "bfloat16_dtype",
    "bundle",
    "check_chunk",
    "check_crc",
    "check_header",
    "check_sealed",
    "complete",
    "completed",
    "crc32c",
    "decode_entries",
    "decode_values",
    "extend_crc32c",
    "numpy_maker",
    "parse_replies",
    "parse_reply",
    "read_entries",
    "read_header",
    "sent_bytes",
    "tensors_of",
    "with_position",
    "without_samples",
    "write_body",
    "write_header",
]
