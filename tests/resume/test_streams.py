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
from penstock.server.job.job import Job
from penstock.server.pipeline.line import Line
from penstock.server.roles import IterableDistributor, PackedCollator, PaddedCollator
from penstock.server.roles.stream_rows import FIRST, Mark, ShardRows
from penstock.server.sources import ItemsSource
from penstock.server.testing import check_stream
from penstock.wire.errors import BadBatch, InvalidJob, LaneStarved, SourceUnavailable
from penstock.wire.item_numbers import number_text, parse_number, row_index, shard_row
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
    folder: Path,
    batcher: str,
    processor: str,
    lanes: int,
    apart: int = 1,
    buffer: int = 0,
    **settings: Any,
) -> Job:
    packs = batcher.startswith(("best", "sequential"))
    return Job(
        Lines(str(folder), apart),
        IterableDistributor(buffer_size=buffer),
        PROCESSORS[processor](),
        BATCHERS[batcher].clone(),
        PackedCollator() if packs else PaddedCollator(),
        seed=5,
        lanes=lanes,
        on_item_error="quarantine",
        snapshot_every=4,
        **settings,
    )


BUFFERS = (0, 5, 60)
"""No rows wait; some of a shard; as many as the lanes read in epochs."""

PLANS = [
    (batcher, processor, lanes, apart, BUFFERS[(b + n) % 3])
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
    ("batcher", "processor", "lanes", "apart", "buffer"),
    PLANS,
    ids=["-".join(map(str, plan)) for plan in PLANS],
)
def test_every_offset_of_a_stream_restores_exactly(
    folder: Path, batcher: str, processor: str, lanes: int, apart: str, buffer: int
) -> None:
    """Bytes and snapshots are those of the uninterrupted line, in a process that has read nothing.

    With fewer shards than lanes, too, through a shuffle buffer, and over many epochs.
    """
    lane = lanes - 1
    line = Line(stream_job(folder, batcher, processor, lanes, MARKS[apart], buffer), lane)
    truth = [step(line) for _ in range(OFFSETS)]

    for offset in range(OFFSETS - 1):
        job = stream_job(folder, batcher, processor, lanes, MARKS[apart], buffer)
        restored = Line(job, lane, snapshot=truth[offset].snapshot)
        assert restored.offset == offset
        assert [step(restored), step(restored)] == truth[offset : offset + 2], f"offset {offset}"


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("lanes", [1, 2, 5, 7, 30])
def test_each_row_comes_once_per_epoch_over_all_lanes(
    folder: Path, lanes: int, buffer: int
) -> None:
    """As many lanes as shards, fewer and more: three epochs hold each row three times."""
    distributor = IterableDistributor(buffer_size=buffer)
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


@pytest.mark.parametrize("buffer", BUFFERS)
@pytest.mark.parametrize("lanes", [2, 9])
def test_draws_go_on_from_every_state_whatever_was_looked_at(
    folder: Path, lanes: int, buffer: int
) -> None:
    """Looking ahead changes neither what is drawn nor the state; states are small JSON."""
    distributor = IterableDistributor(buffer_size=buffer)
    distributor.bind({"main": Lines(str(folder))}, 3, None, lanes)
    draws = distributor.open(1, lanes)
    states, whole = [], []
    for _ in range(80):
        states.append(json.dumps(draws.state()))
        whole.append(draws.next())

    for k, state in enumerate(states[:70]):
        fresh = IterableDistributor(buffer_size=buffer)
        fresh.bind({"main": Lines(str(folder))}, 3, None, lanes)
        again = fresh.open(1, lanes)
        again.restore(json.loads(state))
        ahead = again.peek(k % 7)
        assert json.dumps(again.state()) == state
        assert len(state) < 120
        taken = [again.next() for _ in range(10)]
        assert ahead == taken[: len(ahead)]
        assert taken == whole[k : k + 10]
        assert json.dumps(again.state()) == states[k + 10]


