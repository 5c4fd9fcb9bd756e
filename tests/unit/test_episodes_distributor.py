"""The pool of episodes: which frames come when, how often, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.pipeline.line import Line
from penstock.server.planning.report.simulated import simulate
from penstock.server.roles import BestFitPackingBatcher, SimpleBatcher
from penstock.server.roles.distributors import EpisodesDistributor, MixtureDistributor
from penstock.server.roles.distributors.episode_order import MAX_FRAMES, EpisodeOrder
from penstock.server.roles.distributors.episodes import REPLACED
from penstock.server.roles.episode_table import EpisodeTable
from penstock.server.roles.reading import Blocks
from penstock.server.roles.source import IndexedSource
from penstock.server.sources import ItemsSource, ParquetSource
from penstock.wire.errors import InvalidJob
from penstock.wire.frame import read_header


class Frames(IndexedSource):
    """Frames that are their number; episodes 100, 101, ... of one task of three, or of two.

    Args:
        lengths: How many frames each episode has.
        block_bytes: A block has the frames of an episode, and takes so much; None = no blocks.
    """

    version = 1

    def __init__(self, lengths: Sequence[int], block_bytes: int | None = None) -> None:
        self.lengths, self.block_bytes = list(lengths), block_bytes

    def __len__(self) -> int:
        return sum(self.lengths)

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Return a number for each."""
        return [{"number": index, "input_ids": [index] * 4} for index in indices]

    def blocks(self) -> Blocks | None:
        """Return one for each episode."""
        if self.block_bytes is None:
            return None
        return Blocks(self.lengths, [self.block_bytes] * len(self.lengths))

    def episode_table(self) -> EpisodeTable:
        """Return the episodes."""
        count = len(self.lengths)
        tasks = [("push",), ("pull", "turn"), ()]
        return EpisodeTable(
            np.cumsum([0, *self.lengths]),
            np.arange(100, 100 + count),
            [tasks[n % 3] for n in range(count)],
        )


def bound(
    lengths: Sequence[int],
    lanes: int = 1,
    *,
    seed: int = 5,
    epochs: int | None = None,
    block_bytes: int | None = None,
    **parameters: Any,
) -> EpisodesDistributor:
    distributor = EpisodesDistributor(**parameters)
    distributor.bind({"main": Frames(lengths, block_bytes)}, seed, epochs, lanes)
    return distributor


def drawn(distributor: EpisodesDistributor, lanes: int = 1) -> list[list[ItemRef]]:
    """Return all draws of each lane."""
    counts = [distributor.draws(lane, lanes) for lane in range(lanes)]
    return [distributor.draw_many(lane, lanes, 0, count or 0) for lane, count in enumerate(counts)]


def uneven(count: int, most: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, most, count).tolist()


@pytest.mark.parametrize("lanes", [1, 3, 8, 64])
@pytest.mark.parametrize("pool", [1, 2, 7, 1024])
@pytest.mark.parametrize("frames", ["shuffled", "in_order"])
def test_each_frame_comes_once_in_each_epoch(lanes: int, pool: int, frames: str) -> None:
    """Whatever divides what: 53 uneven episodes, one of them as long as all others."""
    lengths = [*uneven(52, 60), 1500]
    distributor = bound(lengths, lanes, epochs=3, pool=pool, frames=frames)

    of_lanes = drawn(distributor, lanes)

    found = Counter(ref for lane in of_lanes for ref in lane)
    assert found == Counter(
        ItemRef("main", index, epoch) for epoch in range(3) for index in range(sum(lengths))
    )
    counts = [len(lane) for lane in of_lanes]
    assert max(counts) - min(counts) <= 1


def test_draws_of_many_rounds_are_found_one_by_one_in_any_order() -> None:
    """A draw is computed from its number, across rounds and epochs; together or alone."""
    distributor = bound(uneven(300, 40), 3, pool=64)
    together = distributor.draw_many(2, 3, 0, 5000)
    other = bound(uneven(300, 40), 3, pool=64)
    for k in np.random.default_rng(1).permutation(5000)[:300].tolist():
        assert other.draw(2, 3, k) == together[k]
    in_turn = bound(uneven(300, 40), 3, pool=64)
    assert [in_turn.draw(2, 3, k) for k in range(5000)] == together
    assert together[-1].epoch == 2


