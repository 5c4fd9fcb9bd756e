"""Lane, offset, position, step: the arithmetic that server and client must share.

A job is `lanes` independent sequences of batches. Batches are ordered by (offset, lane) and
numbered without gaps: that number is the **position**. In an endless log `position = offset * lanes
+ lane`. In a finite log lanes end at different offsets, and the places of an ended lane are closed
up. A **step** is `batches_per_step` (G) consecutive positions; rank r of W takes those with
`(position - step * G) mod W == r`. Where W does not divide G, and that is asked for, a rank that
gets fewer than others gets a **filler** at the end of the step: a blanked copy of its last batch.
Everything here is a pure function of integers.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.wire.errors import InvalidRequest, PastEnd, RankOutOfRange, UnevenStep

MAX_POSITION = (1 << 63) - 1

MAX_LANES = 65_536
"""A node keeps some KiB for each lane of a job; the largest clusters have fewer ranks."""


class LaneOffset(NamedTuple):
    """Where a batch is in its job's log.

    Glossary:
        lane: One of the job's independent, totally ordered sequences of batches.
        offset: How many batches of the same lane come before this one.
    """

    lane: int
    offset: int


@dataclass(frozen=True)
class Order:
    """The numbering of one log's batches.

    Args:
        lanes: How many lanes the log has, at least 1.
        ends: For a finite log, how many batches each lane holds, None where that is not known yet:
            such a lane counts as one without an end, see `penstock.wire.numbering`. None in place
            of all of them = endless.

    Glossary:
        position: The number of a batch in the whole job. In an endless job it is offset * lanes +
            lane.
    """

    lanes: int
    ends: tuple[int | None, ...] | None = None

    def __post_init__(self) -> None:
        if self.lanes < 1:
            raise InvalidRequest(
                f"a log has at least 1 lane, not {self.lanes}", field="lanes", value=self.lanes
            )
        lengths = sorted(end for end in self.ends or () if end is not None)
        is_short = self.ends is not None and len(self.ends) != self.lanes
        if is_short or (lengths and lengths[0] < 0):
            raise InvalidRequest(
                f"{self.lanes} lanes need {self.lanes} lengths of at least 0, not {self.ends}",
                field="lanes",
                value=self.lanes,
            )
        # Lanes by length: below the k-th distinct length every longer lane has a batch in each row.
        rows, below, widths, start, seen = [0], [0], [self.lanes], 0, 0
        for index, length in enumerate(lengths):
            if length > seen:
                start += (length - seen) * (self.lanes - index)
                rows.append(length)
                below.append(start)
                widths.append(0)
                seen = length
            widths[-1] = self.lanes - index - 1
        stretches = _Stretches(rows, below, widths)
        object.__setattr__(self, "_stretches", stretches)
        object.__setattr__(self, "_batches", start if len(lengths) == self.lanes else None)

    @property
    def batches(self) -> int | None:
        """T, the number of batches in the log; None where it is endless, or not known yet."""
        return self._batches  # type: ignore[attr-defined, no-any-return]

    def position(self, lane: int, offset: int) -> int:
        """Return the number of the batch at `offset` of `lane`.

        Raises:
            InvalidRequest: There is no such lane, or the offset is negative.
            PastEnd: The lane ends before that offset.
        """
        if not 0 <= lane < self.lanes or offset < 0:
            raise InvalidRequest(
                f"lane {lane}, offset {offset} is not in a log of {self.lanes} lanes",
                field="lane, offset",
                value=[lane, offset],
            )
        if self.ends is None:
            return offset * self.lanes + lane
        end = self.ends[lane]
        if end is not None and offset >= end:
            raise PastEnd(
                f"lane {lane} holds {end} batches, so it has no offset {offset}",
                lane=lane,
                offset=offset,
                batches=end,
            )
        found = self._stretch(offset)
        before = found.below + (offset - found.row) * found.width
        return before + bisect_left(self._lanes_of(found), lane)

    def lane_offset(self, position: int) -> LaneOffset:
        """Return the lane and offset of the batch at `position`.

        Raises:
            InvalidRequest: The position is negative or does not fit 63 bits.
            PastEnd: The log holds no such position.
        """
        if not 0 <= position <= MAX_POSITION:
            raise InvalidRequest(
                f"position {position} is not between 0 and {MAX_POSITION}",
                field="position",
                value=position,
            )
        if self.ends is None:
            return LaneOffset(position % self.lanes, position // self.lanes)
        total = self.batches
        if total is not None and position >= total:
            raise past_end(position, total)
        stretches: _Stretches = self._stretches  # type: ignore[attr-defined]
        found = stretches.at(bisect_right(stretches.below, position) - 1)
        row, column = divmod(position - found.below, found.width)
        return LaneOffset(self._lanes_of(found)[column], found.row + row)

    def _stretch(self, offset: int) -> _Stretch:
        stretches: _Stretches = self._stretches  # type: ignore[attr-defined]
        return stretches.at(bisect_right(stretches.rows, offset) - 1)

    def _lanes_of(self, stretch: _Stretch) -> Sequence[int]:
        """Return the lanes that have a batch in each row of a stretch, ascending."""
        if stretch.width == self.lanes:
            return range(self.lanes)
        stretches: _Stretches = self._stretches  # type: ignore[attr-defined]
        if stretches.last is None or stretches.last[0] != stretch.row:
            assert self.ends is not None
            lanes = [n for n, end in enumerate(self.ends) if end is None or end > stretch.row]
            stretches.last = (stretch.row, lanes)
        return stretches.last[1]


class _Stretch(NamedTuple):
    """Rows of one width: the first of them, the positions before it, and how many lanes it has."""

    row: int
    below: int
    width: int


@dataclass
class _Stretches:
    """The rows of a log by their width.

    Attributes:
        rows: The first row of each stretch.
        below: The positions before it.
        widths: How many lanes have a batch in each of its rows.
        last: The first row of the stretch that was looked at last, and its lanes.
    """

    rows: list[int]
    below: list[int]
    widths: list[int]
    last: tuple[int, list[int]] | None = None

    def at(self, index: int) -> _Stretch:
        """Return a stretch by its number."""
        return _Stretch(self.rows[index], self.below[index], self.widths[index])


def past_end(position: int, batches: int) -> PastEnd:
    """Return the error for a position that a log of so many batches does not hold."""
    return PastEnd(
        f"position {position} lies past the end: the log holds {batches} batches"
        + (f", the last at position {batches - 1}" if batches else ""),
        position=position,
        batches=batches,
    )


@dataclass(frozen=True)
class Share:
    """Which positions one rank reads.

    Args:
        batches_per_step: G, consecutive positions that make one step.
        rank: This rank, below `world_size`.
        world_size: W, the data-parallel ranks; it must divide G, but with `uneven`.
        uneven: Each rank reads ceil(G / W) positions of a step. One that has fewer of its own, and
            it is never more than one short, reads the last of the step as well, blanked: a filler.

    Raises:
        RankOutOfRange: The rank is not below the world size.
        UnevenStep: W does not divide G, and the share is not `uneven`.

    Glossary:
        rank, world size: The data-parallel rank and the number of such ranks. Ranks that differ
            only in tensor, context or pipeline parallelism read the same batches.
    """

    batches_per_step: int
    rank: int
    world_size: int
    uneven: bool = False

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise RankOutOfRange(
                f"rank {self.rank} is not one of {self.world_size} ranks: "
                f"ranks go from 0 to world_size - 1",
                rank=self.rank,
                world_size=self.world_size,
            )
        check_divides(self.batches_per_step, self.world_size, uneven=self.uneven)
        size, world = self.batches_per_step, self.world_size
        object.__setattr__(self, "_is_even", size % world == 0)
        # With fewer than a whole round of ranks left at the end of a step some get none of it.
        object.__setattr__(self, "_is_short", (-(-size // world) - 1) * world + self.rank >= size)

    @property
    def is_even(self) -> bool:
        """Whether W divides G, so that no rank needs a filler."""
        return self._is_even  # type: ignore[attr-defined, no-any-return]

    @property
    def batches_per_rank(self) -> int:
        """How many batches of each step this rank reads, a filler included: G / W, rounded up."""
        return -(-self.batches_per_step // self.world_size)

    def positions(self, step: int) -> Sequence[int]:
        """Return this rank's positions of `step`, in order."""
        start = step * self.batches_per_step
        own = range(start + self.rank, start + self.batches_per_step, self.world_size)
        return (*own, start + self.batches_per_step - 1) if self._is_short else own  # type: ignore[attr-defined]

    def owns(self, position: int) -> bool:
        """Tell whether this rank reads `position`, be it as a filler."""
        own = position % self.batches_per_step % self.world_size == self.rank
        return own or self.is_filler(position)

    def is_filler(self, position: int) -> bool:
        """Tell whether this rank gets the batch at `position`, which is another's, blanked."""
        is_short: bool = self._is_short  # type: ignore[attr-defined]
        return is_short and (position + 1) % self.batches_per_step == 0

    def at_or_after(self, position: int) -> int:
        """Return the first of this rank's positions that is not below `position`."""
        if self._is_even:  # type: ignore[attr-defined]
            # Then the residue of a position within its step is its residue modulo W.
            return position + (self.rank - position) % self.world_size
        return self._nth(self.index(position))

    def nth_after(self, position: int, count: int) -> int:
        """Return the own position that comes `count` own positions after own `position`."""
        if self._is_even:  # type: ignore[attr-defined]
            return position + count * self.world_size
        return self._nth(self.index(position) + count)

    def index(self, position: int) -> int:
        """Return how many of this rank's positions, fillers included, lie below `position`."""
        step, number = divmod(position, self.batches_per_step)
        below = max(0, -(-(number - self.rank) // self.world_size))
        return step * self.batches_per_rank + below

    def _nth(self, index: int) -> int:
        step, micro = divmod(index, self.batches_per_rank)
        number = min(micro * self.world_size + self.rank, self.batches_per_step - 1)
        return step * self.batches_per_step + number

    def micro(self, position: int) -> int:
        """Return which of this rank's positions of its step an own position is, from 0."""
        return self.index(position) % self.batches_per_rank

    def step(self, position: int) -> int:
        """Return the step that holds `position`."""
        return position // self.batches_per_step

    def walk(self, position: int) -> Iterator[int]:
        """Yield this rank's positions from `position` on, without end."""
        own = self.at_or_after(position)
        while True:
            yield own
            own = self.nth_after(own, 1)


def check_divides(batches_per_step: int, world_size: int, *, uneven: bool = False) -> None:
    """Refuse a world size that does not divide the step, but where shares may be uneven.

    Raises:
        InvalidRequest: The world size is below 1.
        UnevenStep: With the nearest values that work.
    """
    if world_size < 1:
        raise InvalidRequest(
            f"a group is read by at least 1 rank, not {world_size}",
            field="world_size",
            value=world_size,
        )
    if batches_per_step >= 1 and (uneven or batches_per_step % world_size == 0):
        return
    below = [w for w in divisors(max(batches_per_step, 0)) if w < world_size]
    lower = max(batches_per_step, 0) // world_size * world_size
    steps = [value for value in (lower, lower + world_size) if value > 0]
    raise UnevenStep(
        f"{batches_per_step} batches per step cannot be shared evenly by {world_size} ranks: "
        f"use batches_per_step {' or '.join(map(str, steps))}"
        + (f", or {below[-1]} rank{'s' * (below[-1] > 1)}" if below else "")
        + ('; uneven="fill" gives ranks that have fewer a blanked one' if below else ""),
        batches_per_step=batches_per_step,
        world_size=world_size,
    )


def divisors(number: int) -> list[int]:
    """Return every divisor of a number, ascending; 0 has none here."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


@dataclass(frozen=True)
class Cut:
    """How a reader has a finite log cut into steps, wherever that ends.

    Args:
        batches_per_step: G.
        pad: Fill the last step with blanked batches; else leave a step that is not full out.

    Glossary:
        step: A fixed number of consecutive positions (`batches_per_step`, the global batch),
            however many ranks share them.
    """

    batches_per_step: int
    pad: bool = True

    def tail(self, batches: int) -> Tail:
        """Return the steps of a log of so many batches."""
        return Tail(batches, self.batches_per_step, self.pad)


@dataclass(frozen=True)
class Tail:
    """How a finite log of T batches is cut into steps of G.

    Args:
        batches: T.
        batches_per_step: G.
        pad: Fill the last step with blanked batches; else leave a step that is not full out.
    """

    batches: int
    batches_per_step: int
    pad: bool = True

    @property
    def steps(self) -> int:
        """How many steps every rank yields."""
        if self.pad:
            return -(-self.batches // self.batches_per_step)
        return self.batches // self.batches_per_step

    @property
    def end(self) -> int:
        """The first position that no rank reads."""
        return self.steps * self.batches_per_step

    @property
    def dropped(self) -> int:
        """Batches of the log that no step holds."""
        return max(0, self.batches - self.end)

    def blanked(self, position: int) -> int | None:
        """Return the position whose batch stands, blanked, at a padding position.

        None for a position of the log itself. Position T + k is the batch at
        T - 1 - (k mod min(T, G)): real shapes, so that collectives run.
        """
        if position < self.batches:
            return None
        k = position - self.batches
        return self.batches - 1 - k % min(self.batches, self.batches_per_step)


def position_list(order: Order, limit: int) -> Sequence[LaneOffset]:
    """Return lane and offset of the first `limit` positions by walking rows: the definition."""
    found: list[LaneOffset] = []
    offset = 0
    while len(found) < limit:
        row = [
            LaneOffset(lane, offset)
            for lane in range(order.lanes)
            if order.ends is None or (end := order.ends[lane]) is None or offset < end
        ]
        if not row:
            break
        found += row
        offset += 1
    return found[:limit]
