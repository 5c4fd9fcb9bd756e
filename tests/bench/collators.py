"""Collators beside each other: what a batch of 4 rows of 8,192 tokens costs to make and to send.

The samples are the documents of the standard library, as ids that lie in memory. `packed` gets the
rows that `best_fit` makes of them, `padded` four documents as they are drawn, cut at 8,192 tokens,
or batches of like lengths by `pool`, and `default` four arrays of 8,192. Bytes are those of the
batch's body, as it travels, by its tokens without padding. A second table says what a trainer makes
of a batch that has come, as tensors on the host.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from packing import document_tokens
from support import around, compare, corpus, interleaved, middle, ranged

from penstock.client import masks, packed
from penstock.client.bodies.buffers import BufferPool, Lease
from penstock.client.values.arrival import Arrival
from penstock.client.values.torch_decoder import TorchDecoder
from penstock.server.core.refs import ItemRef, SampleRef, Span
from penstock.server.roles import BatchCollator
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.roles.batchers import BestFitPackingBatcher, PoolPackingBatcher, SimpleBatcher
from penstock.server.roles.collators import (
    DefaultBatchCollator,
    FunctionCollator,
    PackedCollator,
    PaddedCollator,
)
from penstock.server.roles.collators.layouts import LAYOUTS
from penstock.server.roles.context import CollateContext
from penstock.server.roles.number_columns import ColumnRows
from penstock.wire import frame
from penstock.wire.v1 import feed_pb2

ROWS, WIDTH, BATCHES = 4, 8192, 100

POOL = BufferPool(4)
"""Where bodies land, as in a Loader: in memory that was used before."""

Samples = list[list[dict[str, Any]]]
"""The rows of a batch."""


class Columns(ColumnRows):
    """The rows of a batch as one array of ids, as a source of ready ids copies them.

    Args:
        rows: The samples.
    """

    def __init__(self, rows: Samples) -> None:
        self.lengths = [np.array([len(one["input_ids"]) for one in row], np.int64) for row in rows]
        self.dtypes = {"input_ids": np.dtype(np.int32)}
        self._ids = [np.concatenate([one["input_ids"] for one in row]) for row in rows]

    def write(self, column: str, row: int, out: npt.NDArray[Any]) -> None:
        """Write the samples of a row."""
        out[:] = self._ids[row]


class Way(NamedTuple):
    """A collator and what it gets.

    Attributes:
        collate: Makes values of a batch.
        batches: Its batches.
        tokens: Of each batch, without padding.
    """

    collate: Callable[[Any, CollateContext], Mapping[str, Any]]
    batches: Sequence[Any]
    tokens: Sequence[int]


def run() -> None:
    """Print the tables."""
    sizes = document_tokens(corpus())
    full = _batches(BestFitPackingBatcher(WIDTH, rows=ROWS), sizes)
    drawn = _batches(SimpleBatcher(ROWS), sizes)
    like = _batches(
        PoolPackingBatcher(
            ROWS * WIDTH,
            max_batch_size=8,
            apply_long_sample_halving=False,
            long_threshold=ROWS * WIDTH,
        ),
        np.minimum(sizes, WIDTH),
    )
    even = [[[{"input_ids": np.arange(WIDTH, dtype=np.int32)}] for _ in range(ROWS)]] * BATCHES
    ways = {
        "default, arrays of one shape": _way(DefaultBatchCollator(), even),
        "function, the same": _way(FunctionCollator(stack), even),
        "padded, as drawn": _way(PaddedCollator(pad_to=WIDTH, truncate=True), drawn),
        "padded, of pool": _way(PaddedCollator(), like),
        "padded, of pool, bool masks": _way(PaddedCollator(mask_dtype="bool"), like),
    }
    for layout in LAYOUTS:
        for dtype in ("int64", "int32"):
            collator = PackedCollator(WIDTH, layout=layout, ids_dtype=dtype)
            ways[f"packed, {layout}, {dtype}"] = _way(collator, full)
    flash = PackedCollator(WIDTH)
    ways["packed, flash, multiple of 16"] = _way(
        PackedCollator(WIDTH, 16), _batches(BestFitPackingBatcher(WIDTH, rows=ROWS), sizes, 16)
    )
    ways["packed, flash, of columns"] = Way(
        flash.collate_columns, [Columns(rows) for rows in full], [*map(_tokens, full)]
    )
    results = interleaved({name: partial(_once, way) for name, way in ways.items()})
    compare(
        f"Collators: batches of {ROWS} x {WIDTH:,}, CPU time of making the values, of decoding "
        "them as tensors on arrival, and bytes of the body; medians and ranges",
        "collator",
        results,
        around("us a batch", "us", ",.0f"),
        middle("ns a token", "ns_a_token", ".1f"),
        middle("us on arrival", "arrival_us", ",.0f"),
        middle("bytes a token", "bytes_a_token", ".1f"),
        middle("padding", "padding", ".3f"),
    )
    _on_arrival(full)


def stack(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ids of samples of one length as a batch, as a user's function does."""
    return {"input_ids": np.stack([sample["input_ids"] for sample in samples])}


stack.uses_global_rng = False  # type: ignore[attr-defined]


def _draws(sizes: npt.NDArray[np.int64]) -> Iterator[SampleRef]:
    for epoch in itertools.count():
        for index in np.random.default_rng(epoch).permutation(len(sizes)).tolist():
            yield SampleRef(ItemRef("main", index, epoch), size=int(sizes[index]))


