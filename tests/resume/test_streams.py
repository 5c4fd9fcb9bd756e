"""A lane of a stream restarts at every offset exactly, by reading on from a mark."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from invariants import check_conservation
from penstock.server.core.refs import ItemRef
from penstock.server.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import (
    PackedCollator,
    PaddedCollator,
    ShardsDistributor,
)
from penstock.server.roles.stream import FIRST, Mark, ShardRows
from penstock.server.sources import ItemsSource
from penstock.server.testing import check_stream
from penstock.wire.errors import BadBatch, InvalidJob, LaneStarved, SourceUnavailable
from penstock.wire.refs import number_text, parse_number, row_index, shard_row
from resume.lines import Lines
from resume.plans import BATCHERS, LENGTHS, PROCESSORS, raw_items
from resume.test_every_offset import step

SHARDS = (9, 0, 1, 6, 7)
"""ShardRows of the shards of the 23 items: one of them is empty, one has a single row."""

OFFSETS = 30

MARKS = {"a mark for each row": 1, "few marks": 200, "no mark": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The items in shards of lines."""
    return write_shards(tmp_path_factory.mktemp("lines"), raw_items(), SHARDS)


def write_shards(folder: Path, items: Sequence[Any], shards: Sequence[int]) -> Path:
    rest = iter(items)
    for number, rows in enumerate(shards):
        lines = [json.dumps(next(rest)) + "\n" for _ in range(rows)]
        (folder / f"{number:03}.jsonl").write_text("".join(lines))
    return folder


def stream_job(
    folder: Path, batcher: str, processor: str, lanes: int, apart: int = 1, **settings: Any
) -> Job:
    packs = batcher.startswith(("best", "sequential"))
    return Job(
        Lines(str(folder), apart),
        ShardsDistributor(),
        PROCESSORS[processor](),
        BATCHERS[batcher].clone(),
        PackedCollator() if packs else PaddedCollator(),
        seed=5,
        lanes=lanes,
        on_item_error="quarantine",
        snapshot_every=4,
        **settings,
    )


PLANS = [
    (batcher, processor, lanes, apart)
    for (b, batcher), (p, processor), (n, lanes), (a, apart) in itertools.product(
        enumerate(["simple", "pool", "best_fit_split"]),
        enumerate(PROCESSORS),
        enumerate([1, 3, 8]),
        enumerate(MARKS),
    )
    if (b + p + n + a) % 3 == 0
]
"""A third of all: every three of the four meet in every way."""


@pytest.mark.parametrize(
    ("batcher", "processor", "lanes", "apart"),
    PLANS,
    ids=["-".join(map(str, plan)) for plan in PLANS],
)
def test_every_offset_of_a_stream_restores_exactly(
    folder: Path, batcher: str, processor: str, lanes: int, apart: str
) -> None:
    """Bytes and snapshots are those of the uninterrupted line, in a process that has read nothing.

    With fewer shards than lanes, too, and over many epochs.
    """
    lane = lanes - 1
    line = Line(stream_job(folder, batcher, processor, lanes, MARKS[apart]), lane)
    truth = [step(line) for _ in range(OFFSETS)]

    for offset in range(OFFSETS - 1):
        job = stream_job(folder, batcher, processor, lanes, MARKS[apart])
        restored = Line(job, lane, snapshot=truth[offset].snapshot)
        assert restored.offset == offset
        assert [step(restored), step(restored)] == truth[offset : offset + 2], f"offset {offset}"


@pytest.mark.parametrize("lanes", [1, 2, 5, 7])
def test_each_row_comes_once_per_epoch_over_all_lanes(folder: Path, lanes: int) -> None:
    """As many lanes as shards, fewer and more: three epochs hold each row three times."""
    distributor = ShardsDistributor()
    distributor.bind({"main": Lines(str(folder))}, 3, 3, lanes)

    drawn: list[ItemRef] = []
    for lane in range(lanes):
        draws = distributor.open(lane, lanes)
        while (item := draws.next()) is not None:
            drawn.append(item)
        assert draws.next() is None

    rows = [row_index(shard, row) for shard, count in enumerate(SHARDS) for row in range(count)]
    assert Counter(drawn) == Counter(
        ItemRef("main", row, epoch) for row in rows for epoch in range(3)
    )


