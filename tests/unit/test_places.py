"""Rows of the line as arrays: where they lie is what `ref` says of each, one by one."""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.roles.condition import Condition, Kept
from penstock.server.roles.distributors.joined_sources import Drawn, JoinedSources
from penstock.server.roles.distributors.selection import Selection
from penstock.server.roles.reading import Blocks
from penstock.server.sources import ItemsSource


class Blocked(ItemsSource):
    """Items in storage blocks."""

    version = 1

    def __init__(self, items: list[Any], sizes: list[int]) -> None:
        super().__init__(items)
        self.sizes_of_blocks = sizes

    def blocks(self) -> Blocks:
        """Return their sizes."""
        return Blocks(self.sizes_of_blocks)


def rows(count: int) -> list[dict[str, Any]]:
    return [{"n": n, "third": n % 3} for n in range(count)]


PLAIN = {"a": 11}
SEVERAL = {"a": 11, "b": 3, "c": 20}
BLOCKS = {"a": [4, 0, 4, 3], "b": 9, "c": [5, 1]}
SOURCES: dict[str, dict[str, Any]] = {
    "one without blocks": PLAIN,
    "several without blocks": SEVERAL,
    "blocks, and one without": BLOCKS,
    "a block without items first": {"a": [0, 3], "b": [2, 0]},
}
RATIOS = {"all": [1, 1, 1], "halves": [Fraction(1, 2), Fraction(3, 2), 2], "thin": [3, 0.25, 0.2]}


def sources(shape: str) -> dict[str, Any]:
    return {
        name: ItemsSource(rows(size)) if isinstance(size, int) else Blocked(rows(sum(size)), size)
        for name, size in SOURCES[shape].items()
    }


def every_drawn(shape: str) -> list[Drawn]:
    """Return each way to draw from such sources."""
    given = sources(shape)
    found: list[Drawn] = [JoinedSources(given)]
    for where in (None, Condition({"third": {"not": 1}})):
        for ratios in RATIOS.values():
            exact = [Fraction(ratio) for ratio in ratios[: len(given)]]
            found += [Selection(given, where, exact, resample, 7) for resample in (False, True)]
    return found


def drawn_from(drawn: Drawn, part: int, epoch: int, start: int, stop: int) -> list[ItemRef]:
    source, positions, copy = drawn.places(part, epoch, start, stop)
    assert positions.dtype == np.int64
    drawn_in = epoch * drawn.passes(source) + copy
    return [
        ItemRef(drawn.names[source], index, drawn_in)
        for index in drawn.indices(source, positions).tolist()
    ]


@pytest.mark.parametrize("shape", SOURCES)
def test_places_are_what_is_drawn_one_by_one(shape: str) -> None:
    """Of every row of the line, whole parts and stretches of them, in two epochs."""
    for drawn in every_drawn(shape):
        for epoch in (0, 5):
            parts = drawn.parts(epoch)
            assert sum(parts) == drawn.items
            for part, (size, end) in enumerate(zip(parts, accumulate(parts), strict=True)):
                expected = [drawn.ref(index, epoch) for index in range(end - size, end)]
                assert drawn_from(drawn, part, epoch, 0, size) == expected
                assert (
                    drawn_from(drawn, part, epoch, size // 3, size - 1 if size else 0)
                    == (expected[size // 3 : -1])
                )


def test_parts_are_the_blocks_unless_a_block_spans_sources() -> None:
    """The order of `shuffle: blocks` stays what it was: one block over sources that have none."""
    for shape in SOURCES:
        for drawn in every_drawn(shape):
            blocks = list(drawn.sizes(0))
            spans = shape == "several without blocks" and isinstance(drawn, JoinedSources)
            assert blocks == ([34] if spans else list(drawn.parts(0)))
            assert list(drawn.parts(0)) == ([11, 3, 20] if spans else blocks)


@pytest.mark.parametrize("drawn", every_drawn("blocks, and one without"))
def test_rows_and_positions_that_do_not_exist_are_refused(drawn: Drawn) -> None:
    """An array of others would be silently wrong."""
    size = drawn.parts(0)[0]
    for part, start, stop in ((0, 0, size + 1), (0, -1, 1), (0, 2, 1), (-1, 0, 1), (99, 0, 1)):
        with pytest.raises(IndexError, match="of the line: it has"):
            drawn.places(part, 0, start, stop)
    for positions in ([-1], [0, 11], [400]):
        with pytest.raises(IndexError, match="are not in"):
            drawn.indices(0, np.array(positions))
    assert drawn.indices(0, np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize("length", [1, 4096, 4097, 20_000, 1_100_000])
@pytest.mark.parametrize("share", [0.0001, 0.3, 1.0])
def test_many_kept_items_are_found_at_once(length: int, share: float) -> None:
    """In any order, repeated, and in more steps than are looked through at a time."""
    draw = np.random.default_rng(length)
    mask = draw.random(length) < share
    mask[length // 2] = True
    kept, places = Kept.of(mask), np.flatnonzero(mask)

    for numbers in (np.arange(len(kept)), draw.integers(0, len(kept), 1000)):
        assert np.array_equal(kept.take(numbers), places[numbers])
    assert kept[len(kept) - 1] == kept.take(np.array([len(kept) - 1]))[0] == places[-1]
