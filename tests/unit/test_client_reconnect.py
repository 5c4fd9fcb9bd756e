"""Whatever breaks between client and node: each own position comes once, in order, intact."""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import re
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from penstock.client import Batch, Loader
from penstock.client.calls import connection
from penstock.client.calls.backoff import Backoff
from penstock.client.reading.route import MAX_REREADS
from penstock.wire.errors import (
    BadFrame,
    BadItem,
    ChecksumMismatch,
    DataTimeout,
    JobChanged,
    PenstockError,
    ProtocolMismatch,
    SourceUnavailable,
    Unreachable,
)
from penstock.wire.v1 import feed_pb2
from unit.relay import Relay
from unit.served import ServedNode, values_of, wait_until


def reader(node: ServedNode | Relay, **options: Any) -> Loader:
    given = {"rank": 0, "world_size": 1, "as_numpy": True, "deadline_s": 20.0} | options
    return Loader(node.address, "code", **given)


@contextlib.contextmanager
def relayed(*, chunk_bytes: int = 1 << 20, **plan: Any) -> Iterator[tuple[Relay, ServedNode]]:
    """Serve a job behind a relay; with one lane, unless asked, so that positions come in order."""
    with (
        ServedNode(**{"lanes": 1} | plan) as node,
        Relay(node.address, chunk_bytes=chunk_bytes) as relay,
    ):
        yield relay, node


def check(batches: list[Batch], nbytes: int = 64) -> None:
    for batch in batches:
        wanted = values_of(batch.position, nbytes)["input_ids"]
        np.testing.assert_array_equal(batch["input_ids"], wanted)


@pytest.mark.parametrize("how", ["break_after", "close_after", "drain_after"])
@pytest.mark.parametrize("after", range(6))
def test_a_stream_that_ends_anywhere_is_taken_up_at_the_first_missing_position(
    how: str, after: int
) -> None:
    with relayed(batches=6) as (relay, _), reader(relay) as loader:
        getattr(relay.faults, how).extend([after, 1])
        batches = list(loader)

        assert [batch.position for batch in batches] == list(range(6))
        check(batches)
        assert [open_.start for open_ in relay.opens][:2] == [0, after]
        assert loader.stats()["reconnects"] == len(relay.opens) - 1
        assert len(relay.sent) == 6, "what had arrived was asked for again"


def test_a_stream_that_breaks_inside_a_batch_sends_that_batch_again() -> None:
    plan = {"batches": 8, "nbytes": 4000, "chunk_bytes": 1000}
    with relayed(**plan) as (relay, _), reader(relay) as loader:
        relay.faults.cut_at.extend([0, 3, 7])
        batches = list(loader)

        assert [batch.position for batch in batches] == list(range(8))
        check(batches, 4000)


def test_a_server_that_is_restarted_is_read_on_at_the_same_position() -> None:
    """Also by another incarnation, after a while in which nothing listens."""
    with ServedNode() as node, reader(node, prefetch=1) as loader:
        before = list(itertools.islice(loader, 3))
        node.stop()
        back = threading.Timer(0.3, node.start)
        back.start()
        after = list(itertools.islice(loader, 3))
        back.join()

        assert [batch.position for batch in before + after] == list(range(6))
        check(before + after)


def test_a_node_that_starts_late_is_waited_for() -> None:
    with relayed() as (relay, _):
        relay.faults.unavailable = 3
        with reader(relay) as loader:
            assert next(iter(loader)).position == 0


def test_a_damaged_body_is_read_again() -> None:
    with relayed(batches=5) as (relay, _), reader(relay) as loader:
        relay.faults.corrupt[2] = MAX_REREADS
        batches = list(loader)

        assert [batch.position for batch in batches] == list(range(5))
        check(batches)


def test_a_body_that_stays_damaged_is_an_error_behind_the_good_ones() -> None:
    with relayed(batches=5) as (relay, _), reader(relay) as loader:
        relay.faults.corrupt[2] = MAX_REREADS + 1
        batches = iter(loader)

        assert [next(batches).position, next(batches).position] == [0, 1]
        with pytest.raises(ChecksumMismatch, match="position 2"):
            next(batches)
        with pytest.raises(ChecksumMismatch, match="position 2"):
            next(iter(loader))


def test_a_damaged_header_is_read_again() -> None:
    """A text that travels in the header is as safe as a tensor in the body."""
    with relayed(batches=5) as (relay, _), reader(relay) as loader:
        relay.faults.misspell.update({1: MAX_REREADS, 3: MAX_REREADS})
        batches = list(loader)

        assert [batch["name"] for batch in batches] == [f"batch {n}" for n in range(5)]
    with relayed(batches=5) as (relay, _), reader(relay) as loader:
        relay.faults.misspell[2] = MAX_REREADS + 1
        with pytest.raises(ChecksumMismatch, match="the header of a batch arrived with crc32c"):
            list(loader)