def test_orders_differ_by_epoch_seed_and_lane() -> None:
    """And are the same for the same."""
    lengths = [30] * 40
    [lane] = drawn(bound(lengths, epochs=2))
    first, second = lane[:1200], lane[1200:]

    indices = [ref.index for ref in first]
    assert indices != [ref.index for ref in second]
    assert indices != [ref.index for ref in drawn(bound(lengths, epochs=1, seed=6))[0]]
    assert drawn(bound(lengths, epochs=2)) == [lane]
    # By chance one frame in 1,200 stands where it stood.
    assert sum(a.index == b.index for a, b in zip(first, second, strict=True)) < 10


@pytest.mark.parametrize("pool", [1, 5, 32])
def test_the_pool_is_full_from_the_first_draw_to_the_last(pool: int) -> None:
    """As many episodes have begun and not ended, and each stays until it ends."""
    distributor = bound(uneven(400, 90, 3), epochs=1, pool=pool)
    table = distributor.episode_tables()["main"]
    [lane] = drawn(distributor)
    episodes = table.of_items(np.array([ref.index for ref in lane])).tolist()
    last = {episode: at for at, episode in enumerate(episodes)}
    first = {episode: at for at, episode in reversed(list(enumerate(episodes)))}

    inside = np.zeros(len(lane) + 1, int)
    for episode, at in first.items():
        inside[at] += 1
        inside[last[episode] + 1] -= 1
    inside = np.cumsum(inside)[:-1]

    assert inside.max() <= pool
    # An episode enters with its first frame, so a place may be empty for a few draws.
    edge = 12 * pool
    assert inside[edge : len(lane) - edge].mean() > 0.9 * pool


