"""A node in situations that must neither stop it nor leave a reader waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import grpc
import pytest
from structlog.testing import capture_logs

from penstock.server.core.refs import ItemRef
from penstock.server.job.job import Job
from penstock.server.metrics.node_metrics import Metrics
from penstock.server.node.demand.made_ahead import AHEAD_PER_WORKER, CHEAP_AHEAD
from penstock.server.node.demand.stream_demand import StreamDemand
from penstock.server.node.demand.wanted import WantedBatch
from penstock.server.node.protocol.messages import OpenLine, PlanAhead, Produce
from penstock.server.node.supply.dispatch import PLANS_AT_ONCE
from penstock.server.node.supply.worker_pool import Hear, Lose
from penstock.server.roles import IdentityProcessor, MapDistributor
from penstock.server.roles.draws import LaneDraws
from penstock.server.roles.processors import FunctionProcessor
from penstock.server.rpc.autoscaling import AutoscalingSignal
from penstock.server.rpc.call import EOF
from penstock.server.rpc.service import Service
from penstock.server.rpc.status import status
from penstock.server.rpc.streams import Streams
from penstock.server.sources import ItemsSource
from penstock.server.store import SqliteStore
from penstock.server.store.records import SnapshotRecord
from penstock.wire import PROTOCOL
from penstock.wire.errors import (
    Internal,
    InvalidJob,
    LogDiverged,
    PenstockError,
    PositionFar,
    SourceUnavailable,
)
from penstock.wire.order import Cut, Share
from penstock.wire.v1 import feed_pb2
from unit.inline_workers import InlineNode, InlineWorker


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store, open."""
    one = SqliteStore(tmp_path / "store.db")
    await one.open()
    yield one
    await one.close()


def make_job(lanes: int, distributor: Any = None, **options: Any) -> Job:
    """Return a job of 23 items, one per batch."""
    source = ItemsSource([{"x": n} for n in range(23)])
    return Job(source, distributor, batch_size=1, lanes=lanes, **options)


def make_node(job: Job, store: SqliteStore, workers: int = 1) -> InlineNode:
    """Return a node with one job, that notes what would end it."""
    return InlineNode({"job": job}, store, workers=workers, bound_bytes=1 << 20)


async def run_until_idle(node: InlineNode, readers: dict[StreamDemand, list[int]]) -> None:
    """Let all workers answer and all readers take, until nothing moves any more."""
    idle = 0
    while idle < 5:
        await node.settle()
        moved = any([hand.answer_one() for hand in node.hands])  # noqa: C419 - each has its turn
        for reader, got in readers.items():
            while (entry := take(node, reader)) is not None:
                got.append(entry.key.position)
                node.sent(reader, entry)
                moved = True
        idle = 0 if moved else idle + 1


def take(node: InlineNode, reader: StreamDemand) -> WantedBatch | None:
    """Take a batch; None also where the reader has failed."""
    try:
        return node.take(reader)
    except PenstockError:
        node.leave(reader)
        return None


class NoLaneOne(MapDistributor):
    """A user's distributor that cannot open one lane."""

    version: ClassVar[int | str | None] = 1

    def open(self, lane: int, lanes: int) -> LaneDraws:
        """Open a lane, but not the second."""
        if lane == 1:
            raise RuntimeError("no permission for shard 1")
        return super().open(lane, lanes)


async def test_a_lane_that_cannot_be_opened_stops_no_other(store: SqliteStore) -> None:
    """Whoever wants that lane is told why; readers of other lanes, and the node, go on."""
    ended: list[str] = []
    job = make_job(3, NoLaneOne())
    node = make_node(job, store)
    node.life.on_fatal = lambda: ended.append("ended")
    await node.start()
    try:
        others = node.open(node.jobs["job"], Share(1, 0, 1), None, 0, [0, 2], lambda: None)
        got: list[int] = []
        node.extend(others, 60)
        for _ in range(20):
            await run_until_idle(node, {others: got})
        everything = node.open(node.jobs["job"], Share(1, 0, 1), None, 60, None, lambda: None)
        node.extend(everything, 120)
        node.extend(others, 120)
        failed: list[str] = []
        for _ in range(20_000):
            await node.settle()
            for hand in node.hands:
                hand.answer_one()
            if everything.pending:
                try:
                    while (entry := everything.take()) is not None:
                        node.sent(everything, entry)
                except Internal as error:
                    failed.append(error.message)
                    node.leave(everything)
            while (entry := others.take()) is not None:
                got.append(entry.key.position)
                node.sent(others, entry)
            if len(got) == 80 and failed:
                break

        assert ended == []
        assert sorted(got) == [position for position in range(120) if position % 3 != 1]
        assert failed
        assert "no permission for shard 1" in failed[0]
    finally:
        await node.close()


