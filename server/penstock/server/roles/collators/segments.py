"""Documents laid one after another in rows: where each of them begins, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.server.roles.base import Sample
from penstock.server.roles.collators.arrays import Array, bad_batch, token_ids, token_row
from penstock.server.roles.context import CollateContext
from penstock.wire.errors import BadBatch


class Segment(NamedTuple):
    """A stretch of one row that cu_seq_lens bounds: a document with its own padding, or padding."""

    start: int
    """Its first token in the flattened rows."""
    size: int
    """How many tokens it takes up."""
    ids: Array | None
    """The document's tokens, at most `size`; None = padding."""
    labels: Array | None
    """The labels that the document brought itself."""
    number: int
    """The document's number in its row, from 1; 0 = padding."""


def lay_out(
    rows: Sequence[Sequence[Sample]],
    pad_to: int | None,
    document_multiple: int | None,
    context: CollateContext,
) -> tuple[list[Segment], int]:
    """Return the segments of the flattened rows, in order and without gaps, and the width of a row.

    Args:
        rows: The samples of each row; one without tokens takes no place.
        pad_to: The width; None = that of the longest row.
        document_multiple: Every document takes up a multiple of this; None = 1.
        context: Of the batch.

    Raises:
        BadBatch: A row is longer than `pad_to`; a sample has no `input_ids`, or `labels` of another
            length.
    """
    multiple = document_multiple or 1
    documents = [
        [document for sample in row if len((document := _document(sample, context))[0])]
        for row in rows
    ] or [[]]
    lengths = [sum(-(-len(ids) // multiple) * multiple for ids, _ in row) for row in documents]
    width = pad_to or max(*lengths, multiple)
    if max(lengths) > width:
        raise _too_long(documents, lengths, width, document_multiple, context)

    segments: list[Segment] = []
    for row_number, row in enumerate(documents):
        start, end = row_number * width, (row_number + 1) * width
        for number, (ids, labels) in enumerate(row, start=1):
            size = -(-len(ids) // multiple) * multiple
            segments.append(Segment(start, size, ids, labels, number))
            start += size
        if start < end:
            segments.append(Segment(start, end - start, None, None, 0))
    return segments, width


def _document(sample: Sample, context: CollateContext) -> tuple[Array, Array | None]:
    """Return a sample's tokens, and the labels that it brings itself."""
    ids = token_ids(sample, context)
    if sample.get("labels") is None:
        return ids, None
    labels = token_row(sample["labels"], "labels", context)
    if len(labels) != len(ids):
        raise bad_batch(
            context,
            f"a sample has {len(labels)} labels for {len(ids)} tokens; give one per token",
        )
    return ids, labels


def _too_long(
    documents: list[list[tuple[Array, Array | None]]],
    lengths: list[int],
    pad_to: int,
    document_multiple: int | None,
    context: CollateContext,
) -> BadBatch:
    longest = max(lengths)
    row = lengths.index(longest)
    rounded = (
        f", each document rounded up to a multiple of {document_multiple}"
        if document_multiple
        else ""
    )
    return bad_batch(
        context,
        f"row {row} has {longest} tokens in {len(documents[row])} documents{rounded}, and "
        f"pad_to is {pad_to}; raise pad_to or lower the batcher's max_tokens",
    )


__all__ = ["Segment", "lay_out"]
