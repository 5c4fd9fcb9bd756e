"""Nodes that die, hang, drain, refuse and come back: each position comes once, with its bytes."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import Server, write_job_file
from invariants import eventually
from links import Link
from penstock.client.bodies.buffers import BufferPool
from penstock.client.calls.control import Control
from penstock.client.calls.grpc_transport import open_transport
from penstock.client.nodes.dealing import LaneUnits
from penstock.client.nodes.fixed_nodes import FixedNodes
from penstock.client.nodes.known_node import KnownNode
from penstock.client.reading.feed import Feed, WantedPositions
from penstock.client.reading.route_set import Prefetch
from penstock.client.session.session import Session
from penstock.wire.errors import DataTimeout, JobChanged, Unreachable
from penstock.wire.order import Share

LANES, EVERY = 6, 4
SOURCE = {"type": "items", "items": [{"x": [number] * 9} for number in range(61)]}
JOBS: dict[str, Any] = {
    "endless": {"lanes": LANES, "source": SOURCE, "batch_size": 2, "snapshot_every": EVERY},
    "finite": {"lanes": LANES, "epochs": 4, "source": SOURCE, "batch_size": 1},
}
SPECIAL = {"endless": {**JOBS["endless"], "seed": 9}, "finite": JOBS["finite"]}


class Cluster:
    """Some nodes of one job file, each with a store of its own, behind a link of its own.

    Args:
        folder: Where they lie.
        count: How many there are.
    """

    def __init__(self, folder: Path, count: int = 3) -> None:
        self.servers: list[Server] = []
        self.links: list[Link] = []
        self.ending: set[int] = set()
        for number in range(count):
            place = folder / f"node-{number}"
            place.mkdir()
            file = write_job_file(
                place / "jobs.yaml", JOBS, store=f"sqlite:///{place}/store.db", drain_seconds=3.0
            )
            self.servers.append(Server(file).start(wait=False))
        for server in self.servers:
            server.wait_ready()
            # It comes back where it was.
            server.command += ["--listen", server.address]
            self.links.append(Link(server.address).__enter__())

    def close(self) -> None:
        """End everything."""
        for server in self.servers:
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
            server.close()
        for link in self.links:
            link.__exit__()

    def start(self, number: int) -> None:
        """Start a node again that ends, or has ended; return before it is ready."""
        server = self.servers[number]
        server.wait_end()
        server.start(wait=False)

    def mend(self) -> None:
        """Have every node up, and every link whole."""
        for number, (server, link) in enumerate(zip(self.servers, self.links, strict=True)):
            link.mend()
            link.delay_s = 0.0
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
            if number in self.ending or server.process.poll() is not None:
                self.start(number)
        self.ending.clear()
        for server in self.servers:
            server.wait_ready()

    def drain(self, number: int) -> None:
        """Have a node end by itself; it does so later."""
        self.ending.add(number)
        self.servers[number].process.terminate()

    @contextlib.contextmanager
    def feeding(
        self, job: str, share: Share, stop: int | None, *, only: Sequence[int] | None = None
    ) -> Iterator[Feed]:
        """Return a feed over the nodes, and end it."""
        numbers = range(len(self.links)) if only is None else only
        with contextlib.ExitStack() as stack:
            nodes = []
            for number in numbers:
                target = self.links[number].address
                transport = open_transport(target)
                stack.callback(transport.close)
                nodes.append(KnownNode(f"node-{number}", 0, target, transport, 1))
            info = Control(nodes[0].transport, job, nodes[0].target, 60.0).describe()
            session = Session(
                target=nodes[0].target,
                job=job,
                timeline=((0, info.log_id),),
                store="",
                batches=info.batches if info.HasField("batches") else None,
                share=share,
                units=LaneUnits(info.lanes, snapshot_every=EVERY),
                finite=info.finite,
                given_from=0,
            )
            wanted = WantedPositions(0, stop, Prefetch(4, 1 << 20), 1 << 20)
            feed = Feed(FixedNodes(nodes), session, wanted, BufferPool(9))
            try:
                yield feed
            finally:
                feed.cancel()
                feed.join(20.0)


@pytest.fixture(scope="module")
def all_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def cluster(all_nodes: Cluster) -> Iterator[Cluster]:
    """Three nodes, all of them up before and after."""
    all_nodes.mend()
    yield all_nodes
    all_nodes.mend()


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what takes half a minute take half a second; a node says something every 5 s."""
    monkeypatch.setattr("penstock.client.nodes.placement.HEALTHY_S", 0.5)
    monkeypatch.setattr("penstock.client.reading.failover.AGAIN_S", 0.3)
    monkeypatch.setattr("penstock.client.reading.failover.SILENT_S", 6.0)


