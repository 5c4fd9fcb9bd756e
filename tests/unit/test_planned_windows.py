"""Windows of a planned job hold all that an epoch draws, evenly cut, and no item twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock.server.planning.index.block import ItemSizes
from penstock.server.planning.index.index_file import (
    SizeIndex,
    SourceBlocks,
    blocks_of,
    write_index,
)
from penstock.server.planning.log.index_windows import (
    RUN,
    RUNS,
    LineStretch,
    Windows,
    cut,
    pieces_of,
    run_of,
)
from penstock.server.roles import Blocks
from penstock.server.roles.condition import Condition
from penstock.server.roles.distributors.joined_sources import Drawn, JoinedSources
from penstock.server.roles.distributors.selection import Selection
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


def items_of(pieces: Sequence[LineStretch]) -> list[tuple[int, int]]:
    return [(piece.part, row) for piece in pieces for row in range(piece.start, piece.stop)]


def test_windows_are_cut_evenly_and_hold_every_item_in_order() -> None:
    """As many as fit best, equal to within the alignment, and only the last one is not aligned."""
    for case in range(800):
        chance = random.Random(case)
        pieces = [
            LineStretch(part, start, start + chance.randint(0, chance.choice([1, 5, 40])))
            for part in range(chance.randint(0, 12))
            for start in [chance.randint(0, 3)]
        ]
        total = len(items_of(pieces))
        length, align = chance.randint(1, 2 * total + 2), chance.choice([1, 1, 2, 3, 7])

        windows = cut(pieces, length, align)

        assert [item for window in windows for item in items_of(window)] == items_of(pieces)
        lengths = [len(items_of(window)) for window in windows]
        assert all(lengths)
        assert all(each % align == 0 for each in lengths[:-1])
        assert max(lengths[:-1], default=0) - min(lengths[:-1], default=0) <= align
        if align == 1 and lengths:
            assert len(lengths) == min(total, max(1, (total + length // 2) // length))
            assert max(lengths) - min(lengths) <= 1
        elif lengths:
            assert max(lengths) <= -(-total // max(1, round(total / length))) + 2 * align


def test_whole_pieces_are_cut_where_the_nearest_ends() -> None:
    """So each storage block is in one window, and windows are as even as blocks allow."""
    for case in range(400):
        chance = random.Random(case)
        pieces = [
            LineStretch(part, 0, chance.randint(1, 9)) for part in range(chance.randint(1, 20))
        ]
        length = chance.randint(1, 60)

        windows = cut(pieces, length, whole=True)

        assert [piece for window in windows for piece in window] == pieces
        ends = np.cumsum([piece.stop for piece in pieces])
        number = max(1, (int(ends[-1]) + length // 2) // length)
        ideal = {int(ends[-1]) * n // number for n in range(1, number)}
        nearest = {min(abs(ends - at)) for at in ideal if at}
        bounds = np.cumsum([sum(piece.stop for piece in window) for window in windows])[:-1]
        assert len(windows) <= number
        assert all(min(abs(at - bound) for at in ideal) in nearest for bound in bounds.tolist())


def test_a_window_of_one_item_and_one_of_all() -> None:
    """The ends of the scale."""
    pieces = [LineStretch(0, 0, 3), LineStretch(1, 0, 2)]

    assert cut(pieces, 1) == [
        [LineStretch(0, 0, 1)],
        [LineStretch(0, 1, 2)],
        [LineStretch(0, 2, 3)],
        [LineStretch(1, 0, 1)],
        [LineStretch(1, 1, 2)],
    ]
    assert cut(pieces, 10**12) == [pieces]
    assert cut([], 5) == []
    assert [run_of(window) for window in (1, RUNS, 10 * RUNS, 10**9)] == [1, 1, 10, RUN]


def random_drawn(chance: random.Random) -> tuple[Drawn, dict[str, ItemsSource]]:
    """Return what an epoch draws from one to three sources, by chance with a condition, ratios."""
    sources: dict[str, ItemsSource] = {}
    for name in "abc"[: chance.randint(1, 3)]:
        items = [{"third": n % 3} for n in range(chance.randint(3, 50))]
        sizes: list[int] = []
        while sum(sizes) < len(items):
            sizes.append(min(chance.randint(0, 9), len(items) - sum(sizes)))
        sources[name] = Blocked(items, sizes) if chance.random() < 0.5 else ItemsSource(items)
    where = chance.choice([None, Condition({"third": {"not": 1}})])
    ratios = [Fraction(chance.choice(["1", "0.3", "2.5"])) for _ in sources]
    if where is None and all(ratio == 1 for ratio in ratios):
        return JoinedSources(sources), sources
    return Selection(sources, where, ratios, resample=False, seed=3), sources


def write_sizes(
    chance: random.Random, drawn: Drawn, sources: dict[str, ItemsSource], path: Path
) -> dict[str, list[list[int] | str]]:
    """Write an index; return by source what each of its positions has: sizes, or why none."""
    held: dict[str, list[list[int] | str]] = {}
    blocks = []
    kept = getattr(drawn, "kept", {})
    one_each = chance.random() < 0.3
    for name, source in sources.items():
        own = kept.get(name)
        held[name] = [
            [chance.randint(0, 99) for _ in range(1 if one_each else chance.randint(1, 3))]
            if one_each or chance.random() < 0.8
            else chance.choice(["filtered:short", "quarantined:index"])
            for _ in range(len(source) if own is None else len(own))
        ]
        samples = [each if isinstance(each, list) else [] for each in held[name]]
        found = ItemSizes(
            np.array(list(map(len, samples)), np.uint32),
            np.array([size for own in samples for size in own], np.int64),
            {n: each for n, each in enumerate(held[name]) if isinstance(each, str)},
        )
        blocks.append(SourceBlocks(name, found.positions, blocks_of(found)))
    write_index(str(path), {}, blocks)
    return held


def test_windows_hold_what_an_epoch_draws(tmp_path: Path) -> None:
    """With conditions, ratios, blocks, several sources: each draw once, with its sizes."""
    for case in range(80):
        chance = random.Random(case)
        drawn, sources = random_drawn(chance)
        held = write_sizes(chance, drawn, sources, tmp_path / f"{case}")
        index = SizeIndex.open(str(tmp_path / f"{case}"))
        seed, run = chance.choice([None, 5]), chance.choice([None, 1, 7])
        groups = chance.choice([1, 1, 2])
        pieces = pieces_of(drawn, seed, run)
        names = list(sources)
        length, align = chance.randint(1, 60), chance.choice([1, 4])
        whole = align == 1 and chance.random() < 0.5
        expected = Counter(drawn.ref(at, 0) for at in range(drawn.items))
        counts: Counter[str] = Counter()
        seen: Counter[Any] = Counter()
        found: Counter[Any] = Counter()
        for group in range(groups):
            own = [copies[group::groups] for copies in pieces]
            windows = Windows(
                drawn, index, names, own, length, align, whole, seed, f"of group {group}"
            )
            for number in range(len(windows)):
                samples = windows.samples(number)
                counts.update(samples.counts)
                parts = [0] * len(samples.items) if samples.parts is None else samples.parts
                keys = list(zip(samples.sources, samples.items, samples.copies, strict=True))
                assert len({(s, i) for s, i, _ in keys}) == len(set(keys)), "an item comes twice"
                seen.update((names[s], int(i), int(c)) for s, i, c in set(keys))
                found.update(
                    (names[s], int(i), int(c), int(part), int(size))
                    for (s, i, c), part, size in zip(keys, parts, samples.sizes, strict=True)
                )
                assert sorted(windows.sizes(number)) == sorted(samples.sizes)

        samples_of = {
            (name, int(index)): each
            for source, name in enumerate(names)
            for each, index in zip(
                held[name], drawn.indices(source, np.arange(len(held[name]))), strict=True
            )
        }
        wanted: Counter[Any] = Counter()
        left_out: Counter[str] = Counter()
        for ref in expected:
            each = samples_of[ref.source, ref.index]
            if isinstance(each, str):
                left_out[each] += 1
                continue
            key = ref.source, ref.index, ref.epoch
            wanted.update((*key, part, size) for part, size in enumerate(each))
        assert found == wanted, case
        assert counts == left_out + Counter(drawn=drawn.items), case
        assert max(seen.values(), default=1) == 1


def test_pieces_are_blocks_or_runs_of_each_part(tmp_path: Path) -> None:
    """A seed permutes them; copies of an item are in lists of their own."""
    source = Blocked([{"third": 0}] * 10, [4, 0, 6])
    plain, twice = (
        JoinedSources({"a": source}),
        Selection({"a": source}, None, [Fraction(2)], False, 1),
    )

    assert pieces_of(plain, None, None) == [[LineStretch(0, 0, 4), LineStretch(2, 0, 6)]]
    assert pieces_of(plain, None, 3) == [
        [LineStretch(0, 0, 3), LineStretch(0, 3, 4), LineStretch(2, 0, 3), LineStretch(2, 3, 6)]
    ]
    assert [len(own) for own in pieces_of(twice, None, None)] == [2, 2]
    runs = pieces_of(JoinedSources({"a": ItemsSource(list(range(200)))}), None, 10)[0]
    mixed = pieces_of(JoinedSources({"a": ItemsSource(list(range(200)))}), 7, 10)[0]
    assert mixed != runs
    assert sorted(mixed) == runs
    assert [one.stop for one, other in pairwise(runs)] == [
        other.start for _, other in pairwise(runs)
    ]


def test_samples_of_a_window_are_mixed_by_the_seed(tmp_path: Path) -> None:
    """Without a shuffle they keep the order of the line, item by item and part by part."""
    sizes = ItemSizes(np.full(40, 2, np.uint32), np.arange(80))
    write_index(str(tmp_path / "i"), {}, [SourceBlocks("a", 40, blocks_of(sizes))])
    drawn = JoinedSources({"a": ItemsSource(list(range(40)))})
    index = SizeIndex.open(str(tmp_path / "i"))

    def samples(seed: int | None, purpose: str = "") -> list[int]:
        windows = Windows(
            drawn, index, ["a"], [[LineStretch(0, 0, 40)]], 100, 1, False, seed, purpose
        )
        return windows.samples(0).sizes.tolist()

    assert samples(None) == list(range(80))
    orders = [samples(1), samples(2), samples(1, "of group 1")]
    assert all(sorted(order) == list(range(80)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert samples(1) == orders[0]
