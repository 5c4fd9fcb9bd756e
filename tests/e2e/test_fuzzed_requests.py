"""Damaged requests at a node with tokens, before the token and after it; and what it logs of them.

A seed is printed with a failure; `FUZZED_SEED` repeats it, and `FUZZED_CALLS` lengthens it.
"""

from __future__ import annotations

import collections
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from crowd import took
from harness import READ_DEADLINE_S, Server, serving, write_job_file
from penstock.server.access.callers import hash_of
from penstock.server.rpc.event_log import LINES, MAX_LINES
from penstock.server.rpc.gate import NEEDS
from penstock.wire import MAX_REQUEST_BYTES, PROTOCOL
from penstock.wire.v1 import cursors_pb2 as cursors
from penstock.wire.v1 import feed_pb2 as feed

CALLS = int(os.environ.get("FUZZED_CALLS", "1500"))
GROWTH_MB, LARGE = 60, 40

JOB = {
    "lanes": 2,
    "source": {"type": "items", "items": [{"x": [n, n]} for n in range(40)]},
    "batch_size": 2,
}
GROUP = {"job": "small", "group": "g"}
REQUESTS: dict[str, Any] = {
    "Feed/Describe": feed.DescribeRequest(protocol=PROTOCOL, job="small"),
    "Feed/Status": feed.StatusRequest(),
    "Feed/Read": feed.ReadRequest(open=feed.Open(protocol=PROTOCOL, horizon=2, **GROUP)),
    "Cursors/List": cursors.ListRequest(job="small"),
    "Cursors/Begin": cursors.BeginRequest(protocol=PROTOCOL, token="t", world_size=1, **GROUP),
    "Cursors/Commit": cursors.CommitRequest(step=1, **GROUP),
    "Cursors/Checkpoint": cursors.CheckpointRequest(name="a", step=1, **GROUP),
    "Cursors/Restore": cursors.RestoreRequest(name="a", **GROUP),
    "Cursors/Seek": cursors.SeekRequest(step=3, request_id="r", **GROUP),
    "Cursors/ListVerdicts": cursors.ListVerdictsRequest(job="small"),
    "Cursors/Delete": cursors.DeleteRequest(**GROUP),
    "Cursors/ReleaseItem": cursors.ReleaseItemRequest(job="small", index=1),
}
"""A good one of each method."""

A_BUG = {"UNKNOWN", "INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"}
"""What no request is answered with, however damaged it is."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node that those with a token ask, too."""
    yield from _serve(tmp_path_factory.mktemp("fuzzed"))


@pytest.fixture(scope="module")
def strangers_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node of strangers alone: events of others are summed up in its log seconds later."""
    yield from _serve(tmp_path_factory.mktemp("strangers"))


def _serve(folder: Path) -> Iterator[Server]:
    token = {"name": "boss", "sha256": hash_of("good"), "scopes": ["admin", "read+text"]}
    (folder / "tokens.yaml").write_text(yaml.safe_dump({"tokens": [token]}))
    file = write_job_file(folder / "penstock.yaml", {"small": JOB}, tokens="tokens.yaml")
    with serving(file) as server:
        yield server


@pytest.fixture
def draw(record_property: Any) -> random.Random:
    seed = int(os.environ.get("FUZZED_SEED", "0")) or random.randrange(1, 1 << 32)
    record_property("seed", seed)
    print(f"FUZZED_SEED={seed}")  # shown with a failure  # noqa: T201
    return random.Random(seed)


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return a message with some bytes changed, added or taken away."""
    found = bytearray(data)
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(len(found) + 1)
        match draw.randrange(4):
            case 0:
                found[at : at + 1] = draw.randbytes(1)
            case 1:
                found[at:at] = draw.randbytes(draw.randrange(1, 20))
            case 2:
                del found[at:]
            case _:  # a field more
                found += bytes((draw.randrange(1, 128),)) + draw.randbytes(draw.randrange(12))
    return bytes(found)


