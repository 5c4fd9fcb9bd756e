"""The rendered chart with three nodes, run: read by one name across a rolling update of them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest

pytest.importorskip("helm_python", reason="NOT RUN: helm-python-sdk is not installed (make dev)")

import charts
import postgres
from harness import run_command
from pods import Node, World, why_not

pytestmark = pytest.mark.skipif(
    why_not() is not None, reason=f"NOT RUN: the rendered chart is not run: {why_not()}"
)

NODES, COUNT = 3, 600
JOBS = {
    "numbers": {
        "batch_size": 2,
        "lanes": 12,
        "source": {"type": "items", "items": [{"n": number} for number in range(40)]},
    }
}
DATABASE = "/database"


def addresses() -> list[str]:
    """Return addresses of the loopback that no other process of the tests has."""
    here = os.getpid()
    return [f"127.{70 + k}.{here >> 8 & 255}.{here & 255 or 1}" for k in range(NODES)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A cluster with the chart for three nodes over a PostgreSQL, in which nothing runs yet."""
    url = postgres.postgres_18()
    [socket] = parse_qs(urlsplit(url).query)["host"]
    url = postgres.in_schema(
        url.replace(quote(socket, safe=""), quote(DATABASE, safe="")), postgres.new_schema()
    )
    group = charts.demo(
        replicas=NODES,
        jobs=JOBS,
        volumes=[{"name": "database", "hostPath": {"path": socket}}],
        volumeMounts=[{"name": "database", "mountPath": DATABASE, "readOnly": True}],
    )
    values = {
        **group,
        "preStopSeconds": 0,
        "server": {"snapshot_seconds": 0.5},
        "store": {"existingSecret": "db"},
    }
    world = World(tmp_path, values, secrets={"db": {"uri": url.encode()}})
    yield world
    world.close()


def test_a_reader_reads_across_a_rolling_update_of_three_nodes(world: World) -> None:
    """The last Pod first, as a StatefulSet does it; each is ready again before the next goes.

    Every batch once and in order; none is waited for longer than all of the update may take.
    """
    nodes = [world.node(address, ordinal) for ordinal, address in enumerate(addresses())]
    for node in nodes:
        node.until_ready()
    world.publish_all(nodes)
    domain = world.target.rpartition(":")[0].partition(".")[2].partition(".")[2]
    target = f"dns:///{world.stateful_set['metadata']['name']}.{domain}:50051"
    arguments = ["cat", target, "numbers", "--group", "run", "--commit", "--count", str(COUNT)]
    # It prints into a small pipe, so that it is in the middle all the time.
    reader = world.cluster.run(["penstock", *arguments, "--json"], world.test, pipesize=4096)
    with reader:
        read = [reader.stdout.readline() for _ in range(60)]
        budget_s, longest_s = 0.0, 0.0
        for ordinal in reversed(range(NODES)):
            old = nodes[ordinal]
            others: list[Node] = [node for node in nodes if node is not old]
            world.publish_all(others)
            status, drained_s = old.stop()
            assert status == 0, old.log
            asked = time.monotonic()
            read += [reader.stdout.readline() for _ in range(100)]
            longest_s = max(longest_s, time.monotonic() - asked)
            nodes[ordinal] = world.node(old.address, ordinal)
            budget_s += drained_s + nodes[ordinal].until_ready()
            world.publish_all(nodes)
        read += reader.stdout.readlines()

    assert reader.returncode == 0
    local = ["cat", f"local:{world.jobs}", "numbers", "--count", str(COUNT), "--json"]
    alone = run_command(["penstock.client.cli", *local]).stdout.splitlines()
    assert [_record(line) for line in read] == [_record(line) for line in alone]
    assert len(read) == COUNT
    assert longest_s < budget_s
    secret = (world.cluster.folder / "secret" / "db" / "uri").read_text()
    assert all(secret not in line for node in nodes for line in node.log)


def _record(line: str) -> tuple[int, str]:
    found = json.loads(line)
    return found["position"], found["digest"]
