"""What a header says of each value: its entries, read and checked once.

The batches of a job say nearly the same of their values, one after another: what was read of an
entry is kept for a while, and found again by the entry's bytes. To read one by protobuf's objects
costs more than to find it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from penstock.wire import ALIGNMENT
from penstock.wire.frame.octets import refuse
from penstock.wire.order import MAX_POSITION
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import MAX_DIMENSIONS, MAX_LIST_DEPTH, STORAGE

KEPT_ENTRIES, KEPT_BYTES = 1024, 512
"""How many entries are kept, and how long one may be. Entries of tensors have some 40 bytes; texts,
which differ from batch to batch, may have millions."""


class TensorPlace(NamedTuple):
    """A tensor within a body.

    Attributes:
        dtype: Its name on the wire, a key of `STORAGE`.
        shape: Its shape.
        start: Its first byte in the body, a multiple of 64.
        nbytes: Its length in bytes, as dtype and shape have it.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int


class HeaderValue(NamedTuple):
    """What a header says of a value, or of one within a list.

    Attributes:
        kind: The field of `Value` that is set.
        content: A `TensorPlace`; a tuple of `HeaderValue` for a list; a JSON text; else the value
            itself.
    """

    kind: str
    content: Any


class ValueEntry(NamedTuple):
    """What a header says of one value; nothing in it can be changed, since batches share it.

    Attributes:
        name: The value's name.
        is_host: The value stays off the device.
        kind: As in `HeaderValue`.
        content: As in `HeaderValue`.
        tensors: The tensors in it, those of lists among them.
    """

    name: str
    is_host: bool
    kind: str
    content: Any
    tensors: tuple[TensorPlace, ...]


Entries: TypeAlias = "tuple[ValueEntry, ...]"
"""Those of one batch, in its order."""


def read_entries(header: feed_pb2.BatchHeader) -> Entries:
    """Return what a header says of its values.

    Raises:
        BadFrame: A value has no name or says nothing, or lists nest too deep; a tensor is of an
            unknown dtype, misaligned, of another length than its shape, or of a shape that no
            memory holds.
    """
    return tuple([_entry(named) for named in header.values])


def tensors_of(entries: Entries) -> list[TensorPlace]:
    """Return the tensors of a body, in its order."""
    return [place for entry in entries for place in entry.tensors]


def _entry(named: feed_pb2.NamedValue) -> ValueEntry:
    encoded = named.SerializeToString()
    return _kept(encoded) if len(encoded) <= KEPT_BYTES else _read(named)


@lru_cache(KEPT_ENTRIES)
def _kept(encoded: bytes) -> ValueEntry:
    return _read(feed_pb2.NamedValue.FromString(encoded))


def _read(named: feed_pb2.NamedValue) -> ValueEntry:
    if not named.name:
        refuse("a batch has a value whose name '' is empty or doubled")
    tensors: list[TensorPlace] = []
    said = _said(named.value, named.name, tensors, 0)
    return ValueEntry(named.name, named.place == feed_pb2.PLACE_HOST, *said, tuple(tensors))


def _said(value: feed_pb2.Value, name: str, tensors: list[TensorPlace], depth: int) -> HeaderValue:
    kind = value.WhichOneof("kind")
    if kind is None:
        refuse(f"value {name!r} has no kind that is known here")
    if kind == "tensor":
        tensors.append(_tensor(value.tensor, name))
        return HeaderValue(kind, tensors[-1])
    if kind == "list":
        if depth == MAX_LIST_DEPTH:
            refuse(f"value {name!r} nests lists deeper than {MAX_LIST_DEPTH}")
        return HeaderValue(
            kind, tuple([_said(v, name, tensors, depth + 1) for v in value.list.values])
        )
    return HeaderValue(kind, None if kind == "none" else getattr(value, kind))


def _tensor(tensor: feed_pb2.Tensor, name: str) -> TensorPlace:
    storage = STORAGE.get(tensor.dtype)
    if storage is None:
        refuse(f"tensor {name!r} has the dtype {tensor.dtype[:40]!r}, which is not known here")
    if len(tensor.shape) > MAX_DIMENSIONS:
        refuse(
            f"tensor {name!r} has {len(tensor.shape)} dimensions, and at most {MAX_DIMENSIONS} are "
            "allowed"
        )
    place = TensorPlace(tensor.dtype, tuple(tensor.shape), tensor.start, tensor.nbytes)
    if place.start % ALIGNMENT:
        refuse(
            f"tensor {name!r} lies at byte {place.start}, which is not a multiple of {ALIGNMENT}"
        )
    # Dimensions beside a 0 must still be countable: NumPy refuses to view what overflows.
    extent = storage.itemsize
    for size in place.shape:
        extent *= size or 1
        if extent > MAX_POSITION:
            refuse(f"tensor {name!r} has the shape {list(place.shape)}, which no memory holds")
    if place.nbytes != (0 if 0 in place.shape else extent):
        refuse(
            f"tensor {name!r} of shape {list(place.shape)} and {place.dtype} claims "
            f"{place.nbytes} bytes"
        )
    return place
