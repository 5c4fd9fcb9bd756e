"""One hash of the content of a batch: two batches with the same digest train alike.

It covers names, kinds, dtypes, shapes and every value, whether it travels in the header or in the
body, the counts, and whether the batch is padding. It does not cover the position of the batch in
the job, the items that it was made of, or the layout of its tensors in the body: the same content
has the same digest wherever it comes from.

The bytes that are hashed, in this order; a number is a little-endian uint64, and a text is the
number of its UTF-8 bytes and then these:

* the text `penstock batch 1`;
* the number of values, then of each, in the batch's order, its name as a text and the value;
* the number of counts, then of each, sorted by name, its name as a text and an int64;
* one byte: 1 for padding, else 0.

A value is one letter and what follows it:

* `t`, a tensor: its dtype as a text, the number of dimensions, each of them, the number of its
  bytes, and the bytes, C-contiguous and little-endian;
* `l`, a list: how many values it has, and these;
* `i`, an integer: an int64; `r`, a real: a float64; `b`, a truth: one byte, 0 or 1;
* `s`, a text, and `j`, a JSON object: a text, keys sorted, no blanks;
* `x`, bytes: their number, and these;
* `n`, nothing.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

from penstock.wire.frame.completing import completed
from penstock.wire.frame.refused import check_header
from penstock.wire.frame.seal import read_header
from penstock.wire.v1 import feed_pb2

FORMAT = "penstock batch 1"
"""The name of the encoding: another encoding gets another name."""

MOST_TIMES = 4096
"""A whole body may be so many times longer than what travels: packed rows leave out the rest."""

_NUMBER, _INT64, _FLOAT64 = (struct.Struct(code).pack for code in ("<Q", "<q", "<d"))


def batch_digest(header: feed_pb2.BatchHeader, body: Any) -> str:
    """Return the SHA-256 of the content of a batch, in hex; see the module.

    Args:
        header: A header that `check_header` has passed.
        body: The whole body, or what was sent in its place: a contiguous buffer.
    """
    sha = hashlib.sha256()
    octets = memoryview(completed(header, body))  # type: ignore[arg-type,unused-ignore]  # or an ndarray
    octets = octets.cast("B") if octets.nbytes else memoryview(b"")
    sha.update(_text(FORMAT))
    sha.update(_NUMBER(len(header.values)))
    for named in header.values:
        sha.update(_text(named.name))
        _add(sha, named.value, octets)
    sha.update(_NUMBER(len(header.counts)))
    for count in sorted(header.counts, key=lambda count: count.name):
        sha.update(_text(count.name))
        sha.update(_INT64(count.value))
    sha.update(b"\1" if header.padding else b"\0")
    return sha.hexdigest()


def made_digest(header: bytes, body: Any) -> bytes:
    """Return the digest of a batch that was made here, as 32 bytes.

    Args:
        header: Its encoded header, which a worker has written: it is not believed.
        body: Its body as it travels: a contiguous buffer.

    Raises:
        BadFrame: It is no header of such a batch.
    """
    found = read_header(header)
    check_header(found, max_body_bytes=MOST_TIMES * len(body) + MOST_TIMES)
    return bytes.fromhex(batch_digest(found, body))


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _NUMBER(len(encoded)) + encoded


def _add(sha: Any, value: feed_pb2.Value, body: memoryview) -> None:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        tensor = value.tensor
        sha.update(b"t" + _text(tensor.dtype))
        for number in (len(tensor.shape), *tensor.shape, tensor.nbytes):
            sha.update(_NUMBER(number))
        sha.update(body[tensor.start : tensor.start + tensor.nbytes])
    elif kind == "list":
        sha.update(b"l" + _NUMBER(len(value.list.values)))
        for inner in value.list.values:
            _add(sha, inner, body)
    elif kind == "integer":
        sha.update(b"i" + _INT64(value.integer))
    elif kind == "real":
        sha.update(b"r" + _FLOAT64(value.real))
    elif kind == "truth":
        sha.update(b"b\1" if value.truth else b"b\0")
    elif kind == "text":
        sha.update(b"s" + _text(value.text))
    elif kind == "raw":
        sha.update(b"x" + _NUMBER(len(value.raw)) + value.raw)
    elif kind == "json":
        sha.update(b"j" + _text(value.json))
    else:
        sha.update(b"n")