async def test_a_reader_of_some_lanes_gets_what_comes_late(store: SqliteStore) -> None:
    """Rank 2 of 3 meets lane 1 only in the padding of the last step: it is made nevertheless."""
    job = make_job(3, epochs=301)
    assert job.order.batches == 6923
    node = make_node(job, store)
    await node.start()
    cut = Cut(3)
    woken = asyncio.Event()
    reader = node.open(node.jobs["job"], Share(3, 2, 3), cut, 0, [1], woken.set)
    got: list[int] = []
    try:
        node.extend(reader, 6924)
        # As a stream does it: it looks again only when it was woken.
        woken.set()
        for _ in range(200):
            await node.settle()
            for hand in node.hands:
                hand.answer_one()
            if woken.is_set():
                woken.clear()
                while (entry := node.take(reader)) is not None:
                    got.append(entry.key.position)
                    node.sent(reader, entry)

        assert got == [6923]
        assert reader.finished
    finally:
        await node.close()


async def test_a_far_reader_of_a_log_of_unknown_length_lets_near_ones_by(
    store: SqliteStore,
) -> None:
    """What it depends on is planned a little at a time: the near one never waits for all of it."""
    processor = FunctionProcessor(lambda raw: [{"x": raw}] * (1 + raw % 2))
    items = ItemsSource(list(range(1500)))
    job = Job(items, processor=processor, batch_size=1, lanes=2, epochs=1, snapshot_every=16)
    node = InlineNode({"job": job}, store, workers=1, bound_bytes=1 << 20)
    await node.start()
    far, near = (
        node.open(job, Share(1, 0, 1), Cut(1), start, None, lambda: None) for start in (1600, 0)
    )
    got: dict[StreamDemand, list[int]] = {far: [], near: []}
    try:
        node.extend(far, 1602)
        waits, since = [], 0
        for _ in range(20_000):
            await node.settle()
            node.extend(near, len(got[near]) + 1)
            before = len(got[near])
            node.hands[0].answer_one()
            since += 1
            for reader, positions in got.items():
                while (entry := node.take(reader)) is not None:
                    positions.append(entry.key.position)
                    node.sent(reader, entry)
            if len(got[near]) > before:
                waits.append(since)
                since = 0
            if len(got[far]) == 2:
                break

        assert got[far] == [1600, 1601]
        assert len(got[near]) > 4, "while the far one's lanes were planned"
        assert max(waits) < 32
        # No ticket plans more than a few batches, whatever it is for: each line goes step by step.
        stands: dict[int, int] = {}
        for message in node.hands[0].answered:
            if isinstance(message, PlanAhead | Produce):
                assert message.offset - stands.get(message.line, 0) <= PLANS_AT_ONCE
                stands[message.line] = message.offset + 1
            assert not isinstance(message, OpenLine) or message.snapshot is None
    finally:
        await node.close()


class Unwilling(InlineWorker):
    """A worker whose process cannot be started while memory is short."""

    refusals: ClassVar[int] = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start, unless the system refuses."""
        if Unwilling.refusals > 0:
            Unwilling.refusals -= 1
            raise OSError(12, "Cannot allocate memory")
        super().start(loop)


class UnwillingNode(InlineNode):
    """A node of such workers."""

    def _new_worker(self, number: int, hear: Hear, lose: Lose) -> InlineWorker:
        return Unwilling(number, hear, lose)


class Through(IdentityProcessor):
    """Processes, so that a lane's line lives in one worker."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = False


