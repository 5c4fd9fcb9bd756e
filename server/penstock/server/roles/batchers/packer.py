"""What all packing batchers share: the size of a sample, counts of what was left out, checks."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.server.core.refs import Row, Rows, SampleRef, Span
from penstock.server.roles.base import Sample, SampleBatcher
from penstock.wire.checks import check_choice, check_whole
from penstock.wire.errors import BadItem, InvalidJob

OVERLONG = ("split", "truncate", "drop", "alone", "error")


class PackingBatcher(SampleBatcher):
    """A batcher that looks at sizes, and counts what it does to samples that do not fit.

    A subclass has `length_key` among its constructor's parameters, calls `super().__init__` with it
    and names its reasons for dropping a sample, and its other counts.
    """

    def __init__(self, length_key: str, dropped: Sequence[str], counts: Sequence[str] = ()) -> None:
        if not isinstance(length_key, str) or not length_key:
            raise InvalidJob(
                f"length_key is {length_key!r}: name the value of a sample whose length is its "
                "size, for example length_key: input_ids",
                key="length_key",
            )
        self.length_key = length_key
        self._dropped = dict.fromkeys(dropped, 0)
        self._counts = dict.fromkeys(counts, 0)

    def check_keys(self, keys: Iterable[str]) -> None:
        """Refuse samples without a value `length_key`.

        Raises:
            InvalidJob: Names the keys that they have.
        """
        if self.needs_sizes and self.length_key not in keys:
            raise self._no_length(keys)

    def size_of(self, sample: Sample) -> int:
        """Return the length of the sample's value `length_key`.

        Raises:
            InvalidJob: The sample has no such value.
        """
        try:
            value = sample[self.length_key]
        except KeyError:
            raise self._no_length(sample) from None
        return len(value)

    def size_rule(self) -> Any:
        """Return that sizes are lengths of `length_key`, unless a subclass has sizes of its own."""
        if self.keeps(PackingBatcher, "size_of"):
            return {"length_of": self.length_key}
        return super().size_rule()

    def length_column(self) -> str | None:
        """Return `length_key`."""
        return self.length_key if self.keeps(PackingBatcher, "size_of") else None

    def dropped(self) -> dict[str, int]:
        """Return by reason how many samples were left out; every reason is there from the start."""
        return dict(self._dropped)

    def _no_length(self, keys: Iterable[str]) -> InvalidJob:
        return InvalidJob(
            f"length_key is {self.length_key!r}, but the processor's samples have "
            f"{', '.join(map(repr, keys)) or 'no values'}: name one of these, or add a processor "
            "that makes token ids, such as tokenize",
            key="batcher.length_key",
        )

    def counters(self) -> dict[str, int]:
        """Return counts since the lane's start; every name is there from the start."""
        return dict(self._counts)


