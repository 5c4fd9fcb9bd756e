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

from typing import TYPE_CHECKING

from penstock.wire.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.wire.frame.body_layout import BodyLayout as BodyLayout
    from penstock.wire.frame.completing import complete as complete
    from penstock.wire.frame.completing import completed as completed
    from penstock.wire.frame.completing import sent_bytes as sent_bytes
    from penstock.wire.frame.decode import TensorMaker as TensorMaker
    from penstock.wire.frame.decode import bfloat16_dtype as bfloat16_dtype
    from penstock.wire.frame.decode import decode_entries as decode_entries
    from penstock.wire.frame.decode import decode_values as decode_values
    from penstock.wire.frame.decode import numpy_maker as numpy_maker
    from penstock.wire.frame.entries import Entries as Entries
    from penstock.wire.frame.entries import ValueEntry as ValueEntry
    from penstock.wire.frame.entries import read_entries as read_entries
    from penstock.wire.frame.entries import tensors_of as tensors_of
    from penstock.wire.frame.octets import Buffer as Buffer
    from penstock.wire.frame.octets import crc32c as crc32c
    from penstock.wire.frame.octets import extend_crc32c as extend_crc32c
    from penstock.wire.frame.read_messages import ChunkView as ChunkView
    from penstock.wire.frame.read_messages import Reply as Reply
    from penstock.wire.frame.read_messages import batch_messages as batch_messages
    from penstock.wire.frame.read_messages import bundle as bundle
    from penstock.wire.frame.read_messages import parse_replies as parse_replies
    from penstock.wire.frame.read_messages import parse_reply as parse_reply
    from penstock.wire.frame.record import MAX_HEADER_BYTES as MAX_HEADER_BYTES
    from penstock.wire.frame.record import write_body as write_body
    from penstock.wire.frame.record import write_header as write_header
    from penstock.wire.frame.refused import check_chunk as check_chunk
    from penstock.wire.frame.refused import check_crc as check_crc
    from penstock.wire.frame.refused import check_header as check_header
    from penstock.wire.frame.seal import check_sealed as check_sealed
    from penstock.wire.frame.seal import read_header as read_header
    from penstock.wire.frame.seal import with_position as with_position
    from penstock.wire.frame.seal import without_samples as without_samples
else:  # what only writes batches loads nothing that reads them
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
    __getattr__, __all__ = lazy_names(__name__, _FILES), [*_FILES]