def test_a_batch_has_nearly_as_many_episodes_as_frames() -> None:
    """By chance 64 frames of 256 episodes would come from 57 of them."""
    distributor = bound(uneven(600, 100, 2), epochs=1, pool=256)
    table = distributor.episode_tables()["main"]
    [lane] = drawn(distributor)
    episodes = table.of_items(np.array([ref.index for ref in lane]))

    batches = episodes[: len(episodes) // 64 * 64].reshape(-1, 64)
    assert np.mean([len(set(batch)) for batch in batches.tolist()]) > 60


def test_in_order_an_episode_goes_through_its_frames() -> None:
    """From a random one of them on to the last, and then from the first."""
    distributor = bound([20] * 30, epochs=1, pool=6, frames="in_order")
    [lane] = drawn(distributor)
    begins = set()
    for episode in range(30):
        own = [ref.index - 20 * episode for ref in lane if ref.index // 20 == episode]
        begins.add(own[0])
        assert own == [(own[0] + n) % 20 for n in range(20)]

    assert len(begins) > 10


def test_unshuffled_frames_come_in_the_order_of_the_source() -> None:
    """Over all lanes, in every epoch."""
    distributor = bound([3, 4, 2], 2, epochs=2, shuffle=False, stride=2)

    odd, even = drawn(distributor, 2)

    assert [ref.index for ref in odd] == [0, 3, 7, 2, 5]
    assert [ref.index for ref in even] == [2, 5, 0, 3, 7]


def test_stride_and_drop_last_n_count_within_each_episode() -> None:
    """What is too short for any frame is named, and the rest is drawn."""
    distributor = bound([10, 3, 7, 2], epochs=1, stride=3, drop_last_n=3)

    [lane] = drawn(distributor)

    assert sorted(ref.index for ref in lane) == [0, 3, 6, 13, 16]
    [said] = distributor.remarks()
    assert said.startswith("2 episodes have no more than 3 frames")


# --- weights ---


def test_whole_weights_repeat_frames_and_zero_leaves_them_out() -> None:
    """An episode's own weight is taken before its task's; each copy is an item of its own."""
    weights = {"tasks": {"push": 2, "turn": 3}, "episodes": {"104": 0}}
    distributor = bound([5, 4, 3, 2, 6, 1], epochs=1, weights=weights)

    [lane] = drawn(distributor)

    assert len(set(lane)) == len(lane)
    found = Counter(ref.index for ref in lane)
    times = [2] * 5 + [3] * 4 + [1] * 3 + [2] * 2 + [0] * 6 + [1]
    assert found == Counter({index: count for index, count in enumerate(times) if count})


def test_fractions_draw_a_part_of_the_frames_another_one_in_every_epoch() -> None:
    """As many in every epoch; each episode's share to within one; all frames alike over many."""
    lengths = [7, 12, 30, 5, 9, 21]
    distributor = bound(
        lengths, 2, epochs=100, weights={"tasks": {"push": 1.5, "pull": 0.3, "turn": 0.3}}
    )
    frames = int(1.5 * (7 + 5) + 0.3 * (12 + 9)) + 30 + 21
    assert distributor.line.frames == frames

    by_epoch = Counter(
        (ref.epoch // 2, ref.index) for lane in drawn(distributor, 2) for ref in lane
    )

    ends = np.cumsum(lengths)
    for epoch in (0, 1, 99):
        counts = np.zeros(6)
        for (when, index), count in by_epoch.items():
            if when == epoch:
                counts[np.searchsorted(ends, index, "right")] += count
        assert counts.sum() == frames
        assert (abs(counts - [10.5, 3.6, 30, 7.5, 2.7, 21]) < 1).all()
    times = np.zeros(sum(lengths))
    for (_, index), count in by_epoch.items():
        times[index] += count / 100
    assert times[:7] == pytest.approx(1.5, abs=0.2)
    assert times[7:19] == pytest.approx(0.3, abs=0.15)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"weights": {"task": {}}}, "give weights by task, by episode, or both"),
        ({"weights": {"tasks": {"push": -1}}}, "the weight tasks.push is -1"),
        ({"weights": {"tasks": {"pusch": 1}}}, "no episode has: did you mean push"),
        ({"weights": {"episodes": {"7": 1}}}, "episode 7, and the 3 episodes of the data have"),
        ({"weights": {"episodes": {"x": 1}}}, "names an episode 'x'"),
        ({"weights": {"episodes": {"100": 0, "101": 0, "102": 0}}}, "leaves no episode"),
        ({"weights": {"episodes": {"100": 0.1, "101": 0, "102": 0}}}, "an epoch of 0 frames"),
        ({"drop_last_n": 4}, "drop_last_n is 4 and the longest episode has 4 frames"),
        ({"shuffle": False, "pool": 3}, "pool says how frames are mixed"),
        ({"frames": "sorted"}, "frames"),
        ({"pool": 0}, "pool"),
        ({"stride": 0}, "stride"),
        ({"episode_column": "nowhere"}, "has no such column"),
    ],
)
def test_what_cannot_be_is_refused_with_the_value(parameters: dict[str, Any], said: str) -> None:
    """In one sentence."""
    with pytest.raises(InvalidJob, match=said):
        bound([4, 3, 2], **parameters)


@pytest.mark.parametrize("name", ["buffer_size", "episode_pool_size", "rng", "max_num_shards"])
def test_settings_of_other_readers_are_refused_with_what_takes_their_place(
    tmp_path: Path, name: str
) -> None:
    """Where the job file is read."""
    written(tmp_path, [3, 2], files=1)
    (tmp_path / "job.yaml").write_text(
        "jobs:\n  robots:\n    source: {type: parquet, files: 0.parquet}\n"
        f"    distributor: {{type: episodes, episode_column: episode, {name}: 3}}\n"
        "    batch_size: 2\n"
    )
    with pytest.raises(InvalidJob, match=name) as error:
        load(str(tmp_path / "job.yaml")).job("robots")

    assert REPLACED[name] in error.value.message


def test_a_source_without_episodes_is_refused_with_the_remedy() -> None:
    """And with several sources the numbers of episodes say nothing."""
    distributor = EpisodesDistributor()
    with pytest.raises(InvalidJob, match="name the column that tells episodes apart"):
        distributor.bind({"main": ItemsSource([{"a": 1}])}, 1, None, 2)

    distributor = EpisodesDistributor(weights={"episodes": {"100": 2}})
    with pytest.raises(InvalidJob, match="name one with source"):
        distributor.bind({"a": Frames([3]), "b": Frames([3])}, 1, None, 2)


# --- episodes by a column ---


def rows(values: Sequence[Any]) -> ItemsSource:
    return ItemsSource([{"run": value} for value in values])


