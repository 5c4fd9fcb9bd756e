"""Clients that send too much, or hang up at any moment: the node neither swells nor cries wolf."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from harness import READ_DEADLINE_S, Server, open_channel, serving, write_job_file
from invariants import eventually
from penstock.wire import MAX_REQUEST_BYTES, PROTOCOL
from penstock.wire.v1 import cursors_pb2, cursors_pb2_grpc, feed_pb2, feed_pb2_grpc

STREAMS = 40
REQUESTS, REQUEST_BYTES = 120, 10 << 20


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node with a job whose batches take several messages."""
    folder = tmp_path_factory.mktemp("flood")
    (folder / "data.py").write_text(
        "import numpy as np\n\n\ndef big(raw):\n    return {'x': np.full(1 << 20, raw['n'])}\n"
    )
    job = {
        "source": {"type": "items", "items": [{"n": n} for n in range(12)]},
        "lanes": 2,
        "batch_size": 1,
        "function": "./data.py:big",
    }
    with serving(write_job_file(folder / "penstock.yaml", {"job": job})) as server:
        yield server


def memory_mb(pid: int, what: str) -> float:
    """Return a line of a process's status: `VmHWM` = all that it ever had, `RssAnon` = its own."""
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if what in one]
    return int(line.split()[1]) / 1024


def test_large_messages_to_the_node_cost_it_no_memory(node: Server) -> None:
    """What no honest request needs is refused by its length, before it is taken in."""
    before = memory_mb(node.process.pid, "VmHWM")
    request = cursors_pb2.BeginRequest(job="job", group="g", token="t" * REQUEST_BYTES)
    with open_channel(node.address) as channel:
        stub = cursors_pb2_grpc.CursorsStub(channel)  # type: ignore[no-untyped-call]
        calls = [stub.Begin.future(request, timeout=READ_DEADLINE_S) for _ in range(REQUESTS)]
        codes = {call.exception(timeout=READ_DEADLINE_S).code() for call in calls}

    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert REQUEST_BYTES > MAX_REQUEST_BYTES
    assert memory_mb(node.process.pid, "VmHWM") - before < 50


def test_readers_that_hang_up_are_no_bug(node: Server) -> None:
    """Cut off at any moment, in the middle of a batch too: the log has no error."""
    rng = random.Random(28)
    for _ in range(40):
        with open_channel(node.address) as channel:
            reader = node.read("job", horizon=8) if rng.random() < 0.3 else None
            other = type(node.read("job"))(channel, job="job", horizon=8)
            batches = iter(other)
            for _ in range(rng.randrange(3)):
                next(batches)
            if rng.random() < 0.5:
                other.cancel()
            if reader is not None:
                reader.cancel()
    assert len(node.read("job", horizon=2).take(2)) == 2

    assert not node.events("a bug")
    assert not [line for line in node.lines if '"level": "error"' in line]
    assert node.status()["jobs"][0]["name"] == "job"


def test_what_streams_have_not_taken_is_given_back(node: Server) -> None:
    """Batches of 8 MB for streams that nobody reads: malloc keeps nothing of them for long."""
    pid = node.process.pid
    node.read("job", horizon=2).take(2)
    before = memory_mb(pid, "RssAnon")
    with contextlib.ExitStack() as channels:
        stubs = [
            feed_pb2_grpc.FeedStub(channels.enter_context(open_channel(node.address)))  # type: ignore[no-untyped-call]
            for _ in range(STREAMS)
        ]
        everything = feed_pb2.Open(protocol=PROTOCOL, job="job", horizon=2**62)
        requests = [iter([feed_pb2.ReadRequest(open=everything)]) for _ in stubs]
        calls = [stub.Read(one) for stub, one in zip(stubs, requests, strict=True)]
        eventually(
            lambda: memory_mb(pid, "RssAnon") - before > STREAMS,
            READ_DEADLINE_S,
            "every stream was sent a chunk",
        )
        for call in calls:
            call.cancel()

    eventually(
        lambda: memory_mb(pid, "RssAnon") - before < STREAMS / 2,
        READ_DEADLINE_S,
        "the memory of what was not taken is given back",
    )
