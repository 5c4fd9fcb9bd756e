"""Documents copied into rows as they lie one after another: those of samples, or of columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from penstock.server.roles.collators.sample_arrays import IGNORE_INDEX, Array
from penstock.server.roles.collators.segments import Document, Segments, targets
from penstock.server.roles.number_columns import ColumnRows
from penstock.wire.packed_rows import PackedRows, Rule


def rows_of(padding: int, shape: tuple[int, int], dtypes: Iterable[np.dtype[Any]]) -> Array:
    """Return rows of padding, int32 if that holds ids of all `dtypes`, else int64."""
    is_small = padding < 1 << 31 and all(np.can_cast(dtype, np.int32) for dtype in set(dtypes))
    return np.full(shape, padding, np.int32 if is_small else np.int64)


def copy_documents(
    documents: Sequence[Document], segments: Segments, ids: Array, shifted: bool
) -> tuple[Array | None, Array | None]:
    """Write the tokens of documents; return labels and numbers of documents, both (B, T).

    None where these follow from the ids and the segments.

    Args:
        documents: Those of all rows, in order.
        segments: Where they lie.
        ids: (B, T), of padding.
        shifted: The label of a token is the token that follows it.
    """
    labels = numbers = None
    if any(one.seen is not None for one in documents):
        numbers = np.empty(ids.shape, np.int32)
        PackedRows(ids, *segments.sent()).make(Rule.DOCUMENTS, numbers)
    if numbers is not None or any(one.labels is not None for one in documents):
        labels = np.full(ids.shape, IGNORE_INDEX, np.int64)
    starts = segments.starts[segments.lengths > 0].tolist()
    for start, document in zip(starts, documents, strict=True):
        here = slice(start, start + len(document.ids))
        ids.reshape(-1)[here] = document.ids
        if numbers is not None and document.seen is not None:
            numbers.reshape(-1)[here] *= document.seen
        if labels is not None:
            first = start + (not shifted)
            labels.reshape(-1)[first : first + len(document.ids) - 1] = targets(document)
    return labels, numbers


def copy_columns(rows: ColumnRows, segments: Segments, ids: Array, shifted: bool) -> Array | None:
    """Write the tokens of documents; return labels of their own, (B, T). None = there are none.

    Args:
        rows: The documents.
        segments: Where they lie, without padding between them.
        ids: (B, T), of padding.
        shifted: The label of a token is the token that follows it.
    """
    labels = np.full(ids.shape, IGNORE_INDEX, np.int64) if "labels" in rows.dtypes else None
    for number, lengths in enumerate(rows.lengths):
        end = int(lengths.sum())
        rows.write("input_ids", number, ids[number, :end])
        if labels is not None:
            own = np.empty_like(labels[number, :end])
            rows.write("labels", number, own)
            if shifted:
                labels[number, : max(0, end - 1)] = own[1:]
            else:
                labels[number, :end] = own
    if labels is not None:
        # No token predicts the first one of a document, and the last one predicts none.
        real = segments.lengths > 0
        starts, sizes = segments.starts[real], segments.lengths[real]
        labels.reshape(-1)[starts + sizes - 1 if shifted else starts] = IGNORE_INDEX
    return labels


__all__ = ["copy_columns", "copy_documents", "rows_of"]
