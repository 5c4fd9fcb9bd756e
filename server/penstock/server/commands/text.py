"""What people read of a batch: its documents, one after another, with their seams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from penstock.server.job import Job
from penstock.wire.terminal import plain, plain_lines

Decode = Callable[[Sequence[int]], str]

_SHOWN_IDS = 16


def decoder(job: Job) -> Decode | None:
    """Return what turns token ids of a job back into text, or None where nothing does.

    A user's processor takes part by having a method `decode(ids) -> str`.
    """
    own = getattr(job.processor, "decode", None)
    return (lambda ids: str(own(list(ids)))) if callable(own) else None


def documents(values: Mapping[str, Any]) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Return the documents of a batch in order, each as (row, ids), padding left out.

    They are told apart by `document_ids` where the batch is packed, else by `attention_mask`; one
    with neither has one document per row, and a batch without `input_ids` has none.
    """
    ids = values.get("input_ids")
    if not isinstance(ids, np.ndarray) or ids.ndim not in (1, 2):
        return []
    table = np.atleast_2d(ids)
    marks = values.get("document_ids", values.get("attention_mask"))
    marks = np.ones_like(table) if marks is None else np.atleast_2d(np.asarray(marks))
    found: list[tuple[int, np.ndarray[Any, Any]]] = []
    for row, (line, mark) in enumerate(zip(table, marks, strict=True)):
        borders = np.flatnonzero(np.diff(mark)) + 1
        pieces = zip(np.split(line, borders), np.split(mark, borders), strict=True)
        found += [(row, piece) for piece, label in pieces if len(piece) and label[0] != 0]
    return found


def render(ids: np.ndarray[Any, Any], decode: Decode | None) -> str:
    """Return one document as text, or as its first ids where nothing decodes them."""
    if decode is not None:
        return plain_lines(decode(ids.tolist()))  # the web holds escapes, too
    shown = " ".join(map(str, ids[:_SHOWN_IDS].tolist()))
    return shown + (" ..." if len(ids) > _SHOWN_IDS else "")


def summary(value: Any) -> str:
    """Return a value of a batch on one line: dtype and shape of an array, else what it is."""
    if isinstance(value, np.ndarray):
        first = " ".join(map(str, value.reshape(-1)[:8].tolist()))
        return f"{value.dtype}{list(value.shape)}  {first}{' ...' if value.size > 8 else ''}"
    text = repr(value)
    return text if len(text) <= 100 else text[:96] + " ..."


def batch_text(values: Mapping[str, Any], decode: Decode | None) -> str:
    """Return a batch as people read it: documents with a seam before each, else the values."""
    found = documents(values)
    if not found:
        return "\n".join(f"{plain(name)}: {summary(value)}" for name, value in values.items())
    return "\n".join(
        f"--- row {row}, document {number}, {len(ids)} tokens ---\n{render(ids, decode)}"
        for number, (row, ids) in enumerate(found, 1)
    )


__all__ = ["Decode", "batch_text", "decoder", "documents", "render", "summary"]
