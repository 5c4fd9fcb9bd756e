"""Rows of a batch copied out of columns, documents as they lie one after another."""

from __future__ import annotations

import numpy as np

from penstock.server.roles.collators.arrays import IGNORE_INDEX
from penstock.server.roles.collators.layouts import Laid
from penstock.server.roles.columns import ColumnRows


def copy_columns(rows: ColumnRows, laid: Laid, shifted: bool | None) -> None:
    """Write tokens, and labels, into rows that are laid out for them.

    Args:
        rows: The documents; their own `labels` are among the columns, or the tokens are labels.
        laid: Rows of padding, for documents without padding between them.
        shifted: The label of a token is the token that follows it; None = there are no labels.
    """
    for number, lengths in enumerate(rows.lengths):
        end = int(lengths.sum())
        rows.write("input_ids", number, laid.input_ids[number, :end])
        if shifted is None:
            continue
        own = laid.input_ids[number, :end]
        if "labels" in rows.dtypes:
            own = np.empty_like(own)
            rows.write("labels", number, own)
        if shifted:
            laid.labels[number, : max(0, end - 1)] = own[1:]
        else:
            laid.labels[number, :end] = own
    if shifted is not None:
        # No token predicts the first one of a document, and the last one predicts none.
        real = laid.segments.lengths > 0
        starts, sizes = laid.segments.starts[real], laid.segments.lengths[real]
        laid.labels.reshape(-1)[starts + sizes - 1 if shifted else starts] = IGNORE_INDEX


__all__ = ["copy_columns"]
