"""Documents copied into rows as they lie one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.server.roles.collators.sample_arrays import Array
from penstock.server.roles.collators.segments import Document, Segments
from penstock.server.roles.number_columns import ColumnRows, Indices, spread
from penstock.wire.packed_rows import IGNORE_INDEX, PackedRows, Rule

HIDDEN = "attention_mask"
"""The column that says which tokens attention sees."""


class DocumentRows(ColumnRows):
    """Rows whose documents are objects, read as columns.

    `labels` are a column where a document has its own, and `attention_mask` where one hides tokens.

    Args:
        documents: Those of each row, none of them empty.
    """

    def __init__(self, documents: Sequence[Sequence[Document]]) -> None:
        self._documents = documents
        self.lengths = [np.array([len(one.ids) for one in row], np.int64) for row in documents]
        self.dtypes = {"input_ids": np.dtype(np.int32)}
        for number, document in enumerate(chain.from_iterable(documents)):
            ids, labels, seen = document
            if ids.dtype != self.dtypes["input_ids"]:
                both = ids.dtype, self.dtypes["input_ids"]
                self.dtypes["input_ids"] = np.result_type(*both[: 1 + bool(number)])
            if labels is not None:
                self.dtypes["labels"] = np.dtype(np.int64)
            if seen is not None:
                self.dtypes[HIDDEN] = np.dtype(bool)

    def documents(self) -> Sequence[Indices]:
        """Return the lengths of all: none is empty."""
        return self.lengths

    def write(self, column: str, row: int, out: npt.NDArray[Any]) -> None:
        """Write the documents of a row one after another into `out`, which has just that size."""
        end = 0
        for document in self._documents[row]:
            begin, end = end, end + len(document.ids)
            out[begin:end] = document.column(column)

    def write_apart(self, column: str, row: int, outs: Iterator[npt.NDArray[Any]]) -> None:
        """Write each document of a row to a place of its own, the next one."""
        for document, out in zip(self._documents[row], outs, strict=False):
            out[:] = document.column(column)


def rows_of(padding: int, shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Return rows of padding, int32 if that holds it and ids of `dtype`, else int64."""
    is_small = padding < 1 << 31 and np.can_cast(dtype, np.int32)
    return np.full(shape, padding, np.int32 if is_small else np.int64)


def copy_rows(
    rows: ColumnRows,
    segments: Segments,
    ids: Array,
    ends: Sequence[int] | None,
    *,
    shifted: bool,
) -> tuple[Array | None, Array | None]:
    """Write the tokens of documents; return labels and numbers of documents, both (B, T).

    None where these follow from the ids and the segments.

    Args:
        rows: The documents.
        segments: Where they lie.
        ids: (B, T), of padding.
        ends: The tokens of each row, one after another; None = there is padding between documents.
        shifted: The label of a token is the token that follows it.
    """
    labels = seen = None
    if HIDDEN in rows.dtypes:
        seen = np.ones(ids.shape, bool)
    if seen is not None or "labels" in rows.dtypes:
        labels = np.full(ids.shape, IGNORE_INDEX, np.int64)
    if ends is None:
        every = zip(segments.starts.tolist(), segments.lengths.tolist(), strict=True)
        places = [(start, start + tokens) for start, tokens in every if tokens]
    else:
        firsts = range(0, ids.size, ids.shape[1])
        places = [(first, first + end) for first, end in zip(firsts, ends, strict=False) if end]
    to_ids, to_labels, to_seen = (_views(array, places) for array in (ids, labels, seen))
    for number, lengths in enumerate(rows.lengths):
        if ends is None:
            rows.write_apart("input_ids", number, to_ids)
        elif ends[number]:
            rows.write("input_ids", number, next(to_ids))
        if labels is None:
            continue
        end = int(lengths.sum())
        own = np.empty(end, np.int64)
        rows.write("labels" if "labels" in rows.dtypes else "input_ids", number, own)
        if seen is not None:
            of_row = np.empty(end, bool)
            rows.write(HIDDEN, number, of_row)
            spread(of_row, to_seen)
            # A hidden token's output means nothing, and it is not learned.
            own[1:][~(of_row[1:] & of_row[:-1])] = IGNORE_INDEX
        if shifted:
            own[:-1] = own[1:]
        spread(own, to_labels)
    if labels is not None:
        # No token predicts the first one of a document, and the last one predicts none.
        real = segments.lengths > 0
        starts, sizes = segments.starts[real], segments.lengths[real]
        labels.reshape(-1)[starts + sizes - 1 if shifted else starts] = IGNORE_INDEX
    if seen is None:
        return labels, None
    numbers = np.empty(ids.shape, np.int32)
    PackedRows(ids, *segments.sent()).make(Rule.DOCUMENTS, numbers)
    numbers *= seen
    return labels, numbers


def _views(array: Array | None, places: Sequence[tuple[int, int]]) -> Iterator[Array]:
    """Return the stretches of an array, flattened, that lie at some places."""
    if array is None:
        return iter(())
    flat = array.reshape(-1)
    return iter([flat[start:stop] for start, stop in places])
