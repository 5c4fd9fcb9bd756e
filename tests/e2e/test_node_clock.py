"""Two nodes over one store, of which one has a clock that is an hour off: nothing depends on it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import postgres
from harness import Rank, Server, write_job_file
from invariants import eventually
from penstock.wire.v1 import cursors_pb2

HOUR, MINUTES = timedelta(hours=1), timedelta(minutes=10)
DEADLINE_S = 240.0

JOBS: dict[str, Any] = {
    "main": {
        "lanes": 6,
        "snapshot_every": 4,
        "source": {"type": "items", "items": list(range(1000))},
        "batch_size": 4,
    }
}

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))

pytestmark = pytest.mark.skipif(
    not LIBRARIES,
    reason="NOT RUN: Debian's package faketime is not installed",
)


@pytest.fixture(params=["+1h", "-1h"])
def nodes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Give two nodes; the second has the other clock."""
    url = postgres.in_schema(postgres.local_18(), postgres.new_schema())
    with contextlib.ExitStack() as stack:
        made = []
        other = {"LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME": request.param}
        for name, environment in (("right", {}), ("wrong", other)):
            (tmp_path / name).mkdir()
            # An allocator is loaded as the other clock is: they cannot both be.
            file = write_job_file(tmp_path / name / "jobs.yaml", JOBS, store=url, allocator="off")
            node = Server(file, "--node-id", name, environment=environment)
            stack.callback(node.close)
            made.append(node.start(wait=False))
        for node in made:
            eventually(lambda node=node: bool(node.address), DEADLINE_S, "the node is ready")
        yield made[0], made[1]


def test_a_clock_that_is_an_hour_off_changes_nothing(
    nodes: tuple[Server, Server], tmp_path: Path
) -> None:
    """Ranks read from both; commits have the store's time; attempts are fenced at both."""
    right, wrong = nodes
    assert abs(_time(wrong.events("ready")[0]["timestamp"]) - _now()) > HOUR - MINUTES
    target = f"{right.address},{wrong.address}"

    def rank(attempt: str) -> Rank:
        arguments = ["--json", "--commit", "--group", "run", "--attempt", attempt]
        return Rank(target, tmp_path / f"{attempt}.jsonl", "main", *arguments)

    first, second = rank("t1"), None
    try:
        eventually(lambda: len(first.records()) > 200, DEADLINE_S, "a rank reads")
        second = rank("t2")
        eventually(lambda: first.process.poll() is not None, DEADLINE_S, "it is fenced")
        assert "[stale_generation]" in first.errors(), first.errors()
        before = len(second.records())
        eventually(lambda: len(second.records()) > before + 200, DEADLINE_S, "the other reads on")
        assert second.process.poll() is None, second.errors()
    finally:
        for reader in (first, second):
            if reader is not None:
                reader.kill()
    for node in nodes:
        assert sum(job["produced"] for job in node.status()["jobs"]) > 0
        request = cursors_pb2.ListRequest(job="main", group="run")
        [group] = node.cursors.List(request, timeout=60).groups
        assert group.generation == 2
        assert abs(_time(group.committed_at) - _now()) < MINUTES, group.committed_at
    found = first.records() + second.records()
    digests = {record["position"]: record["digest"] for record in found}
    assert all(digests[record["position"]] == record["digest"] for record in found)
    assert json.dumps(right.status())
    for node in nodes:
        assert node.terminate() == 0, "".join(node.lines[-10:])


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _now() -> datetime:
    return datetime.now(UTC)
