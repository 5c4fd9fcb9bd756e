"""Documents laid one after another in rows: where each of them begins, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.server.roles.collators.sample_arrays import (
    Array,
    bad_batch,
    flag_row,
    learned_labels,
    token_ids,
    token_row,
)
from penstock.server.roles.context import CollateContext
from penstock.server.roles.filling import RowWidth
from penstock.server.roles.samples import Sample
from penstock.wire.errors import BadBatch
from penstock.wire.packed_rows import MOST_TOKENS

Lengths = npt.NDArray[np.int64]


class Document(NamedTuple):
    """What a sample gives to a packed row: one entry per token each.

    Glossary:
        document: A sample in a packed row. Its `position_ids` begin at 0, and attention does not
            cross its **seams**, where it begins and ends.
    """

    ids: Array
    """The tokens."""
    labels: Array | None
    """Its own labels, -100 where its `loss_mask` is 0; None = the tokens are the labels."""
    seen: Array | None
    """Bool: which tokens attention sees; None = all."""

    def column(self, name: str) -> Array | bool:
        """Return one of them by its name as a column; what it has not by itself follows."""
        if name == "input_ids":
            return self.ids
        if name == "labels":
            return self.ids if self.labels is None else self.labels
        return True if self.seen is None else self.seen


class Segments(NamedTuple):
    """Stretches of the flattened rows that seams bound, in order and without gaps.

    Each is a document with its own padding, or what is left over of a row. All int64 (n,).
    """

    starts: Lengths
    """The first token of each in the flattened rows."""
    sizes: Lengths
    """How many tokens each takes up."""
    lengths: Lengths
    """How many of them are a document's; 0 = padding."""

    def sent(self) -> tuple[Array, Array]:
        """Return seams (n + 1,) and tokens (n,) as they travel: int32, where there are so few."""
        area = int(self.sizes.sum())
        dtype = np.int32 if area <= MOST_TOKENS else np.int64
        return np.append(self.starts, area).astype(dtype), self.lengths.astype(dtype)


def lay_out(
    rows: Sequence[Lengths], width_of: RowWidth, context: CollateContext
) -> tuple[Segments, int, list[int]]:
    """Return the segments of the flattened rows, the width of a row, and what each takes up of it.

    Args:
        rows: How many tokens the documents of each row have, none of them 0.
        width_of: Says the width; every document takes up a multiple of its own.
        context: Of the batch.

    Raises:
        BadBatch: A row is longer than `pad_to`.
    """
    taken = [width_of.rounded(row) for row in rows]
    ends = [int(sizes.sum()) for sizes in taken]
    width = width_of.of(max(ends))
    if max(ends) > width:
        raise _too_long(rows, ends, width_of, context)
    none = np.empty(0, np.int64)
    padding = [np.array([width - end]) if end < width else none for end in ends]
    sizes = np.concatenate([part for pair in zip(taken, padding, strict=True) for part in pair])
    empty = [np.zeros_like(left) for left in padding]
    lengths = np.concatenate([part for pair in zip(rows, empty, strict=True) for part in pair])
    return Segments(np.cumsum(sizes) - sizes, sizes, lengths), width, ends


def documents_of(rows: Sequence[Sequence[Sample]], context: CollateContext) -> list[list[Document]]:
    """Return what the samples of each row give; those without tokens take no place.

    Raises:
        BadBatch: A sample has no `input_ids`, or another value of another length.
    """
    return [
        [document for sample in row if len((document := _document(sample, context)).ids)]
        for row in rows
    ]


def _document(sample: Sample, context: CollateContext) -> Document:
    ids = token_ids(sample, context)
    rows: dict[str, Array | None] = {}
    for name, row_of in (
        ("labels", token_row),
        ("loss_mask", flag_row),
        ("attention_mask", flag_row),
    ):
        row = rows[name] = None if sample.get(name) is None else row_of(sample[name], name, context)
        if row is not None and len(row) != len(ids):
            raise bad_batch(
                context,
                f"a sample has {len(row)} {name} for {len(ids)} tokens; give one per token",
            )
    labels, seen = rows["labels"], rows["attention_mask"]
    if (learned := rows["loss_mask"]) is not None:
        labels = learned_labels(ids if labels is None else labels, learned)
    return Document(ids, labels, None if seen is None or seen.all() else seen)


def _too_long(
    rows: Sequence[Lengths], lengths: list[int], width: RowWidth, context: CollateContext
) -> BadBatch:
    longest = max(lengths)
    row = lengths.index(longest)
    rounded = (
        f", each document rounded up to a multiple of {width.multiple}"
        if width.multiple > 1
        else ""
    )
    return bad_batch(
        context,
        f"row {row} has {longest} tokens in {len(rows[row])} documents{rounded}, and "
        f"pad_to is {width.pad_to}; raise pad_to or lower the batcher's max_tokens",
    )