class RowPackingBatcher(PackingBatcher):
    """A batcher of rows of at most `max_tokens` (`<=`): long samples, and batches of whole rows.

    A subclass gives a sample that is shorter than a row its place in `_place`, empties what it
    holds in `_drain` and shows it in `_held`; a row that is finished goes to `_finish`. A sample
    that fills a row never gets there: it is a row of its own at once.

    Args:
        max_tokens: The most tokens of a row.
        rows: How many rows a batch has.
        overlong: What becomes of a sample longer than `max_tokens`: one of `OVERLONG`.
        length_key: The value of a sample whose length is its size.
        dropped: More reasons for leaving a sample out.
        counts: More counts.
    """

    def __init__(
        self,
        max_tokens: int,
        rows: int,
        overlong: str,
        length_key: str,
        *,
        dropped: Sequence[str] = (),
        counts: Sequence[str] = (),
    ) -> None:
        alone = ("overlong_alone",) if overlong == "alone" else ()
        super().__init__(
            length_key,
            dropped=("empty", "overlong", *dropped),
            counts=("overlong_split", "overlong_truncated", "truncated_tokens", *alone, *counts),
        )
        self.max_tokens = check_whole("max_tokens", max_tokens, 1, "the tokens of a row")
        self.rows = check_whole("rows", rows, 1, "the rows of a batch")
        self.overlong = check_choice("overlong", overlong, OVERLONG)
        self._finished: list[Row] = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return the batches that the rows that it finished have completed.

        Raises:
            BadItem: The sample is longer than a row and `overlong` is `error`. Nothing was taken.
        """
        if ref.size < self.max_tokens:
            if ref.size:
                self._place(ref)
            else:
                self._dropped["empty"] += 1
        elif ref.size == self.max_tokens:
            self._pass([ref])
        else:
            self._take_overlong(ref)
        return self._batches(self.rows)

    def add_run(self, refs: Sequence[SampleRef]) -> tuple[int, list[Rows]]:
        """Take samples up to one that finishes a batch, is empty or fills a row by itself."""
        place, finished, rows, limit = self._place, self._finished, self.rows, self.max_tokens
        for taken, ref in enumerate(refs):
            if not 0 < ref.size < limit:
                return taken, []
            place(ref)
            if len(finished) >= rows:
                return taken + 1, self._batches(rows)
        return len(refs), []

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return what is held, and the rows that wait for others of their batch."""
        if self.is_of_user():  # a subclass may hold more
            return super().pending
        return [*self._held(), *(ref for row in self._finished for ref in row)]

    @property
    def may_split(self) -> bool:
        """Tell whether samples may be split: with `overlong: split`, as far as this decides."""
        return self.overlong == "split" or self.is_of_user()

    @property
    def may_refuse(self) -> bool:
        """Tell whether `add` may raise: with `overlong: error`, as far as this class decides."""
        return self.overlong == "error" or self.is_of_user()

    def flush(self) -> list[Rows]:
        """Return rows of what is left; the last batch may have fewer rows."""
        self._drain()
        return self._batches(1)

    def spare(self, row: Row) -> int:
        """Return how many tokens of a row are free."""
        return self.max_tokens - sum(ref.size for ref in row)

    def joins(self, row: Row, ref: SampleRef) -> bool:
        """Tell whether a row has room for a sample, and holds no other of its item."""
        return ref.size <= self.spare(row) and not holds_item(row, ref)

    @abstractmethod
    def _place(self, ref: SampleRef) -> None:
        """Take a sample of 1 to `max_tokens - 1` tokens."""

    @abstractmethod
    def _held(self) -> Iterator[SampleRef]:
        """Yield the samples that are in no finished row."""

    @abstractmethod
    def _drain(self) -> None:
        """Finish rows of all that is held: the lane is over."""

    def _finish(self, row: Row) -> None:
        self._finished.append(row)

    def _pass(self, row: Row) -> None:
        """Finish a row that is one sample, or a piece of one, and passes by what is held."""
        self._finish(row)

    def _take_overlong(self, ref: SampleRef) -> None:
        if self.overlong == "split":
            self._split(ref)
        elif self.overlong == "truncate":
            self._counts["overlong_truncated"] += 1
            self._counts["truncated_tokens"] += ref.size - self.max_tokens
            self._pass([piece(ref, 0, self.max_tokens)])
        elif self.overlong == "drop":
            self._dropped["overlong"] += 1
        elif self.overlong == "alone":
            self._counts["overlong_alone"] += 1
            self._pass([ref])
        else:
            reason = why_too_long(ref.size, self.max_tokens)
            raise BadItem(f"{ref.item}: {reason}", item=list(ref.item), stage="draw", reason=reason)

    def _split(self, ref: SampleRef) -> None:
        self._counts["overlong_split"] += 1
        full = ref.size - ref.size % self.max_tokens
        for start in range(0, full, self.max_tokens):
            self._pass([piece(ref, start, start + self.max_tokens)])
        if full < ref.size:
            self._place(piece(ref, full, ref.size))

    def _batches(self, least: int) -> list[Rows]:
        return cut_batches(self._finished, self.rows, least)


def why_too_long(size: int, most: int) -> str:
    """Return why a sample does not fit into a row, and what to do, with `overlong: error`."""
    return (
        f"{size} tokens do not fit into a row of {most}: raise max_tokens, set overlong to split, "
        "truncate or drop, or shorten it in the processor"
    )


def cut_batches(finished: list[Row], rows: int, least: int) -> list[Rows]:
    """Take batches of `rows` rows from the finished ones, as long as there are `least`."""
    batches: list[Rows] = []
    while len(finished) >= least:
        batches.append(finished[:rows])
        del finished[:rows]
    return batches


def piece(ref: SampleRef, start: int, stop: int) -> SampleRef:
    """Return the piece `[start, stop)` of what a ref means, which may be a piece itself."""
    origin = ref.span.start if ref.span else 0
    return ref._replace(size=stop - start, span=Span(origin + start, origin + stop))


def sample_key(ref: SampleRef) -> tuple[str, int, int]:
    """Return what identifies a sample, whatever its epoch and its piece."""
    item, part, _, _ = ref  # the fastest way to three of its fields
    return item[0], item[1], part


def holds_item(row: Row, ref: SampleRef) -> bool:
    """Tell whether a row holds what a ref means, of whatever epoch."""
    return any(sample_key(other) == sample_key(ref) for other in row)


__all__ = [
    "OVERLONG",
    "PackingBatcher",
    "RowPackingBatcher",
    "cut_batches",
    "holds_item",
    "piece",
    "sample_key",
    "why_too_long",
]
