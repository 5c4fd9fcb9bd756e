"""The map distributor: every item once per epoch over all lanes, by arithmetic alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.roles.distributors import MapDistributor
from penstock.server.roles.reading import Blocks
from penstock.server.roles.source import IndexedSource
from penstock.server.sources import ItemsSource, JsonlSource, MetaSource
from penstock.wire.errors import InvalidJob


class BlockSource(IndexedSource):
    """Items that are their own index, in blocks of given sizes."""

    version = 1

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)

    def __len__(self) -> int:
        return sum(self.sizes)

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the indices."""
        return list(indices)

    def blocks(self) -> Blocks:
        """Return the sizes."""
        return Blocks(self.sizes)


def bound(
    distributor: MapDistributor,
    source: IndexedSource,
    *,
    seed: int = 7,
    epochs: int | None = None,
    lanes: int = 12,
) -> MapDistributor:
    distributor.bind({"main": source}, seed, epochs, lanes)
    return distributor


def global_draws(distributor: MapDistributor, lanes: int, count: int) -> list[ItemRef]:
    """The first `count` global draws, each asked of the lane that it belongs to."""
    found = [distributor.draw(g % lanes, lanes, g // lanes) for g in range(count)]
    assert None not in found
    return [item for item in found if item is not None]


SOURCES = {
    "one item": ItemsSource([0]),
    "seven items": ItemsSource(list(range(7))),
    "300 items": ItemsSource(list(range(300))),
    "one block": BlockSource([9]),
    "uneven blocks": BlockSource([5, 1, 7, 3, 2, 9, 4]),
    "empty blocks between": BlockSource([0, 4, 0, 0, 3, 0]),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@pytest.mark.parametrize("shuffle", [None, "none"])
@pytest.mark.parametrize("window_blocks", [1, 2, 3, 16])
@pytest.mark.parametrize("lanes", [1, 2, 3, 12])
def test_each_item_comes_exactly_once_per_epoch_over_all_lanes(
    source: IndexedSource, shuffle: str | None, window_blocks: int, lanes: int
) -> None:
    """For every number of lanes, also more lanes than items: an epoch is a permutation."""
    distributor = bound(MapDistributor(shuffle, window_blocks), source)

    drawn = global_draws(distributor, lanes, 3 * len(source))

    for epoch in range(3):
        part = drawn[epoch * len(source) : (epoch + 1) * len(source)]
        assert sorted(item.index for item in part) == list(range(len(source)))
        assert {(item.source, item.epoch) for item in part} == {("main", epoch)}


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=20).filter(any),
    window_blocks=st.integers(1, 25),
    groups=st.sampled_from([1, 2, 3, 4, 6, 12]),
    seed=st.integers(0, 2**64),
)
def test_any_blocks_groups_and_window_give_a_permutation(
    sizes: list[int], window_blocks: int, groups: int, seed: int
) -> None:
    """Whatever the sizes, each item stands at exactly one position."""
    distributor = bound(
        MapDistributor("blocks", window_blocks, groups), BlockSource(sizes), seed=seed, epochs=1
    )

    drawn = global_draws(distributor, 1, sum(sizes))

    assert sorted(item.index for item in drawn) == list(range(sum(sizes)))
    assert distributor.draw(0, 1, sum(sizes)) is None


UNEVEN = [(number * 7) % 11 + 1 for number in range(23)]
BLOCK_OF = [block for block, size in enumerate(UNEVEN) for _ in range(size)]


def blocks_of_groups(groups: int, window_blocks: int, lanes: int = 12) -> list[list[int]]:
    """Return for each group the blocks of its draws in an epoch, in order."""
    distributor = bound(
        MapDistributor("blocks", window_blocks, groups), BlockSource(UNEVEN), lanes=lanes
    )
    drawn: list[list[int]] = [[] for _ in range(groups)]
    for g, item in enumerate(global_draws(distributor, lanes, sum(UNEVEN))):
        drawn[g % groups].append(BLOCK_OF[item.index])
    return drawn


@pytest.mark.parametrize("groups", [1, 2, 3, 12])
@pytest.mark.parametrize("window_blocks", [1, 2, 4, 5])
def test_a_group_draws_from_a_window_of_blocks_and_never_comes_back(
    groups: int, window_blocks: int
) -> None:
    """What lies between a block's first draw and its last: one block more than a window has."""
    for drawn in blocks_of_groups(groups, window_blocks):
        spans = {
            block: (drawn.index(block), len(drawn) - 1 - drawn[::-1].index(block))
            for block in set(drawn)
        }
        live = [
            sum(first <= at <= last for first, last in spans.values()) for at in range(len(drawn))
        ]
        assert max(live) <= window_blocks + 1


@pytest.mark.parametrize("groups", [2, 3, 4, 6, 12])
def test_a_block_belongs_to_one_group_or_lies_between_two(groups: int) -> None:
    """At most `groups - 1` blocks have two groups, which come to them at the same end of theirs."""
    drawn = blocks_of_groups(groups, 2)

    readers = {
        block: [group for group in range(groups) if block in drawn[group]]
        for block in range(len(UNEVEN))
    }
    shared = {block: them for block, them in readers.items() if len(them) > 1}

    assert all(len(them) == 2 for them in shared.values())
    assert len(shared) <= groups - 1
    for block, them in shared.items():
        places = [np.flatnonzero(np.array(drawn[group]) == block).mean() for group in them]
        early = [place < len(drawn[group]) / 2 for place, group in zip(places, them, strict=True)]
        assert early in ([True, True], [False, False])


def test_one_group_with_a_window_of_all_blocks_is_a_full_shuffle() -> None:
    """Then any item may follow any other: neighbours lie as far apart as by chance."""
    distributor = bound(MapDistributor("blocks", 8, 1), BlockSource([50] * 8))

    drawn = [item.index for item in global_draws(distributor, 1, 400)]

    apart = sum(abs(a - b) for a, b in pairwise(drawn)) / 399
    assert abs(apart - 400 / 3) < 20
    assert distributor.parameters()["window_blocks"] == 8


@pytest.mark.parametrize("lanes", [1, 2, 3, 5, 12])
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_groups_change_nothing_of_how_many_draws_a_lane_has(lanes: int, epochs: int) -> None:
    """Equal to within one per epoch, for every number of groups and of items, few ones too."""
    for items in range(1, 30):
        sizes = [3] * (items // 3) + ([items % 3] if items % 3 else [])
        for groups in (n for n in range(1, lanes + 1) if lanes % n == 0):
            distributor = bound(
                MapDistributor("blocks", 2, groups), BlockSource(sizes), epochs=epochs, lanes=lanes
            )
            drawn = []
            for lane in range(lanes):
                count = distributor.draws(lane, lanes)
                assert count is not None
                assert abs(count - epochs * items / lanes) < 1
                drawn += [distributor.draw(lane, lanes, k) for k in range(count)]
                assert distributor.draw(lane, lanes, count) is None
            assert sorted((item.epoch, item.index) for item in drawn if item) == [
                (epoch, index) for epoch in range(epochs) for index in range(items)
            ]


def test_rows_of_several_blocks_are_mixed_within_a_window() -> None:
    """With four blocks per window, neighbours in a lane mostly come from different blocks."""
    distributor = bound(MapDistributor("blocks", 4, 1), BlockSource([50] * 20))

    blocks = [item.index // 50 for item in global_draws(distributor, 1, 1000)]

    assert sum(a != b for a, b in pairwise(blocks)) > 650


@pytest.mark.parametrize("source", [SOURCES["300 items"], SOURCES["uneven blocks"]])
def test_every_epoch_has_an_order_of_its_own(source: IndexedSource) -> None:
    """Ten epochs and two seeds give twenty different orders."""
    orders = {
        tuple(item.index for item in global_draws(distributor, 1, 10 * len(source))[start:stop])
        for distributor in (
            bound(MapDistributor(), source, seed=1),
            bound(MapDistributor(), source, seed=2),
        )
        for start, stop in pairwise(range(0, 11 * len(source), len(source)))
    }

    assert len(orders) == 20


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_a_draw_does_not_depend_on_what_was_asked_before(source: IndexedSource) -> None:
    """Asked backwards, of a fresh distributor each time: the same items."""
    straight = global_draws(bound(MapDistributor(), source), 3, 60)

    backwards = [
        bound(MapDistributor(), source).draw(g % 3, 3, g // 3) for g in reversed(range(60))
    ]

    assert backwards[::-1] == straight


@pytest.mark.parametrize("items", range(1, 8))
@pytest.mark.parametrize("lanes", range(1, 10))
@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_finite_lane_ends_where_arithmetic_says(items: int, lanes: int, epochs: int) -> None:
    """`draws` equals the draws before the first None, and the lanes add up to all items."""
    distributor = bound(MapDistributor(), ItemsSource(list(range(items))), epochs=epochs)

    counts = []
    for lane in range(lanes):
        count = 0
        while distributor.draw(lane, lanes, count) is not None:
            count += 1
        counts.append(count)

    assert counts == [distributor.draws(lane, lanes) for lane in range(lanes)]
    assert sum(counts) == items * epochs


def test_an_endless_lane_has_no_count_and_an_epoch_of_rounded_up_draws() -> None:
    """`draws` is None without epochs; `epoch_draws` bounds how long a lane may draw in vain."""
    distributor = bound(MapDistributor(), ItemsSource(list(range(10))))

    assert distributor.draws(0, 3) is None
    assert distributor.epoch_draws(3) == 4


def test_the_stream_of_a_lane_goes_on_where_its_state_was_taken() -> None:
    """Peeking takes nothing; restored after every draw, a stream gives the same items."""
    distributor = bound(MapDistributor(), SOURCES["uneven blocks"], epochs=2)
    whole = distributor.open(1, 4)
    ahead = whole.peek(100)
    items = []
    while (item := whole.next()) is not None:
        items.append(item)
        again = distributor.open(1, 4)
        again.restore(whole.state())
        assert again.peek(100) == ahead[len(items) :]

    assert items == ahead
    assert len(items) == distributor.draws(1, 4)


def test_the_default_shuffle_is_what_it_settles_on() -> None:
    """Left out or written out, the same order has the same identity; so for an unused window."""
    plain, blocks = SOURCES["seven items"], SOURCES["uneven blocks"]

    assert (
        bound(MapDistributor(), plain).identity() == bound(MapDistributor("full"), plain).identity()
    )
    assert (
        bound(MapDistributor(), blocks).identity()
        == bound(MapDistributor("blocks", 16, 1), blocks).identity()
    )
    assert (
        bound(MapDistributor("none", 3), blocks).identity()
        == bound(MapDistributor("none"), blocks).identity()
    )
    assert (
        bound(MapDistributor(window_blocks=3), blocks).identity()
        != bound(MapDistributor(), blocks).identity()
    )
    assert bound(MapDistributor(), plain).identity() != bound(MapDistributor(), blocks).identity()


def test_binding_again_settles_again() -> None:
    """A distributor that was bound to blocks and then to a list shuffles the list in full."""
    distributor = bound(MapDistributor(), SOURCES["uneven blocks"])

    bound(distributor, SOURCES["seven items"])

    assert distributor.parameters()["shuffle"] == "full"
    assert distributor.clone().arguments == {}


def test_full_over_blocks_is_refused_with_the_way_on() -> None:
    """A row-uniform shuffle over many blocks names `blocks`; over one block it is fine."""
    with pytest.raises(InvalidJob, match=r"7 storage blocks.*shuffle: blocks"):
        bound(MapDistributor("full"), SOURCES["uneven blocks"])

    bound(MapDistributor("full"), SOURCES["one block"])


@pytest.mark.parametrize("ratio", [2, 2.5, 0.5])
def test_copies_of_one_block_are_one_block_to_a_full_shuffle(tmp_path: Path, ratio: float) -> None:
    """Also where a meta file makes the copies: what counts is what has to be decoded."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(8)))
    entry = {"file_name": "a.jsonl", "sample_ratio": ratio}
    (tmp_path / "meta.json").write_text(json.dumps({"a": entry}))
    (tmp_path / "two.json").write_text(json.dumps({"a": entry, "b": entry}))
    jsonl, meta, two = (
        JsonlSource(str(tmp_path / "a.jsonl")),
        MetaSource(str(tmp_path / "meta.json")),
        MetaSource(str(tmp_path / "two.json")),
    )

    for distributor, source in (
        (MapDistributor("full", sample_ratio=ratio), jsonl),
        (MapDistributor("full"), meta),
    ):
        bound(distributor, source, epochs=1, lanes=1)
        drawn = global_draws(distributor, 1, int(8 * ratio))
        assert len({*drawn}) == int(8 * ratio)
    for distributor in (MapDistributor("full"), MapDistributor("full", sample_ratio=2)):
        with pytest.raises(InvalidJob, match=r"2 storage blocks.*window_blocks: \d+ mixes all"):
            bound(distributor, two)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: MapDistributor("block"), "did you mean blocks"),
        (lambda: MapDistributor(window_blocks=0), "window_blocks is 0"),
        (lambda: MapDistributor(reading_groups=-1), "reading_groups is -1"),
        (
            lambda: bound(MapDistributor(reading_groups=5), BlockSource([3, 3])),
            "reading_groups is 5, and 12 lanes .* such as 4 or 6",
        ),
        (
            lambda: bound(MapDistributor(reading_groups=24), BlockSource([3, 3])),
            "reading_groups is 24, and 12 lanes .* such as 6 or 12",
        ),
        (lambda: MapDistributor(window_blocks=True), "window_blocks is True"),
        (lambda: bound(MapDistributor(source="cod"), ItemsSource([1])), "'cod'.*'main'"),
        (lambda: bound(MapDistributor(), ItemsSource([])), "holds 0 items"),
    ],
)
def test_a_mistake_is_one_sentence(make: object, sentence: str) -> None:
    """Each wrong parameter is named with its value and the remedy."""
    with pytest.raises(InvalidJob, match=sentence):
        make()  # type: ignore[operator]


def test_blocks_that_do_not_add_up_are_refused() -> None:
    """A source whose blocks and length disagree would draw wrong rows."""

    class Wrong(BlockSource):
        def __len__(self) -> int:
            return sum(self.sizes) + 1

    with pytest.raises(InvalidJob, match=r"hold 5 items, its length is 6"):
        bound(MapDistributor(), Wrong([2, 3]))


def test_the_order_never_changes_silently() -> None:
    """Golden draws: if these change, ORDER_VERSION or the distributor's version must be raised."""
    full = bound(MapDistributor(), ItemsSource(list(range(12))))
    blocks = bound(MapDistributor(window_blocks=2, reading_groups=3), SOURCES["uneven blocks"])

    assert [item.index for item in global_draws(full, 5, 12)] == GOLDEN_FULL
    assert [item.index for item in global_draws(blocks, 12, 12)] == GOLDEN_BLOCKS


GOLDEN_FULL = [2, 11, 8, 4, 9, 3, 10, 7, 5, 0, 6, 1]
GOLDEN_BLOCKS = [10, 16, 17, 6, 1, 19, 8, 3, 21, 12, 4, 23]


SEVERAL = {
    "two in blocks": {"a": BlockSource([40] * 6), "b": BlockSource([7, 30, 0, 11])},
    "blocks and none": {"plain": ItemsSource(list(range(130))), "b": BlockSource([20] * 5)},
    "none": {"one": ItemsSource([0]), "more": ItemsSource(list(range(57)))},
}


@pytest.mark.parametrize("sources", SEVERAL.values(), ids=SEVERAL)
@pytest.mark.parametrize("parameters", [{}, {"shuffle": "none"}, {"reading_groups": 3}])
@pytest.mark.parametrize("lanes", [1, 3, 12])
def test_several_sources_are_drawn_from_as_one(
    sources: dict[str, IndexedSource], parameters: dict[str, Any], lanes: int
) -> None:
    """Every item of each once per epoch over all lanes; in order where nothing is shuffled."""
    if lanes == 1:
        parameters = {key: value for key, value in parameters.items() if key == "shuffle"}
    distributor = MapDistributor(**parameters)
    distributor.bind(sources, 7, None, lanes)
    whole = [(name, index) for name, source in sources.items() for index in range(len(source))]

    drawn = global_draws(distributor, lanes, 2 * len(whole))

    for epoch in range(2):
        part = [item for item in drawn if item.epoch == epoch]
        found = [(item.source, item.index) for item in part]
        assert sorted(found) == sorted(whole)
        assert (found == whole) == ("shuffle" in parameters)
    assert distributor.epoch_draws(lanes) == -(-len(whole) // lanes)
    blocked = tuple(name for name, source in sources.items() if source.blocks() is not None)
    reading = distributor.reading()
    assert (reading.sources if reading is not None else ()) == blocked


def test_windows_mix_sources_with_and_without_blocks() -> None:
    """What has no blocks is cut into some as long as the others', so each window may hold both."""
    plain = ItemsSource(list(range(1000)))
    distributor = MapDistributor("blocks", window_blocks=4, reading_groups=1)
    distributor.bind({"plain": plain, "blocked": BlockSource([50] * 20)}, 7, None, 4)

    firsts = [item.source for item in global_draws(distributor, 4, 600)]

    assert 150 < firsts.count("plain") < 450
    reading = distributor.reading()
    assert reading is not None
    assert reading.all_blocks == 40


def test_each_source_with_blocks_keeps_what_all_draw_from() -> None:
    """Blocks are kept by each source that has them, and by no other."""
    kept: dict[str, int] = {}

    class Keeping(BlockSource):
        def keep_blocks(self, count: int) -> None:
            kept[str(self.sizes)] = count

    sources = {"a": Keeping([10] * 30), "b": Keeping([10] * 20), "plain": ItemsSource([1, 2])}
    job = Job(sources, MapDistributor(window_blocks=3, reading_groups=2), batch_size=1, lanes=4)

    reading = job.role_sets[0].distributor.reading()
    assert reading is not None
    assert set(kept.values()) == {reading.held}
    assert len(kept) == 2