@pytest.mark.parametrize("buffer", [1, 10, 100])
def test_no_row_waits_longer_than_the_buffer_is_large(tmp_path: Path, buffer: int) -> None:
    """So a restart reads at most so many rows of the lane again; and the rows are mixed."""
    folder = write_shards(tmp_path, list(range(1000)), [1000])
    draws = _bound(Lines(str(folder)), buffer).open(0, 1)
    order, restarts = [], []
    for drawn in range(1000):
        state = draws.state()
        assert state["number"] >= drawn - buffer
        restarts.append(state)
        order.append(_row_of(draws.next()))

    assert draws.state()["number"] == 1000
    assert sorted(order) == list(range(1000))
    assert all(abs(row - place) <= buffer for place, row in enumerate(order))
    moved = sum(abs(row - place) for place, row in enumerate(order)) / 1000
    assert moved > buffer / 5 or buffer == 1
    for drawn in (200, 567, 900):
        source = Lines(str(folder))
        again = _bound(source, buffer).open(0, 1)
        again.restore(restarts[drawn])
        assert [_row_of(again.next()) for _ in range(20)] == order[drawn : drawn + 20]
        # Rows of the buffer before and after the draw, and those that are drawn here.
        assert source.read <= 2 * buffer + 20 + 1


def _bound(source: Lines, buffer: int, lanes: int = 1) -> IterableDistributor:
    distributor = IterableDistributor(buffer_size=buffer)
    distributor.bind({"main": source}, 3, 1, lanes)
    return distributor


def _row_of(item: ItemRef | None) -> int:
    assert item is not None
    return shard_row(item.index)[1]


def test_rows_come_steadily_out_of_a_buffer(tmp_path: Path) -> None:
    """One is read for each that is drawn, about: never a whole buffer at once, not at the start."""
    folder = write_shards(tmp_path, list(range(4000)), [4000])
    source = Lines(str(folder))
    draws, reads = _bound(source, 400).open(0, 1), [0]
    for _ in range(2000):
        draws.next()
        reads.append(source.read)

    gaps = [after - before for before, after in itertools.pairwise(reads)]
    assert max(gaps) <= 80
    assert max(gaps[800:]) <= 12


def test_fewer_shards_than_lanes_is_said_with_its_cost(tmp_path: Path) -> None:
    """By `check`, `show` and the node's log, which ask the job; with enough shards nothing is."""
    folder = write_shards(tmp_path, raw_items(), [9, 14])
    few, enough = (stream_job(folder, "simple", "identity", lanes) for lanes in (7, 2))

    assert few.cautions() == few.remarks()
    assert few.remarks() == [
        "source 'main' has 2 shards for 7 lanes, so a shard is read 4 times in every epoch, each "
        "time for one row of 4: split the data into at least 7 files, or give the job at most 2 "
        "lanes"
    ]
    assert enough.cautions() == []


def test_a_lane_without_rows_in_an_epoch_goes_on_in_a_later_one(tmp_path: Path) -> None:
    """Three rows over eight lanes: every lane finds some, and each row comes once per epoch."""
    folder = write_shards(tmp_path, [1, 2, 3], [3])
    distributor = IterableDistributor()
    distributor.bind({"main": Lines(str(folder))}, 3, 8, 8)
    drawn: list[ItemRef] = []
    for lane in range(8):
        draws = distributor.open(lane, 8)
        before = len(drawn)
        while (item := draws.next()) is not None:
            drawn.append(item)
        assert len(drawn) == before + 3

    assert len(drawn) == len(set(drawn)) == 24


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
def test_lanes_of_one_shard_pass_over_the_rows_of_the_others_and_read_no_more(
    tmp_path: Path, apart: int
) -> None:
    """One shard for three lanes, each of which takes every third row."""
    folder = write_shards(tmp_path, raw_items(), [len(LENGTHS)])
    job = stream_job(folder, "simple", "identity", 3, apart)
    lines = [Line(job, lane) for lane in range(3)]

    for _ in range(9):
        for line in lines:
            step(line)

    source = job.sources["main"]
    assert isinstance(source, Lines)
    assert source.read <= 3 * (sum(line.counters()["drawn"] for line in lines) + 3 * 32)


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
    job = Job(Flaky(str(folder)), IterableDistributor(), batch_size=2, lanes=1)
    expected = Job(Lines(str(folder)), IterableDistributor(), batch_size=2, lanes=1)
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
    with pytest.raises(InvalidJob, match=r"iterable deals .* 'main' \(items\) has none"):
        Job(ItemsSource([1]), IterableDistributor(), batch_size=1)
    with pytest.raises(InvalidJob, match="name one of them with source"):
        Job({"a": ItemsSource([1]), "b": Lines(str(folder))}, IterableDistributor(), batch_size=1)
    for wrong in (-1, True, 1 << 21):
        with pytest.raises(InvalidJob, match=r"buffer_size is .*: give a whole number from 0"):
            IterableDistributor(buffer_size=wrong)
    with pytest.raises(InvalidJob, match="a stream has no item to seed the generators for"):
        Job(Drawing(str(folder)), IterableDistributor(), batch_size=1)


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
