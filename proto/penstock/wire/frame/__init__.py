"""How a batch lies in bytes: the only room that knows it.

A batch is a **header** (the protobuf message `BatchHeader`) and a **body**: its tensors, one after
another, each at a multiple of 64 bytes, zeros between them. It travels as `ReadReply` messages.

* `body_layout`: where each value of a batch is put.
* `record`: its body and its header, written.
* `seal`: the header gets its position and its own checksum, and is read by it.
* `read_messages`: the messages of a stream, out and in.
* `entries`: what a header says of each value.
* `refused`: what a client refuses of what came.
* `completing`: packed rows that travel in place of a body, and the body made of them.
* `decode`: the values, read from header and body.
* `octets`: views, checksums and protobuf's fields by hand, for all of these.

In the order of a batch's way:

* the maker: `BodyLayout` -> `write_body` -> `write_header`; `with_position`;
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
    from penstock.wire.frame.body_layout import BodyLayout
    from penstock.wire.frame.completing import complete, completed, sent_bytes
    from penstock.wire.frame.decode import (
        TensorMaker,
        bfloat16_dtype,
        decode_entries,
        decode_values,
        numpy_maker,
    )
    from penstock.wire.frame.entries import Entries, ValueEntry, read_entries, tensors_of
    from penstock.wire.frame.octets import Buffer, crc32c, extend_crc32c
    from penstock.wire.frame.read_messages import (
        ChunkView,
        Reply,
        batch_messages,
        bundle,
        parse_replies,
        parse_reply,
    )
    from penstock.wire.frame.record import MAX_HEADER_BYTES, write_body, write_header
    from penstock.wire.frame.refused import check_chunk, check_crc, check_header
    from penstock.wire.frame.seal import check_sealed, read_header, with_position, without_samples

_FILES = {
    "check_chunk": "refused",
    "check_crc": "refused",
    "check_header": "refused",
    "complete": "completing",
    "completed": "completing",
    "sent_bytes": "completing",
    "TensorMaker": "decode",
    "bfloat16_dtype": "decode",
    "decode_entries": "decode",
    "decode_values": "decode",
    "numpy_maker": "decode",
    "Entries": "entries",
    "ValueEntry": "entries",
    "read_entries": "entries",
    "tensors_of": "entries",
    "BodyLayout": "body_layout",
    "ChunkView": "read_messages",
    "Reply": "read_messages",
    "batch_messages": "read_messages",
    "bundle": "read_messages",
    "parse_replies": "read_messages",
    "parse_reply": "read_messages",
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


if not TYPE_CHECKING:  # a type checker shall miss what is not there

    def __getattr__(name: str) -> Any:
        if name not in _FILES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
        globals()[name] = value
        return value


__all__ = [
    "MAX_HEADER_BYTES",
    "BodyLayout",
    "Buffer",
    "ChunkView",
    "Entries",
    "Reply",
    "TensorMaker",
    "ValueEntry",
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