async def test_the_workers_that_are_left_take_every_lane(store: SqliteStore) -> None:
    """While a dead one cannot be replaced, its share of the lanes is not kept for it."""
    job = make_job(6, processor=Through())
    node = UnwillingNode({"job": job}, store, workers=2, bound_bytes=1 << 20)
    await node.start()
    reader = node.open(node.jobs["job"], Share(1, 0, 1), None, 0, None, lambda: None)
    got: list[int] = []
    try:
        await node.settle()
        Unwilling.refusals = 1 << 30
        node.hands[1].die()
        node.extend(reader, 12)
        await run_until_idle(node, {reader: got})

        assert sorted(got) == list(range(12))
    finally:
        Unwilling.refusals = 0
        await node.close()


async def test_a_worker_that_cannot_be_started_now_is_started_later(store: SqliteStore) -> None:
    """No memory for a new process is no end: the node tries again, and readers go on."""
    ended: list[str] = []
    job = make_job(2)
    node = UnwillingNode({"job": job}, store, workers=1, bound_bytes=1 << 20)
    node.life.on_fatal = lambda: ended.append("ended")
    await node.start()
    reader = node.open(node.jobs["job"], Share(1, 0, 1), None, 0, None, lambda: None)
    got: list[int] = []
    try:
        Unwilling.refusals = 2
        node.hands[0].die()
        node.extend(reader, 10)
        async with asyncio.timeout(30):
            while len(got) < 10:
                await run_until_idle(node, {reader: got})
                # Time must pass: the node waits a moment before it tries again.
                await asyncio.sleep(0.01)

        assert Unwilling.refusals == 0
        assert ended == []
    finally:
        await node.close()


