"""What a batch holds, for people and for records: kinds, dtypes and shapes, and its digest."""

from __future__ import annotations

from typing import Any

from penstock.wire.digest import batch_digest
from penstock.wire.frame.octets import Buffer
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import DATASET_NAME

_KINDS = {
    "tensor": "tensor",
    "list": "list",
    "integer": "int",
    "real": "float",
    "truth": "bool",
    "text": "str",
    "raw": "bytes",
    "json": "json",
    "none": "none",
}
"""Field of `Value` -> the kind's name in Describe and in records."""


def describe_values(header: feed_pb2.BatchHeader) -> dict[str, dict[str, Any]]:
    """Return `{name: {"kind", "dtype", "shape"}}`; values other than tensors have `""` and `[]`."""
    found: dict[str, dict[str, Any]] = {}
    for named in header.values:
        field = named.value.WhichOneof("kind")
        tensor = named.value.tensor if field == "tensor" else None
        found[named.name] = {
            "kind": _KINDS[field] if field else "none",
            "dtype": tensor.dtype if tensor else "",
            "shape": list(tensor.shape) if tensor else [],
        }
    return found


def batch_record(header: feed_pb2.BatchHeader, body: Buffer, step: int) -> dict[str, Any]:
    """Return the object that `penstock cat --json` and `penstockd show --json` print for one batch.

    Args:
        header: A header that `check_header` has passed, with position and samples.
        body: The whole body, or what was sent in its place.
        step: The step that holds the position.

    Returns:
        What docs/operate.md lists; `dataset_name` in a batch of a joint job alone.
    """
    record = {
        "position": header.position,
        "step": step,
        "lane": header.lane,
        "offset": header.offset,
        "digest": batch_digest(header, body),
        "values": describe_values(header),
        "counts": {count.name: count.value for count in header.counts},
        "items": [[sample.source, sample.index, sample.epoch] for sample in header.samples],
        "bytes": header.body_bytes,
        "accounting": {count.name: count.value for count in header.accounting},
    }
    made_by = [named.value.text for named in header.values if named.name == DATASET_NAME]
    return {**record, DATASET_NAME: made_by[0]} if made_by else record