def test_draws_go_on_from_every_state_whatever_was_looked_at(folder: Path) -> None:
    """Looking ahead changes neither what is drawn nor the state; states are small JSON."""
    distributor = ShardsDistributor()
    distributor.bind({"main": Lines(str(folder))}, 3, None, 2)
    draws = distributor.open(1, 2)
    states, whole = [], []
    for _ in range(80):
        states.append(json.dumps(draws.state()))
        whole.append(draws.next())

    for k, state in enumerate(states[:70]):
        fresh = ShardsDistributor()
        fresh.bind({"main": Lines(str(folder))}, 3, None, 2)
        again = fresh.open(1, 2)
        again.restore(json.loads(state))
        ahead = again.peek(k % 7)
        assert json.dumps(again.state()) == state
        assert len(state) < 100
        taken = [again.next() for _ in range(10)]
        assert ahead == taken[: len(ahead)]
        assert taken == whole[k : k + 10]
        assert json.dumps(again.state()) == states[k + 10]


def test_a_far_restart_reads_from_its_mark_on(tmp_path: Path) -> None:
    """Of 5,000 rows a line that restarts near the end reads what its batch and its pool need."""
    items = [{"input_ids": [number] * (1 + number % 9)} for number in range(5000)]
    folder = write_shards(tmp_path, items, [5000])
    line = Line(stream_job(folder, "best_fit_drop", "sized", 1), 0)
    while line.planner.drawn < 4900:
        line.advance()
    snapshot = line.planner.snapshot()
    expected = step(line)

    job = stream_job(folder, "best_fit_drop", "sized", 1)
    assert step(Line(job, 0, snapshot=snapshot)) == expected
    source = job.sources["main"]
    assert isinstance(source, Lines)
    assert source.read < 600


@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_row_that_is_drawn_is_accounted_for(folder: Path, processor: str) -> None:
    """Conservation holds for streams; the checker asks `open()` what was drawn."""
    for lane in range(3):
        job = stream_job(folder, "best_fit_split", processor, 3)
        counters = check_conservation(job, lane, 25)
        assert counters["drawn"] > len(LENGTHS)


def test_rows_are_read_once_each_in_order(folder: Path) -> None:
    """What draws, sizes and batches need of a lane in order is one pass over its shards."""
    job = stream_job(folder, "simple", "identity", 1)
    line = Line(job, 0)

    for _ in range(20):
        step(line)

    source = job.sources["main"]
    assert isinstance(source, Lines)
    assert source.read <= line.counters()["drawn"] + 32


class Shifting(Lines):
    """Its marks depend on where reading began."""

    def open(self, shard: int, mark: Any) -> Iterator[tuple[Any, Any]]:
        """Give a mark with some rows, counted from where reading began."""
        for number, (row, after) in enumerate(super().open(shard, mark)):
            yield row, after if number % 3 == 1 else None


class Early(Lines):
    """Its marks lead to the row before."""

    def open(self, shard: int, mark: Any) -> Iterator[tuple[Any, Any]]:
        """Give the place of the row itself."""
        before = mark
        for row, after in super().open(shard, mark):
            yield row, before
            before = after


def test_the_published_contract_of_streams(folder: Path) -> None:
    """`check_stream` passes what keeps it, and names what does not."""
    for apart in MARKS.values():
        check_stream(Lines(str(folder), apart))
    with pytest.raises(AssertionError, match="gives other marks than a reading from the start"):
        check_stream(Shifting(str(folder)))
    with pytest.raises(AssertionError, match="does not begin with row"):
        check_stream(Early(str(folder)))


@pytest.mark.parametrize("apart", MARKS.values(), ids=MARKS)
def test_lanes_at_one_place_of_a_shard_read_no_more_than_they_draw(
    tmp_path: Path, apart: int
) -> None:
    """One shard for three lanes, which are at the same rows in three epochs."""
    folder = write_shards(tmp_path, raw_items(), [len(LENGTHS)])
    job = stream_job(folder, "simple", "identity", 3, apart)
    lines = [Line(job, lane) for lane in range(3)]

    for _ in range(9):
        for line in lines:
            step(line)

    source = job.sources["main"]
    assert isinstance(source, Lines)
    assert source.read <= sum(line.counters()["drawn"] for line in lines) + 3 * 32


def test_any_row_is_found_in_any_order(folder: Path) -> None:
    """Backwards, twice, and interleaved over shards: the same items."""
    source = Lines(str(folder), apart=100)
    indices = [row_index(shard, row) for shard, rows in enumerate(SHARDS) for row in range(rows)]
    straight = source.fetch(indices)

    assert straight == raw_items()
    assert Lines(str(folder), apart=0).fetch(indices[::-1]) == straight[::-1]
    assert source.fetch([*indices[::3], *indices[::-2]]) == [*straight[::3], *straight[::-2]]


