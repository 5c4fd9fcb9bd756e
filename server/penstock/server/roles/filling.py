"""How full batches are, from sizes alone: what a collator says of batches that nobody has made.

Glossary:
    padding, filler: Padding is places without tokens, or a batch of the same shapes with counts of
        0 that completes the last step. A filler is such a batch that a rank gets where it has one
        batch fewer in a step than others.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
NumbersT = TypeVar("NumbersT", int, Numbers)


class RowWidth(NamedTuple):
    """How long the rows of a batch are, whatever lies in them.

    Attributes:
        pad_to: As long as this; None = as what the longest needs.
        multiple: Then rounded up to a multiple of this.
    """

    pad_to: int | None
    multiple: int = 1

    def rounded(self, sizes: NumbersT) -> NumbersT:
        """Return a size, or each of many, rounded up to a multiple."""
        if self.multiple == 1:
            return sizes
        rounded: NumbersT = -(-sizes // self.multiple) * self.multiple
        return rounded

    def of(self, needed: NumbersT) -> NumbersT:
        """Return the width of a batch whose longest row needs so much; or of each of many."""
        if self.pad_to is not None:
            return needed * 0 + self.pad_to
        least = self.rounded(needed)
        width: NumbersT = least + (least == 0) * self.multiple
        return width


class BatchSizes(NamedTuple):
    """The sizes of what is in some batches, in order.

    Attributes:
        sizes: int64 (slots,): of each sample, a piece of a split one counted as one.
        rows: int64 (R + 1,): where each row begins in `sizes`, then their number.
        batches: int64 (B + 1,): where each batch begins in rows, then their number.
    """

    sizes: Numbers
    rows: Numbers
    batches: Numbers

    @property
    def slots(self) -> Numbers:
        """Return where each batch begins in `sizes`, then their number: int64 (B + 1,)."""
        return self.rows[self.batches]


class Filling(NamedTuple):
    """What values of some batches hold.

    Attributes:
        tokens: int64 (B,): the tokens of each batch, as its count of that name has them.
        places: int64 (B,): these and the padding beside them.
        needed: int64 (B,): the tokens that the longest row needs.
        width: int64 (B,): those that a row of the batch has; less than needed = the batch cannot be
            made.
        documents: int64 (B,): the entries that an array of documents needs; None = there is no
            such array.
        max_documents: Those that it has; less than a batch needs = it cannot be made. None = as
            many as it needs.
    """

    tokens: Numbers
    places: Numbers
    needed: Numbers
    width: Numbers
    documents: Numbers | None = None
    max_documents: int | None = None


class Misfit(NamedTuple):
    """Batches that a collator cannot make.

    Attributes:
        of: `tokens` of a row that is too long, or `documents` of which there are too many.
        batch: The batch that needs most, by its number among those that were looked at.
        needed: How many it has.
        room: For how many there is room.
        batches: How many batches cannot be made.
    """

    of: str
    batch: int
    needed: int
    room: int
    batches: int


def misfit(filling: Filling) -> Misfit | None:
    """Return which batches cannot be made; None = all can."""
    over = filling.needed - filling.width
    if (over > 0).any():
        worst = int(over.argmax())
        needed, room = int(filling.needed[worst]), int(filling.width[worst])
        return Misfit("tokens", worst, needed, room, int((over > 0).sum()))
    documents, room_of_all = filling.documents, filling.max_documents
    if documents is None or room_of_all is None or not (documents > room_of_all).any():
        return None
    worst = int(documents.argmax())
    many = int((documents > room_of_all).sum())
    return Misfit("documents", worst, int(documents[worst]), room_of_all, many)


def sums(values: Numbers, bounds: Numbers) -> Numbers:
    """Return the sum of each stretch of values: int64 (n,), for bounds int64 (n + 1,)."""
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    found: Numbers = before[bounds[1:]] - before[bounds[:-1]]
    return found


def largest(values: Numbers, bounds: Numbers) -> Numbers:
    """Return the largest of each stretch of values, 0 of an empty one: int64 (n,)."""
    found = np.zeros(len(bounds) - 1, np.int64)
    filled = np.flatnonzero(bounds[1:] > bounds[:-1])
    if len(filled):
        found[filled] = np.maximum.reduceat(values, bounds[:-1][filled])
    return found


class BatchColumns(NamedTuple):
    """What the cost of batches may depend on: int64 (B,) each.

    Attributes:
        tokens: The sum of the sizes in a batch.
        squares: The sum of their squares: what attention within documents costs.
        samples: How many samples it has, a piece of a split one counted as one.
        rows: How many rows.
        longest: The tokens of its longest row.
        padded: Rows times `longest`.
    """

    tokens: Numbers
    squares: Numbers
    samples: Numbers
    rows: Numbers
    longest: Numbers
    padded: Numbers

    @classmethod
    def of(cls, batches: BatchSizes) -> BatchColumns:
        """Return the columns of some batches."""
        sizes, slots = batches.sizes, batches.slots
        rows = np.diff(batches.batches)
        longest = largest(sums(sizes, batches.rows), batches.batches)
        tokens, squares = sums(sizes, slots), sums(sizes * sizes, slots)
        return cls(tokens, squares, np.diff(slots), rows, longest, rows * longest)