def test_equal_values_that_follow_each_other_are_an_episode() -> None:
    """Whole numbers are its number; texts are numbered."""
    distributor = EpisodesDistributor(episode_column="run")

    distributor.bind({"main": rows([7, 7, 7, 3, 3, 9])}, 1, None, 2)
    table = distributor.episode_tables()["main"]
    assert (table.starts.tolist(), table.numbers.tolist()) == ([0, 3, 5, 6], [7, 3, 9])

    distributor.bind({"main": rows(["b", "b", "a"])}, 1, None, 2)
    table = distributor.episode_tables()["main"]
    assert (table.starts.tolist(), table.numbers.tolist()) == ([0, 2, 3], [0, 1])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 1, 2, 1], "is 1 from item 0 on and again from item 3 on"),
        ([1, None, 2], "in item 0, and names no episode|None in item 1"),
        ([1.5, 2.5], "1.5 in item 0"),
        (["a", "a", None], "None in item 2"),
    ],
)
def test_a_column_that_names_no_episodes_is_refused(values: list[Any], said: str) -> None:
    """With the value, and where it is."""
    with pytest.raises(InvalidJob, match=said):
        EpisodesDistributor(episode_column="run").bind({"main": rows(values)}, 1, None, 2)


def written(folder: Path, lengths: Sequence[int], files: int = 3) -> list[Path]:
    """Write Parquet files of a row group for each episode."""
    paths = [folder / f"{number}.parquet" for number in range(files)]
    cuts = [len(lengths) * number // files for number in range(files + 1)]
    for path, start, stop in zip(paths, cuts[:-1], cuts[1:], strict=True):
        schema = pa.schema({"episode": pa.int64(), "state": pa.list_(pa.float32(), 32)})
        with pq.ParquetWriter(path, schema) as writer:
            for episode in range(start, stop):
                count = lengths[episode]
                flat = np.random.default_rng(episode).random(32 * count, np.float32)
                state = pa.FixedSizeListArray.from_arrays(pa.array(flat), 32)
                writer.write_table(
                    pa.table({"episode": [episode] * count, "state": state}, schema=schema)
                )
    return paths


def test_the_column_of_files_is_read_once_and_kept(tmp_path: Path) -> None:
    """The next one to open them, as a worker does, finds what is noted; an episode may go on."""
    lengths = uneven(40, 30)
    paths = written(tmp_path, lengths)
    source = ParquetSource([str(path) for path in paths])
    first = source.runs("episode")
    source.fingerprint()

    again = ParquetSource([str(path) for path in paths])
    source.read_bytes()
    found = again.runs("episode")

    assert found.starts.tolist() == first.starts.tolist() == np.cumsum([0, *lengths[:-1]]).tolist()
    assert found.values == first.values == list(range(40))


# --- storage ---


class Large(ParquetSource):
    """Row groups that say that they take 2,000 times their bytes: too many to keep all."""

    version = 1

    def blocks(self) -> Blocks:
        """Return them."""
        found = super().blocks()
        assert found.nbytes is not None
        return Blocks(found.items, [2000 * nbytes for nbytes in found.nbytes], found.stored)


@pytest.mark.parametrize("frames", ["shuffled", "in_order"])
def test_a_row_group_of_an_episode_is_read_once_in_an_epoch(tmp_path: Path, frames: str) -> None:
    """Though only those of the pools are kept; one at the border of two lanes may be read twice."""
    lengths, lanes, pool = uneven(300, 120, 4), 3, 12
    source = Large([str(path) for path in written(tmp_path, lengths)])
    distributor = EpisodesDistributor(pool=pool, frames=frames, episode_column="episode")
    distributor.bind({"main": source}, 3, 1, lanes)
    [reading] = distributor.readings()
    assert reading.blocks is not None
    assert reading.groups == lanes
    assert pool <= reading.blocks <= 1.5 * pool
    source.keep_blocks(lanes * reading.blocks)
    source.fetch([0])
    source.read_bytes()

    for k in range(0, distributor.epoch_draws(lanes), 16):
        for lane in range(lanes):
            source.fetch([ref.index for ref in distributor.draw_many(lane, lanes, k, 16)])

    stored = source.blocks().stored
    assert stored is not None
    assert 0.99 < source.read_bytes() / sum(stored) < 1.02
    assert reading.amplification(1) == pytest.approx(1, abs=0.02)


def test_pools_that_memory_cannot_hold_are_named_with_what_they_cost() -> None:
    """Rows are then read again; row groups that many episodes share are named, too."""
    distributor = bound([50] * 2000, 16, pool=512, block_bytes=10 << 20)

    [reading] = distributor.readings()
    [said] = distributor.remarks()

    assert reading.blocks is not None
    assert reading.blocks * 16 * (10 << 20) <= 2 << 30
    assert "give a smaller pool or fewer lanes" in said
    assert f"read about {reading.reads:.1f} times" in said


def test_shared_row_groups_are_named() -> None:
    """With the remedy."""

    class Shared(Frames):
        version = 1

        def blocks(self) -> Blocks:
            return Blocks([500] * 200, [10 << 20] * 200)

    distributor = EpisodesDistributor(pool=8)
    distributor.bind({"main": Shared([50] * 2000)}, 5, None, 8)

    [said] = distributor.remarks()

    assert "holds rows of 10.0 episodes" in said
    assert "one row group per episode" in said


# --- jobs ---


def job(source: IndexedSource, distributor: Any, **more: Any) -> Job:
    return Job(source, distributor, **{"lanes": 4, **more})


def test_a_snapshot_of_32000_episodes_is_small() -> None:
    """All lanes together, in the middle of an epoch, also where a batcher holds samples."""
    source = Frames(uneven(32_000, 600))
    whole = job(source, EpisodesDistributor(pool=1024), lanes=64, batch_size=8)
    packed = job(
        source,
        EpisodesDistributor(pool=1024),
        lanes=64,
        batcher=BestFitPackingBatcher(max_tokens=64, pool_size=8),
    )
    for each in (whole, packed):
        total = 0
        for lane in range(0, 64, 16):
            line = Line(each, lane)
            line.skip_to(60)
            total += 16 * len(line.planner.snapshot())
        assert total < 256 << 10
    assert Line(whole, 0).planner.can_seek()


def test_a_batch_says_from_how_many_episodes_it_comes() -> None:
    """Its header, and the plan of the job, which is drawn from sizes alone."""
    lengths = uneven(60, 30, 7)
    built = job(Frames(lengths), EpisodesDistributor(pool=4), epochs=1, batcher=SimpleBatcher(8))
    ends = np.cumsum(lengths)
    counted = []
    for lane in range(4):
        line = Line(built, lane)
        for _ in range(built.role_sets[0].batches(lane) or 0):
            plan = line.advance()
            made = line.make(plan)
            header = read_header(made.write(memoryview(bytearray(made.nbytes))))
            counts = {count.name: count.value for count in header.counts}
            drawn_from = {int(np.searchsorted(ends, s.index, "right")) for s in header.samples}
            assert counts["episodes"] == len(drawn_from)
            counted.append(counts["episodes"])

    spread = simulate(built).tally.of_episodes.spread()
    assert spread is not None
    assert (spread.least, spread.most) == (min(counted), max(counted))
    assert spread.mean == pytest.approx(np.mean(counted))


def test_a_part_of_a_mixture_weighs_as_many_frames_as_it_draws() -> None:
    """Not those that `stride` leaves out; and batches say how many episodes of it they have."""
    parts = {
        "thin": {"distributor": EpisodesDistributor(stride=3)},
        "all": {"distributor": EpisodesDistributor()},
    }
    mixture = MixtureDistributor(parts)
    mixture.bind({"thin": Frames([9] * 10), "all": Frames([5] * 6)}, 1, None, 2)

    assert mixture.rotation.weights == (1, 1)
    assert sorted(mixture.episode_tables()) == ["all", "thin"]


def test_the_longest_epoch_leaves_no_product_beyond_63_bits() -> None:
    """Of a lane that is alone, with one slot, products are the largest, at the end of the epoch."""
    order = EpisodeOrder(np.array([MAX_FRAMES]), 1, 1, False, 1, 0, "main")

    last, before = order.take(np.array([MAX_FRAMES - 1, MAX_FRAMES - 2])).tolist()

    assert last != before
    assert 0 <= min(last, before) <= max(last, before) < MAX_FRAMES
