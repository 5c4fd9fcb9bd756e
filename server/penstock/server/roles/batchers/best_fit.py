"""Rows of tokens, filled from a pool: the oldest sample, then the largest that fits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from typing import Any, ClassVar

from penstock.server.core.refs import Row, Rows, SampleRef, Span
from penstock.server.roles.base import Sample
from penstock.server.roles.batchers.packer import PackingBatcher
from penstock.wire.checks import check_choice, check_whole
from penstock.wire.errors import BadItem

OVERLONG = ("split", "truncate", "drop", "error")

FIRST_POOL, QUICK_POOL, ROWS_PER_SAMPLE = 6, 10, 4
"""A lane's pool begins with so many samples, holds one more after each row up to the second number,
and from then on one more after so many rows: see decision 0021 for what other numbers gave."""


class BestFitPackingBatcher(PackingBatcher):
    """Packs samples into rows of at most `max_tokens`, filled from a pool of pending samples.

    Each sample that fills the pool up to its size makes one row: the oldest sample of the pool
    opens it, so none waits for more than `pool_size` such rows, and then the largest sample that
    still fits joins (`<=`; of equal sizes the oldest), until none fits. So rows come steadily,
    and at most `pool_size - 1` samples are held beside the finished rows of a batch.

    The pool of a lane grows: it begins with 6 samples, as soon as these fill a row, holds one more
    after each row up to 10, and then one more after every 4 rows, up to `pool_size`. So the first
    rows come after a few samples, and are packed a little less tightly: of source code tokens fill
    0.98 of a lane's first 20 rows, 0.99 of the next 80, and 0.998 once the pool is full-grown,
    after 220.

    What has `max_tokens` or more never enters the pool: its full rows are finished at once.

    A row never holds the same sample of an item twice: on small data several epochs meet in the
    pool, and the next largest sample is taken instead.

    Counts: `overlong_split` and `overlong_truncated` are samples longer than `max_tokens`,
    `truncated_tokens` what was cut off them. Dropped are `overlong` ones, where that is asked for,
    and `empty` ones, of size 0.

    Args:
        max_tokens: The most tokens of a row: the sequence length that you train with.
        pool_size: How many samples a lane chooses from, once its pool has grown. A larger pool
            leaves less padding; it takes memory for that many samples of every lane, and a sample
            waits longer for its turn. Of source code in rows of 8,192 tokens, 64 fill 0.998 of the
            row and 16 fill 0.994 (decision 0021). Together the samples of the pool should hold more
            tokens than a row.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`. `split`: pieces of
            `max_tokens` are rows of their own and the rest goes to the pool. `truncate`: its
            first `max_tokens` are a row. `drop`: it is left out. `error`: it is a bad item.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or `overlong` is none of the four words.
    """

    type_name: ClassVar[str] = "best_fit"
    version: ClassVar[int | str | None] = 3

    def __init__(
        self,
        max_tokens: int,
        pool_size: int = 64,
        rows: int = 1,
        overlong: str = "split",
        length_key: str = "input_ids",
    ) -> None:
        super().__init__(
            length_key,
            dropped=("empty", "overlong"),
            counts=("overlong_split", "overlong_truncated", "truncated_tokens"),
        )
        self.max_tokens = check_whole("max_tokens", max_tokens, 1, "the tokens of a row")
        self.pool_size = check_whole("pool_size", pool_size, 1, "the samples to choose from")
        self.rows = check_whole("rows", rows, 1, "the rows of a batch")
        self.overlong = check_choice("overlong", overlong, OVERLONG)
        self._arrivals = 0
        self._pool: dict[int, SampleRef] = {}  # by arrival, so the oldest comes first
        # (size, -arrival), rising: of equal sizes the oldest is the last, which a search finds.
        self._sizes: list[tuple[int, int]] = []
        self._tokens = 0  # of the pool
        self._choice = min(FIRST_POOL, self.pool_size)  # samples from which a row may be made
        self._rows_before_growth = self._rows_per_sample()
        self._finished: list[Row] = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return the batches that its rows, or the pool's, completed.

        Raises:
            BadItem: The sample is longer than a row and `overlong` is `error`. Nothing was taken.
        """
        if ref.size < self.max_tokens:
            if ref.size:
                self._pool_up(ref)
            else:
                self._dropped["empty"] += 1
        elif ref.size == self.max_tokens:
            self._finished.append([ref])
        elif self.overlong == "split":
            self._split(ref)
        elif self.overlong == "truncate":
            self._counts["overlong_truncated"] += 1
            self._counts["truncated_tokens"] += ref.size - self.max_tokens
            self._finished.append([_piece(ref, 0, self.max_tokens)])
        elif self.overlong == "drop":
            self._dropped["overlong"] += 1
        else:
            reason = (
                f"{ref.size} tokens do not fit into a row of {self.max_tokens}: raise max_tokens, "
                "set overlong to split, truncate or drop, or shorten it in the processor"
            )
            raise BadItem(f"{ref.item}: {reason}", item=list(ref.item), stage="draw", reason=reason)
        return self._batches(self.rows)

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the pool, and the rows that wait for others of their batch."""
        if not self.keeps(BestFitPackingBatcher):  # a subclass may hold more
            return super().pending
        return [*self._pool.values(), *(ref for row in self._finished for ref in row)]

    def chooses_from(self) -> int:
        """Return the size of the pool."""
        return self.pool_size

    @property
    def may_refuse(self) -> bool:
        """Tell whether `add` may raise: with `overlong: error`, as far as this class decides."""
        return self.overlong == "error" or not self.keeps(BestFitPackingBatcher)

    def flush(self) -> list[Rows]:
        """Return rows of what is left in the pool; the last batch may have fewer rows."""
        while self._pool:
            self._fill_row()
        return self._batches(1)

    def state(self) -> Any:
        """Return what is held; what follows from the pool is left out."""
        state = super().state()
        del state["_sizes"], state["_tokens"]
        return state

    def restore(self, state: Any) -> None:
        """Take back what `state` gave."""
        super().restore(state)
        self._sizes = sorted((ref.size, -arrival) for arrival, ref in self._pool.items())
        self._tokens = sum(ref.size for ref in self._pool.values())

    def _pool_up(self, ref: SampleRef) -> None:
        self._arrivals += 1
        self._pool[self._arrivals] = ref
        insort(self._sizes, (ref.size, -self._arrivals))
        self._tokens += ref.size
        held = len(self._pool)
        if held >= self.pool_size or (held >= self._choice and self._tokens >= self.max_tokens):
            self._fill_row()
            self._grow()

    def _grow(self) -> None:
        """Count a row that was made from the pool."""
        if self._choice < self.pool_size:
            self._rows_before_growth -= 1
            if not self._rows_before_growth:
                self._choice += 1
                self._rows_before_growth = self._rows_per_sample()

    def _rows_per_sample(self) -> int:
        return 1 if self._choice < QUICK_POOL else ROWS_PER_SAMPLE

    def _split(self, ref: SampleRef) -> None:
        self._counts["overlong_split"] += 1
        full = ref.size - ref.size % self.max_tokens
        for start in range(0, full, self.max_tokens):
            self._finished.append([_piece(ref, start, start + self.max_tokens)])
        if full < ref.size:
            self._pool_up(_piece(ref, full, ref.size))

    def _fill_row(self) -> None:
        arrival, oldest = next(iter(self._pool.items()))
        row = [self._take(bisect_left(self._sizes, (oldest.size, -arrival)))]
        room = self.max_tokens - oldest.size
        present = {_sample_key(oldest)}
        index = bisect_right(self._sizes, (room, 0)) - 1
        while index >= 0:
            ref = self._pool[-self._sizes[index][1]]
            if _sample_key(ref) in present:
                # Not twice in a row: look at the next smaller one, but keep this for another row.
                index -= 1
                continue
            row.append(self._take(index))
            room -= ref.size
            present.add(_sample_key(ref))
            index = bisect_right(self._sizes, (room, 0), 0, index) - 1
        self._finished.append(row)

    def _take(self, index: int) -> SampleRef:
        size, age = self._sizes.pop(index)
        self._tokens -= size
        return self._pool.pop(-age)

    def _batches(self, least: int) -> list[Rows]:
        batches: list[Rows] = []
        while len(self._finished) >= least:
            batches.append(self._finished[: self.rows])
            del self._finished[: self.rows]
        return batches


def _piece(ref: SampleRef, start: int, stop: int) -> SampleRef:
    origin = ref.span.start if ref.span else 0
    return ref._replace(size=stop - start, span=Span(origin + start, origin + stop))


def _sample_key(ref: SampleRef) -> tuple[str, int, int]:
    """What identifies a sample, whatever its epoch and its piece."""
    return ref.item.source, ref.item.index, ref.part


__all__ = ["OVERLONG", "BestFitPackingBatcher"]
