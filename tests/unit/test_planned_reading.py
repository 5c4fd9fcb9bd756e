"""How planned jobs read storage blocks and keep packed windows: each once, as memory allows."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.server.job.job import Job
from penstock.server.pipeline.items import Items
from penstock.server.pipeline.planner import open_planner
from penstock.server.planning.log import group_stream as stream
from penstock.server.planning.log.group_stream import GroupStream
from penstock.server.planning.log.job_plan import Plan
from penstock.server.roles import Blocks, IndexedSource, MapDistributor, PackedCollator
from penstock.server.roles.batchers import BestFitDecreasingPackingBatcher, SimpleBatcher
from planned import with_plan

BLOCKS, ROWS = 24, 20
SIZES = [ROWS + number % 3 for number in range(BLOCKS)]
ENDS = np.cumsum(SIZES)


class Decoding(IndexedSource):
    """Items in storage blocks; counts how often each block is decoded."""

    version: ClassVar[int | str | None] = 1

    def __init__(self, apart: bool = False) -> None:
        self.apart, self.most = apart, 1
        self.kept: OrderedDict[int, None] = OrderedDict()
        self.decoded: Counter[int] = Counter()

    def __len__(self) -> int:
        return int(ENDS[-1])

    def blocks(self) -> Blocks:
        """Return their sizes; they are large in memory."""
        return Blocks(SIZES, [4 << 20] * BLOCKS, [1 << 20] * BLOCKS, self.apart)

    def keep_blocks(self, count: int) -> None:
        """Keep so many decoded blocks, those that were used last."""
        self.most = count

    def fetch(self, indices: Any) -> list[Any]:
        """Return items of 1 to 29 tokens."""
        found = []
        for index in indices:
            block = int(np.searchsorted(ENDS, index, "right"))
            if block not in self.kept:
                self.decoded[block] += 1
                self.kept[block] = None
            self.kept.move_to_end(block)
            while len(self.kept) > self.most:
                self.kept.popitem(last=False)
            found.append({"input_ids": [index] * (1 + index * 7 % 29)})
        return found

    def fingerprint(self) -> Any:
        """Return that there is only this one."""
        return "numbers"


def job_of(folder: Path, plan: dict[str, Any], batcher: Any = None, **drawing: Any) -> Job:
    def make(plan: Plan | None) -> Job:
        return Job(
            Decoding(apart=drawing.get("shuffle") == "full"),
            MapDistributor(**drawing),
            None,
            batcher or BestFitDecreasingPackingBatcher(64),
            PackedCollator(),
            plan=plan,
            seed=2,
            lanes=4,
            epochs=1,
        )

    return with_plan(make, folder / f"{drawing['shuffle']}.index", plan)


def decoded(job: Job) -> Counter[int]:
    """Return how often each block is decoded while all lanes go through an epoch in turn."""
    items = Items(job)
    [source] = job.sources.values()
    assert isinstance(source, Decoding)
    planners = [open_planner(job, lane, items) for lane in range(job.lanes)]
    source.decoded.clear()
    while planners:
        for planner in list(planners):
            plan = planner.next()
            if plan is None:
                planners.remove(planner)
                continue
            source.fetch([ref.item.index for row in plan.rows for ref in row])
    return source.decoded


@pytest.mark.parametrize(
    ("groups", "window_blocks", "window"), [(1, 4, None), (2, 4, None), (4, 2, None), (2, 4, 100)]
)
def test_lanes_of_a_group_decode_each_block_once(
    groups: int, window_blocks: int, window: int | None, tmp_path: Path
) -> None:
    """What a group keeps is what its windows hold; windows are of whole blocks by default."""
    job = job_of(
        tmp_path,
        {"window": window},
        shuffle="blocks",
        reading_groups=groups,
        window_blocks=window_blocks,
    )
    [reading] = job.readings()
    assert reading.blocks is not None
    if window is None:
        assert reading.held <= groups * (window_blocks + 1)

    found = decoded(job)

    assert set(found) == set(range(BLOCKS))
    twice = found.total() - BLOCKS
    windows = sum(stream.windows for stream in job.role_sets[0].planned.streams)  # type: ignore[union-attr]
    assert twice == 0 if window is None else twice <= windows


def test_windows_of_equal_batches_read_few_blocks_twice(tmp_path: Path) -> None:
    """With batch_size windows end where a batch does: the block there is in two of them."""
    job = job_of(
        tmp_path, {}, SimpleBatcher(8), shuffle="blocks", reading_groups=1, window_blocks=6
    )
    [stream] = job.role_sets[0].planned.streams  # type: ignore[union-attr]

    found = decoded(job)

    assert found.total() <= BLOCKS + stream.windows


def test_the_order_of_the_source_keeps_the_blocks_of_a_window(tmp_path: Path) -> None:
    """All of its samples are packed together, so batches hold items from all over it."""
    job = job_of(tmp_path, {"window": 60}, shuffle="none")
    [reading] = job.readings()

    found = decoded(job)

    assert reading.groups is None
    assert reading.blocks is not None
    assert reading.blocks < BLOCKS
    assert found.total() == BLOCKS


def test_items_that_are_read_alone_need_no_blocks(tmp_path: Path) -> None:
    """What is said of a job without a plan holds."""
    job = job_of(tmp_path, {"window": 60}, shuffle="full")

    [reading] = job.readings()

    assert (reading.groups, reading.blocks) == (None, None)


def test_a_window_is_packed_once_while_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all epochs; with room for fewer samples it is packed again, to the same batches."""
    packed: Counter[int] = Counter()
    window_of = GroupStream.window

    def count(stream: GroupStream, number: int, *rest: Any) -> Any:
        packed[number] += 1
        return window_of(stream, number, *rest)

    monkeypatch.setattr(GroupStream, "window", count)

    def walk() -> list[Any]:
        job = job_of(tmp_path, {"window": 60}, shuffle="full")
        packed.clear()
        planner = open_planner(job, 0, Items(job))
        return [planner.next() for _ in range(job.known_end(0) or 0)]

    first = walk()
    assert set(packed.values()) == {1}
    monkeypatch.setattr(stream, "KEPT_SAMPLES", 1)
    assert walk() == first
