"""Which document each token of a batch belongs to, whatever layout the collator gave it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.wire.value_types import NDArray

NO_LABEL = -100


def token_table(values: Mapping[str, Any]) -> NDArray | None:
    """Return the token ids of a batch, (B, T); None = it has none."""
    ids = values.get("input_ids", values.get("tokens"))
    if not isinstance(ids, np.ndarray) or ids.ndim not in (1, 2):
        return None
    return np.atleast_2d(ids)


def document_numbers(values: Mapping[str, Any], table: NDArray) -> NDArray:
    """Return the number of each token's document, 0 = padding or hidden: int64 (B, T).

    Numbers are those of the batch where it has some, else they begin at 1 in every row; where each
    row is one document they are the rows'.

    Args:
        values: Of a batch of any layout of the collators `packed` and `padded`, or of another.
        table: Its token ids, (B, T).
    """
    mask = _like(table, values.get("attention_mask"))
    for name in ("document_ids", "_packed_seq_ids"):
        if (numbers := _like(table, values.get(name))) is not None:
            return numbers
    if mask is not None and mask.max(initial=0) > 1:
        return mask
    lengths, padded = values.get("seq_lens"), values.get("seq_lens_padded")
    if isinstance(lengths, np.ndarray) and isinstance(padded, np.ndarray):
        return _of_lengths(table, lengths, padded)
    seams = values.get("cu_seqlens", values.get("cu_seq_lens_q"))
    if isinstance(seams, np.ndarray):
        return _of_seams(table, seams, values)
    rows = np.broadcast_to(np.arange(1, len(table) + 1)[:, None], table.shape)
    return rows if mask is None else np.where(mask != 0, rows, 0)


def _of_lengths(table: NDArray, lengths: NDArray, padded: NDArray) -> NDArray:
    numbers = np.zeros(table.shape, np.int64)
    for row, (sizes, taken) in enumerate(zip(lengths, padded, strict=True)):
        starts = np.cumsum(taken) - taken
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True), start=1):
            if size > 0:
                numbers[row, start : start + size] = number
    return numbers


def _of_seams(table: NDArray, seams: NDArray, values: Mapping[str, Any]) -> NDArray:
    segments = np.searchsorted(seams[1:], np.arange(table.size), side="right").reshape(table.shape)
    numbers: NDArray = segments - segments[:, :1] + 1
    tokens = values.get("row_tokens")
    if isinstance(tokens, np.ndarray):
        return np.where(np.arange(table.shape[1]) < tokens[:, None], numbers, 0)
    labels = _like(table, values.get("labels"))
    if labels is None:
        return numbers
    # Seams do not tell padding apart: it is one token again and again that nobody learns.
    last = numbers == numbers[:, -1:]
    bare = (table == table[:, -1:]) & (labels == NO_LABEL)
    padded = np.logical_and.reduce(bare | ~last, axis=1, keepdims=True)
    return np.where(last & padded, 0, numbers)


def _like(table: NDArray, marks: Any) -> NDArray | None:
    if not isinstance(marks, np.ndarray):
        return None
    marks = np.atleast_2d(marks)
    return marks if marks.shape == table.shape else None
