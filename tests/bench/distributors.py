"""Distributors beside each other: what a draw costs, how near shares are, how well items are mixed.

The first table draws from sources of 10^9 items that hold nothing, so all time and memory is the
distributor's. A draw is what a planner does for each item before it asks for its size: it keeps the
state, draws, and tells what was taken. The second draws the documents of the standard library, in
three parts, by their real sizes; dice are beside it, which choose each part at random by its
weight. The third draws from 512 blocks of 128 items.
"""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from packing import document_tokens
from support import Column, around, compare, corpus, interleaved, middle, table

from penstock.server.roles import (
    DataDistributor,
    EpisodesDistributor,
    EpisodeTable,
    IndexedSource,
    IterableDistributor,
    LaneDraws,
    MapDistributor,
    MixtureDistributor,
    RankPartitionedDistributor,
    Source,
    StreamSource,
)
from penstock.server.roles.reading import Blocks
from penstock.wire.item_numbers import shard_row

LANES, DRAWS, FAR = 48, 5_000, 1_000_000
MANY, MANY_WITH_COLUMN = 10**9, 10**6
"""Items of a source; fewer where a condition has to look at each."""

SHARES_AT = (10, 100, 1_000)
WEIGHTS = {"tests": 6, "packages": 3, "modules": 1}

BLOCKS, BLOCK = 512, 128
EPISODES, POOL_LANES = 32_000, 16

NEAR, STEP = 64, 8
"""Consecutive draws of a lane, and samples of a batch, of which different blocks are counted."""


