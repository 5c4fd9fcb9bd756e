"""Fixed-length rows across the borders of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, ClassVar

from penstock.server.core.refs import Row, Rows, SampleRef
from penstock.server.roles.batcher import BatcherFacts
from penstock.server.roles.batchers.packer import (
    PackingBatcher,
    cut_batches,
    piece,
    sample_key,
)
from penstock.server.roles.parameters import AtLeast, TrueOrFalse, declared
from penstock.server.roles.samples import TOKENS, Sample
from penstock.wire.errors import InvalidJob


@declared
class ConcatPackingBatcher(PackingBatcher):
    """Concatenates samples and cuts the result into rows of exactly `max_tokens`.

    Concat-then-split, as GPT-style pre-training has it: no padding and no choice, but a document
    that meets a row's end is cut there, and goes on at the beginning of the next row. Its pieces
    are refs with spans, in two batches where the border lies between them, and a lane resumes in
    the middle of a document like anywhere else. With the collator `packed` a piece is a document of
    its own, whose positions start at 0.

    Every row has the same number of tokens, so on data of less than a row per lane and epoch a row
    must hold an item twice; `repeated` counts that.

    Counts: `split`, samples that were cut into pieces; `repeated`; with `drop_last`,
    `tail_truncated` and `truncated_tokens`. Dropped are `empty` samples, of size 0, and with
    `drop_last` those of the `tail`. At the lane's end the last row is shorter, or is left out.

    Args:
        max_tokens: The tokens of a row: the sequence length that you train with.
        rows: How many rows a batch has. The last batch of a lane may have fewer.
        drop_last: Leave out a last row that is not full: its samples are dropped as `tail`, and one
            that began in the row before is truncated. False makes a shorter last row of them.
        length_key: The value of a sample whose length is its size.

    Raises:
        InvalidJob: A number is too small; or samples count more than tokens, such as pictures.
    """

    type_name: ClassVar[str] = "concat"
    version: ClassVar[int | str | None] = 1
    dropped_for: ClassVar[Sequence[str]] = ("empty", "tail")
    counted: ClassVar[Sequence[str]] = ("split", "repeated")

    max_tokens: Annotated[int, AtLeast(1, "the tokens of a row")]
    rows: Annotated[int, AtLeast(1, "the rows of a batch")] = 1
    drop_last: Annotated[bool, TrueOrFalse()] = False

    def take_measures(self, measures: Sequence[str]) -> None:
        """Take the names of what samples count: nothing but tokens, since it cuts samples.

        Raises:
            InvalidJob: They count something that is not cut.
        """
        super().take_measures(measures)
        if others := [name for name in measures if name != TOKENS]:
            raise InvalidJob(
                f"concat cuts samples where a row ends, and these count {', '.join(others)}, which "
                "is not cut: use best_fit or next_fit",
                key="batcher",
            )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.drop_last:
            self._counts |= {"tail_truncated": 0, "truncated_tokens": 0}
        self._row: Row = []
        self._room = self.max_tokens
        self._finished: list[Row] = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return the batches that the rows that it filled have completed."""
        if not ref.size:
            self._dropped["empty"] += 1
            return []
        self._counts["split"] += ref.size > self._room
        self._counts["repeated"] += any(sample_key(ref) == sample_key(one) for one in self._row)
        start = 0
        while start < ref.size:
            stop = min(ref.size, start + self._room)
            self._row.append(ref if stop - start == ref.size else piece(ref, start, stop))
            self._room -= stop - start
            start = stop
            if not self._room:
                self._finished.append(self._row)
                self._row, self._room = [], self.max_tokens
        return cut_batches(self._finished, self.rows, self.rows)

    def facts(self) -> BatcherFacts:
        """Return that only empty samples are left out."""
        return replace(super().facts(), sizes_kept=(1, inf), may_refuse=False)

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return the row that is not full, and the rows that wait for others of their batch."""
        if self.is_of_user():  # a subclass may hold more
            return super().pending
        return [*self._row, *(ref for row in self._finished for ref in row)]

    def flush(self) -> list[Rows]:
        """Return the shorter last row, or leave it out; the last batch may have fewer rows."""
        if self._row:
            if self.drop_last:
                self._drop(self._row)
            else:
                self._finished.append(self._row)
            self._row, self._room = [], self.max_tokens
        return cut_batches(self._finished, self.rows, 1)

    def _drop(self, row: Row) -> None:
        for ref in row:
            if ref.span is not None and ref.span.start:  # it began in a row that is there
                self._counts["tail_truncated"] += 1
                self._counts["truncated_tokens"] += ref.size
            else:
                self._dropped["tail"] += 1
