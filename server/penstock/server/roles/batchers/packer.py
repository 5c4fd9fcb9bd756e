"""What all packing batchers share: the size of a sample, counts of what was left out, checks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from math import inf
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.server.core.refs import Row, Rows, SampleRef, Span
from penstock.server.packing.lengths import LARGEST
from penstock.server.roles.batcher import BatcherFacts, SampleBatcher
from penstock.server.roles.batchers.limits import CountLimits, RowLimits
from penstock.server.roles.parameters import AtLeast, OneOf, declared
from penstock.server.roles.samples import Sample, media_places
from penstock.wire.errors import BadItem, InvalidJob

OVERLONG = ("split", "truncate", "drop", "alone", "error")

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
SizesT = TypeVar("SizesT", int, Integers)


class LimitedBatcher(SampleBatcher):
    """A batcher that knows the names of what samples count, and may have limits for some of it.

    A subclass declares `limits` where its rows may have some, and has `_counts`.
    """

    limits: Mapping[str, int] | None = None
    _counts: dict[str, int]
    _penstock_limits: RowLimits | None = None

    def take_measures(self, measures: Sequence[str]) -> None:
        """Take the names of what samples count: of its own accord it knows those of `limits`.

        Raises:
            InvalidJob: A limit is of no measure.
        """
        super().take_measures(measures)
        if self.limits is not None:
            self._penstock_limits = RowLimits(self.limits, measures)

    def _counts_media(self, counts: Sequence[int]) -> bool:
        """Tell whether a sample has more than tokens, which cannot be cut with them."""
        return any(counts[place] for place in self._media_places(len(counts)))

    def _media_places(self, measures: int) -> list[int]:
        """Return which of so many counts are of more than tokens; without names all of them are."""
        return media_places(self._penstock_measures or tuple(self.limits or ()), measures)

    def _note_row(self, row: Row, size: int, capacity: int) -> None:
        """Count a finished row by the limit of which it has the largest part, if that is one."""
        limits = self._penstock_limits
        if limits is not None and (name := limits.tightest(limits.used(row), size, capacity)):
            self._counts[f"closed_by_{name}"] += 1


@declared
class PackingBatcher(LimitedBatcher):
    """A batcher that looks at sizes, and counts what it does to samples that do not fit.

    A subclass names its reasons for dropping a sample, and its other counts.
    """

    dropped_for: ClassVar[Sequence[str]] = ("empty",)
    counted: ClassVar[Sequence[str]] = ()

    _: KW_ONLY
    length_key: str = "input_ids"

    def __post_init__(self) -> None:
        if not isinstance(self.length_key, str) or not self.length_key:
            raise InvalidJob(
                f"length_key is {self.length_key!r}: name the value of a sample whose length is "
                "its size, for example length_key: input_ids",
                key="length_key",
            )
        self._dropped = dict.fromkeys(self.dropped_for, 0)
        self._counts = dict.fromkeys(self.counted, 0)
        if self.limits is not None:
            self._counts |= dict.fromkeys(map("closed_by_{}".format, self.limits), 0)
            self._penstock_limits = RowLimits(self.limits, tuple(self.limits))

    def size_of(self, sample: Sample) -> int:
        """Return the length of the sample's value `length_key`.

        Raises:
            InvalidJob: The sample has no such value.
        """
        try:
            value = sample[self.length_key]
        except KeyError:
            raise no_length(self.length_key, sample) from None
        return len(value)

    def facts(self) -> BatcherFacts:
        """Return that sizes are lengths of `length_key`, unless a subclass has sizes of its own."""
        keeps, limits = self.keeps(PackingBatcher, "size_of"), self._penstock_limits
        return BatcherFacts(
            length_key=self.length_key if keeps else None,
            row_counts=()
            if limits is None
            else tuple(zip(limits.places, limits.most, strict=True)),
        )

    def dropped(self) -> dict[str, int]:
        """Return by reason how many samples were left out; every reason is there from the start."""
        return dict(self._dropped)

    def counters(self) -> dict[str, int]:
        """Return counts since the lane's start; every name is there from the start."""
        return dict(self._counts)


def no_length(length_key: str, keys: Iterable[str]) -> InvalidJob:
    """Return the error of samples that have no value of which the length is to be taken."""
    return InvalidJob(
        f"length_key is {length_key!r}, but the processor's samples have "
        f"{', '.join(map(repr, keys)) or 'no values'}: name one of these, or add a processor "
        "that makes token ids, such as tokenize",
        key="batcher.length_key",
    )