class Flaky(Lines):
    """Its disk is away, now and then."""

    failures: ClassVar[list[Exception]] = []

    def open(self, shard: int, mark: Any) -> Any:
        """Fail, or open."""
        for row in super().open(shard, mark):
            if self.failures:
                raise self.failures.pop()
            yield row


def test_a_draw_is_tried_again_where_the_stream_is_away(folder: Path) -> None:
    """An OSError in the middle of a shard changes nothing; a bug of the source is named."""
    job = Job(Flaky(str(folder)), ShardsDistributor(), batch_size=2, lanes=1)
    expected = Job(Lines(str(folder)), ShardsDistributor(), batch_size=2, lanes=1)
    line, truth = Line(job, 0), Line(expected, 0)
    for number in range(12):
        Flaky.failures[:] = [OSError(5, "Input/output error")] * (number % 3)
        assert line.advance() == truth.advance()

    job.close()  # and forget what was read
    Flaky.failures[:] = [ValueError("a bug")]
    with pytest.raises(BadBatch, match=r"cannot be read at row \d+: Flaky.open\(\) fails with Val"):
        line.advance()


def test_a_stream_without_rows_is_an_error(tmp_path: Path) -> None:
    """Of empty shards a lane gives up, by name, and never turns for ever."""
    folder = write_shards(tmp_path, [], [0, 0])
    line = Line(stream_job(folder, "simple", "identity", 1), 0)

    with pytest.raises(LaneStarved, match="without finding one row"):
        line.advance()


class Drawing(Lines):
    """Says that it draws as it reads."""

    uses_global_rng: ClassVar[bool] = True


def test_what_does_not_fit_is_refused_when_the_job_is_built(folder: Path) -> None:
    """A source and a distributor that do not go together: one sentence that names both."""
    with pytest.raises(InvalidJob, match=r"map draws items by number, and source 'main' \(Lines\)"):
        Job(Lines(str(folder)), batch_size=1)
    with pytest.raises(InvalidJob, match=r"shards deals .* 'main' \(items\) has none"):
        Job(ItemsSource([1]), ShardsDistributor(), batch_size=1)
    with pytest.raises(InvalidJob, match="name one of them with source"):
        Job({"a": ItemsSource([1]), "b": Lines(str(folder))}, ShardsDistributor(), batch_size=1)
    with pytest.raises(InvalidJob, match="a stream has no item to seed the generators for"):
        Job(Drawing(str(folder)), ShardsDistributor(), batch_size=1)


def test_numbers_of_rows_are_read_and_written() -> None:
    """Shard and row make a number of their own below 2**53, and text that people write."""
    for shard, row in ((0, 0), (3, 17), ((1 << 20) - 1, (1 << 32) - 1)):
        index = row_index(shard, row)
        assert 1 << 48 < index < 1 << 53
        assert shard_row(index) == (shard, row)
        assert parse_number(number_text(index)) == index
    assert number_text(row_index(3, 17)) == "3:17"
    assert str(ItemRef("lines", row_index(3, 17), 2)) == "lines[3:17] in epoch 2"
    assert (number_text(17), parse_number("17")) == ("17", 17)
    for wrong in ("", "3:", ":3", "-1", "1:2:3", f"{1 << 20}:0"):
        with pytest.raises(ValueError, match="number"):
            parse_number(wrong)


def test_marks_open_shards_and_kept_rows_are_bounded(tmp_path: Path) -> None:
    """However many rows were read, in whatever order, little is remembered of them."""
    folder = write_shards(tmp_path, list(range(6000)), [3000, *[10] * 300])
    rows = ShardRows(Lines(str(folder)))

    for row in range(3000):
        rows.look(0, row)
        assert rows.take(0, row) == row
    for shard in range(1, 301):
        assert rows.look(shard, 4) is not None
    known = rows._known[0]
    assert len(known._marks) <= 1024
    assert known.before(2999).row > 2990
    assert known.before(0) == FIRST == Mark(0, None)
    assert rows._places == sum(map(len, rows._open.values())) <= 128
    assert rows._kept_bytes <= 16 << 20
    (folder / "300.jsonl").unlink()
    with pytest.raises(SourceUnavailable, match="cannot be read"):
        rows.take(300, 1)
