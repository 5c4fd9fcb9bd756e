"""Packed rows: the values per token that follow from token ids and from where documents begin.

A node sends ids and segments, and whoever reads makes the rest of them; a collator makes the same
arrays by the same rules. docs/protocol.md has the rules for other languages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np

from penstock.wire.joined import Joined
from penstock.wire.v1 import feed_pb2
from penstock.wire.value_types import NDArray

IGNORE_INDEX = -100
"""The label that losses leave out: the default of `torch.nn.CrossEntropyLoss(ignore_index=)`."""

MOST_TOKENS = (1 << 31) - 1
"""Of all rows of a batch: places of tokens travel as int32."""

SMALL = np.dtype("<i4")
"""What ids, segments, labels and numbers of documents travel as."""


class Rule(IntEnum):
    """How a tensor of packed rows is made; docs/protocol.md describes each."""

    SENT = feed_pb2.RULE_SENT
    IDS = feed_pb2.RULE_IDS
    LABELS = feed_pb2.RULE_LABELS
    LEARNED = feed_pb2.RULE_LEARNED
    POSITIONS = feed_pb2.RULE_POSITIONS
    POSITIONS_REAL = feed_pb2.RULE_POSITIONS_REAL
    POSITIONS_ON = feed_pb2.RULE_POSITIONS_ON
    DOCUMENTS = feed_pb2.RULE_DOCUMENTS
    SEAMS = feed_pb2.RULE_SEAMS


PER_TOKEN: dict[int, tuple[str, ...]] = {
    Rule.IDS: ("int32", "int64"),
    Rule.LABELS: ("int32", "int64"),
    Rule.LEARNED: ("float32",),
    Rule.POSITIONS: ("int32", "int64"),
    Rule.POSITIONS_REAL: ("int32", "int64"),
    Rule.POSITIONS_ON: ("int32", "int64"),
    Rule.DOCUMENTS: ("int32", "int64"),
}
"""Rules that make an element for each token, and the dtypes that they make."""


class PackedRows:
    """B rows of T tokens, cut into n segments: a document with its padding, or what is left over.

    Arrays of int32 travel. With those of other dtypes the same values are made.

    Args:
        ids: Integer (B, T).
        seams: Integer (n + 1,): where each segment starts in the flattened rows, then B * T. None
            goes beyond its row.
        tokens: Integer (n,): how many of its tokens are a document's; 0 = it is padding, which is
            the last of its row. The others of a segment, after them, are padding too.
        labels: Integer (B, T), where they do not follow from the ids; else None.
        documents: Integer (B, T), where they do not follow from the segments; else None.
        shifted: The label of a token is the token that follows it.
    """

    def __init__(
        self,
        ids: NDArray,
        seams: NDArray,
        tokens: NDArray,
        labels: NDArray | None = None,
        documents: NDArray | None = None,
        shifted: bool = False,
    ) -> None:
        self.ids, self.seams, self.tokens = ids, seams, tokens
        self.labels, self.documents, self.shifted = labels, documents, shifted
        self._starts = seams[:-1]
        self._sizes = seams[1:] - self._starts
        # Where each row begins among the segments, (B,).
        height, width = ids.shape
        self._rows = np.arange(0, height * width, width, dtype=seams.dtype)
        self._firsts = self._starts.searchsorted(self._rows)
        self._padding: list[tuple[int, int]] | None = None

    @property
    def arrays(self) -> list[NDArray]:
        """What travels of them, in the order in which it does."""
        found = (self.ids, self.seams, self.tokens, self.labels, self.documents)
        return [array for array in found if array is not None]

    @property
    def can_travel(self) -> bool:
        """Whether all numbers have the dtype in which they travel."""
        return all(array.dtype == SMALL for array in self.arrays)

    def make(self, rule: int, out: NDArray) -> None:
        """Make one value; every element of `out` is written.

        Args:
            rule: A `Rule`, but `SENT`.
            out: C-contiguous (B, T); for `SEAMS` (k,), k > n.
        """
        _MAKERS[rule](self, out.reshape(-1))

    def misplaced(self) -> str:
        """Return what is wrong with the segments, in words; empty = nothing."""
        seams, tokens = self.seams, self.tokens
        # By comparing: differences of hostile numbers could overflow.
        if seams[0] != 0 or seams[-1] != self.ids.size or not (seams[1:] > self._starts).all():
            return "do not lie one after another"
        if not (seams[self._firsts] == self._rows).all():
            return "go beyond the end of a row"
        if tokens.min() < 0 or (tokens > self._sizes).any():
            return "have other tokens than they take up"
        return ""

    # --- the rules, for flat arrays ---

    def _ids(self, out: NDArray) -> None:
        out[:] = self.ids.reshape(-1)

    def _labels(self, out: NDArray) -> None:
        if self.labels is not None:
            out[:] = self.labels.reshape(-1)
            return
        ids = self.ids.reshape(-1)
        if self.shifted:
            out[:-1] = ids[1:]
        else:
            out[:] = ids
        self._mask(out, IGNORE_INDEX)

    def _learned(self, out: NDArray) -> None:
        if self.labels is not None:
            out[:] = self.labels.reshape(-1) != IGNORE_INDEX
            return
        out.fill(1)
        self._mask(out, 0)

    def _positions(self, out: NDArray) -> None:
        _count_from(self._starts, self._sizes, out)

    def _positions_real(self, out: NDArray) -> None:
        self._positions(out)
        self._pad(out, 0)

    def _positions_on(self, out: NDArray) -> None:
        # Of what is left of rows, only a whole row counts from its own start.
        is_start = self.tokens > 0
        is_start[self._firsts] = True
        starts = self._starts[is_start]
        _count_from(starts, np.diff(starts, append=starts.dtype.type(out.size)), out)

    def _documents(self, out: NDArray) -> None:
        if self.documents is not None:
            out[:] = self.documents.reshape(-1)
            return
        count = len(self.tokens)
        numbers = np.arange(1, count + 1, dtype=np.int32)
        if len(self._firsts) > 1:
            of_row = np.append(self._firsts[1:], count) - self._firsts
            numbers -= np.repeat(self._firsts.astype(np.int32), of_row)
        out[:] = np.repeat(numbers, self._sizes)
        self._pad(out, 0)

    def _seams(self, out: NDArray) -> None:
        out[: len(self.seams)] = self.seams
        out[len(self.seams) :] = self.ids.size

    def _mask(self, out: NDArray, value: int) -> None:
        """Write to padding, and to the end of each document that has no label."""
        # Shifted, a segment without tokens names the last one before it, which has no label either.
        out[self._starts + (self.tokens - 1) if self.shifted else self._starts] = value
        self._pad(out, value)

    def _pad(self, out: NDArray, value: int) -> None:
        """Write to padding: what is left of each row, and more only where documents are padded."""
        if self._padding is None:
            padded = (self.tokens < self._sizes).nonzero()[0]
            starts = (self._starts + self.tokens)[padded].tolist()
            self._padding = list(zip(starts, self.seams[1:][padded].tolist(), strict=True))
        for start, stop in self._padding:
            out[start:stop] = value


def _count_from(starts: NDArray, sizes: NDArray, out: NDArray) -> None:
    """Write each token's distance from the last of `starts` up to it."""
    counted = np.arange(out.size, dtype=starts.dtype)
    counted -= np.repeat(starts, sizes)
    out[:] = counted