def ask(node: Server, method: str, message: bytes, token: str | None) -> str:
    """Make a call; return the code that it is answered with."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    path = f"/penstock.wire.v1.{method}"
    try:
        if method == "Feed/Read":
            call = node.channel.stream_stream(path)(
                iter([message]), metadata=metadata, timeout=READ_DEADLINE_S
            )
            next(call, None)
            call.cancel()
        else:
            node.channel.unary_unary(path)(message, metadata=metadata, timeout=READ_DEADLINE_S)
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


@pytest.mark.parametrize("token", [None, "bad", "good"])
def test_damaged_requests_are_answered_and_cost_nothing(
    request: pytest.FixtureRequest, draw: random.Random, token: str | None
) -> None:
    """Strangers are told that they are, whatever they send; nobody finds a bug."""
    node: Server = request.getfixturevalue("node" if token == "good" else "strangers_node")
    assert set(REQUESTS) == set(NEEDS)
    assert ask(node, "Feed/Describe", REQUESTS["Feed/Describe"].SerializeToString(), "good") == "OK"
    before, lines = took(node.process.pid), len(node.lines)

    found = collections.Counter()
    for _ in range(CALLS):
        method = draw.choice(list(REQUESTS))
        good = REQUESTS[method].SerializeToString()
        message = damaged(good, draw) if draw.random() < 0.8 else draw.randbytes(draw.randrange(60))
        code = ask(node, method, message, token)
        assert code not in A_BUG, (method, message)
        found[code] += 1

    assert (set(found) == {"UNAUTHENTICATED"}) == (token != "good")
    assert took(node.process.pid).mb - before.mb < GROWTH_MB
    assert ask(node, "Feed/Describe", REQUESTS["Feed/Describe"].SerializeToString(), "good") == "OK"
    logged = node.lines[lines:]
    assert not [line for line in logged if '"level": "error"' in line]
    # Of strangers nothing is logged; of others each kind of event has its lines.
    assert len(logged) <= (0 if token != "good" else CALLS // 5)


@pytest.mark.parametrize("token", [None, "good"])
def test_names_of_a_megabyte_do_not_fill_the_log(node: Server, token: str | None) -> None:
    """Each of them another one: refused runs are told in lines that are short, and few."""
    before, lines = took(node.process.pid), len(node.lines)
    size = MAX_REQUEST_BYTES // 2

    for number in range(LARGE):
        for field in ("job", "group", "owner", "token"):
            request = cursors.BeginRequest()
            request.CopyFrom(REQUESTS["Cursors/Begin"])
            setattr(request, field, f"{number}" + "x" * size)
            code = ask(node, "Cursors/Begin", request.SerializeToString(), token)
            assert code not in A_BUG
    for number in range(4 * MAX_LINES):
        request = cursors.BeginRequest(protocol=PROTOCOL, job=f"job{number}", group=f"g{number}")
        ask(node, "Cursors/Begin", request.SerializeToString(), token)

    # What is logged after this has been answered comes after it in the log, too.
    ask(node, "Feed/Read", REQUESTS["Feed/Read"].SerializeToString(), "good")
    logged = node.lines[lines:]
    assert max((len(line) for line in logged), default=0) < 4000
    assert len(logged) < 4 * MAX_LINES + 6 * LINES
    assert took(node.process.pid).mb - before.mb < 2 * GROWTH_MB


def test_a_node_of_many_damaged_names_still_names_the_nearest(node: Server) -> None:
    """A word that somebody may have typed is compared with what there is; no longer one is."""
    for job, said in (("smal", "did you mean small?"), ("small" * 1000, "known are small")):
        with pytest.raises(grpc.RpcError) as caught:
            node.channel.unary_unary("/penstock.wire.v1.Feed/Describe")(
                feed.DescribeRequest(protocol=PROTOCOL, job=job).SerializeToString(),
                metadata=(("authorization", "Bearer good"),),
                timeout=READ_DEADLINE_S,
            )
        assert said in str(caught.value.details())
        assert len(str(caught.value.details())) < 300