@declared
class RowPackingBatcher(PackingBatcher):
    """A batcher of rows of at most `max_tokens` (`<=`): long samples, and batches of whole rows.

    A subclass gives a sample that is shorter than a row its place in `_place`, empties what it
    holds in `_drain` and shows it in `_held`; a row that is finished goes to `_finish`. A sample
    that fills a row never gets there: it is a row of its own at once.

    Args:
        max_tokens: The most tokens of a row.
        rows: How many rows a batch has.
        overlong: What becomes of a sample longer than `max_tokens`: one of `OVERLONG`.
        limits: What a row may count beside tokens, by measure.
        length_key: The value of a sample whose length is its size.
    """

    dropped_for: ClassVar[Sequence[str]] = ("empty", "overlong")
    counted: ClassVar[Sequence[str]] = ("overlong_split", "overlong_truncated", "truncated_tokens")

    max_tokens: Annotated[int, AtLeast(1, "the tokens of a row")]
    _: KW_ONLY
    rows: Annotated[int, AtLeast(1, "the rows of a batch")] = 1
    overlong: Annotated[str, OneOf(OVERLONG)] = "split"
    limits: Annotated[Mapping[str, int] | None, CountLimits()] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.overlong not in ("alone", "error"):
            self._dropped |= dict.fromkeys(map("overlong_{}".format, self.limits or ()), 0)
        if self.overlong == "alone":
            self._counts["overlong_alone"] = 0
        if self.max_tokens > LARGEST:
            raise InvalidJob(
                f"max_tokens is {self.max_tokens}: give the tokens of a row, {LARGEST} at most",
                key="max_tokens",
            )
        self._most_shared = self.max_tokens - 1
        self._finished: list[Row] = []

    def state(self) -> Any:
        """Return what is held; what follows from parameters is left out."""
        state = super().state()
        del state["_most_shared"]
        return state

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Take one sample; return the batches that the rows that it finished have completed.

        Raises:
            BadItem: The sample is longer than a row, or above a limit, and `overlong` is `error`.
                Nothing was taken.
        """
        size, limits = ref.size, self._penstock_limits
        if not size:
            self._dropped["empty"] += 1
        elif limits is not None and (name := limits.over(ref.counts)) is not None:
            self._take_above(ref, name, limits)
        elif size <= self._most_shared:
            self._place(ref)
        elif size <= self.max_tokens:
            self._pass([ref])
        else:
            self._take_overlong(ref)
        rows = self.rows
        return self._batches(rows) if len(self._finished) >= rows else []

    def facts(self) -> BatcherFacts:
        """Return what `overlong` decides, and that a row may be filled to `max_tokens`."""
        # What counts more than tokens is never cut.
        leaves_out = self.overlong in ("drop", "error") or (
            self.overlong != "alone" and bool(self._penstock_measures)
        )
        return replace(
            super().facts(),
            sizes_kept=None if self.limits else (1, self.max_tokens if leaves_out else inf),
            may_split=self.overlong == "split",
            may_refuse=self.overlong == "error",
            row_limit=self.max_tokens,
        )

    @property
    def pending(self) -> Sequence[SampleRef]:
        """Return what is held, and the rows that wait for others of their batch."""
        if self.is_of_user():  # a subclass may hold more
            return super().pending
        return [*self._held(), *(ref for row in self._finished for ref in row)]

    def flush(self) -> list[Rows]:
        """Return rows of what is left; the last batch may have fewer rows."""
        self._drain()
        return self._batches(1)

    @abstractmethod
    def _place(self, ref: SampleRef) -> None:
        """Take a sample of 1 to `most_shared` tokens."""

    @abstractmethod
    def _held(self) -> Iterator[SampleRef]:
        """Yield the samples that are in no finished row."""

    @abstractmethod
    def _drain(self) -> None:
        """Finish rows of all that is held: the lane is over."""

    def _finish(self, row: Row) -> None:
        if self._penstock_limits is not None:
            self._note_row(row, sum(ref.size for ref in row), self._full)
        self._finished.append(row)

    @property
    def _full(self) -> int:
        """Return to how many tokens rows are filled."""
        return self.max_tokens

    def _pass(self, row: Row) -> None:
        """Finish a row that is one sample, or a piece of one, and passes by what is held."""
        self._finish(row)

    def _take_above(self, ref: SampleRef, name: str, limits: RowLimits) -> None:
        """Take a sample that is above a limit by itself: no cut makes it fit."""
        if self.overlong == "error":
            raise limits.too_many(name, ref.counts, list(ref.item), f"{ref.item}: ")
        if self.overlong == "alone":
            self._counts["overlong_alone"] += 1
            self._pass([ref])
        else:
            self._dropped[f"overlong_{name}"] += 1

    def _take_overlong(self, ref: SampleRef) -> None:
        if self.overlong == "error":
            raise too_long(ref.size, self.max_tokens, list(ref.item), f"{ref.item}: ")
        if self.overlong != "alone" and self._counts_media(ref.counts):
            self._dropped["overlong"] += 1
            return
        kept = self._kept(ref.size, 1)
        if self.overlong == "alone":
            self._pass([ref])
            return
        full = kept - kept % self.max_tokens
        for start in range(0, full, self.max_tokens):
            self._pass([piece(ref, start, start + self.max_tokens)])
        if full < kept:
            rest = piece(ref, full, kept)
            if rest.size <= self._most_shared:
                self._place(rest)
            else:
                self._pass([rest])

    def _cut(self, slots: Integers, sizes: Integers) -> tuple[Integers, Integers, Integers]:
        """Return slots, starts and stops of the pieces of many overlong samples."""
        most = self.max_tokens
        if self.overlong == "error":
            raise too_long(int(sizes[0]), most, int(slots[0]))
        kept = self._kept(sizes, len(sizes))
        if self.overlong == "alone":
            whole = np.full(len(slots), -1, np.int64)
            return slots, whole, whole
        number = -(-kept // most)
        firsts = np.repeat(np.cumsum(number) - number, number)
        starts = (np.arange(len(firsts)) - firsts) * most
        return (
            np.repeat(slots, number),
            starts,
            np.minimum(starts + most, np.repeat(kept, number)),
        )

    def _kept(self, sizes: SizesT, samples: int) -> SizesT:
        """Count overlong samples; return how much of each is kept, from its beginning.

        Args:
            sizes: Of one, or of each.
            samples: How many they are.
        """
        if self.overlong == "drop":
            self._dropped["overlong"] += samples
            return sizes * 0
        if self.overlong == "truncate":
            self._counts["overlong_truncated"] += samples
            self._counts["truncated_tokens"] += int(np.sum(sizes)) - samples * self.max_tokens
            return sizes * 0 + self.max_tokens
        self._counts[f"overlong_{self.overlong}"] += samples
        return sizes

    def _batches(self, least: int) -> list[Rows]:
        return cut_batches(self._finished, self.rows, least)


class Pieces(NamedTuple):
    """What of many samples is packed: those that fit into a row, and pieces of those that do not.

    Attributes:
        slots: int64 (n,): the sample of each, by its number.
        starts, stops: int64 (n,): the part of it; -1 = all.
        sizes: int64 (n,): the size of each.
    """

    slots: Integers
    starts: Integers
    stops: Integers
    sizes: Integers


class WindowRows(NamedTuple):
    """The rows that a window of samples is packed into.

    Attributes:
        pieces: What they hold, row by row.
        bounds: int64 (rows + 1,): where each begins among the pieces, and their number.
        per_batch: How many rows a batch has.
        in_order: They stay in this order; else it is the plan's to decide.
    """

    pieces: Pieces
    bounds: Integers
    per_batch: int
    in_order: bool = False


class PacksWindows(ABC):
    """A batcher that packs a whole window of a planned job by array code."""

    @abstractmethod
    def pack_window(self, sizes: Integers, counts: Integers | None = None) -> WindowRows:
        """Return the rows of a window, on its own: what `add` was given before does not matter.

        What is left out or cut is counted, as `add` and `flush` do.

        Args:
            sizes: int64 (n,): the size of each sample.
            counts: int64 (n, measures): what each counts; None = nothing.

        Raises:
            BadItem: A sample is refused; `item` is its number.
        """

    @abstractmethod
    def count_batches(self, sizes: Integers) -> int | None:
        """Return how many batches a window makes, and count what it counts; None = unknown.

        Rows that are cut to fill a batch fill one that is there already.

        Args:
            sizes: int64 (n,): the size of each sample, in any order.

        Raises:
            BadItem: As `pack_window`.
        """


def too_long(size: int, most: int, item: list[Any] | int, whose: str = "") -> BadItem:
    """Return the error of a sample that does not fit into a row, with `overlong: error`."""
    reason = (
        f"{size} tokens do not fit into a row of {most}: raise max_tokens, set overlong to split, "
        "truncate or drop, or shorten it in the processor"
    )
    return BadItem(whose + reason, item=item, stage="draw", reason=reason)


def cut_batches(finished: list[Row], rows: int, least: int) -> list[Rows]:
    """Take batches of `rows` rows from the finished ones, as long as there are `least`."""
    batches: list[Rows] = []
    while len(finished) >= least:
        batches.append(finished[:rows])
        del finished[:rows]
    return batches


def piece(ref: SampleRef, start: int, stop: int) -> SampleRef:
    """Return the piece `[start, stop)` of what a ref means, which may be a piece itself.

    Its beginning has all of its counts.
    """
    origin = ref.span.start if ref.span else 0
    counts = tuple(0 for _ in ref.counts) if start else ref.counts
    return SampleRef(ref.item, ref.part, stop - start, Span(origin + start, origin + stop), counts)


def sample_key(ref: SampleRef) -> tuple[str, int, int]:
    """Return what identifies a sample, whatever its epoch and its piece."""
    item, part, _, _, _ = ref  # the fastest way to three of its fields
    return item[0], item[1], part


def holds_item(row: Row, ref: SampleRef) -> bool:
    """Tell whether a row holds what a ref means, of whatever epoch."""
    key = sample_key(ref)
    return any(sample_key(other) == key for other in row)
