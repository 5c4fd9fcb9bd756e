"""A body that travels as packed rows: what is sent in its place, and the body, completed.

What is sent are arrays one after another, each at a multiple of 64 bytes with zeros between them:
the token ids; the seams; the tokens of each segment; labels and numbers of documents, where these
do not follow; then the tensors of the body that are not made of rows, in the body's order.

Glossary:
    completed body: The body of a batch of packed rows as the Loader makes it of the ids and seams
        that travel: what a loop, a digest and a bound of memory see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from penstock.wire import ALIGNMENT
from penstock.wire.frame.octets import Buffer, octets, refuse
from penstock.wire.packed_rows import MOST_TOKENS, PER_TOKEN, SMALL, Derived, PackedRows
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import STORAGE, Array, NDArray


class BodyPlace(Protocol):
    """A tensor within a body: a `TensorPlace`, or what a header says of it."""

    @property
    def dtype(self) -> str:
        """Return the type of its elements."""

    @property
    def shape(self) -> Sequence[int]:
        """Return its shape."""

    @property
    def start(self) -> int:
        """Return where it begins in the body."""

    @property
    def nbytes(self) -> int:
        """Return how many bytes it has."""


def packed_form(
    rows: PackedRows, tensors: Iterable[tuple[int, Array]]
) -> tuple[feed_pb2.PackedRows, list[tuple[int, Array]]]:
    """Return what a header says of packed rows, and the arrays that travel, with their starts.

    Args:
        rows: What the derived ones of `tensors` are made of.
        tensors: Those of the body, in its order.
    """
    sent = [Array("int32", array) for array in rows.arrays]
    rules: list[int] = []
    for _, array in tensors:
        data: Any = array.data
        is_derived = type(data) is Derived
        rules.append(data.rule if is_derived else feed_pb2.RULE_SENT)
        if not is_derived:
            sent.append(array)
    placed: list[tuple[int, Array]] = []
    end = 0
    for array in sent:
        start = _aligned(end)
        placed.append((start, array))
        end = start + array.data.nbytes
    message = feed_pb2.PackedRows(
        sent_bytes=end,
        height=rows.ids.shape[0],
        width=rows.ids.shape[1],
        segments=len(rows.tokens),
        labels=rows.labels is not None,
        documents=rows.documents is not None,
        shifted=rows.shifted,
        rules=rules,  # type: ignore[arg-type]  # an enum is a number
    )
    return message, placed


def sent_bytes(header: feed_pb2.BatchHeader) -> int:
    """Return how many bytes travel for a body."""
    return header.packed.sent_bytes if header.HasField("packed") else header.body_bytes


def check_packed(
    packed: feed_pb2.PackedRows, tensors: Sequence[BodyPlace], max_body_bytes: int
) -> None:
    """Refuse packed rows of which the tensors of a body cannot be made.

    Args:
        packed: What a header says.
        tensors: Those of the body, in its order, checked to lie in it.
        max_body_bytes: The largest body that the caller is ready to hold, and to be sent.

    Raises:
        BadFrame: Numbers do not fit each other, or a rule does not make such a tensor.
    """
    height, width, segments = packed.height, packed.width, packed.segments
    area = height * width
    if not 0 < area <= MOST_TOKENS or not height <= segments <= area:
        refuse(f"a batch announces {height} packed rows of {width} tokens in {segments} segments")
    if len(packed.rules) != len(tensors):
        refuse(f"a batch has {len(packed.rules)} rules for {len(tensors)} tensors")
    end = _aligned(_aligned(4 * area) + 4 * segments + 4) + 4 * segments
    for _ in range(packed.labels + packed.documents):
        end = _aligned(end) + 4 * area
    before = 0
    for rule, place in zip(packed.rules, tensors, strict=True):
        if place.start < before:
            refuse(f"a tensor of packed rows lies at byte {place.start}, before the one before it")
        before = place.start + place.nbytes
        if rule == feed_pb2.RULE_SENT:
            end = _aligned(end) + place.nbytes
        elif rule == feed_pb2.RULE_SEAMS:
            if place.dtype != "int32" or len(place.shape) != 1 or place.shape[0] <= segments:
                _refuse_rule(rule, place)
        elif place.dtype not in PER_TOKEN.get(rule, ()) or tuple(place.shape) != (height, width):
            _refuse_rule(rule, place)
    if end != packed.sent_bytes or end > max_body_bytes:
        refuse(
            f"a batch announces {packed.sent_bytes} bytes of packed rows, which take {end}, and at "
            f"most {max_body_bytes} are allowed"
        )


def _refuse_rule(rule: int, place: BodyPlace) -> None:
    refuse(f"no rule {rule} makes a tensor of {place.dtype} and shape {list(place.shape)}")


def complete(
    packed: feed_pb2.PackedRows, tensors: Sequence[BodyPlace], sent: Buffer, out: NDArray
) -> None:
    """Write a body of which packed rows were sent.

    Args:
        packed: What its header says, checked by `check_packed`.
        tensors: Those of the body, in its order.
        sent: What came: `packed.sent_bytes` bytes.
        out: uint8, as long as the body; every byte is written.

    Raises:
        BadFrame: The segments do not lie one after another in the rows.
    """
    arrived = _Arrived(octets(sent))
    shape = height, width = packed.height, packed.width
    ids = arrived.numbers(height * width).reshape(shape)
    seams, tokens = arrived.numbers(packed.segments + 1), arrived.numbers(packed.segments)
    labels, documents = [
        arrived.numbers(height * width).reshape(shape) if travels else None
        for travels in (packed.labels, packed.documents)
    ]
    rows = PackedRows(ids, seams, tokens, labels, documents, packed.shifted)
    if wrong := rows.misplaced():
        refuse(f"the segments of a batch {wrong}")
    end = 0
    for rule, place in zip(packed.rules, tensors, strict=True):
        if not place.nbytes:
            continue
        if end < place.start:
            out[end : place.start] = 0
        end = place.start + place.nbytes
        if rule == feed_pb2.RULE_SENT:
            out[place.start : end] = arrived.bytes(place.nbytes)
        else:
            rows.make(rule, np.ndarray(tuple(place.shape), STORAGE[place.dtype], out, place.start))
    out[end:] = 0


class _Arrived:
    """Takes arrays from what was sent, one after another."""

    def __init__(self, sent: NDArray) -> None:
        # Within a message numbers may lie at odd addresses, where NumPy takes longer for each.
        is_aligned = sent[:4].view(SMALL).flags.aligned
        self._sent, self._end = sent if is_aligned else sent.copy(), 0

    def bytes(self, nbytes: int) -> NDArray:
        start = _aligned(self._end)
        self._end = start + nbytes
        return self._sent[start : self._end]

    def numbers(self, count: int) -> NDArray:
        return self.bytes(4 * count).view(SMALL)


def completed(header: feed_pb2.BatchHeader, sent: Buffer) -> Buffer:
    """Return the body of a batch, of what came: as it is, where nothing is left to be made.

    Args:
        header: A header that `check_header` has passed.
        sent: What was sent.

    Raises:
        BadFrame: As `complete`.
    """
    if not header.HasField("packed"):
        return sent
    body = np.zeros(header.body_bytes, np.uint8)
    tensors = [place for named in header.values for place in _tensors(named.value)]
    complete(header.packed, tensors, sent, body)
    return body


def _tensors(value: feed_pb2.Value) -> Iterator[feed_pb2.Tensor]:
    kind = value.WhichOneof("kind")
    if kind == "tensor":
        yield value.tensor
    elif kind == "list":
        for inner in value.list.values:
            yield from _tensors(inner)


def _aligned(end: int) -> int:
    return -(-end // ALIGNMENT) * ALIGNMENT
