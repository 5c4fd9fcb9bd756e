"""Rows of 8,192 tokens for loaders that leave packing to their users: best fit from 64 pieces.

Only the standard library and NumPy are imported: interpreters without penstock run this, too.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any

import numpy as np

ROW, POOL = 8192, 64


class Waiting:
    """What waits for a row, sorted by length."""

    def __init__(self) -> None:
        self._pool: list[tuple[int, int, Any]] = []
        self._arrived = 0

    def add(self, length: int, piece: Any) -> None:
        """Take in a piece of so many tokens, at most 8,192."""
        insort(self._pool, (length, self._arrived, piece))
        self._arrived += 1

    def row(self) -> list[Any]:
        """Take out the pieces of a row: the oldest, then the longest that fits until none does."""
        oldest = min(range(len(self._pool)), key=lambda at: self._pool[at][1])
        taken = [self._pool.pop(oldest)]
        room = ROW - taken[0][0]
        while room and self._pool:
            at = bisect_right(self._pool, room, key=lambda one: one[0]) - 1
            if at < 0:
                break
            taken.append(self._pool.pop(at))
            room -= taken[-1][0]
        return [piece for _, _, piece in taken]

    def __len__(self) -> int:
        return len(self._pool)


def pieces(ids: list[int]) -> list[Any]:
    """Return the tokens of a document as int32 arrays of at most 8,192."""
    return [np.array(ids[start : start + ROW], dtype=np.int32) for start in range(0, len(ids), ROW)]


def values(row: list[Any]) -> dict[str, Any]:
    """Return the arrays of a row, those of penstock's layout `flash`, and its number of tokens.

    Args:
        row: Its pieces, int32 arrays.
    """
    ids = np.zeros(ROW, np.int64)
    labels = np.full(ROW, -100, np.int64)
    positions = np.zeros(ROW, np.int64)
    documents = np.zeros(ROW, np.int32)
    place, seams = 0, [0]
    for document, piece in enumerate(row, 1):
        end = place + len(piece)
        ids[place:end] = piece
        labels[place + 1 : end] = piece[1:]
        positions[place:end] = np.arange(len(piece))
        documents[place:end] = document
        seams.append(end)
        place = end
    if place < ROW:
        positions[place:] = np.arange(ROW - place)
        seams.append(ROW)
    longest = int(np.diff(seams).max())
    cu = np.array(seams, np.int32)
    return {
        "input_ids": ids[None],
        "labels": labels[None],
        "position_ids": positions[None],
        "document_ids": documents[None],
        "cu_seq_lens_q": cu,
        "cu_seq_lens_k": cu,
        "max_length_q": longest,
        "max_length_k": longest,
        "tokens": place,
    }


__all__ = ["POOL", "ROW", "Waiting", "pieces", "values"]