@pytest.mark.parametrize("failures", [1, 100])
async def test_a_job_that_cannot_be_set_up_costs_no_worker(
    failures: int, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker still answers what it was asked of that job, and that is no fault of its own."""
    rows = [{"x": [n]} for n in range(23)]
    good = Job(ItemsSource(rows), batch_size=1, lanes=2, name="good")
    bad = Job(ItemsSource(rows), batch_size=1, lanes=3, seed=1, name="bad")
    build, refused = InlineNode.built, list[bytes]()

    def built(definition: bytes, log_id: bytes) -> Job:
        if log_id == bad.log_id and len(refused) < failures:
            refused.append(log_id)
            raise SourceUnavailable("the mount is away")
        return build(definition, log_id)

    monkeypatch.setattr(InlineNode, "built", staticmethod(built))
    node = InlineNode({"bad": bad, "good": good}, store, workers=1, bound_bytes=1 << 20)
    await node.start()
    [worker] = node.hands
    readers = {
        node.open(job, Share(1, 0, 1), None, 0, None, lambda: None): list[int]()
        for job in (bad, good)
    }
    try:
        for reader in readers:  # before the worker has come to what it was told of their jobs
            node.extend(reader, 6)
        await run_until_idle(node, readers)
        again = node.open(bad, Share(1, 0, 1), None, 0, None, lambda: None)
        readers[again] = []
        node.extend(again, 6)
        await run_until_idle(node, readers)
        _, of_good, of_again = readers.values()

        assert refused
        assert (worker.fault, worker.dead) == (None, False)
        assert sorted(of_good) == [*range(6)]
        assert sorted(of_again) == ([] if failures > 1 else [*range(6)])
    finally:
        await node.close()


class Choosy(IdentityProcessor):
    """Might leave an item out, for all that anybody knows."""

    version: ClassVar[int | str | None] = 1
    one_to_one: ClassVar[bool] = False


async def test_one_refused_snapshot_costs_the_other_lanes_nothing(store: SqliteStore) -> None:
    """A lane whose role is impure is refused by name; snapshots of the others are written."""
    job = make_job(3, processor=Choosy())  # else its lanes go anywhere by arithmetic
    node = make_node(job, store)
    await node.start()
    await store.put_snapshots([SnapshotRecord(job.log_id, 1, 16, b"what another node found")])
    reader = node.open(node.jobs["job"], Share(1, 0, 1), None, 0, None, lambda: None)
    got: list[int] = []
    try:
        node.extend(reader, 3 * 17)
        await run_until_idle(node, {reader: got})
        assert len(got) == 51
        await node.snapshots.save()

        for lane in (0, 2):
            found = await store.nearest_snapshot(job.log_id, lane, 100)
            assert found is not None
            assert found.offset == 16
        kept = await store.nearest_snapshot(job.log_id, 1, 100)
        assert kept is not None
        assert kept.data == b"what another node found"
    finally:
        await node.close()


class Call:
    """A gRPC call as a handler sees it: what the consumer sends, and what it gets."""

    def __init__(self, requests: list[Any]) -> None:
        self.requests, self.replies = requests, list[bytes]()
        self.blocked = asyncio.Event()

    async def read(self) -> Any:
        """Return the consumer's next message, or raise what the connection did."""
        if not self.requests:
            await asyncio.Event().wait()
        request = self.requests.pop(0)
        if isinstance(request, Exception):
            raise request
        return request

    async def write(self, data: bytes) -> None:
        """Take a message; from the second on the consumer is stalled."""
        self.replies.append(data)
        if len(self.replies) > 1:
            self.blocked.set()
            await asyncio.Event().wait()

    def peer(self) -> str:
        """Return where the consumer is."""
        return "ipv6:%5B::1%5D:50051"

    def done(self) -> bool:
        """Tell that the call is over."""
        return True


def opening(horizon: int) -> bytes:
    """Return the first message of a consumer of everything."""
    message = feed_pb2.Open(protocol=PROTOCOL, job="job", world_size=1, horizon=horizon)
    return feed_pb2.ReadRequest(open=message).SerializeToString()


async def test_many_jobs_share_one_bound(store: SqliteStore) -> None:
    """What is kept for late readers of one job gives way to another job's batches."""
    sizes = range(8)
    items = ItemsSource([{"x": [n] * 100} for n in range(23)])
    jobs = {f"job{n}": Job(items, batch_size=1, lanes=1, seed=n, name=f"job{n}") for n in sizes}
    bound = 8 * 1024
    node = InlineNode(jobs, store, workers=1, bound_bytes=bound)
    await node.start()
    readers = {
        name: node.open(node.jobs[name], Share(1, 0, 1), None, 0, None, lambda: None)
        for name in jobs
    }
    try:
        for position in range(30):
            for name, reader in readers.items():
                # Nothing is wanted but what is owed next, which is always admitted.
                node.extend(reader, position + 1)
                got: list[int] = []
                await run_until_idle(node, {reader: got})
                assert got == [position], name
                largest = max(log.largest_bytes for log in node.logs.values())
                held = sum(log.busy_bytes for log in node.logs.values())
                assert held <= bound + len(readers) * largest, (name, position)
                assert held <= bound + largest, (name, position)
    finally:
        await node.close()


async def test_a_death_is_blamed_on_the_job_that_the_worker_was_at(store: SqliteStore) -> None:
    """Two jobs have a lane 0 in the same worker, and an item of one of them ends it."""
    items = ItemsSource([{"x": [n]} for n in range(5)])
    jobs = {
        name: Job(items, batch_size=1, lanes=1, seed=seed, name=name)
        for seed, name in enumerate(("good", "bad"))
    }
    node = InlineNode(jobs, store, workers=1, bound_bytes=1 << 20)
    await node.start()
    readers = [
        node.open(node.jobs[name], Share(1, 0, 1), None, 0, None, lambda: None) for name in jobs
    ]
    try:
        await node.settle()
        for reader in readers:
            node.extend(reader, 1)
        await node.settle()
        [worker] = node.hands
        assert {ticket.log.job.name for ticket in worker.tickets.values()} == set(jobs)
        bad = jobs["bad"].log_id.hex()
        worker.die(stage="process", of=bad, lane=0, item=ItemRef("main", 3, 0))

        deaths = {name: node.log(job).lanes[0].deaths for name, job in jobs.items()}
        assert deaths == {"good": {}, "bad": {0: ["main[3] in epoch 0"]}}
    finally:
        await node.close()


async def test_a_draining_node_takes_no_stream_in(store: SqliteStore) -> None:
    """Readers that come back at once hear it again, and do not keep the node from ending."""
    node = make_node(make_job(2), store)
    await node.start()
    service = Service(node, store, Metrics("test"))
    call = Call([opening(4)])
    try:
        await service.drain(1.0)
        async with asyncio.timeout(30):
            await service._read(None, call)  # type: ignore[arg-type]  # it reads by the call

        [reply] = [feed_pb2.ReadReply.FromString(data) for data in call.replies]
        assert reply.HasField("draining")
        assert node.log(node.jobs["job"]).produced == 0
    finally:
        await node.close()


@pytest.mark.parametrize("requests", [[RuntimeError("rpc already finished")], [EOF], [b"\xff"]])
async def test_a_stream_that_breaks_leaves_nothing_behind(
    requests: list[Any], store: SqliteStore
) -> None:
    """However its connection ends, a reader's demand and its stream end with it."""
    node = make_node(make_job(2), store)
    await node.start()
    service = Service(node, store, Metrics("test"))
    call = Call([opening(0), *requests])
    try:
        async with asyncio.timeout(30):
            await service._read(None, call)  # type: ignore[arg-type]  # it reads by the call

        assert not node.log(node.jobs["job"]).readers
        assert not service.streams
    finally:
        await node.close()


async def test_a_cancelled_stream_lets_its_batch_go(store: SqliteStore) -> None:
    """Cut off in the middle of a write: the batch is free again, and nobody wants anything."""
    node = make_node(make_job(2), store)
    await node.start()
    service = Service(node, store, Metrics("test"))
    call = Call([opening(4)])
    reading = asyncio.ensure_future(service._read(None, call))  # type: ignore[arg-type]
    try:
        async with asyncio.timeout(30):
            while not call.blocked.is_set():
                await node.settle()
                for hand in node.hands:
                    hand.answer_one()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            while any([hand.answer_one() for hand in node.hands]):  # noqa: C419 - each
                await node.settle()

        one = node.log(node.jobs["job"])
        one.cached.shed()
        assert not one.readers
        assert not service.streams
        assert not one.entries
        assert (one.ready_bytes, one.cached.nbytes, one.making) == (0, 0, 0)
        assert all(arena.spans == 0 for hand in node.hands for arena in hand.arenas.values())
    finally:
        await node.close()


class Broken(Call):
    """A gRPC call whose connection breaks before gRPC knows that the call is over."""

    def __init__(self, requests: list[bytes], breaks: str) -> None:
        super().__init__(requests)
        self.breaks, self.aborted = breaks, False

    async def read(self) -> Any:
        """Return the next message, or break."""
        if self.breaks == "read":
            raise grpc.aio.InternalError("Failed ExecuteBatch")
        return await super().read()

    async def write(self, data: bytes) -> None:
        """Break."""
        raise grpc.aio.InternalError("Failed ExecuteBatch")

    async def abort(self, *args: Any) -> None:
        """Note that somebody was to be told."""
        self.aborted = True

    def done(self) -> bool:
        """Tell that the call goes on."""
        return False


@pytest.mark.parametrize("breaks", ["read", "write"])
async def test_a_connection_that_breaks_is_no_bug(store: SqliteStore, breaks: str) -> None:
    """Nobody is left to tell, and nothing went wrong here: no line at ERROR, and no abort."""
    node = make_node(make_job(2), store)
    await node.start()
    service = Service(node, store, Metrics("test"))
    call = Broken([opening(4)], breaks)
    try:
        with capture_logs() as said:
            await asyncio.wait_for(service._read(None, call), 30)  # type: ignore[arg-type]

        assert not [line for line in said if line["log_level"] in ("warning", "error")]
        assert not call.aborted
        assert not service.streams
    finally:
        await node.close()


@pytest.mark.parametrize("name", ["job", "twin"])
async def test_a_snapshot_that_differs_stops_its_lane(store: SqliteStore, name: str) -> None:
    """Readers are told what differs; what is ready of that lane, and not sent, goes to nobody.

    So it is by every name of the log; other lanes go on.
    """
    jobs = {
        one: make_job(2, processor=Through(), snapshot_every=4, name=one) for one in ("job", "twin")
    }
    await store.put_snapshots([SnapshotRecord(jobs["job"].log_id, 1, 4, b"another history")])
    node = InlineNode(jobs, store, workers=1, bound_bytes=1 << 20)
    await node.start()
    try:
        reader = node.open(node.jobs[name], Share(1, 0, 1), None, 0, None, lambda: None)
        node.extend(reader, 8)
        for _ in range(200):
            await node.settle()
            for hand in node.hands:
                hand.answer_one()
        assert node.log(node.jobs[name]).ready_bytes > 0
        first = node.take(reader)
        assert first is not None
        assert reader.pending[1].body is not None
        await node.snapshots.save()

        with pytest.raises(LogDiverged, match="snapshot of lane 1 at offset 4") as caught:
            node.take(reader)
        assert caught.value.fields["ours"] != caught.value.fields["theirs"]
        late = node.open(node.jobs["twin"], Share(1, 0, 1), None, 1, [1], lambda: None)
        node.extend(late, 4)
        with pytest.raises(LogDiverged):
            node.take(late)
        other = node.open(node.jobs[name], Share(1, 0, 1), None, 2, [0], lambda: None)
        node.extend(other, 12)
        entry = node.take(other)
        assert entry is not None
        assert entry.key.position == 2
        assert node.log(node.jobs[name]).ready_bytes >= 0
        assert not node.snapshots.unsaved
    finally:
        await node.close()


async def test_two_names_of_a_log_share_its_batches(store: SqliteStore) -> None:
    """Each is made once; a reader may go as far as the job that it names lets it."""
    jobs = {
        "near": make_job(2, processor=Through(), max_replay=8, name="near"),
        "far": make_job(2, processor=Through(), max_replay=1000, name="far"),
    }
    node = InlineNode(jobs, store, workers=1, bound_bytes=1 << 20)
    await node.start()
    try:
        readers = {
            name: node.open(job, Share(1, 0, 1), None, 0, None, lambda: None)
            for name, job in jobs.items()
        }
        got: dict[StreamDemand, list[int]] = {reader: [] for reader in readers.values()}
        for reader in got:
            node.extend(reader, 20)
        await run_until_idle(node, got)
        one = node.log(jobs["far"])
        assert all(positions == list(range(20)) for positions in got.values())
        assert one is node.log(jobs["near"])
        assert (len(node.logs), one.recomputed) == (1, 0)
        # Those made ahead of readers, too, and each once.
        assert 20 <= one.produced <= 20 + CHEAP_AHEAD * AHEAD_PER_WORKER

        streams = Streams(store, Metrics("1"))
        wanted = AutoscalingSignal(node, streams, Metrics("1"))
        found = status(node, streams, Metrics("1"), wanted, lent_bytes=0, draining=False)["jobs"]
        told = {job["name"]: job for job in found}
        assert {name: job["produced"] for name, job in told.items()} == {
            "far": 0,
            "near": one.produced,
        }

        for name, reaches in (("near", False), ("far", True)):
            reader = node.open(jobs[name], Share(1, 0, 1), None, 400, None, lambda: None)
            node.extend(reader, 401)
            await node.settle()
            while any(hand.answer_one() for hand in node.hands):
                await node.settle()
            if reaches:
                assert node.take(reader) is not None
            else:
                with pytest.raises(PositionFar, match="max_replay = 8"):
                    node.take(reader)
            node.leave(reader)
    finally:
        await node.close()


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ({"on_item_error": "quarantine"}, "their on_item_error is stop and quarantine"),
        ({"max_quarantined": 3}, "their max_quarantined is 1000 and 3"),
    ],
)
async def test_two_names_of_a_log_agree_on_its_items(
    store: SqliteStore, policy: dict[str, Any], sentence: str
) -> None:
    """A verdict is a fact of the log: it cannot hold for one name and not for the other."""
    jobs = {"one": make_job(2, name="one"), "other": make_job(2, name="other", **policy)}
    node = InlineNode(jobs, store, workers=1, bound_bytes=1 << 20)

    with pytest.raises(InvalidJob, match=f"jobs 'one' and 'other' are one log, .* {sentence}"):
        await node.start()