def _batches(
    batcher: SampleBatcher, sizes: npt.NDArray[np.int64], multiple: int = 1
) -> list[Samples]:
    """Return the first batches of a lane, with the ids of their samples.

    Args:
        batcher: Makes them.
        sizes: Tokens of each document, int64 (documents,).
        multiple: What the batcher counts is rounded up to a multiple of it.
    """
    random = np.random.default_rng(7)
    ids = [random.integers(0, 8192, size, dtype=np.int32) for size in sizes.tolist()]
    found: list[Samples] = []
    for ref in _draws(-(-sizes // multiple) * multiple):
        for rows in batcher.add(ref, {"input_ids": ids[ref.item.index]}):
            found += [[[_sample(ids, one) for one in row] for row in rows]]
        if len(found) >= BATCHES:
            return found[:BATCHES]
    raise RuntimeError("the draws have no end")


def _sample(ids: Sequence[npt.NDArray[np.int32]], ref: SampleRef) -> dict[str, Any]:
    start, stop = ref.span or Span(0, len(ids[ref.item.index]))
    return {"input_ids": ids[ref.item.index][start:stop]}


def _tokens(rows: Samples) -> int:
    return sum(len(one["input_ids"]) for row in rows for one in row)


def _way(collator: BatchCollator, batches: Sequence[Samples]) -> Way:
    return Way(
        collator.collate_to_send,
        batches,
        [sum(min(WIDTH, len(one["input_ids"])) for row in b for one in row) for b in batches],
    )


def _once(way: Way) -> dict[str, float]:
    began = time.process_time()
    for offset, rows in enumerate(way.batches):
        way.collate(rows, CollateContext(7, 0, offset))
    seconds = time.process_time() - began
    tokens, nbytes, places, arrival = sum(way.tokens), 0, 0, 0.0
    for rows in way.batches[:10]:
        values = way.collate(rows, CollateContext(7, 0, 0))
        header, sent = _sent(values)
        nbytes += sent.nbytes
        places += math.prod(
            (values["input_ids"] if "input_ids" in values else values["tokens"]).shape
        )
        begin = time.process_time()
        _arrived(header, sent)
        arrival += time.process_time() - begin
    ten = sum(way.tokens[:10])
    return {
        "us": 1e6 * seconds / len(way.batches),
        "ns_a_token": 1e9 * seconds / tokens,
        "arrival_us": 1e6 * arrival / 10,
        "bytes_a_token": nbytes / ten,
        "padding": 1 - ten / places,
    }


def _sent(values: Mapping[str, Any]) -> tuple[feed_pb2.BatchHeader, npt.NDArray[np.uint8]]:
    """Return the header of a batch, and what travels for its body."""
    layout = frame.BodyLayout(values)
    sent = np.zeros(layout.sent_bytes, np.uint8)
    crc = frame.write_body(layout, memoryview(sent))
    header = feed_pb2.BatchHeader.FromString(
        frame.write_header(layout, bytes(32), 0, 0, crc, {}, [], False, 0, {})
    )
    return header, sent


def _arrived(header: feed_pb2.BatchHeader, sent: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """Return the values of a batch as a loop gets them; packed rows are completed."""
    entries, lease = frame.read_entries(header), Lease(sent, [])
    if header.HasField("packed"):
        lease = POOL.lease(header.body_bytes)
        frame.complete(header.packed, frame.tensors_of(entries), sent, lease.array)
    decoder = TorchDecoder(None, Arrival())
    return decoder.finish(decoder.begin(entries, lease))


# --- what is made where the batch is used ---------------------------------------------------------


def _on_arrival(full: Sequence[Samples]) -> None:
    """Print what a trainer makes of a batch, on the host."""
    torch.set_num_threads(1)
    come = {
        layout: [
            _arrived(*_sent(PackedCollator(WIDTH, layout=layout).collate(rows, _context())))
            for rows in full[:10]
        ]
        for layout in LAYOUTS
    }
    numbers = [masks.document_ids(batch) for batch in come["flash"]]
    ways: dict[str, tuple[Callable[[Any], Any], Sequence[Any]]] = {
        "complete, of seams": (packed.complete, come["seams"]),
        **{
            f"document_ids, of {layout}": (masks.document_ids, batches)
            for layout, batches in come.items()
            if layout in ("flash", "megatron", "thd", "indexed", "seams")
        },
        "varlen": (masks.varlen, numbers),
        "flex": (masks.flex, numbers),
        "block_causal, of one row": (masks.block_causal, [one[:1] for one in numbers[:2]]),
    }
    results = interleaved({name: partial(_made, *way) for name, way in ways.items()})
    compare(
        f"What a trainer makes of a batch of {ROWS} x {WIDTH:,} that has come, on one core of the "
        "host: CPU time, medians and ranges",
        "call",
        results,
        ranged("us a batch", "us", ",.0f"),
    )


def _context() -> CollateContext:
    return CollateContext(7, 0, 0)


def _made(call: Callable[[Any], Any], batches: Sequence[Any]) -> dict[str, float]:
    began = time.process_time()
    for batch in batches:
        call(batch)
    return {"us": 1e6 * (time.process_time() - began) / len(batches)}


if __name__ == "__main__":
    run()
