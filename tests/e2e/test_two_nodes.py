"""One feed over two real nodes with dealt lanes; and ends that were not told before."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from harness import Server, serving, write_job_file
from penstock.client import Loader
from penstock.client.bodies.buffers import BufferPool
from penstock.client.calls.control import Control
from penstock.client.calls.grpc_transport import open_transport
from penstock.client.nodes.dealing import LaneUnits
from penstock.client.nodes.fixed_nodes import FixedNodes
from penstock.client.nodes.known_node import KnownNode
from penstock.client.reading.feed import Feed, WantedPositions
from penstock.client.reading.route_set import Prefetch
from penstock.client.session.session import Session
from penstock.wire.order import Share
from penstock.wire.transports import ReadCall, Transport
from penstock.wire.v1 import feed_pb2

LANES = 5
SOURCE = {"type": "items", "items": [{"x": [number] * 9} for number in range(61)]}
JOBS = {
    "finite": {"lanes": LANES, "epochs": 3, "source": SOURCE, "batch_size": 2},
    "endless": {"lanes": LANES, "source": SOURCE, "batch_size": 2},
    # Nobody counts it: each node finds out where lanes end, also those that the other one serves.
    "late": {
        "lanes": LANES,
        "epochs": 2,
        "source": SOURCE | {"items": [{"x": number} for number in range(61)]},
        "function": "./roles.py:sometimes",
        "batch_size": 2,
    },
}
ROLES = """
import sys
import time


def sometimes(raw):
    while sys.argv[0].endswith("count.py"):
        time.sleep(0.1)
    return [{"x": [raw["x"]] * 9}] * (raw["x"] % 3)
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Two nodes with one job file and a store each."""
    with contextlib.ExitStack() as open_nodes:
        found = []
        for name in ("one", "other"):
            folder = tmp_path_factory.mktemp(name)
            (folder / "roles.py").write_text(ROLES)
            store = f"sqlite:///{folder}/store.db"
            file = write_job_file(folder / "jobs.yaml", JOBS, store=store)
            found.append(open_nodes.enter_context(serving(file)))
        yield found


@dataclass
class Read:
    """What a feed over some nodes is made of."""

    session: Session
    nodes: FixedNodes


@contextlib.contextmanager
def connected(servers: list[Server], job: str, share: Share) -> Iterator[Read]:
    """Describe a job at each node, and deal its lanes to them."""
    with contextlib.ExitStack() as stack:
        transports = []
        for server in servers:
            transports.append(open_transport(server.address))
            stack.callback(transports[-1].close)
        told = [
            Control(transport, job, server.address, 30.0).describe()
            for transport, server in zip(transports, servers, strict=True)
        ]
        assert len({info.log_id for info in told}) == 1
        session = Session(
            target=servers[0].address,
            job=job,
            timeline=((0, told[0].log_id),),
            store=told[0].store,
            batches=told[0].batches if told[0].HasField("batches") else None,
            share=share,
            units=LaneUnits(told[0].lanes, tuple(told[0].units), told[0].log_id),
            finite=told[0].finite,
        )
        nodes = [
            KnownNode(info.node_id, 0, server.address, transport, info.workers)
            for info, transport, server in zip(told, transports, servers, strict=True)
        ]
        yield Read(session, FixedNodes(nodes))


@contextlib.contextmanager
def feeding(read: Read, stop: int | None, **options: Any) -> Iterator[Feed]:
    """Return a feed of the dealt nodes, and end it."""
    given = {"prefetch": 7, "prefetch_bytes": 1 << 20, "max_body_bytes": 1 << 20} | options
    prefetch = Prefetch(given["prefetch"], given["prefetch_bytes"])
    wanted = WantedPositions(0, stop, prefetch, given["max_body_bytes"])
    feed = Feed(read.nodes, read.session, wanted, BufferPool(9))
    try:
        yield feed
    finally:
        feed.cancel()
        feed.join(20.0)


def digests(feed: Feed, share: Share) -> list[tuple[int, int, str]]:
    """Read to the end: position, lane and digest of each batch, with its header's bytes."""
    found: list[tuple[int, int, str]] = []
    for position in share.walk(0):
        feed.release(position, 0)
        delivery = feed.take(position, 60.0)
        if delivery is None:
            return found
        header = delivery.header
        data = header.SerializeToString(deterministic=True) + delivery.lease.array.tobytes()
        found.append((header.position, header.lane, hashlib.sha256(data).hexdigest()))
    raise AssertionError("positions go on without end")


