"""A line whose planner failed half way: what waits behind the failure gets no content from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from penstock.server.core.refs import Rows, SampleRef
from penstock.server.job.job import Job
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.roles import (
    MapDistributor,
    PaddedCollator,
    ProcessContext,
    RawItemProcessor,
    Sample,
)
from penstock.server.roles.batcher import SampleBatcher
from penstock.server.sources import ItemsSource
from penstock.server.store import SqliteStore
from penstock.wire.errors import PenstockError
from penstock.wire.order import Share
from truth import Truth
from unit.inline_workers import InlineNode

FAILURES: list[int] = []
"""What is left to fail, by the item that it happens at."""


class Twice(SampleBatcher):
    """A user's batcher of two samples each; it may fail behind taking one."""

    needs_sizes: ClassVar[bool] = False
    version: ClassVar[int | str | None] = 1

    def __init__(self) -> None:
        self.held: list[SampleRef] = []

    def add(self, ref: SampleRef, sample: Sample | None = None) -> list[Rows]:
        """Return a pair when there are two."""
        self.held.append(ref)
        if FAILURES and FAILURES[0] == ref.item.index:
            del FAILURES[0]
            raise MemoryError("no room just now")
        if len(self.held) < 2:
            return []
        pair, self.held = self.held, []
        return [[[ref] for ref in pair]]


class Plain(RawItemProcessor):
    """Processes, so that planning and making share a worker."""

    version: ClassVar[int | str | None] = 1

    def process(self, raw: Any, context: ProcessContext) -> Sample:
        """Return the item."""
        return {"input_ids": [raw] * 3}


def make_job() -> Job:
    """Return a job of one lane that draws the items in their order."""
    return Job(
        ItemsSource(list(range(1, 24))),
        MapDistributor(shuffle="none"),
        Plain(),
        Twice(),
        PaddedCollator(),
        lanes=1,
        snapshot_every=100,
    )


async def test_nothing_is_made_of_a_half_changed_state(tmp_path: Path) -> None:
    """Every batch that is delivered behind the failure equals that of a line that never failed."""
    job = make_job()
    truth = Truth(job)
    expected = {position: bytes(truth.batch(position).body) for position in range(12)}
    store = SqliteStore(tmp_path / "store.db")
    await store.open()
    node = InlineNode({"job": job}, store, workers=1, bound_bytes=1 << 20)
    await node.start()
    readers = [
        node.open(node.jobs["job"], Share(3, rank, 3), None, 0, None, lambda: None)
        for rank in range(3)
    ]
    got: dict[int, bytes] = {}
    failures: list[str] = []

    def take(reader: StreamDemand) -> None:
        try:
            while (entry := node.take(reader)) is not None:
                got[entry.key.position] = bytes(entry.body or b"")
                node.sent(reader, entry)
        except PenstockError as error:
            failures.append(error.code)
            node.leave(reader)

    try:
        FAILURES.append(8)  # the second of the fourth batch
        for reader in readers:
            node.extend(reader, 12)
        for _ in range(200):
            await node.settle()
            for hand in node.hands:
                hand.answer_one()
            for reader in readers:
                if not reader.closed:
                    take(reader)

        assert failures
        assert FAILURES == []
        for position, body in got.items():
            assert body == expected[position], position
    finally:
        FAILURES.clear()
        await node.close()
        await store.close()
