"""Storage is asked once for an item, before it is needed where that helps, and no byte changes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from invariants import eventually
from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.pipeline.kept_items import KeptItems
from penstock.server.pipeline.line import Line
from penstock.server.roles import BestFitPackingBatcher, IdentityProcessor, PackedCollator
from penstock.server.sources import ItemsSource, ParquetSource
from penstock.server.usercode.held_bytes import held_bytes
from penstock.wire.errors import SourceUnavailable
from resume.plans import BATCHERS, ChoosyProcessor, SizedProcessor, raw_items


class Counted(ItemsSource):
    """Counts how often an item is fetched, and notes from which threads."""

    version: ClassVar[int | str | None] = 1

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(items)
        self.fetched: Counter[int] = Counter()
        self.threads: set[int] = set()

    def fetch(self, indices: Sequence[int]) -> list[Any]:
        """Return the items, and note who asks."""
        self.fetched.update(indices)
        self.threads.add(threading.get_ident())
        return super().fetch(indices)


class Aside(Counted):
    """May be read by another thread."""

    may_read_ahead: ClassVar[bool] = True


def batches(line: Line, count: int) -> list[bytes]:
    """Return the next batches of a line: header and body."""
    found = []
    for _ in range(count):
        made = line.make(line.advance())
        body = bytearray(made.nbytes)
        found.append(made.write(memoryview(body)) + bytes(body))
    return found


def job_of(source: ItemsSource, processor: Any, batcher: str = "best_fit_drop") -> Job:
    job = Job(
        source,
        processor=processor(),
        batcher=BATCHERS[batcher].clone(),
        collator=PackedCollator(),
        lanes=1,
        on_item_error="quarantine",
    )
    job.__dict__["log_id"] = bytes(32)  # what is compared differs in the class of its source
    return job


def test_what_was_read_for_its_size_is_not_read_again() -> None:
    """Planned from sizes and then made, each draw is one fetch."""
    source = Counted(raw_items())
    line = Line(job_of(source, SizedProcessor), 0)

    batches(line, 12)

    drawn = line.counters()["drawn"] + len(line.planner.ahead)
    assert drawn > 2 * len(source)
    assert source.fetched.total() == drawn


def test_sizes_come_from_columns_alone(tmp_path: Path) -> None:
    """Where a Parquet file has the sizes as a column, the rest is read for the batches alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    class Long(SizedProcessor):
        size_columns: ClassVar[Sequence[str] | None] = ("length",)

        def size(self, raw: Any) -> int:
            assert list(raw) == ["length"]
            return int(raw["length"])

    rng = np.random.default_rng(0)
    rows = [
        {"length": 5 + n % 20, "input_ids": rng.integers(0, 1 << 40, 5 + n % 20)}
        for n in range(400)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=100)
    source = ParquetSource(str(tmp_path / "a.parquet"))
    job = Job(
        source,
        processor=Long(),
        batcher=BestFitPackingBatcher(64, pool_size=8),
        collator=PackedCollator(),
        lanes=1,
    )
    line = Line(job, 0)

    line.skip_to(20)
    planning = source.read_bytes()
    batches(line, 1)
    making = source.read_bytes()

    assert 0 < planning < making / 4


@pytest.mark.parametrize("batcher", ["best_fit_drop", "simple"])
@pytest.mark.parametrize("processor", [ChoosyProcessor, SizedProcessor])
def test_reading_ahead_changes_no_byte_and_no_verdict(batcher: str, processor: Any) -> None:
    """Another thread reads; filters, several samples and a damaged item come out alike."""
    expected = Line(job_of(Counted(raw_items()), processor, batcher), 0)
    source = Aside(raw_items())
    line = Line(job_of(source, processor, batcher), 0)
    line.items.read_s = 1e9  # it is found out that a call takes long

    assert line.items.reads_ahead
    assert batches(line, 30) == batches(expected, 30)
    if (batcher, processor) == ("best_fit_drop", SizedProcessor):
        assert len(source.threads) == 1
    else:  # what is needed before the other thread has begun is read at once
        eventually(
            lambda: batches(line, 1) == batches(expected, 1) and len(source.threads) == 2,
            60,
            "another thread has read, too",
        )
    assert line.counters() == expected.counters()
    assert list(line.items.verdicts) == list(expected.items.verdicts)