@pytest.mark.parametrize(("job", "stop"), [("finite", None), ("endless", 90), ("late", None)])
def test_two_nodes_give_what_one_gives(nodes: list[Server], job: str, stop: int | None) -> None:
    """Each is asked for its lanes alone, every position comes in order, and not a byte differs."""
    for rank in range(2):
        share = Share(6, rank, 2)
        with connected(nodes[:1], job, share) as one, feeding(one, stop) as feed:
            alone = digests(feed, share)
        with connected(nodes, job, share) as both:
            weights = {node.node_id: node.workers for node in both.nodes.usable}
            lanes = [set(part) for part in both.session.units.by_node(weights).values()]
            with feeding(both, stop) as feed:
                assert digests(feed, share) == alone

        assert [position for position, *_ in alone] == list(range(rank, len(alone) * 2, 2))
        assert all(lanes)
        assert lanes[0] | lanes[1] == set(range(LANES))
        assert {lane for _, lane, _ in alone} == lanes[0] | lanes[1]


def test_little_room_is_shared_and_nobody_waits_for_ever(nodes: list[Server]) -> None:
    """With room for less than one batch at each node the next one still comes from its own."""
    share = Share(2, 0, 1)
    with connected(nodes, "finite", share) as both:
        with feeding(both, None) as feed:
            usual = digests(feed, share)
        with feeding(both, None, prefetch_bytes=2) as feed:
            assert digests(feed, share) == usual


def test_a_node_that_starts_again_is_waited_for(tmp_path: Path) -> None:
    """Its lanes go on at the first position that is missing; the other's are kept. Its id stays."""
    with contextlib.ExitStack() as stack:
        servers = []
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "roles.py").write_text(ROLES)
            store = f"sqlite:///{tmp_path / name}/store.db"
            file = write_job_file(tmp_path / name / "jobs.yaml", JOBS, store=store)
            servers.append(stack.enter_context(serving(file)))
        share = Share(5, 0, 1)
        both = stack.enter_context(connected(servers, "endless", share))
        with feeding(both, 200) as feed:
            for position in range(40):
                assert feed.take(position, 60.0) is not None
                feed.release(position, 0)
            told = Control(both.nodes.usable[1].transport, "endless", "", 30.0).describe()
            servers[1].terminate()
            servers[1].command += ["--listen", servers[1].address]
            servers[1].start()
            rest = [feed.take(position, 60.0) for position in range(40, 200)]

            assert all(found is not None for found in rest)
            assert feed.take(200, 60.0) is None
            assert feed.reconnects >= 1
            again = Control(both.nodes.usable[1].transport, "endless", "", 30.0).describe()
            assert again.node_id == told.node_id
            assert again.node != told.node


class UntoldLength:
    """A transport to a node that says that a log ends, and not yet where."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.memory = inner, inner.memory

    def unary(self, method: str, request: bytes, timeout_s: float) -> bytes:
        """Answer as the node does, without the length."""
        answer = self._inner.unary(method, request, timeout_s)
        if method != "Feed/Describe":
            return answer
        info = feed_pb2.DescribeReply.FromString(answer)
        assert info.finite
        assert info.HasField("batches")
        info.ClearField("batches")
        return info.SerializeToString()

    def read(self, opening: bytes) -> ReadCall:
        """Open a Read of the node."""
        return self._inner.read(opening)

    def close(self) -> None:
        """Close the way to the node."""
        self._inner.close()


def test_an_end_that_was_not_told_before_ends_the_reading(nodes: list[Server]) -> None:
    """A finite log may be read before its length is known: each pass is the same, and whole."""
    address = nodes[0].address
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "batches_per_step": 4, "as_numpy": True}
    with Loader(address, "finite", **options) as known:
        usual = [batch.position for batch in known]
    for mode in ("stream", "eval"):
        unknown = UntoldLength(open_transport(address))
        with Loader(unknown, "finite", mode=mode, **options) as loader:  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="length that is not known yet"):
                len(loader)
            for _ in range(2):
                assert [batch.position for batch in loader] == usual


def test_a_length_that_was_told_is_held_to(nodes: list[Server]) -> None:
    """An end elsewhere than it was told stays an error: batches would be left out silently."""
    share = Share(4, 0, 1)
    with connected(nodes[:1], "finite", share) as one:
        wrong = replace(one.session, batches=one.session.batches + 40)
        with (
            feeding(replace(one, session=wrong), None) as feed,
            pytest.raises(Exception, match="and described it as"),
        ):
            digests(feed, share)