_MAKERS: dict[int, Callable[[PackedRows, NDArray], None]] = {
    Rule.IDS: PackedRows._ids,
    Rule.LABELS: PackedRows._labels,
    Rule.LEARNED: PackedRows._learned,
    Rule.POSITIONS: PackedRows._positions,
    Rule.POSITIONS_REAL: PackedRows._positions_real,
    Rule.POSITIONS_ON: PackedRows._positions_on,
    Rule.DOCUMENTS: PackedRows._documents,
    Rule.SEAMS: PackedRows._seams,
}


class Derived:
    """A value of a batch that follows from its rows: made where it is needed, by NumPy or a reader.

    Args:
        rows: What it is made of.
        rule: How.
        dtype: That it is made as.
        shape: (B, T); for `SEAMS` (k,).
    """

    __slots__ = ("dtype", "nbytes", "rows", "rule", "shape")

    def __init__(self, rows: PackedRows, rule: int, dtype: str, shape: tuple[int, ...]) -> None:
        self.rows, self.rule, self.dtype, self.shape = rows, rule, np.dtype(dtype), shape
        self.nbytes = self.dtype.itemsize * int(np.prod(shape))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        """Return the array, made anew."""
        made = np.empty(self.shape, self.dtype)
        self.rows.make(self.rule, made)
        return made if dtype is None else made.astype(dtype, copy=False)


def made(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a batch with all made that follows from its rows, or is joined."""
    return {
        name: np.asarray(value) if type(value) in (Derived, Joined) else value
        for name, value in values.items()
    }
