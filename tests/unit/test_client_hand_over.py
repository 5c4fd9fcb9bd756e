"""A node that drains hands over: no batch is made twice, and none is planned twice."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import pytest

from penstock.client import Loader
from penstock.server.job.job import Job
from penstock.server.node.demand.ledger import Log
from penstock.server.roles import (
    BestFitPackingBatcher,
    MapDistributor,
    PackedCollator,
    RawItemProcessor,
)
from penstock.server.roles.context import ProcessContext
from penstock.server.roles.samples import Sample
from penstock.server.store import Memory
from unit.served import ITEMS, Numbers, ServedNode

LANES = 6


class Documents(RawItemProcessor):
    """Makes a document of a number."""

    version: ClassVar[int] = 1
    uses_global_rng: ClassVar[bool] = False
    one_to_one: ClassVar[bool] = True

    def process(self, raw: int, context: ProcessContext) -> Sample:
        """Return 5 to 36 tokens."""
        return {"input_ids": np.full(5 + raw * 7919 % 32, raw, np.int32)}


def packing() -> Job:
    """Return a job whose lanes have a state: to get to an offset a line plans all before it."""
    return Job(
        source={"corpus": Numbers(ITEMS)},
        distributor=MapDistributor(shuffle="none", source="corpus"),
        processor=Documents(),
        batcher=BestFitPackingBatcher(max_tokens=64, pool_size=16),
        collator=PackedCollator(pad_to=64),
        lanes=LANES,
        snapshot_every=1000,
        name="code",
    )


@contextlib.contextmanager
def two_nodes() -> Iterator[list[ServedNode]]:
    """Serve the job from two nodes over one store."""
    memory = Memory()
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(ServedNode(packing(), memory=memory, node_id=f"node-{number}"))
            for number in range(2)
        ]


def made(log: Log, below: int) -> set[tuple[int, int]]:
    """Return which batches a node has made, by lane and offset."""
    return {at for at in itertools.product(range(LANES), range(below)) if at in log.made}


def test_a_node_that_drains_gives_what_it_has_made_and_others_go_on_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reader goes on meanwhile; without it lanes would be planned from their starts."""
    monkeypatch.setattr("penstock.server.rpc.hand_over.HAND_OVER_S", 60.0)
    monkeypatch.setattr("penstock.server.rpc.hand_over.HAND_OVER_SHARE", 1.0)
    with two_nodes() as nodes:
        stays, goes = nodes
        before = goes.service.node.logs[goes.log_id]
        target = [node.address for node in nodes]
        with Loader(target, "code", rank=0, world_size=1, as_numpy=True, prefetch=6) as loader:
            batches = iter(loader)
            given = [next(batches) for _ in range(20 * LANES)]
            drains = threading.Thread(target=goes.drain)
            drains.start()
            while drains.is_alive():
                given.append(next(batches))
            drains.join()
            given += [next(batches) for _ in range(20 * LANES)]
        after = stays.service.node.logs[stays.log_id]
        ours, theirs = made(before, len(given)), made(after, len(given))
        starts = {
            (line.lane, line.start) for lane in after.lanes for line in lane.lines if line.start
        }
        with Loader(stays.address, "code", rank=0, world_size=1, as_numpy=True) as loader:
            alone = list(itertools.islice(loader, len(given)))

    for batch, again in zip(given, alone, strict=True):
        assert batch.position == again.position
        assert (batch["input_ids"] == again["input_ids"]).all()
    moved = {lane for lane, _ in ours}
    assert 0 < len(moved) < LANES
    assert not ours & theirs
    assert starts == {(lane, sum(other == lane for other, _ in ours)) for lane in moved}
