"""How a batch lies in bytes: the only room that knows it.

A batch is a **header** (the protobuf message `BatchHeader`) and a **body**: its tensors, one after
another, each at a multiple of 64 bytes, zeros between them. It travels as `ReadReply` messages.

* `layout`: the names of the values, their dtypes and shapes, and where each lies.
* `record`: the header and the body of one batch, written, sealed and checked.
* `messages`: the messages of a stream.
* `octets`: views, checksums and protobuf's fields by hand, for those three.

In the order of a batch's way:

* the maker: `Layout` -> `write_body` -> `write_header`; `with_position`;
* the server's edge: `batch_messages`, or `bundle` for several small batches;
* the client: `parse_replies` -> `check_sealed` -> `check_header` -> `check_chunk` -> `check_crc` ->
  `decode_values`.

What comes from the network is checked before anything is allocated by it, and `BadFrame` or
`ChecksumMismatch` is all that it can cause.
"""

from penstock.wire.frame.layout import (
    Layout,
    TensorMaker,
    bfloat16_dtype,
    decode_values,
    describe_values,
)
from penstock.wire.frame.messages import (
    ChunkView,
    Reply,
    batch_messages,
    bundle,
    check_chunk,
    parse_replies,
    parse_reply,
)
from penstock.wire.frame.octets import Buffer, crc32c
from penstock.wire.frame.record import (
    MAX_HEADER_BYTES,
    batch_record,
    check_crc,
    check_header,
    check_sealed,
    read_header,
    with_position,
    write_body,
    write_header,
)

__all__ = [
    "MAX_HEADER_BYTES",
    "Buffer",
    "ChunkView",
    "Layout",
    "Reply",
    "TensorMaker",
    "batch_messages",
    "batch_record",
    "bfloat16_dtype",
    "bundle",
    "check_chunk",
    "check_crc",
    "check_header",
    "check_sealed",
    "crc32c",
    "decode_values",
    "describe_values",
    "parse_replies",
    "parse_reply",
    "read_header",
    "with_position",
    "write_body",
    "write_header",
]
