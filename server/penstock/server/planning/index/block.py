"""A block of an index of sizes: what some neighbouring positions of a source hold, as bytes.

All numbers are little-endian. A header of 24 bytes, then the parts without gaps, then zeros up to a
multiple of 8 bytes:

| Part | Of | Each |
|---|---|---|
| sizes | every sample, in order | 2, 4 or 8 bytes; no bytes at all where every size is 0 |
| counts | every position: its samples | 1, 2 or 4 bytes; no bytes where each has one sample |
| codes | every position without a sample, in order | 1 byte, a number of a reason |
| reasons | the block | a JSON list of texts |
| widths | every measure | 1 byte: how many bytes a count has |
| measured | every measure, one after another: every sample, in order | as many bytes |

The header: positions (4 bytes), samples (8), positions without a sample (4), the bytes of a size
(1) and of a count (1), how many measures there are (1), a zero, the bytes of the reasons (4). Of
the possible widths a block has the smallest, so equal content has equal bytes. Only files of
version 2 have measures: of a job whose samples count more than their size.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.server.pipeline.lane_counts import MAX_REASON_CHARACTERS, MAX_REASONS
from penstock.wire.plain import clean_text

_HEADER = struct.Struct("<IQIBBBxI")
_SIZE_WIDTHS, _COUNT_WIDTHS, _MEASURE_WIDTHS = (2, 4, 8), (1, 2, 4), (1, 2, 4, 8)
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
_ALIGNED = 8

OTHER_REASONS = "filtered:other reasons"
"""Stands for what comes after `MAX_REASONS` in a block, or in the sums over a source; but never for
`QUARANTINED`."""

LEAST_BLOCK_ITEMS, MOST_BLOCK_ITEMS = 256, 65_536


def block_items(items: int) -> int:
    """Return how many positions a block of a source of so many items has.

    The largest power of two up to four times the square root: a small source has blocks enough for
    all workers, and a large one not too many files while it is made.
    """
    wanted = 1 << max(0, (4 * isqrt(items)).bit_length() - 1)
    return min(max(wanted, LEAST_BLOCK_ITEMS), MOST_BLOCK_ITEMS)


class LeftOut(Mapping[int, str]):
    """Positions without a sample, each with the reason; arrays, and no object for each of them.

    Args:
        positions: int64 (n,): which, ascending.
        codes: Unsigned (n,): the number of each one's reason.
        reasons: The reasons by number.
    """

    def __init__(
        self, positions: NDArray[np.int64], codes: NDArray[Any], reasons: Sequence[str]
    ) -> None:
        self.positions, self.codes, self.reasons = positions, codes, tuple(reasons)

    def __getitem__(self, position: int) -> str:
        """Return the reason of a position.

        Raises:
            KeyError: It has a sample.
        """
        place = int(np.searchsorted(self.positions, position))
        if place == len(self.positions) or self.positions[place] != position:
            raise KeyError(position)
        return self.reasons[int(self.codes[place])]

    def __iter__(self) -> Iterator[int]:
        """Yield the positions, ascending."""
        yield from self.positions.tolist()

    def __len__(self) -> int:
        return len(self.positions)

    def among(self, positions: NDArray[np.int64]) -> LeftOut:
        """Return those of some positions, int64 (n,), each of them there once, in any order."""
        there = np.isin(self.positions, positions, assume_unique=True)
        return LeftOut(self.positions[there], self.codes[there], self.reasons)

    def tally(self) -> Counter[str]:
        """Return how many positions have each reason."""
        counts = np.bincount(self.codes, minlength=len(self.reasons)).tolist()
        found: Counter[str] = Counter()
        for reason, count in zip(self.reasons, counts, strict=True):
            if count:
                found[reason] += count
        return found


NOTHING_LEFT_OUT = LeftOut(np.empty(0, np.int64), np.empty(0, np.uint8), ())


class ItemSizes(NamedTuple):
    """The samples of neighbouring positions, and their sizes.

    Attributes:
        counts: uint32 (positions,): how many samples each position has; None = one each.
        sizes: int64 (samples,): the size of each sample, in order.
        left_out: The positions without a sample, with why: `filtered:REASON`, or
            `quarantined:index` of an item that fails. Positions count from the source's first.
        measured: int64 (samples, measures): what each sample counts beside its size; None = nothing
            is counted.
    """

    counts: NDArray[np.uint32] | None
    sizes: NDArray[np.int64]
    left_out: Mapping[int, str] = NOTHING_LEFT_OUT
    measured: NDArray[np.int64] | None = None

    @property
    def positions(self) -> int:
        """Return how many positions there are."""
        return len(self.sizes if self.counts is None else self.counts)


def filtered(reason: str) -> str:
    """Return how an index names the reason of an item that the processor gave no sample for."""
    return f"filtered:{clean_text(reason[:MAX_REASON_CHARACTERS], MAX_REASON_CHARACTERS)}"


QUARANTINED = "quarantined:index"
"""The reason of an item that fails, in a job that leaves such items out."""


def few(reasons: Mapping[str, int], into: Counter[str]) -> None:
    """Add counts of reasons to others, but no more than `MAX_REASONS` different ones.

    Items that fail are counted apart, whatever else was left out: jobs bound their number.
    """
    for reason, count in reasons.items():
        into[_named(reason, into)] += count


def _named(reason: str, known: Mapping[str, int]) -> str:
    """Return a reason, or what stands for it where too many others are known."""
    if reason in known or reason == QUARANTINED:
        return reason
    return reason if len(known) - (QUARANTINED in known) < MAX_REASONS else OTHER_REASONS


# --- as bytes -------------------------------------------------------------------------------------


def encode_block(found: ItemSizes, first: int = 0) -> bytes:
    """Return the bytes of a block.

    Args:
        found: What the positions hold. Every position without a sample has a reason in `left_out`.
        first: The number of the first position, as in `left_out`.

    Raises:
        ValueError: Counts, sizes and reasons do not go together.
    """
    sizes, counts = found.sizes, found.counts
    none = np.empty(0, np.int64) if counts is None else np.flatnonzero(counts == 0)
    if counts is not None and int(counts.sum(dtype=np.int64)) != len(sizes):
        raise ValueError(f"{len(sizes)} sizes for {int(counts.sum())} samples")
    if len(found.left_out) != len(none):
        raise ValueError(f"{len(none)} positions have no sample, {len(found.left_out)} a reason")
    if len(sizes) and int(sizes.min()) < 0:
        raise ValueError(f"a size is {int(sizes.min())}")
    codes, reasons = _coded(found.left_out, none, first)
    if counts is not None and bool((counts == 1).all()):
        counts = None
    named = _json(reasons) if reasons else b""
    widths, measured = _measured_bytes(found.measured, len(sizes))
    size_width = 0 if not len(sizes) or not sizes.any() else _width(sizes, _SIZE_WIDTHS)
    count_width = 0 if counts is None else _width(counts, _COUNT_WIDTHS)
    parts = [
        _HEADER.pack(
            found.positions,
            len(sizes),
            len(none),
            size_width,
            count_width,
            len(widths),
            len(named),
        ),
        sizes.astype(_DTYPES[size_width]).tobytes() if size_width else b"",
        b"" if counts is None else counts.astype(_DTYPES[count_width]).tobytes(),
        codes,
        named,
        widths,
        measured,
    ]
    length = sum(map(len, parts))
    return b"".join([*parts, bytes(-length % _ALIGNED)])


def _measured_bytes(measured: NDArray[np.int64] | None, samples: int) -> tuple[bytes, bytes]:
    """Return the widths of what samples count, and the counts: measure by measure."""
    if measured is None:
        return b"", b""
    if len(measured) != samples:
        raise ValueError(f"counts of {len(measured)} samples, and {samples} sizes")
    if measured.size and int(measured.min()) < 0:
        raise ValueError(f"a count is {int(measured.min())}")
    widths = [_width(column, _MEASURE_WIDTHS) if column.any() else 0 for column in measured.T]
    columns = zip(measured.T, widths, strict=True)
    found = [column.astype(_DTYPES[width]).tobytes() for column, width in columns if width]
    return bytes(widths), b"".join(found)


def _coded(
    left_out: Mapping[int, str], none: NDArray[np.intp], first: int
) -> tuple[bytes, list[str]]:
    """Return the codes of positions without a sample, and the reasons that they stand for."""
    numbers: dict[str, int] = {}
    codes = bytearray()
    for position in none.tolist():
        try:
            reason = left_out[first + position]
        except KeyError:
            raise ValueError(f"position {first + position} has no sample and no reason") from None
        codes.append(numbers.setdefault(_named(reason, numbers), len(numbers)))
    return bytes(codes), list(numbers)


def _width(values: NDArray[Any], widths: Sequence[int]) -> int:
    most = int(values.max()) if len(values) else 0
    for width in widths:
        if most < 1 << 8 * width:
            return width
    raise ValueError(f"{most} does not fit into {widths[-1]} bytes")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


@dataclass(frozen=True)
class IndexBlock:
    """A block that was read: views of its bytes.

    Attributes:
        positions: How many positions it has.
        samples: How many samples.
        sizes: The sizes, unsigned; None = every size is 0.
        counts: How many samples each position has, unsigned; None = one each.
        codes: The number of the reason, of each position without a sample.
        reasons: The reasons by number.
        measured: What the samples count, by measure: unsigned (samples,); None = all count 0.
    """

    positions: int
    samples: int
    sizes: NDArray[Any] | None
    counts: NDArray[Any] | None
    codes: NDArray[np.uint8]
    reasons: Sequence[str]
    measured: Sequence[NDArray[Any] | None] = ()

    @property
    def totals(self) -> list[int]:
        """Return the sum of each measure."""
        return [0 if each is None else int(each.sum(dtype=np.uint64)) for each in self.measured]

    @property
    def tokens(self) -> int:
        """Return the sum of the sizes."""
        return 0 if self.sizes is None else int(self.sizes.sum(dtype=np.uint64))

    def read(self, start: int, stop: int, first: int) -> ItemSizes:
        """Return what positions `[start, stop)` of the block hold.

        Args:
            start: The first position, counted from the block's first.
            stop: The one after the last.
            first: The number of that position in its source.
        """
        is_whole = start == 0 and stop == self.positions
        if self.counts is None:
            measured = self._measured(start, stop)
            return ItemSizes(None, self._sizes(start, stop), measured=measured)
        counts = self.counts[start:stop].astype(np.uint32)
        none = np.flatnonzero(counts == 0)
        if is_whole:
            before, skipped, samples = 0, 0, self.samples
        else:
            head = self.counts[:start]
            before = int(head.sum(dtype=np.int64))
            skipped = int(np.count_nonzero(head == 0))
            samples = int(counts.sum(dtype=np.int64))
        left_out = NOTHING_LEFT_OUT
        if len(none):
            codes = self.codes[skipped : skipped + len(none)]
            left_out = LeftOut(none + (first + start), codes, self.reasons)
        last = before + samples
        return ItemSizes(counts, self._sizes(before, last), left_out, self._measured(before, last))

    def _measured(self, start: int, stop: int) -> NDArray[np.int64] | None:
        if not self.measured:
            return None
        found = np.zeros((stop - start, len(self.measured)), np.int64)
        for number, column in enumerate(self.measured):
            if column is not None:
                found[:, number] = column[start:stop]
        return found

    def _sizes(self, start: int, stop: int) -> NDArray[np.int64]:
        if self.sizes is None:
            return np.zeros(stop - start, np.int64)
        return self.sizes[start:stop].astype(np.int64)


def decode_block(data: bytes) -> IndexBlock:
    """Return what the bytes of a block say.

    Raises:
        ValueError: They are not a block.
    """
    if len(data) < _HEADER.size:
        raise ValueError(f"a block has {len(data)} bytes")
    positions, samples, none, size_width, count_width, measures, named = _HEADER.unpack_from(data)
    if size_width not in (0, *_SIZE_WIDTHS) or count_width not in (0, *_COUNT_WIDTHS):
        raise ValueError(f"a block has sizes of {size_width} and counts of {count_width} bytes")
    length = _HEADER.size + samples * size_width + positions * count_width + none + named
    widths = data[length : length + measures]
    if len(widths) != measures or not set(widths) <= {0, *_MEASURE_WIDTHS}:
        raise ValueError(f"a block has {measures} measures of {list(widths)} bytes")
    length += measures + samples * sum(widths)
    if len(data) != length + -length % _ALIGNED or any(data[length:]):
        raise ValueError(f"a block has {len(data)} bytes where its header says {length}")
    at = _HEADER.size
    sizes = np.frombuffer(data, _DTYPES[size_width], samples, at) if size_width else None
    at += samples * size_width
    counts = np.frombuffer(data, _DTYPES[count_width], positions, at) if count_width else None
    at += positions * count_width
    codes = np.frombuffer(data, np.uint8, none, at)
    at += none
    try:
        reasons = json.loads(data[at : at + named]) if named else []
    except RecursionError as error:
        raise ValueError("the reasons of a block are nested too deep") from error
    at += named + measures
    measured: list[NDArray[Any] | None] = []
    for width in widths:
        measured.append(np.frombuffer(data, _DTYPES[width], samples, at) if width else None)
        at += samples * width
        if width == 8 and samples and int(measured[-1].max()) >= 1 << 63:  # type: ignore[union-attr]
            raise ValueError("a block has a count of 2^63 or more")
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise ValueError("the reasons of a block are not a list of texts")
    if none and int(codes.max()) >= len(reasons):
        raise ValueError("a block names a reason that it does not have")
    expected = positions if counts is None else int(counts.sum(dtype=np.int64))
    empty = 0 if counts is None else positions - int(np.count_nonzero(counts))
    if samples != expected or none != empty:
        raise ValueError(f"a block has {samples} sizes for {expected} samples")
    if size_width == 8 and samples and int(sizes.max() if sizes is not None else 0) >= 1 << 63:
        raise ValueError("a block has a size of 2^63 or more")
    return IndexBlock(positions, samples, sizes, counts, codes, reasons, measured)


def joined(parts: Sequence[ItemSizes]) -> ItemSizes:
    """Return what several stretches of positions hold, one after another."""
    if len(parts) == 1:
        return parts[0]
    sizes = np.concatenate([part.sizes for part in parts]) if parts else np.empty(0, np.int64)
    some = [part.measured for part in parts if part.measured is not None]
    measured = np.concatenate(some) if some else None
    if all(part.counts is None for part in parts):
        return ItemSizes(None, sizes, measured=measured)
    counts = np.concatenate(
        [
            np.ones(part.positions, np.uint32) if part.counts is None else part.counts
            for part in parts
        ]
    )
    return ItemSizes(counts, sizes, _left_out(parts), measured)


def _left_out(parts: Sequence[ItemSizes]) -> LeftOut:
    numbers: dict[str, int] = {}
    positions: list[NDArray[np.int64]] = []
    codes: list[NDArray[Any]] = []
    for part in parts:
        found = part.left_out
        if not found:
            continue
        assert isinstance(found, LeftOut)
        renamed = [numbers.setdefault(reason, len(numbers)) for reason in found.reasons]
        positions.append(found.positions)
        codes.append(np.array(renamed, np.uint32)[found.codes])
    if not positions:
        return NOTHING_LEFT_OUT
    return LeftOut(np.concatenate(positions), np.concatenate(codes), list(numbers))
