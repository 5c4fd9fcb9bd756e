"""Rows of tokens, filled from a pool: its largest sample, then the largest that fits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from penstock.server.core.refs import SampleRef
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.batchers.packer import RowPackingBatcher, sample_key
from penstock.server.roles.parameters import AtLeast, declared

FIRST_POOL, QUICK_POOL, ROWS_PER_SAMPLE = 4, 8, 4
"""A lane's pool begins with so many samples, holds one more after each row up to the second number,
and from then on one more after so many rows: see decision 0036 for what other numbers gave."""

POOLS_OF_PATIENCE = 4
"""After so many times `pool_size` further samples the oldest one opens the next row. With 1 and 2
a full-grown pool held as many tokens as if the oldest opened every row, with 4 about half."""


@declared
class BestFitPackingBatcher(RowPackingBatcher):
    """Packs samples into rows of at most `max_tokens`, filled from a pool of pending samples.

    Each sample that fills the pool up to its size makes one row: the largest sample of the pool
    opens it, and then the largest that still fits joins (`<=`; of equal sizes the oldest), until
    none fits. So large samples leave soon, and what waits is small: it fills what they leave. Once
    4 x `pool_size` more samples have come, the oldest one opens a row in place of the largest, so
    none waits for more than 5 x `pool_size` such rows. Rows come steadily, and at most
    `pool_size - 1` samples are held beside the finished rows of a batch.

    The pool of a lane grows: it begins with 4 samples, as soon as these fill a row, holds one more
    after each row up to 8, and then one more after every 4 rows, up to `pool_size`. So the first
    rows come after a few samples, and are packed a little less tightly: of source code tokens fill
    0.98 of a lane's first 20 rows, 0.99 of the next 80, and 0.999 once the pool is full-grown,
    after 230.

    What has `max_tokens` or more never enters the pool: its full rows are finished at once.

    A row never holds the same sample of an item twice: on small data several epochs meet in the
    pool, and the next largest sample is taken instead.

    Counts: `overlong_split` and `overlong_truncated` are samples longer than `max_tokens`,
    `truncated_tokens` what was cut off them, `overlong_alone` those that became rows as they are.
    Dropped are `overlong` ones, where that is asked for, and `empty` ones, of size 0.

    At the lane's end rows are made of what is left in the pool, in the same way.

    Args:
        max_tokens: The most tokens of a row: the sequence length that you train with.
        pool_size: How many samples a lane chooses from, once its pool has grown. A larger pool
            leaves less padding; it takes memory for that many samples of every lane, and a sample
            waits longer for its turn. Of source code in rows of 8,192 tokens, 64 fill 0.999 of the
            row and 16 fill 0.996 (decision 0036). Together the samples of the pool should hold more
            tokens than a row.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        overlong: What becomes of a sample longer than `max_tokens`. `split`: pieces of
            `max_tokens` are rows of their own and the rest goes to the pool. `truncate`: its
            first `max_tokens` are a row. `drop`: it is left out. `alone`: it is a row of its own,
            longer than `max_tokens`. `error`: it is a bad item.
        limits: What a row may count beside its tokens, by the processor's measures, for example
            `{images: 8, patches: 16384}`: a row is full at whichever comes first. What alone is
            above one follows `overlong`, and is never cut. Smaller limits bound a step's memory and
            leave more padding.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small, or `overlong` is not one of the five words.
    """

    type_name: ClassVar[str] = "best_fit"
    version: ClassVar[int | str | None] = 4

    pool_size: Annotated[int, AtLeast(1, "the samples to choose from")] = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        self._arrivals = 0
        self._pool: dict[int, SampleRef] = {}  # by arrival, so the oldest comes first
        # (size, -arrival), rising: of equal sizes the oldest is the last, which a search finds.
        self._sizes: list[tuple[int, int]] = []
        self._tokens = 0  # of the pool
        self._choice = min(FIRST_POOL, self.pool_size)  # samples from which a row may be made
        self._rows_before_growth = self._rows_per_sample()

    def facts(self) -> BatcherFacts:
        """Return the size of the pool, and what others do."""
        return replace(super().facts(), pool=self.pool_size)

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

    def _held(self) -> Iterator[SampleRef]:
        yield from self._pool.values()

    def _drain(self) -> None:
        while self._pool:
            self._fill_row()

    def _place(self, ref: SampleRef) -> None:
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

    def _fill_row(self) -> None:
        pool, sizes = self._pool, self._sizes
        arrival = next(iter(pool))
        if self._arrivals - arrival < POOLS_OF_PATIENCE * self.pool_size:
            arrival = -sizes[-1][1]
        first = pool.pop(arrival)
        del sizes[bisect_left(sizes, (first.size, -arrival))]
        row, present = [first], {sample_key(first)}
        limits = self._penstock_limits
        used = [] if limits is None else limits.used(row)
        room = self.max_tokens - first.size
        index = bisect_right(sizes, (room, 0)) - 1
        while index >= 0:
            size, age = sizes[index]
            ref = pool[-age]
            key = sample_key(ref)
            if key in present or (limits is not None and not limits.fits(used, ref.counts)):
                # Not twice in a row, nor above a limit: look at the next smaller one, and keep this
                # for another row.
                index -= 1
                continue
            del pool[-age], sizes[index]
            row.append(ref)
            room -= size
            present.add(key)
            if limits is not None:
                limits.add(used, ref.counts)
            index = bisect_right(sizes, (room, 0), 0, index) - 1
        self._tokens -= self.max_tokens - room
        self._finish(row)