def test_what_may_not_be_read_aside_is_not() -> None:
    """A source says so itself; else everything is read by the thread that processes."""
    source = Counted(raw_items())
    line = Line(job_of(source, ChoosyProcessor), 0)
    line.items.read_s = 1e9

    batches(line, 10)

    assert source.threads == {threading.get_ident()}


REFS = [ItemRef("main", index, 0) for index in range(100)]


def test_an_error_of_reading_ahead_is_met_again_by_who_needs_the_item() -> None:
    """Nothing is kept of it, and what was not begun is not read twice."""
    begun, go_on = threading.Event(), threading.Event()
    read: list[ItemRef] = []

    def fetch(items: Sequence[ItemRef]) -> list[str]:
        begun.set()
        assert go_on.wait(30)
        read.extend(items)
        if REFS[1] in items:
            raise SourceUnavailable("gone for a moment", item=1)
        return [f"item {item.index}" for item in items]

    kept = KeptItems(fetch)
    kept.ask(REFS[:2])
    assert begun.wait(30)
    kept.ask(REFS[2:4])
    kept.ask(REFS[4:6])

    assert kept.take(REFS[2:3]) == {}
    go_on.set()
    assert kept.take(REFS[:2]) == {}
    found: dict[ItemRef, str] = {}
    while len(found) < 3 and len(read) < 6:
        found |= kept.take(REFS[3:6])

    assert REFS[2] not in read


def test_what_is_kept_is_bounded_in_bytes() -> None:
    """The oldest go first; an item larger than the bound is not kept, and throws nobody out."""
    kept = KeptItems(lambda items: [], max_bytes=10 * held_bytes(b"x" * 1000))

    kept.keep(REFS[:20], [b"x" * 1000] * 20)
    kept.keep(REFS[20:21], [b"x" * 100_000])

    assert kept.nbytes <= kept.max_bytes
    assert list(kept.take(REFS[:21])) == REFS[10:20]
    assert kept.nbytes == 0


class Lengths(Counted):
    """Has an index of lengths beside its items."""

    asked: ClassVar[Counter[int]] = Counter()

    def sizes(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the numbers of tokens, as NumPy has them."""
        self.asked.update(indices)
        return np.array([len(self._items[index]["input_ids"]) for index in indices])


def test_sizes_that_a_source_tells_take_no_reading() -> None:
    """Ready ids are planned from the index alone, and the batches are those of a plain source."""
    source = Lengths(raw_items())
    job = job_of(source, IdentityProcessor)
    assert job.role_sets[0].plans_from_refs
    line = Line(job, 0)

    planned = [line.advance() for _ in range(12)]

    assert source.fetched.total() == 0
    assert set(source.asked) == set(range(len(source)))
    made = batches(Line(job, 0), 12)
    assert made == batches(Line(job_of(ItemsSource(raw_items()), IdentityProcessor), 0), 12)
    drawn = {ref.item.index for plan in planned for row in plan.rows for ref in row}
    assert set(source.fetched) == drawn


class Wrong(Lengths):
    """Its index ends too soon, and has a hole."""

    def sizes(self, indices: Sequence[int]) -> Any:
        """Fail for item 7, and lie about item 9."""
        if 7 in indices:
            raise KeyError("no length of 7")
        return [-1 if index == 9 else 3 for index in indices]


def test_sizes_that_are_wrong_are_items_that_fail() -> None:
    """By name and for themselves alone; a size that is too small is found on exit."""
    job = job_of(Wrong(raw_items()), IdentityProcessor)
    line = Line(job, 0)
    batches(line, 12)

    found = {(one.stage, one.item.index): one.reason for one in line.items.verdicts}
    assert "no length of 7" in found["draw", 7]
    assert found["draw", 9] == "sizes() gave -1"
    assert any(stage == "size" for stage, _ in found)
