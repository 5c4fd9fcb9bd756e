"""The contract between loader nodes and trainers: messages, frames, order, errors.

Both halves import this package; it imports neither, and it never imports grpc, so that worker
processes can use it.

* `penstock.wire.v1`: the `.proto` files and the code generated from them.
* `penstock.wire.frame`: the only room that knows the layout of a batch in bytes.
* `penstock.wire.packed_rows`: what follows from the ids of packed rows, and how it is made.
* `penstock.wire.value_types`: what a batch may hold; `penstock.wire.digest`: one hash of all of it.
* `penstock.wire.order`: lane, offset, position, step: the arithmetic that both halves must share.
* `penstock.common.prefetch`: how many batches are fetched ahead.
* `penstock.wire.parse`: bytes of the other side as a message.
* `penstock.wire.errors`: every error, its stable code and its gRPC status.
* `penstock.wire.attempt_names`: what an attempt is called after a seek.
* `penstock.wire.transports`: what a Loader talks to.
* `penstock.wire.lazy_names`: names of a package that are imported when they are asked for.
* `penstock.common.programs`: the commands of both programs, and which program has which.
* `penstock.common.terminal`: texts of others, harmless in a terminal.
* `penstock.common.malloc`: glibc, told to keep memory for messages.
"""

PROTOCOL = 2
"""The version of the wire that this package speaks; a peer of another version is refused."""

CHUNK_BYTES = 1 << 20
"""Body bytes in one message. Measured: 1 MiB moves 3x the bytes per second of 64 MiB messages."""

WIDE_CHUNK_BYTES = 8 << 20
"""The most body bytes in one message, where a server makes an exception from `CHUNK_BYTES`: see
`Stream.chunk_bytes` in the server."""

MAX_MESSAGE_BYTES = 16 << 20
"""The limit that both sides set on one gRPC message: a bound, never -1."""

MAX_REQUEST_BYTES = 1 << 20
"""The limit of a server on one message *to* it: far above what an honest request needs, which is a
few hundred bytes, and small enough that a flood of them does not fill its memory."""

ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes, so that vector loads and DMA are
aligned."""

LENT_BYTES = 64 << 10
"""A body of at least this length has pages of its own in its worker's memory, and can be lent to a
process on the same host. For a smaller one a loan costs more than a copy."""

MAX_NAME = 200
"""Characters of the name of a group or a checkpoint, and of an owner; all of them printable."""

MAX_TOKEN = 512
"""Characters of an attempt's token and of a request's id; all of them printable."""

MAX_WORLD_SIZE = 1 << 16
"""Ranks of one attempt: each has a row, so a mistyped number must not write for many seconds."""

__all__ = [
    "ALIGNMENT",
    "CHUNK_BYTES",
    "LENT_BYTES",
    "MAX_MESSAGE_BYTES",
    "MAX_NAME",
    "MAX_REQUEST_BYTES",
    "MAX_TOKEN",
    "MAX_WORLD_SIZE",
    "PROTOCOL",
    "WIDE_CHUNK_BYTES",
]
