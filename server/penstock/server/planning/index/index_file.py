"""An index of sizes: how large every sample of a job's sources is, in one immutable file.

```
"PENSTOCK-SIZES", version      16 bytes
blocks of the first source     see `block.py`
blocks of the second source
...
footer                         JSON
SHA-256 of the footer          32 bytes: the root
length of the footer            8 bytes
"PENSTOCK-SIZES", version      16 bytes
```

The footer holds, for each block, its length and its SHA-256, and `inputs`: what the sizes depend
on. So the root stands for all of the content, and nothing of times, machines or of how the index
was made is in it. Numbers are little-endian; the version is 2 bytes: 2 where samples count more
than their size (`measures` of the inputs), and else 1.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple

from penstock.server.core.canonical import canonical
from penstock.server.planning.index.block import (
    IndexBlock,
    ItemSizes,
    LeftOut,
    block_items,
    decode_block,
    encode_block,
    few,
    joined,
)
from penstock.server.planning.index.index_place import KEY, IndexPlace
from penstock.server.usercode.frames import error_line
from penstock.wire.errors import InvalidJob
from penstock.wire.plain import clean_text

VERSIONS = (1, 2)
_NAME = b"PENSTOCK-SIZES"
_MARK_BYTES = len(_NAME) + 2
_TAIL = struct.Struct(f"<32sQ{_MARK_BYTES}s")

MEASURES = "measures"
"""The key of the inputs that names what samples count beside their size."""

AHEAD_BYTES = 256 << 10
"""Read at the end of a file at once: of most indexes that is the footer, in one request."""

KEPT_BYTES = 32 << 20
"""Blocks that are kept, by their bytes in the file: 16 million samples of text."""

AT_ONCE_BYTES = 16 << 20
"""Blocks that follow one another are read together, up to so many bytes."""


def version_of(inputs: Mapping[str, Any]) -> int:
    """Return the version of the file that such an index has."""
    return 2 if inputs.get(MEASURES) else 1


def _mark(version: int) -> bytes:
    return _NAME + struct.pack("<H", version)


class SourceBlocks(NamedTuple):
    """What a file is written of, for one source.

    Attributes:
        name: The name of the source.
        items: How many positions it has.
        blocks: The bytes of its blocks, in order: `block_items(items)` positions each, and the rest
            in the last one.
    """

    name: str
    items: int
    blocks: Iterable[bytes]


def blocks_of(found: ItemSizes) -> Iterator[bytes]:
    """Yield the blocks of a source, where all of its sizes are in memory."""
    step = block_items(found.positions)
    whole = IndexBlock(
        found.positions,
        len(found.sizes),
        found.sizes,
        found.counts,
        *_all_left_out(found.left_out),
        () if found.measured is None else list(found.measured.T),
    )
    for start in range(0, found.positions, step):
        yield encode_block(whole.read(start, min(start + step, found.positions), 0), start)


def _all_left_out(left_out: Mapping[int, str]) -> tuple[Any, Sequence[str]]:
    import numpy as np

    if isinstance(left_out, LeftOut):
        return left_out.codes, left_out.reasons
    reasons = sorted(set(left_out.values()))
    numbers = {reason: number for number, reason in enumerate(reasons)}
    codes = [numbers[left_out[position]] for position in sorted(left_out)]
    return np.array(codes, np.uint32), reasons


def write_index(
    url: str,
    inputs: Mapping[str, Any],
    sources: Sequence[SourceBlocks],
    storage_options: Mapping[str, Any] | None = None,
) -> bytes:
    """Write an index, whole or not at all; another file at its place is replaced.

    Args:
        url: A path, or a URL of fsspec.
        inputs: What the sizes depend on, as `index_inputs` gives it.
        sources: The sources, in the job's order.
        storage_options: Options of the filesystem.

    Returns:
        The root, 32 bytes.

    Raises:
        ValueError: The blocks do not have the positions that a source has.
        InvalidJob, SourceUnavailable: The file cannot be written.
    """
    root = b""

    version, measures = version_of(inputs), len(inputs.get(MEASURES, ()))

    def parts() -> Iterator[bytes]:
        nonlocal root
        yield _mark(version)
        told: list[dict[str, Any]] = []
        for source in sources:
            footer = _SourceFooter(source, measures)
            for data in source.blocks:
                footer.add(data)
                yield data
            told.append(footer.to_json())
        footer_bytes = canonical({"inputs": dict(inputs), "sources": told, "version": version})
        root = hashlib.sha256(footer_bytes).digest()
        yield footer_bytes
        yield _TAIL.pack(root, len(footer_bytes), _mark(version))

    IndexPlace(url, storage_options).write(parts())
    return root


class _SourceFooter:
    """What the footer says of a source, while its blocks are written."""

    def __init__(self, source: SourceBlocks, measures: int) -> None:
        self._source, self._positions = source, 0
        self._counted = [0] * measures
        self._step = block_items(source.items)
        self._blocks: dict[str, list[Any]] = {"bytes": [], "samples": [], "sha256": []}
        self._tokens, self._left_out = 0, Counter[str]()

    def add(self, data: bytes) -> None:
        block = decode_block(data)
        expected = min(self._step, self._source.items - self._positions)
        if block.positions != expected:
            raise ValueError(
                f"block {len(self._blocks['bytes'])} of source {self._source.name!r} has "
                f"{block.positions} positions, to be {expected}"
            )
        self._positions += block.positions
        self._tokens += block.tokens
        totals = zip(self._counted, block.totals, strict=True)
        self._counted = [before + more for before, more in totals]
        whole = block.read(0, block.positions, 0).left_out
        assert isinstance(whole, LeftOut)
        few(whole.tally(), self._left_out)
        self._blocks["bytes"].append(len(data))
        self._blocks["samples"].append(block.samples)
        self._blocks["sha256"].append(hashlib.sha256(data).hexdigest())

    def to_json(self) -> dict[str, Any]:
        if self._positions != self._source.items:
            raise ValueError(
                f"the blocks of source {self._source.name!r} have {self._positions} positions, to "
                f"be {self._source.items}"
            )
        return {
            "name": self._source.name,
            "items": self._source.items,
            "samples": sum(self._blocks["samples"]),
            "tokens": self._tokens,
            **({"counted": self._counted} if self._counted else {}),
            "left_out": dict(self._left_out),
            "block_items": self._step,
            "blocks": self._blocks,
        }


# --- reading --------------------------------------------------------------------------------------


class SizeIndex:
    """An index of sizes. Its blocks are read when they are needed, and checked by their hashes.

    Attributes:
        url: Where it lies.
        root: SHA-256 of the footer, 32 bytes: the same for the same content.
        inputs: What the sizes depend on, see `index_inputs`.
        measures: What its samples count beside their size, in order.
        sources: What it holds of each source, by name, in the job's order.
        nbytes: The bytes of the file.
    """

    url: str
    root: bytes
    inputs: Mapping[str, Any]
    measures: tuple[str, ...]
    sources: Mapping[str, IndexedSizes]
    nbytes: int

    @classmethod
    def open(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> SizeIndex:
        """Open an index.

        Args:
            url: A path, or a URL of fsspec.
            storage_options: Options of the filesystem.

        Raises:
            InvalidJob: There is none, or the file is not one, or is damaged; says what to do.
            SourceUnavailable: It cannot be read at the moment.
            MissingExtra: The filesystem's package is not installed.
        """
        place = IndexPlace(url, storage_options)
        try:
            size = place.size()
        except FileNotFoundError:
            raise InvalidJob(
                f"there is no index of sizes at {url!r}: make it with `penstockd index FILE JOB`",
                key=KEY,
            ) from None
        self = cls()
        self.url, self.nbytes = url, size
        self.root, footer, end = _footer(place, size)
        try:
            content = json.loads(footer)
            self.inputs = _value(content, "inputs", _is_map)
            self.measures = tuple(_value({MEASURES: [], **self.inputs}, MEASURES, _are_names))
            at, self.sources = _MARK_BYTES, {}
            for told in _value(content, "sources", lambda found: isinstance(found, list)):
                source = IndexedSizes(place, told, at, self.measures)
                if source.name in self.sources:
                    raise ValueError(f"two sources have the name {source.name!r}")
                self.sources[source.name] = source
                at = source.end
            if at != end:
                raise ValueError(f"its blocks end at byte {at}, to be {end}")
        except (ValueError, RecursionError) as error:
            raise _damaged(url, f"its footer is wrong ({error_line(error)})") from error
        return self

    def check(self) -> None:
        """Read all of it, and compare every block with its hash.

        Raises:
            InvalidJob: The file is damaged.
            SourceUnavailable: It cannot be read at the moment.
        """
        for source in self.sources.values():
            source.check()


class IndexedSizes:
    """The sizes of one source.

    Attributes:
        name: Its name.
        items: How many positions it has: the items that the job's `where` keeps.
        samples: How many samples these have.
        tokens: The sum of the samples' sizes.
        counted: The sum of what the samples count, by measure.
        left_out: How many positions have no sample, by reason.
        block_items: How many positions a block has.
        kept_bytes: Blocks that are kept, by their bytes in the file.
    """

    def __init__(self, place: IndexPlace, told: Any, at: int, measures: Sequence[str] = ()) -> None:
        self._place = place
        self.name: str = _value(told, "name", lambda found: isinstance(found, str))
        self.items: int = _value(told, "items", _is_count)
        self.samples: int = _value(told, "samples", _is_count)
        self.tokens: int = _value(told, "tokens", _is_count)
        counted: list[int] = _value({"counted": [], **told}, "counted", _are_counts)
        if len(counted) != len(measures):
            raise ValueError(f"source {self.name!r} has {len(counted)} sums of counts")
        self.counted = dict(zip(measures, counted, strict=True))
        self.left_out: Mapping[str, int] = _value(
            told, "left_out", lambda found: _is_map(found) and _are_counts([*found.values()])
        )
        self.block_items: int = _value(told, "block_items", lambda found: found == self._step())
        blocks = _value(told, "blocks", _is_map)
        lengths: list[int] = _value(blocks, "bytes", _are_counts)
        self._samples: list[int] = _value(blocks, "samples", _are_counts)
        self._hashes = list(map(bytes.fromhex, _value(blocks, "sha256", _are_hashes)))
        self._ends = list(accumulate(lengths, initial=at))
        self.end = self._ends[-1]
        self.kept_bytes = KEPT_BYTES
        self._kept: OrderedDict[int, IndexBlock] = OrderedDict()
        self._kept_bytes = 0
        self._lock = Lock()
        wanted = -(-self.items // self.block_items)
        if {wanted} != {len(self._hashes), len(self._samples), len(lengths)}:
            raise ValueError(f"source {self.name!r} has {len(self._hashes)} blocks, to be {wanted}")
        if sum(self._samples) != self.samples:
            raise ValueError(f"source {self.name!r} has {sum(self._samples)} samples in its blocks")

    def _step(self) -> int:
        return block_items(self.items)

    def check(self) -> None:
        """Read all blocks, and compare what they hold with the footer; raises as `read`."""
        tokens, left_out = 0, Counter[str]()
        counted = dict.fromkeys(self.counted, 0)
        for _, block in self._blocks(0, len(self._hashes)):
            tokens += block.tokens
            for name, total in zip(counted, block.totals, strict=True):
                counted[name] += total
            found = block.read(0, block.positions, 0).left_out
            assert isinstance(found, LeftOut)
            few(found.tally(), left_out)
        for what, said, held in (
            ("tokens", self.tokens, tokens),
            ("counts", self.counted, counted),
            ("positions without a sample", dict(self.left_out), dict(left_out)),
        ):
            if said != held:
                raise _damaged(
                    self._place.url,
                    f"its footer says {clean_text(str(said), 100)} {what} of source {self.name!r}, "
                    f"and its blocks hold {clean_text(str(held), 100)}",
                )

    def read(self, start: int, stop: int) -> ItemSizes:
        """Return what positions `[start, stop)` hold; may be called from several threads.

        Raises:
            ValueError: There are no such positions.
            InvalidJob: The file is damaged.
            SourceUnavailable: It cannot be read at the moment.
        """
        if not 0 <= start <= stop <= self.items:
            raise ValueError(f"positions [{start}, {stop}) of {self.items}")
        parts: list[ItemSizes] = []
        if start < stop:
            step = self.block_items
            for number, block in self._blocks(start // step, -(-stop // step)):
                first = number * step
                begin, end = max(start - first, 0), min(stop - first, block.positions)
                parts.append(block.read(begin, end, first))
        return joined(parts)

    def _blocks(self, first: int, last: int) -> Iterator[tuple[int, IndexBlock]]:
        """Yield blocks `[first, last)` with their numbers; what is missing is read in runs."""
        number = first
        while number < last:
            with self._lock:
                block = self._kept.get(number)
                if block is not None:
                    self._kept.move_to_end(number)
            if block is not None:
                yield number, block
                number += 1
                continue
            most = bisect_right(self._ends, self._ends[number] + AT_ONCE_BYTES) - 1
            run = number + 1
            while run < min(last, most) and run not in self._kept:
                run += 1
            for found in self._read_run(number, run):
                yield number, found
                number += 1

    def _read_run(self, first: int, last: int) -> Iterator[IndexBlock]:
        origin = self._ends[first]
        try:
            data = memoryview(self._place.read(origin, self._ends[last]))
        except FileNotFoundError:
            raise _damaged(self._place.url, "it is not there any more") from None
        for number in range(first, last):
            # Bytes of its own: a view would keep the whole run in memory with one block of it.
            own = bytes(data[self._ends[number] - origin : self._ends[number + 1] - origin])
            block = self._checked(number, own)
            self._keep(number, block, len(own))
            yield block

    def _checked(self, number: int, data: bytes) -> IndexBlock:
        which = f"block {number} of source {self.name!r}"
        if hashlib.sha256(data).digest() != self._hashes[number]:
            raise _damaged(self._place.url, f"{which} does not have the hash that it had")
        expected = min(self.block_items, self.items - number * self.block_items)
        try:
            block = decode_block(data)
        except ValueError as error:
            raise _damaged(self._place.url, f"{which}: {error_line(error)}") from error
        found = block.positions, block.samples, len(block.measured)
        if found != (expected, self._samples[number], len(self.counted)):
            raise _damaged(self._place.url, f"{which} has {block.positions} positions")
        return block

    def _keep(self, number: int, block: IndexBlock, nbytes: int) -> None:
        with self._lock:
            if number in self._kept:
                return
            self._kept[number] = block
            self._kept_bytes += nbytes
            while self._kept_bytes > self.kept_bytes and len(self._kept) > 1:
                oldest, _ = self._kept.popitem(last=False)
                self._kept_bytes -= self._ends[oldest + 1] - self._ends[oldest]


def _value(told: Any, key: str, fits: Callable[[Any], bool]) -> Any:
    """Return a value of the footer.

    Raises:
        ValueError: It is missing, or cannot be.
    """
    found = told.get(key) if isinstance(told, dict) else None
    if not fits(found):
        raise ValueError(f"{key} is {clean_text(repr(found), 100)}")
    return found


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value) < 256
    )


def _is_map(value: Any) -> bool:
    return isinstance(value, dict)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _are_hashes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) for text in value
    )


def _footer(place: IndexPlace, size: int) -> tuple[bytes, bytes, int]:
    """Return the root, the footer, and where it begins.

    Raises:
        InvalidJob: The file is not an index, or is damaged.
    """
    start = max(0, size - AHEAD_BYTES)
    end = place.read(start, size)
    head = end[:_MARK_BYTES] if start == 0 else place.read(0, _MARK_BYTES)
    for mark in (head, end[-_MARK_BYTES:]):
        if not mark.startswith(_NAME) or len(mark) != _MARK_BYTES:
            if head.startswith(_NAME):
                raise _damaged(place.url, "it ends before its end")
            raise InvalidJob(
                f"{place.url!r} is not an index of sizes: name one that `penstockd index` has made",
                key=KEY,
            )
        [version] = struct.unpack("<H", mark[len(_NAME) :])
        if version not in VERSIONS:
            raise InvalidJob(
                f"the index {place.url!r} has version {version} of the format, and this penstock "
                f"reads versions {VERSIONS[0]} and {VERSIONS[1]}: make it anew with `penstockd "
                "index FILE JOB`",
                key=KEY,
            )
    if size < _MARK_BYTES + _TAIL.size:
        raise _damaged(place.url, "it ends before its end")
    root, length, _ = _TAIL.unpack(end[-_TAIL.size :])
    begin = size - _TAIL.size - length
    if begin < _MARK_BYTES:
        raise _damaged(place.url, f"its footer would have {length} bytes")
    if begin >= start:
        footer = end[begin - start : -_TAIL.size]
    else:
        footer = place.read(begin, start) + end[: -_TAIL.size]
    if hashlib.sha256(footer).digest() != root:
        raise _damaged(place.url, "its footer does not have the hash that it had")
    return root, footer, begin


def is_index(place: IndexPlace) -> bool | None:
    """Tell whether a file begins as an index does, damaged or not; None = there is no file.

    Raises:
        InvalidJob, SourceUnavailable: It cannot be read.
    """
    try:
        return place.read(0, min(len(_NAME), place.size())) == _NAME
    except FileNotFoundError:
        return None


def _damaged(url: str, how: str) -> InvalidJob:
    return InvalidJob(
        f"the index {url!r} is damaged: {how}; copy it again, or remove it and make it anew with "
        "`penstockd index FILE JOB`",
        key=KEY,
    )