Read = list[tuple[int, int, str]]


def read(
    feed: Feed, share: Share, faults: Mapping[int, Callable[[], None]], deadline_s: float = 60.0
) -> tuple[Read, list[int]]:
    """Read to the end; return position, lane and digest of each batch, and which node gave it.

    Args:
        feed: What is read.
        share: The rank's positions.
        faults: What happens as soon as a position was given.
        deadline_s: For one batch.
    """
    found: Read = []
    nodes: list[int] = []
    for position in share.walk(0):
        feed.release(position, 0)
        delivery = feed.take(position, deadline_s)
        if delivery is None:
            return found, nodes
        header = delivery.header
        data = header.SerializeToString(deterministic=True) + delivery.lease.array.tobytes()
        found.append((header.position, header.lane, hashlib.sha256(data).hexdigest()))
        nodes.append(delivery.route)
        if position in faults:
            faults[position]()
    raise AssertionError("positions go on without end")


def alone(cluster: Cluster, job: str, share: Share, stop: int | None) -> Read:
    """Read from one node."""
    with cluster.feeding(job, share, stop, only=[0]) as feed:
        return read(feed, share, {})[0]


@pytest.mark.parametrize("job", ["endless", "finite"])
@pytest.mark.parametrize("fault", ["killed", "drained", "stopped", "cut"])
@pytest.mark.usefixtures("_soon")
def test_the_units_of_a_node_that_is_gone_are_read_from_others(
    cluster: Cluster, fault: str, job: str, caplog: pytest.LogCaptureFixture
) -> None:
    """However it went: nothing is lost, comes twice or differs, and it is said once."""
    share = Share(6, 0, 1)
    stop = 150 if job == "endless" else None
    expected = alone(cluster, job, share, stop)
    server, link = cluster.servers[1], cluster.links[1]
    happens = {
        "killed": server.kill,
        "drained": lambda: cluster.drain(1),
        "stopped": lambda: server.process.send_signal(signal.SIGSTOP),
        "cut": link.cut,
    }[fault]
    with (
        cluster.feeding(job, share, stop) as feed,
        caplog.at_level(logging.INFO, "penstock"),
    ):
        found, nodes = read(feed, share, {40: happens})

        assert found == expected
        assert set(nodes[:20]) == {0, 1, 2}
        assert set(nodes[60:]) == {0, 2}
        assert feed.reconnects == 1
        reasons = {"killed": "broke", "drained": "drains", "stopped": "silent", "cut": "silent"}
        assert feed.failovers == {reasons[fault]: 1}
    said = [record.getMessage() for record in caplog.records if "is left" in record.getMessage()]
    assert len(said) == 1
    assert link.address in said[0]
    assert "2 of 6 units move" in said[0]
    # Where lanes of a finite log end is not known to a reader: it asks a node that may owe nothing.
    silent = "has said nothing" if job == "endless" else "does not answer within"
    why = {"killed": "no answer", "drained": "shuts down", "stopped": silent, "cut": silent}
    assert why[fault] in said[0]


