"""Clients that send too much, or hang up at any moment: the node neither swells nor cries wolf."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from harness import READ_DEADLINE_S, Server, open_channel, serving, write_job_file
from penstock.wire import MAX_REQUEST_BYTES
from penstock.wire.v1 import cursors_pb2, cursors_pb2_grpc

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


def peak_mb(pid: int) -> float:
    """Return how much memory a process has ever had."""
    [line] = [one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmHWM" in one]
    return int(line.split()[1]) / 1024


def test_large_messages_to_the_node_cost_it_no_memory(node: Server) -> None:
    """What no honest request needs is refused by its length, before it is taken in."""
    before = peak_mb(node.process.pid)
    request = cursors_pb2.BeginRequest(job="job", group="g", token="t" * REQUEST_BYTES)
    with open_channel(node.address) as channel:
        stub = cursors_pb2_grpc.CursorsStub(channel)  # type: ignore[no-untyped-call]
        calls = [stub.Begin.future(request, timeout=READ_DEADLINE_S) for _ in range(REQUESTS)]
        codes = {call.exception(timeout=READ_DEADLINE_S).code() for call in calls}

    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert REQUEST_BYTES > MAX_REQUEST_BYTES
    assert peak_mb(node.process.pid) - before < 50


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
