"""What one node does another hears of through the store: fences, deletions, halts, its own id."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from typing_extensions import override

from penstock.client import Loader
from penstock.server.store.in_memory import MemoryStore
from penstock.server.store.records import Halt
from penstock.server.store.transacting import Transaction
from penstock.wire import PROTOCOL, errors
from penstock.wire.v1 import feed_pb2
from unit.served import ServedNode, make_job, wait_until


@contextlib.contextmanager
def two_nodes(**plan: Any) -> Iterator[tuple[ServedNode, ServedNode]]:
    """Give two nodes that serve one job from one store."""
    job = make_job(**plan)
    with ServedNode(job) as one, ServedNode(job, memory=one.memory) as two:
        yield one, two


def loader(node: ServedNode, attempt: str = "t1", **given: Any) -> Loader:
    """Return a reader of group `run`, whose first batch has come."""
    given = {"rank": 0, "world_size": 1, **given}
    found = Loader(node.address, "code", group="run", batches_per_step=6, attempt=attempt, **given)
    next(iter(found))
    return found


def read_on(reader: Loader, seen: list[int] | None = None) -> None:
    """Read until an error ends it; note the positions."""
    for batch in reader:
        if seen is not None:
            seen.append(batch.position)


def test_a_reader_is_fenced_by_an_attempt_that_began_at_another_node() -> None:
    """It ends with the error that it would have at its own, which says who has taken over."""
    with two_nodes() as (one, two), loader(one) as old, loader(two, "t2"):
        with pytest.raises(errors.StaleGeneration, match="began generation 2") as caught:
            read_on(old)

        assert (caught.value.generation, caught.value.current) == (1, 2)
        assert one.service.metrics.fenced_elsewhere._value.get() == 1


def test_a_reader_of_a_group_that_another_node_moved_is_fenced() -> None:
    """A seek is told as one."""
    with two_nodes() as (one, two), loader(one) as old:
        two.call(two.store.seek("code", "run", 40, "", "ada"))

        with pytest.raises(errors.StaleGeneration, match="ada moved the cursor to step 40"):
            read_on(old)


def test_a_reader_of_a_group_that_another_node_deleted_ends() -> None:
    """And is told what to do."""
    with two_nodes() as (one, two), loader(one) as old:
        two.call(two.store.delete_group("code", "run"))

        with pytest.raises(errors.UnknownGroup, match="deleted by another node"):
            read_on(old)


def test_an_attempt_that_began_elsewhere_a_moment_ago_is_known_here() -> None:
    """Whoever presents its token is let in; whoever was fenced by it is not."""
    with two_nodes() as (one, two), loader(one), loader(two, "t2") as new:
        with loader(one, "t2") as joined:
            assert next(iter(joined)).position == 1
        with pytest.raises(errors.StaleGeneration):
            loader(two, "t1")
        next(iter(new))


def test_no_rank_enters_the_step_of_a_lane_that_stopped_at_another_node() -> None:
    """All are told, also those that do not read the lane; and before, all that comes before."""
    with two_nodes(lanes=2) as (one, two):
        ranks = [loader(one, rank=rank, world_size=2) for rank in range(2)]
        offset = 2000
        halt = Halt(0, offset, "worker_crashed", "item 7 ends workers", {"lane": 0}, "another")
        two.call(two.store.add_halt(one.log_id, halt))
        log = one.service.node.logs[one.log_id]
        wait_until(lambda: log.withheld.elsewhere, "the halt is heard of")

        step = 2 * offset // 6
        for rank, reader in enumerate(ranks):
            seen: list[int] = []
            with pytest.raises(errors.WorkerCrashed, match="stopped at node another") as caught:
                read_on(reader, seen)
            assert seen[-1] == 6 * step - 2 + rank
            assert caught.value.more["halted_from"] == 6 * step
            reader.close()


def test_a_rank_that_has_its_part_of_that_step_does_not_enter_it() -> None:
    """What has come already stays in its slots: another rank cannot end the step."""
    with two_nodes(lanes=2) as (one, two), loader(one, world_size=2, prefetch=30) as reader:
        [stream] = one.service.streams
        wait_until(lambda: stream.reader.head > 40, "it has batches of many steps")
        halt = Halt(0, 9, "worker_crashed", "item 7 ends workers", {"lane": 0}, "another")
        two.call(two.store.add_halt(one.log_id, halt))
        slots = reader._reader.feed()._slots
        wait_until(lambda: slots._error is not None, "it is told")

        assert slots.get(40) is not None
        seen: list[int] = []
        with pytest.raises(errors.WorkerCrashed):
            read_on(reader, seen)
        assert seen[-1] == 16


def test_a_halt_is_over_when_its_node_begins_again() -> None:
    """Then the others read on."""
    with two_nodes(lanes=2) as (one, two), loader(one):
        log = one.service.node.logs[one.log_id]
        halt = Halt(0, 1 << 20, "worker_crashed", "why", {}, "another")
        two.call(two.store.add_halt(one.log_id, halt))
        wait_until(lambda: log.withheld.elsewhere, "the halt is heard of")
        two.call(two.store.lift_halts(one.log_id, "another"))

        wait_until(lambda: not log.withheld.elsewhere, "the halt is lifted")


def test_two_nodes_of_one_id_say_so_at_both() -> None:
    """The later one wins: its number is the higher one, which readers compare."""
    job = make_job()
    with (
        ServedNode(job, node_id="same") as one,
        ServedNode(job, memory=one.memory, node_id="same") as two,
    ):
        assert one.service.following.incarnation < two.service.following.incarnation
        with loader(one), loader(two, "t1"):
            wait_until(
                lambda: {line.get("wins") for line in two.said} >= {"ours", "other"}, "both warn"
            )

    [warned] = [line for line in two.said if line.get("wins") == "other"]
    assert (warned["ours"], warned["other"], warned["log_level"]) == (1, 2, "warning")


def test_describe_tells_what_lanes_are_dealt_by() -> None:
    """The id, how often it has begun, workers, and that reading begins anywhere."""
    with ServedNode(node_id="a") as node:
        for incarnation in (1, 2):
            request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="code")
            data = node.call(node.service._describe(request.SerializeToString()))
            reply = feed_pb2.DescribeReply.FromString(data)
            assert (reply.node_id, reply.incarnation, reply.workers) == ("a", incarnation, 1)
            assert (reply.draining, list(reply.units), reply.snapshot_every) == (False, [], 0)
            node.stop()
            node.start()


class _CutOff(MemoryStore):
    """A store that can be cut off."""

    is_cut = False

    @override
    async def transact(self, transaction: Transaction[Any]) -> Any:
        if self.is_cut:
            raise errors.StoreUnavailable("the store was cut off by a test")
        return await super().transact(transaction)


def test_after_a_minute_without_the_store_no_attempt_is_served() -> None:
    """Those that read are ended, by name; readers without a group go on, and so does the node."""
    with ServedNode() as node, loader(node) as reader, Loader(node.address, "code") as looking:
        following = node.service.following
        node.store.__class__ = _CutOff
        node.store.is_cut = True  # type: ignore[attr-defined]
        next(iter(looking))
        next(iter(reader))  # for a minute it goes on
        following._heard_at -= 60.0

        [stream] = [each for each in node.service.streams if each.request.token]
        wait_until(lambda: stream.error is not None, "its stream is ended")
        assert isinstance(stream.error, errors.StoreUnavailable)
        assert "does not know whether this attempt was fenced" in str(stream.error)
        with pytest.raises(errors.StoreUnavailable):
            following.check_away()
        for _ in range(100):
            next(iter(looking))
        node.store.is_cut = False  # type: ignore[attr-defined]
        for _ in range(100):
            next(iter(reader))


def test_a_node_that_serves_no_attempt_is_left_once_and_not_gone_back_to(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It answers, as it would alone; what it serves no more it says, until the store is back."""
    failover = "penstock.client.reading.failover"
    monkeypatch.setattr("penstock.client.nodes.placement.HEALTHY_S", 0.2)
    for name, value in (("TICK_S", 0.05), ("AGAIN_S", 0.1), ("TRIAL_S", 0.1), ("SILENT_S", 30.0)):
        monkeypatch.setattr(f"{failover}.{name}", value)
    with two_nodes(lanes=6) as (one, two):
        target = f"{one.address},{two.address}"
        given: dict[str, Any] = {"rank": 0, "world_size": 1, "batches_per_step": 6}
        with (
            Loader(target, "code", group="run", attempt="t1", **given) as reader,
            caplog.at_level("WARNING", "penstock"),
        ):
            batches = iter(reader)
            for _ in range(60):
                next(batches)
            two.store.__class__ = _CutOff
            two.store.is_cut = True  # type: ignore[attr-defined]
            two.service.following._heard_at -= 60.0
            wait_until(lambda: next(batches) and _left(caplog, two), "it is left")
            end = time.monotonic() + 2.0
            while time.monotonic() < end:  # ten times as long as a node has to be healthy for
                next(batches)
            assert len(_left(caplog, two)) == 1, _left(caplog, two)
            assert "has not reached the store" in _left(caplog, two)[0]

            two.store.is_cut = False  # type: ignore[attr-defined]
            wait_until(lambda: next(batches) and len(two.service.streams), "it is read again")


def _left(caplog: pytest.LogCaptureFixture, node: ServedNode) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    return [text for text in found if f"{node.address} is left" in text]