@pytest.mark.usefixtures("_soon")
def test_a_node_that_is_back_gets_its_units_again_at_a_snapshot(cluster: Cluster) -> None:
    """Its first batch from then on is the first of a row of snapshots."""
    share = Share(6, 0, 1)
    stop = 1200
    expected = alone(cluster, "endless", share, stop)
    server = cluster.servers[1]
    back = threading.Event()

    def returns() -> None:
        server.start()
        back.set()

    with cluster.feeding("endless", share, stop) as feed:
        slow = {position: lambda: back.wait(0.02) and None for position in range(80, 1000)}
        slow[400] = lambda: eventually(
            lambda: (
                "node-1" in feed._failover._placement.owners  # type: ignore[union-attr]
                or feed._failover._placement.planned is not None
            ),  # type: ignore[union-attr]
            60,
            "the node is dealt units again",
        )
        found, nodes = read(feed, share, {**slow, 40: server.kill, 60: returns})  # type: ignore[dict-item]

    assert found == expected
    assert 1 in nodes[60:]
    first = nodes.index(1, 60)
    assert first % (LANES * EVERY) < LANES, f"it came back at position {first}"
    assert set(nodes[60:first]) == {0, 2}


@pytest.mark.usefixtures("_soon")
def test_two_of_three_may_go_and_come_back(cluster: Cluster) -> None:
    share = Share(6, 1, 2)
    expected = alone(cluster, "endless", share, 400)
    one, other = cluster.servers[0], cluster.servers[2]

    def both_die() -> None:
        one.kill()
        other.kill()

    def come_back() -> None:
        one.start()
        other.start()

    def the_last_one_dies() -> None:
        cluster.servers[1].kill()

    with cluster.feeding("endless", share, 400) as feed:
        faults = {61: both_die, 101: come_back, 141: the_last_one_dies}
        assert read(feed, share, faults)[0] == expected


@pytest.mark.usefixtures("_soon")
def test_where_all_are_gone_each_is_named_and_reading_goes_on_when_one_is_back(
    cluster: Cluster,
) -> None:
    share = Share(6, 0, 1)
    expected = alone(cluster, "endless", share, 120)
    with cluster.feeding("endless", share, 120) as feed:
        found: Read = []
        for position in range(120):
            feed.release(position, 0)
            try:
                delivery = feed.take(position, 60.0 if position < 40 else 4.0)
            except (Unreachable, DataTimeout) as error:
                text = error.message
                assert all(link.address in text for link in cluster.links), text
                cluster.servers[2].start()
                delivery = feed.take(position, 60.0)
            assert delivery is not None
            header = delivery.header
            data = header.SerializeToString(deterministic=True) + delivery.lease.array.tobytes()
            found.append((header.position, header.lane, hashlib.sha256(data).hexdigest()))
            if position == 40:
                for server in cluster.servers:
                    server.kill()
        assert found == expected


