"""What Describe tells of where lanes may be made: units, workers, snapshots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.server.job.job import Job
from penstock.server.roles import BestFitPackingBatcher, MapDistributor
from penstock.server.rpc.opening import describe
from penstock.server.sources import ItemsSource, ParquetSource
from penstock.wire import PROTOCOL
from penstock.wire.v1 import feed_pb2


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 24 row groups."""
    path = tmp_path_factory.mktemp("corpus") / "a.parquet"
    with pq.ParquetWriter(path, pa.schema([("x", pa.int64())])) as writer:
        for group in range(24):
            writer.write_table(pa.table({"x": pa.array(range(group * 8, group * 8 + 8))}))
    return path


def told(job: Job, **known: Any) -> feed_pb2.DescribeReply:
    """Return what a node answers about a job."""
    request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="job")
    return describe({"job": job}, request, node="n", node_id="id", store="s", **known)


@pytest.mark.parametrize(("lanes", "groups"), [(12, 4), (4, 4), (6, 1)])
def test_lanes_of_a_reading_group_are_one_unit(corpus: Path, lanes: int, groups: int) -> None:
    """The shortest period is told: a job of many lanes costs no more words than it has groups."""
    draws = MapDistributor(shuffle="blocks", reading_groups=groups, window_blocks=2)
    job = Job(ParquetSource(str(corpus)), draws, batch_size=2, lanes=lanes)

    reply = told(job)

    assert list(reply.units) == ([] if groups == lanes else list(range(groups)))
    for lane in range(lanes):
        unit = reply.units[lane % groups] if reply.units else lane
        assert lane in job.lanes_together()[unit]


def test_lanes_that_share_nothing_are_units_of_their_own(corpus: Path) -> None:
    assert not told(Job(ItemsSource([1, 2, 3]), batch_size=1, lanes=5)).units


def test_a_node_tells_its_weight_its_snapshots_and_that_it_ends() -> None:
    """A lane whose batches depend on those before is begun at a snapshot, another one anywhere."""
    source = ItemsSource([{"input_ids": [1]}, {"input_ids": [2, 3]}])
    packed = Job(source, batcher=BestFitPackingBatcher(8), lanes=2, snapshot_every=7)
    plain = Job(source, batch_size=1, lanes=2, snapshot_every=7)

    reply = told(packed, workers=3, draining=True)

    assert (reply.workers, reply.snapshot_every, reply.draining) == (3, 7, True)
    assert told(plain).snapshot_every == 0
