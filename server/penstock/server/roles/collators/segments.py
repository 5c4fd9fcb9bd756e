"""Documents laid one after another in rows: where each of them begins, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock.server.roles.base import Sample
from penstock.server.roles.collators.arrays import (
    Array,
    bad_batch,
    flag_row,
    learned_labels,
    token_ids,
    token_row,
)
from penstock.server.roles.context import CollateContext
from penstock.wire.errors import BadBatch


class Document(NamedTuple):
    """What a sample gives to a packed row: one entry per token each."""

    ids: Array
    """The tokens."""
    labels: Array | None
    """Its own labels, -100 where its `loss_mask` is 0; None = the tokens are the labels."""
    seen: Array | None
    """Bool: which tokens attention sees; None = all."""


class Segment(NamedTuple):
    """A stretch of one row that seams bound: a document with its own padding, or padding."""

    start: int
    """Its first token in the flattened rows."""
    size: int
    """How many tokens it takes up."""
    document: Document | None
    """The document, at most `size` tokens of it; None = padding."""
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
        BadBatch: A row is longer than `pad_to`; a sample has no `input_ids`, or another value of
            another length.
    """
    multiple = document_multiple or 1
    documents = [
        [document for sample in row if len((document := _document(sample, context)).ids)]
        for row in rows
    ] or [[]]
    lengths = [sum(-(-len(one.ids) // multiple) * multiple for one in row) for row in documents]
    width = pad_to or max(*lengths, multiple)
    if max(lengths) > width:
        raise _too_long(documents, lengths, width, document_multiple, context)

    segments: list[Segment] = []
    for row_number, row in enumerate(documents):
        start, end = row_number * width, (row_number + 1) * width
        for number, document in enumerate(row, start=1):
            size = -(-len(document.ids) // multiple) * multiple
            segments.append(Segment(start, size, document, number))
            start += size
        if start < end:
            segments.append(Segment(start, end - start, None, 0))
    return segments, width


def targets(document: Document) -> Array:
    """Return what each token but the last is to predict: the label of the token after it.

    -100 where one of the two is hidden: a hidden token's output means nothing, and it is not
    learned.
    """
    labels = document.ids if document.labels is None else document.labels
    if document.seen is None:
        return labels[1:]
    return learned_labels(labels[1:], document.seen[1:] & document.seen[:-1])


def seen(document: Document, can_hide: bool, context: CollateContext) -> Array | int:
    """Return on which tokens of a document the mask has its number: 1 = on all.

    Raises:
        BadBatch: Some are hidden, which the layout cannot say.
    """
    if document.seen is None:
        return 1
    if not can_hide:
        raise bad_batch(
            context,
            "a sample hides tokens by its attention_mask, and a layout of seams alone cannot say "
            "so; use layout: indexed or neat, or leave attention_mask out of samples",
        )
    return document.seen


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
    documents: list[list[Document]],
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


__all__ = ["Document", "Segment", "lay_out", "seen", "targets"]