@pytest.mark.usefixtures("_soon")
def test_a_connection_that_is_reset_moves_nothing(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    share = Share(6, 0, 1)
    expected = alone(cluster, "endless", share, 150)
    with cluster.feeding("endless", share, 150) as feed, caplog.at_level(logging.INFO, "penstock"):
        found, nodes = read(feed, share, {40: cluster.links[1].reset, 80: cluster.links[2].reset})

    assert found == expected
    assert set(nodes[120:]) == {0, 1, 2}
    assert not [record for record in caplog.records if "is left" in record.getMessage()]


def test_a_node_that_serves_another_log_is_left_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others read on; where all say so the job has changed."""
    cluster = Cluster(tmp_path, 2)
    try:
        share = Share(6, 0, 1)
        expected = alone(cluster, "endless", share, 60)

        def changes(number: int) -> None:
            server = cluster.servers[number]
            server.kill()
            write_job_file(
                Path(server.file), SPECIAL, store=f"sqlite:///{tmp_path}/other-{number}.db"
            )
            server.start()

        with (
            cluster.feeding("endless", share, 60) as feed,
            caplog.at_level(logging.WARNING, "penstock"),
        ):
            # The feed has not begun: each stream's first answer is the refusal.
            changes(1)
            assert read(feed, share, {})[0] == expected
        [said] = [r.getMessage() for r in caplog.records if "is left" in r.getMessage()]
        assert cluster.links[1].address in said
        with cluster.feeding("endless", share, 60, only=[1]) as first:
            session = first._session
        with cluster.feeding("endless", share, 60) as feed:
            assert session.log_id != feed._session.log_id
            changes(0)
            with pytest.raises(JobChanged):
                read(feed, share, {})
    finally:
        cluster.close()


# --- seeded faults ---


def schedule(cluster: Cluster, seed: int, faults: int) -> None:
    """Two ranks read while faults happen at random; each gets what one node gives."""
    rng = random.Random(seed)
    stop, every = 40 * faults, 40 * faults // (faults + 1)
    shares = [Share(6, rank, 2) for rank in range(2)]
    expected = [alone(cluster, "endless", share, stop) for share in shares]
    down: list[Callable[[], object]] = []
    ending = cluster.ending

    def fault() -> None:
        # What is away comes back first, or later, so that there is always one.
        while down and (len(down) == len(cluster.servers) - 1 or rng.random() < 0.4):
            down.pop(rng.randrange(len(down)))()
        number = rng.choice([at for at in range(len(cluster.servers)) if at not in ending])
        server, link = cluster.servers[number], cluster.links[number]
        what = rng.choice(["kill", "stop", "cut", "reset", "reset", "delay"])
        if what == "reset":
            link.reset()
        elif what == "delay":
            link.delay_s = rng.choice([0.0, 0.002, 0.01])
        elif what == "cut":
            link.cut()
            down.append(link.mend)
        elif what == "stop":
            server.process.send_signal(signal.SIGSTOP)
            down.append(lambda: server.process.send_signal(signal.SIGCONT))
        elif server.process.poll() is None:
            ending.add(number)
            server.process.send_signal(rng.choice([signal.SIGKILL, signal.SIGTERM]))
            server.process.send_signal(signal.SIGCONT)

            def starts() -> None:
                cluster.start(number)
                ending.discard(number)

            down.append(starts)

    results: list[Any] = [None, None]

    def run(rank: int) -> None:
        share = shares[rank]
        happen = dict.fromkeys(range(every, stop, every), fault) if rank == 0 else {}
        own = {share.at_or_after(at): what for at, what in happen.items()}
        try:
            with cluster.feeding("endless", share, stop) as feed:
                results[rank] = read(feed, share, own, 120.0)[0]
        except BaseException as error:
            results[rank] = error

    ranks = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(300)
    for rank, result in enumerate(results):
        if isinstance(result, BaseException):
            raise AssertionError(f"seed {seed}, rank {rank}") from result
        differs = [a for a, b in zip(result, expected[rank], strict=True) if a != b]
        assert not differs, f"seed {seed}, rank {rank}: {differs[:3]}"


@pytest.fixture
def _very_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nodes that are merely slow, too: nothing may depend on being right about that."""
    monkeypatch.setattr("penstock.client.nodes.placement.HEALTHY_S", 0.3)
    monkeypatch.setattr("penstock.client.reading.failover.AGAIN_S", 0.2)
    monkeypatch.setattr("penstock.client.reading.failover.TRIAL_S", 0.3)
    monkeypatch.setattr("penstock.client.reading.failover.SILENT_S", 0.7)
    monkeypatch.setattr("penstock.client.reading.failover.OPEN_S", 0.5)
    monkeypatch.setattr("penstock.client.reading.failover.PROBE_S", 0.5)


@pytest.mark.parametrize("faults", [20, 200])
@pytest.mark.usefixtures("_very_soon")
def test_each_position_comes_once_through_random_faults(cluster: Cluster, faults: int) -> None:
    schedule(cluster, random.randrange(1 << 32), faults)
