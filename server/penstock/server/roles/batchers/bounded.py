"""Rows that stay open, a bounded number of them: each sample joins one as soon as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from penstock.server.core.refs import Row, SampleRef
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.batchers.packer import RowPackingBatcher, holds_item
from penstock.server.roles.parameters import AtLeast, declared

PATIENCE = 4
"""A row is finished when this many times `open_rows` were opened after it: else a row with a little
room would wait for as long as other rows are filled exactly."""


class OpenRowsBatcher(RowPackingBatcher):
    """Holds up to `open_rows` rows; a sample joins one of them at once, or opens another.

    It joins the oldest where it fits, or the one that a subclass chooses in `_choose`; one that
    holds another sample of the same item is not among them. Where it fits into none and `open_rows`
    are open, the fullest is finished first; where rows are equally full, the oldest. That is
    bounded-space packing with the closing rule of Csirik and Johnson, "Bounded space on-line bin
    packing: best is better than first" (1991). A row is finished, too, as soon as it is full, and
    as the oldest one once `PATIENCE * open_rows` rows were opened after it.

    So a sample finishes at most one row, and leaves at the latest with the
    `(PATIENCE + 1) * open_rows`-th row after its own was opened. What is held is at most the
    samples of `open_rows` rows.

    At the lane's end the open rows are finished as they are, oldest first.
    """

    open_rows: int = 1  # which subclasses declare, where a job may say it

    def __post_init__(self) -> None:
        super().__post_init__()
        self._opened = 0
        self._open: dict[int, Row] = {}  # by how many were opened before, so the oldest comes first
        self._rooms: dict[int, int] = {}

    def facts(self) -> BatcherFacts:
        """Return the number of open rows, of which each holds a sample at least."""
        return replace(super().facts(), pool=self.open_rows)

    def state(self) -> Any:
        """Return what is held; what follows from the rows is left out."""
        state = super().state()
        del state["_rooms"]
        return state

    def restore(self, state: Any) -> None:
        """Take back what `state` gave."""
        super().restore(state)
        self._rooms = {
            number: self.max_tokens - sum(ref.size for ref in row)
            for number, row in self._open.items()
        }

    def _choose(self, ref: SampleRef) -> int | None:
        """Return the number of the row that a sample joins: the oldest; None = it fits nowhere."""
        return next((number for number in self._rooms if self._takes(number, ref)), None)

    def _takes(self, number: int, ref: SampleRef) -> bool:
        """Tell whether a sample fits into a row, and no sample of its item is there."""
        if self._rooms[number] < ref.size or holds_item(self._open[number], ref):
            return False
        limits = self._penstock_limits
        return limits is None or limits.fits(limits.used(self._open[number]), ref.counts)

    def _place(self, ref: SampleRef) -> None:
        number = self._choose(ref)
        if number is None:
            self._make_room()
            number = self._opened
            self._opened += 1
            self._open[number], self._rooms[number] = [], self.max_tokens
        self._open[number].append(ref)
        self._rooms[number] -= ref.size
        if not self._rooms[number]:
            self._close(number)

    def _make_room(self) -> None:
        """Finish a row if another must be: before one is opened, so never two for one sample."""
        if not self._open:
            return
        oldest = next(iter(self._open))
        if self._opened - oldest >= PATIENCE * self.open_rows and self.open_rows > 1:
            self._close(oldest)
        elif len(self._open) == self.open_rows:
            self._close(min(self._rooms, key=lambda number: (self._rooms[number], number)))

    def _close(self, number: int) -> None:
        del self._rooms[number]
        self._finish(self._open.pop(number))

    def _held(self) -> Iterator[SampleRef]:
        for row in self._open.values():
            yield from row

    def _drain(self) -> None:
        for number in list(self._open):
            self._close(number)


@declared
class FirstFitPackingBatcher(OpenRowsBatcher):
    """Packs each sample into the oldest open row with room for it (`<=`).

    A list can leave all rows open until its end, as LMMS-Engine documents its `first_fit`; a stream
    cannot, so `open_rows` bounds how many are open. Where a sample fits into none of them, the
    fullest is finished. A row is finished, too, once 4 times `open_rows` rows were opened after it,
    so no sample starves; a sample finishes at most one row, so rows come steadily. A row never
    holds two samples of one item.

    Counts and drops as `best_fit` does. At the lane's end the open rows are finished, oldest first.

    Args:
        max_tokens: The most tokens of a row: the sequence length that you train with.
        open_rows: How many rows stay open. More leave less padding; each holds its samples in
            memory, for every lane, and the first row comes later.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`: `split`, `truncate`, `drop`,
            `alone` or `error`, as of `best_fit`.
        limits: What a row may count beside its tokens, by the processor's measures, for example
            `{images: 8, patches: 16384}`: a row is full at whichever comes first. What alone is
            above one follows `overlong`, and is never cut. Smaller limits bound a step's memory and
            leave more padding.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or `overlong` is not one of the five words.
    """

    type_name: ClassVar[str] = "first_fit"
    version: ClassVar[int | str | None] = 1

    open_rows: Annotated[int, AtLeast(1, "the rows that stay open")] = 16


@declared
class NextFitPackingBatcher(OpenRowsBatcher):
    """Packs samples in the order of the draws: one that does not fit finishes the row (`<=`).

    The streaming datasets of LMMS-Engine pack so, and its strategy named `first_fit` does, too. It
    is the cheapest, holds no more than one row, keeps the order exactly, and leaves the most
    padding. What is longer than a row finishes the open row first, so that the order is kept. A row
    never holds two samples of one item: the second finishes it.

    Counts and drops as `best_fit` does. At the lane's end the open row is finished.

    Args:
        max_tokens: The most tokens of a row: the sequence length that you train with.
        rows: How many consecutive rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`. `drop` and `alone` are what
            LMMS-Engine's `filter_overlong` decides between; `split`, `truncate` and `error` as of
            `best_fit`.
        limits: What a row may count beside its tokens, by the processor's measures, for example
            `{images: 8, patches: 16384}`: a row is full at whichever comes first. What alone is
            above one follows `overlong`, and is never cut. Smaller limits bound a step's memory and
            leave more padding.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or `overlong` is not one of the five words.
    """

    type_name: ClassVar[str] = "next_fit"
    version: ClassVar[int | str | None] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.open_rows = 1  # of this class it is no parameter, and in every snapshot

    def facts(self) -> BatcherFacts:
        """Return what others do: there is nothing to choose."""
        return replace(super().facts(), pool=None)

    def _pass(self, row: Row) -> None:
        self._drain()
        self._finish(row)


@declared
class OpenBestFitPackingBatcher(OpenRowsBatcher):
    """Packs each sample into the open row that it leaves with the least room (`<=`).

    LMMS-Engine's later strategy `best_fit` with k open packs, under a name of its own, since
    `best_fit` is the one that chooses from a pool of samples and fills rows better. Where a sample
    fits into no row and `open_rows` are open, the fullest is finished. A row is finished, too, once
    4 times `open_rows` rows were opened after it, so no sample starves; a sample finishes at most
    one row, so rows come steadily. A row never holds two samples of one item.

    Counts and drops as `best_fit` does. At the lane's end the open rows are finished, oldest first.

    Args:
        max_tokens: The most tokens of a row: the sequence length that you train with.
        open_rows: How many rows stay open. More leave less padding; each holds its samples in
            memory, for every lane, and the first row comes later.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`: `split`, `truncate`, `drop`,
            `alone` or `error`, as of `best_fit`.
        limits: What a row may count beside its tokens, by the processor's measures, for example
            `{images: 8, patches: 16384}`: a row is full at whichever comes first. What alone is
            above one follows `overlong`, and is never cut. Smaller limits bound a step's memory and
            leave more padding.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or `overlong` is not one of the five words.
    """

    type_name: ClassVar[str] = "open_best_fit"
    version: ClassVar[int | str | None] = 1

    open_rows: Annotated[int, AtLeast(1, "the rows that stay open")] = 16

    def _choose(self, ref: SampleRef) -> int | None:
        best, least = None, self.max_tokens
        for number, room in self._rooms.items():  # oldest first: of equal rooms it is the oldest
            if ref.size <= room < least and self._takes(number, ref):
                best, least = number, room
        return best


@declared
class BalancedPackingBatcher(OpenRowsBatcher):
    """Packs each sample into the emptiest of the open rows, so that they grow evenly (`<=`).

    LMMS-Engine's later strategy `balanced`: all open rows are filled at the same pace, so rows that
    leave one after another are filled to nearly the same part, and long samples are dealt to
    different rows. They are less full than those of the rules that look for the tightest row: see
    docs/batchers.md for figures. Where a sample fits into none of the `open_rows` rows, the fullest
    is finished: at most one row for each sample that comes. A row never holds two samples of one
    item.

    Counts and drops as `best_fit` does. At the lane's end the open rows are finished, oldest first.

    Args:
        max_tokens: The most tokens of a row: the sequence length that you train with.
        open_rows: How many rows stay open. Rows are a little more alike and fuller with more of
            them; each holds its samples in memory, for every lane, and the first row comes later.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`: `split`, `truncate`, `drop`,
            `alone` or `error`, as of `best_fit`.
        limits: What a row may count beside its tokens, by the processor's measures, for example
            `{images: 8, patches: 16384}`: a row is full at whichever comes first. What alone is
            above one follows `overlong`, and is never cut. Smaller limits bound a step's memory and
            leave more padding.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or `overlong` is not one of the five words.
    """

    type_name: ClassVar[str] = "balanced"
    version: ClassVar[int | str | None] = 1

    open_rows: Annotated[int, AtLeast(1, "the rows that stay open")] = 16

    def _choose(self, ref: SampleRef) -> int | None:
        # Up to `open_rows` rows are opened before any gets a second sample.
        if len(self._open) < self.open_rows:
            return None
        best, most = None, ref.size - 1
        for number, room in self._rooms.items():  # oldest first: of equal rooms it is the oldest
            if room > most and self._takes(number, ref):
                best, most = number, room
        return best