def test_another_log_behind_the_same_name_is_refused() -> None:
    """Not one batch of a changed job is yielded to who read the old one."""
    with ServedNode() as node, reader(node, prefetch=1) as loader:
        batches = iter(loader)
        next(batches)
        node.stop()
        node.change_job(seed=1)
        node.start()

        with pytest.raises(JobChanged, match="is now log"):
            list(itertools.islice(batches, 3))


@pytest.mark.parametrize("lanes", [0, 65_537, 2**32 - 1])
def test_a_log_of_lanes_that_no_log_has_is_refused(lanes: int) -> None:
    """Before anything is made for each of them: 2^32 of them would take all memory."""

    def announce(opened: feed_pb2.Opened) -> None:
        opened.lanes = lanes

    with relayed() as (relay, _), reader(relay) as loader:
        relay.rewrite_opened = announce

        with pytest.raises(BadFrame, match=rf"'code' has {lanes} lanes, and a log has from 1 to"):
            next(iter(loader))


def test_a_stream_of_another_log_is_refused() -> None:
    """The server looks first; a client takes nobody's word for it."""

    def another(opened: feed_pb2.Opened) -> None:
        opened.log_id = bytes(32)

    with relayed() as (relay, _), reader(relay) as loader:
        relay.rewrite_opened = another

        with pytest.raises(JobChanged, match="another log"):
            next(iter(loader))


def test_what_the_server_says_is_wrong_is_raised_with_its_fields() -> None:
    with ServedNode(bad=[1]) as node, reader(node) as loader:
        batches = iter(loader)
        next(batches)

        with pytest.raises(BadItem, match=r"corpus\[1\].*it is no picture") as caught:
            next(batches)
        assert caught.value.fields["item"] == ["corpus", 1, 0]
        assert caught.value.fields["stage"] == "exit"


def away() -> SourceUnavailable:
    return SourceUnavailable("the mount is away", item="corpus[3]")


def test_a_source_that_is_away_for_a_while_is_waited_for() -> None:
    with relayed(batches=3) as (relay, _), reader(relay) as loader:
        relay.faults.refuse.append(away())

        assert [batch.position for batch in loader] == [0, 1, 2]


def test_a_source_that_stays_away_is_named_at_the_deadline() -> None:
    with relayed() as (relay, _), reader(relay, deadline_s=0.5) as loader:
        relay.faults.refuse.extend(away() for _ in range(1000))

        wait_until(lambda: "the mount is away" in _refused(loader, SourceUnavailable), "its name")
        wait_until(lambda: _refused(loader) and len(relay.opens) > 1, "it is asked again")