class Numbers(IndexedSource):
    """Items that are their numbers, with a column of their last digit.

    Args:
        length: How many.
        block: How many items of 4 KB a storage block holds; None = there are no blocks.
    """

    version = 1

    def __init__(self, length: int, block: int | None = None) -> None:
        self.length, self.block = length, block

    def __len__(self) -> int:
        return self.length

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the numbers."""
        return list(indices)

    def blocks(self) -> Blocks | None:
        """Return the blocks, if there are any."""
        if self.block is None:
            return None
        count = self.length // self.block
        return Blocks([self.block] * count, [4096 * self.block] * count)

    def has_column(self, name: str) -> bool:
        """Tell whether this is the column."""
        return name == "digit"

    def column(self, name: str, start: int, stop: int) -> pa.Array:
        """Return last digits."""
        return pa.array(np.arange(start, stop) % 10)


class Frames(IndexedSource):
    """Frames of episodes of 100 to 500 frames that are their numbers.

    Args:
        count: How many episodes.
    """

    version = 1

    def __init__(self, count: int) -> None:
        lengths = np.random.default_rng(0).integers(100, 500, count)
        starts = np.append(0, np.cumsum(lengths))
        self.table = EpisodeTable(starts, np.arange(count), [()] * count)

    def __len__(self) -> int:
        return int(self.table.starts[-1])

    def fetch(self, indices: Sequence[int]) -> list[int]:
        """Return the numbers."""
        return list(indices)

    def episode_table(self) -> EpisodeTable:
        """Return the episodes."""
        return self.table


class Rows(StreamSource):
    """A stream of numbers, with a mark for each 256th row.

    Args:
        count: How many shards there are.
        rows: How many rows each has.
    """

    version = 1

    def __init__(self, count: int, rows: int) -> None:
        self.count, self.length = count, rows

    def shards(self) -> Sequence[str]:
        """Return names that are numbers."""
        return [f"{number:06}" for number in range(self.count)]

    def open(self, shard: int, mark: Any) -> Iterator[tuple[int, Any]]:
        """Yield the rows from a mark on."""
        for row in range(mark or 0, self.length):
            yield row, row + 1 if (row + 1) % 256 == 0 else None

    def fingerprint(self) -> Any:
        """Return how many rows there are."""
        return [self.count, self.length]


class Way(NamedTuple):
    """A distributor and what it draws from.

    Attributes:
        make: Makes it.
        sources: Makes its sources, by name.
    """

    make: Callable[[], DataDistributor]
    sources: Callable[[], Mapping[str, Source]]

    def bound(self, epochs: int | None = None, lanes: int = LANES) -> DataDistributor:
        """Return a distributor of a job with these sources."""
        distributor = self.make()
        distributor.bind(self.sources(), 7, epochs, lanes)
        return distributor


def run() -> None:
    """Print the tables."""
    _costs()
    _shares()
    _mixing()
    _pools()


# --- what a draw costs ----------------------------------------------------------------------------


def _one(length: int = MANY, block: int | None = None) -> Mapping[str, Source]:
    return {"main": Numbers(length, block)}


def _parts(count: int) -> Mapping[str, Source]:
    return {f"part_{number}": Numbers(MANY) for number in range(count)}


def _weights(count: int) -> dict[str, Any]:
    return {f"part_{number}": 1 + number for number in range(count)}


def _nested(by: str) -> MixtureDistributor:
    inner = MixtureDistributor({"part_1": 3, "part_2": 1}, by)
    return MixtureDistributor({"part_0": 6, "both": {"weight": 4, "distributor": inner}}, by)


def _ways() -> dict[str, Way]:
    ways = {
        "map, full": Way(lambda: MapDistributor("full"), _one),
        "map, blocks": Way(lambda: MapDistributor("blocks"), partial(_one, block=10_000)),
        "map, none": Way(lambda: MapDistributor("none"), _one),
        "map, where, of 10^6": Way(
            lambda: MapDistributor(where={"digit": 7}), partial(_one, MANY_WITH_COLUMN)
        ),
        "map, sample_ratio: 1.5": Way(lambda: MapDistributor(sample_ratio=1.5), _one),
    }
    for count in (3, 10, 60):
        for by in ("items", "tokens"):
            ways[f"mixture of {count} by {by}"] = Way(
                partial(MixtureDistributor, _weights(count), by), partial(_parts, count)
            )
    for by in ("items", "tokens"):
        ways[f"mixture in a mixture by {by}"] = Way(partial(_nested, by), partial(_parts, 3))
    ways["rank_partitioned of 3"] = Way(
        partial(RankPartitionedDistributor, _weights(3)), partial(_parts, 3)
    )
    for pool in (64, 1024):
        ways[f"episodes, pool: {pool}"] = Way(
            partial(EpisodesDistributor, pool), lambda: {"main": Frames(EPISODES)}
        )
    for size in (0, 1000):
        ways[f"iterable, buffer_size: {size}"] = Way(
            partial(IterableDistributor, buffer_size=size),
            lambda: {"main": Rows(4800, MANY // 4800)},
        )
    return ways


def _costs() -> None:
    ways = _ways()
    bound = {name: way.bound() for name, way in ways.items()}
    results = interleaved({name: partial(_cost, found) for name, found in bound.items()})
    compare(
        "A draw of a lane, of 10^9 items, CPU time, medians and ranges; what reaching draw 10^6 "
        "costs by its number, and going on from a snapshot; memory of one job with one lane",
        "distributor",
        results,
        around("us a draw", "us", ".1f"),
        middle("by number, us", "seek_us", ".0f"),
        middle("snapshot, us", "restore_us", ".0f"),
        middle("bytes", "state_bytes", ".0f"),
        Column(("KiB",), lambda _, way: [f"{_peak_kib(ways[way]):,.0f}"]),
    )


def _cost(distributor: DataDistributor) -> dict[str, float]:
    draws = distributor.open(3, LANES)
    begin = time.process_time()
    _draw(draws, DRAWS)
    found = {"us": (time.process_time() - begin) / DRAWS * 1e6}
    if draws.can_seek():
        found["seek_us"] = _timed_once(distributor, lambda other: other.seek(FAR))
        draws.seek(FAR)
    state = json.loads(json.dumps(draws.state()))
    found["restore_us"] = _timed_once(distributor, lambda other: other.restore(state))
    found["state_bytes"] = len(json.dumps(state))
    return found


def _timed_once(distributor: DataDistributor, go: Callable[[LaneDraws], None]) -> float:
    """Return microseconds until a lane that was just opened has gone somewhere and drawn."""
    draws = distributor.open(3, LANES)
    begin = time.perf_counter()
    go(draws)
    draws.next()
    return (time.perf_counter() - begin) * 1e6


def _draw(draws: LaneDraws, count: int) -> None:
    for number in range(count):
        draws.state()
        item = draws.next()
        assert item is not None
        draws.took(item, 1 + number % 999)


def _peak_kib(way: Way) -> float:
    """Return the most memory of opening a job and drawing 2,000 items of a lane, in KiB."""
    tracemalloc.start()
    try:
        _draw(way.bound().open(3, LANES), 2_000)
        return tracemalloc.get_traced_memory()[1] / 1024
    finally:
        tracemalloc.stop()


# --- how near shares are --------------------------------------------------------------------------


def _shares() -> None:
    """Compare what parts got with what their weights say."""
    sizes = _sizes_of_parts()
    sources = {name: Numbers(len(found)) for name, found in sizes.items()}
    makes = {
        "mixture by tokens": partial(MixtureDistributor, WEIGHTS, "tokens"),
        "mixture by items": partial(MixtureDistributor, WEIGHTS, "items"),
        "rank_partitioned": partial(RankPartitionedDistributor, WEIGHTS),
    }
    rows = []
    for name, make in makes.items():
        drawn = _drawn_by_mixture(Way(make, lambda: sources).bound(), sizes)
        kinds = {"items": 0, "tokens": 1}
        for kind, at in kinds.items():
            rows.append((name, kind, *_how_near(drawn[..., at], lanes="rank" not in name)))
    rows.append(("dice", "items", *_how_near(_drawn_by_dice(sizes)[..., 0])))
    shares = ", ".join(f"{name} {weight}" for name, weight in WEIGHTS.items())
    lengths = ", ".join(f"{name} {found.mean():,.0f}" for name, found in sizes.items())
    table(
        f"How far the share of a part is from its weight ({shares}), in percentage points: "
        f"after so many draws of a lane, the worst of {LANES}, and of all lanes. Mean tokens "
        f"of a document: {lengths}",
        (
            "distributor",
            "share of",
            *(f"lane, {count:,}" for count in SHARES_AT),
            *(f"all, {count:,}" for count in SHARES_AT),
        ),
        rows,
    )


def _sizes_of_parts() -> dict[str, npt.NDArray[np.int64]]:
    """Return the tokens of each document, by where it lies in the standard library."""
    data = corpus()
    files = sorted((data / "corpus").glob("*.parquet"))
    paths = [path for file in files for path in pq.read_table(file)["path"].to_pylist()]
    tokens = document_tokens(data)
    parts = np.array(
        [
            "tests" if path.startswith("test/") else "packages" if "/" in path else "modules"
            for path in paths
        ]
    )
    return {name: tokens[parts == name] for name in WEIGHTS}


def _drawn_by_mixture(
    distributor: DataDistributor, sizes: Mapping[str, npt.NDArray[np.int64]]
) -> npt.NDArray[np.int64]:
    """Return items and tokens of each part up to each draw of `SHARES_AT`.

    Returns:
        int64 (lanes, times, parts, 2).
    """
    names = list(sizes)
    found = np.zeros((LANES, len(SHARES_AT), len(names), 2), np.int64)
    for lane in range(LANES):
        draws, given, k = distributor.open(lane, LANES), np.zeros((len(names), 2), np.int64), 0
        for at, (before, until) in enumerate(pairwise((0, *SHARES_AT))):
            for k in range(before, until):  # noqa: B007 - the draws before `until`
                item = draws.next()
                assert item is not None
                size = int(sizes[item.source][item.index])
                draws.took(item, size)
                given[names.index(item.source)] += (1, size)
            found[lane, at] = given
    return found


def _drawn_by_dice(sizes: Mapping[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """Return the same where each draw takes a part at random; tokens are not drawn, and 0."""
    weights = np.array([WEIGHTS[name] for name in sizes], float)
    random = np.random.default_rng(7)
    drawn = random.choice(len(sizes), (LANES, SHARES_AT[-1]), p=weights / weights.sum())
    found = np.zeros((LANES, len(SHARES_AT), len(sizes), 2), np.int64)
    for at, until in enumerate(SHARES_AT):
        for part in range(len(sizes)):
            found[:, at, part, 0] = (drawn[:, :until] == part).sum(axis=1)
    return found


def _how_near(given: npt.NDArray[np.int64], lanes: bool = True) -> list[str]:
    """Return the largest distances of shares from weights: of the worst lane, and of all lanes.

    Args:
        given: What each part got, int64 (lanes, times, parts).
        lanes: Whether each lane has all parts.
    """
    wanted = np.array([*WEIGHTS.values()]) / sum(WEIGHTS.values())
    shares = given / given.sum(axis=2, keepdims=True)
    worst = np.abs(shares - wanted).max(axis=(0, 2))
    whole = given.sum(axis=0) / given.sum(axis=(0, 2))[:, None]
    together = np.abs(whole - wanted).max(axis=1)
    return [
        *(f"{100 * value:.2f}" if lanes else "-" for value in worst),
        *(f"{100 * value:.2f}" for value in together),
    ]


# --- how well items are mixed ---------------------------------------------------------------------


def _mixing() -> None:
    indexed = partial(_one, BLOCKS * BLOCK, BLOCK)

    def shards() -> Mapping[str, Source]:
        return {"main": Rows(BLOCKS, BLOCK)}

    ways = {
        "map, full": Way(partial(MapDistributor, "full"), partial(_one, BLOCKS * BLOCK)),
        **{
            f"map, blocks, {groups} groups of {window}": Way(
                partial(MapDistributor, "blocks", window, groups), indexed
            )
            for groups, window in ((48, 16), (16, 16), (16, 2))
        },
        "map, none": Way(partial(MapDistributor, "none"), indexed),
        **{
            f"iterable, buffer_size: {size}": Way(
                partial(IterableDistributor, buffer_size=size), shards
            )
            for size in (0, 256, 2048)
        },
    }
    table(
        f"How well an epoch is mixed: {BLOCKS} blocks (of a stream: shards) of {BLOCK} items, "
        f"{LANES} lanes; distance of consecutive draws in the source by that of chance, and "
        "different blocks",
        (
            "distributor",
            "distance",
            f"blocks in {NEAR} of a lane",
            f"blocks in a step of {LANES} x {STEP}",
        ),
        [(name, *_how_mixed(way.bound(1))) for name, way in ways.items()],
    )


def _how_mixed(distributor: DataDistributor) -> tuple[str, str, str]:
    drawn = []
    for lane in range(LANES):
        draws, found = distributor.open(lane, LANES), []
        while (item := draws.next()) is not None:
            found.append(_place(item.index))
        drawn.append(np.array(found))
    distance = np.mean([np.abs(np.diff(items)).mean() for items in drawn]) / (BLOCKS * BLOCK / 3)
    near = [
        len(np.unique(items[start : start + NEAR] // BLOCK))
        for items in drawn
        for start in range(0, len(items) - NEAR, NEAR)
    ]
    least = min(map(len, drawn))
    steps = [
        len(np.unique(np.concatenate([items[at : at + STEP] for items in drawn]) // BLOCK))
        for at in range(0, least - STEP, STEP)
    ]
    return f"{distance:.2f}", f"{np.mean(near):.1f}", f"{np.mean(steps):.0f}"


def _place(index: int) -> int:
    """Return where an item lies among all."""
    if index < BLOCKS * BLOCK:
        return index
    shard, row = shard_row(index)
    return shard * BLOCK + row


# --- pools of episodes ----------------------------------------------------------------------------


def _pools() -> None:
    rows = []
    for pool in (16, 64, 256, 1024):
        distributor = Way(
            partial(EpisodesDistributor, pool), lambda: {"main": Frames(EPISODES)}
        ).bound(1, POOL_LANES)
        table_of = distributor.episode_tables()["main"]
        draws, found = distributor.open(3, POOL_LANES), []
        begin = time.process_time()
        while taken := draws.run(256):
            draws.step(taken, [0] * len(taken))
            found += taken
        us = (time.process_time() - begin) / len(found) * 1e6
        episodes = table_of.of_items(np.array([item.index for item in found]))
        rows.append((str(pool), f"{us:.1f}", *(_distinct(episodes, size) for size in (32, 256))))
    table(
        f"{EPISODES:,} episodes of 100 to 500 frames, {POOL_LANES} lanes: an epoch of one lane, "
        "256 draws at a time; different episodes in a batch, in the mean",
        ("pool", "us a draw", "batch of 32", "batch of 256"),
        rows,
    )


def _distinct(episodes: npt.NDArray[np.int64], size: int) -> str:
    batches = episodes[: len(episodes) // size * size].reshape(-1, size)
    return f"{np.mean([len(np.unique(batch)) for batch in batches]):.1f}"


if __name__ == "__main__":
    run()