@pytest.fixture
def _tells_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the node say within moments what it waits for, and not within seconds."""
    monkeypatch.setattr("penstock.server.rpc.read.WAITING_EVERY_S", 0.05)


def test_a_wait_that_follows_an_error_does_not_hide_it() -> None:
    doing = "has opened the stream and sent nothing yet"
    with relayed() as (relay, node), reader(relay, deadline_s=1) as loader:
        relay.faults.refuse.append(away())
        node.gate.held.add(0)

        with pytest.raises(DataTimeout, match=f"{doing}.*, after: the mount is away"):
            next(iter(loader))


@pytest.mark.usefixtures("_tells_soon")
def test_the_servers_reason_that_follows_an_error_does_not_hide_it() -> None:
    doing = r"process.*corpus\[0\]"
    with relayed() as (relay, node), reader(relay, deadline_s=1) as loader:
        relay.faults.refuse.append(away())
        node.gate.held.add(0)

        with pytest.raises(DataTimeout, match=f"{doing}.*, after: the mount is away"):
            next(iter(loader))


def patiently(batches: Iterator[Batch]) -> Batch:
    """Return the next batch of a reader with a short deadline, on a machine however busy."""
    for _ in range(100):
        with contextlib.suppress(DataTimeout, Unreachable):
            return next(batches)
    return next(batches)


@pytest.mark.usefixtures("_tells_soon")
def test_a_late_batch_is_an_error_with_the_servers_reason_and_reading_can_go_on() -> None:
    """The reason is there once the node has told it: a deadline or two later where it is busy."""
    with ServedNode() as node, reader(node, deadline_s=0.3) as loader:
        node.gate.held.add(1)
        batches = iter(loader)
        patiently(batches)
        said: list[str] = []

        def is_told() -> bool:
            with pytest.raises(DataTimeout) as caught:
                next(batches)
            said.append(caught.value.message)
            return "process" in said[-1]

        wait_until(is_told, "the node's reason")
        assert re.search(r"lane 1, offset 0 is process.*corpus\[1\]", said[-1])

        node.gate.released.set()
        wait_until(lambda: loader.stats()["buffered_batches"] > 0, "the batch arrives")
        assert patiently(iter(loader)).position == 1


def test_nobody_at_the_address_is_an_error_that_names_it() -> None:
    with ServedNode() as node:
        address = node.address
    with (
        Loader(address, "code", rank=0, world_size=1, deadline_s=0.3) as loader,
        pytest.raises(Unreachable, match=address),
    ):
        next(iter(loader))


def test_a_node_that_is_gone_for_good_is_an_error_at_the_deadline() -> None:
    with ServedNode() as node, reader(node, prefetch=1, deadline_s=0.5) as loader:
        patiently(iter(loader))
        node.stop()

        said = "reading goes on at the same position"
        wait_until(lambda: said in _refused(loader, Unreachable), "it is known to be gone")


def _refused(loader: Loader, kind: type[PenstockError] = PenstockError) -> str:
    """Return why nothing came within a short deadline, where it is of this kind; else nothing.

    A busy machine needs more than one of them to find out.
    """
    with pytest.raises(PenstockError) as caught:
        list(itertools.islice(loader, 3))
    return caught.value.message if isinstance(caught.value, kind) else ""


@pytest.mark.usefixtures("_tells_soon")
def test_a_long_wait_is_logged_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.client.reading.waiting.LOG_EVERY_S", 0.05)
    with ServedNode() as node, reader(node, deadline_s=1.2) as loader:
        node.gate.held.add(0)
        with caplog.at_level(logging.WARNING, "penstock"), pytest.raises(DataTimeout):
            next(iter(loader))

    assert any("waiting" in r.message and "process" in r.message for r in caplog.records)


def test_a_node_of_another_version_is_refused() -> None:
    def newer(data: bytes) -> bytes:
        reply = feed_pb2.DescribeReply.FromString(data)
        reply.protocol = 99
        return reply.SerializeToString()

    with relayed() as (relay, _):
        relay.rewrite["Feed/Describe"] = newer
        with reader(relay) as loader, pytest.raises(ProtocolMismatch, match="version 99"):
            next(iter(loader))


def test_positions_stay_exact_under_many_random_breaks() -> None:
    """Two ranks, breaks at random places: every position once, in order."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    for rank in range(2):
        with relayed(batches=60, lanes=3, nbytes=2000, chunk_bytes=500) as (relay, _):
            relay.faults.break_after = [rng.randrange(0, 5) for _ in range(15)]
            relay.faults.cut_at = sorted(rng.sample(range(60), 10))
            with reader(relay, rank=rank, world_size=2, batches_per_step=4) as loader:
                batches = list(loader)

            assert [b.position for b in batches] == list(range(rank, 60, 2)), f"seed {seed}"
            check(batches, 2000)


def test_waits_double_up_to_a_bound_with_jitter() -> None:
    backoff = Backoff(first_s=0.1, longest_s=1.0, rng=random.Random(3))

    waits = [backoff.next_s() for _ in range(8)]
    bounds = [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0]

    assert all(bound / 2 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert len(set(waits)) == 8
    backoff.reset()
    assert backoff.next_s() <= 0.1


def test_a_batch_under_a_foreign_address_is_refused() -> None:
    """A position says which lane and offset it is; a header that disagrees is no batch of it."""
    with relayed(lanes=3) as (relay, _), reader(relay) as loader:
        relay.faults.misplace.add(2)
        batches = iter(loader)

        assert [next(batches).position, next(batches).position] == [0, 1]
        with pytest.raises(BadFrame, match="position 2 says that it is offset 0 of lane 0"):
            next(batches)


class Silent:
    """A way to a node that can go silent, as a cut network: nothing comes, and nothing ends."""

    def __init__(self, port: int) -> None:
        self._port, self._cut = port, threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Let all that is connected now go silent; who connects again is served."""
        self._cut.set()
        self._cut = threading.Event()

    def close(self) -> None:
        """Take nobody any more."""
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                ours, _ = self._listening.accept()
            except OSError:
                return
            theirs = socket.create_connection(("127.0.0.1", self._port))
            for pair in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._pump, args=(*pair, self._cut), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, cut: threading.Event) -> None:
        with source, sink, contextlib.suppress(OSError):
            while data := source.recv(65536):
                if cut.is_set():
                    threading.Event().wait(60)  # it lies in the cable
                sink.sendall(data)


def test_a_silent_network_is_noticed_by_keepalive(monkeypatch: pytest.MonkeyPatch) -> None:
    """GRPC's own bound for the answer to a ping is a minute, whatever the keepalive's is."""
    short = tuple(
        (name, value // 20 if name.endswith("_ms") else value)
        for name, value in connection.CHANNEL_OPTIONS
    )
    monkeypatch.setattr(connection, "CHANNEL_OPTIONS", short)
    with ServedNode() as node:
        way = Silent(int(node.address.rpartition(":")[2]))
        with Loader(
            way.address, "code", rank=0, world_size=1, prefetch=2, deadline_s=20, as_numpy=True
        ) as loader:
            batches = iter(loader)
            for _ in range(5):
                next(batches)
            way.cut()
            for _ in range(5):
                next(batches)
            assert loader.stats()["reconnects"] == 1
        way.close()
