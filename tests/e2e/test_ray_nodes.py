"""`penstockd ray`: nodes as actors of a real Ray, which restarts them when they die."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray  # noqa: F401  of the dev extra: without it these tests fail, and are not skipped

from e2e.test_index_ray import on_ray
from harness import kill_process, write_job_file
from invariants import eventually
from penstock.client import Loader

MACHINES = 3

CLUSTER = f"""
import contextlib, io, json, os, sys
from ray.cluster_utils import Cluster

head = {{"num_cpus": 0, "include_dashboard": False}}
cluster = Cluster(initialize_head=True, head_node_args=head)
for _ in range({MACHINES}):
    cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address
from penstock.client.nodes.ray_addresses import RayAddresses
from penstock.server.cli import run
from penstock.wire.errors import PenstockError

def answer(command, *rest):
    if command == "addresses":
        try:
            return list(RayAddresses(*rest).look())
        except PenstockError as error:
            return error.message
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(["ray", command, *rest])
    return [status, out.getvalue(), err.getvalue()]

for line in sys.stdin:
    print(json.dumps(answer(*json.loads(line))), flush=True)
ray = sys.modules["ray"]
ray.shutdown()
cluster.shutdown()
"""
"""A process that has a Ray of several machines, and runs what each line says beside it."""


class RayCluster:
    """Talks to that process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, *command: str) -> Any:
        """Return what a command gives: its status and outputs, or addresses."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with on_ray("-c", CLUSTER) as process:
        yield RayCluster(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        assert process.wait(60) == 0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    job = {
        "lanes": 2,
        "source": {"type": "items", "items": [{"x": number} for number in range(10)]},
        "batch_size": 1,
    }
    store = f"sqlite:///{tmp_path}/store.db"
    return write_job_file(tmp_path / "jobs.yaml", {"main": job}, store=store, insecure=True)


def first(address: str) -> list[int]:
    """Return the first items that a node gives."""
    with Loader(address, "main") as loader:
        return [batch["x"].item() for batch, _ in zip(loader, range(10), strict=False)]


def serving_process(address: str) -> int:
    """Return the process of the node that listens there."""
    import psutil

    port = int(address.rpartition(":")[2])
    [pid] = {
        found.pid
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.laddr.port == port and found.pid
    }
    return pid


def test_a_killed_node_is_started_again_by_ray_and_found_by_readers(
    cluster: RayCluster, file: Path
) -> None:
    status, said, error = cluster.ask("up", str(file), "--nodes", "1", "--name", "loaders")
    assert status == 0, error
    assert "Loader('ray:loaders', ...)" in said
    [address] = cluster.ask("addresses", "loaders")
    before = first(address)
    pid = serving_process(address)

    assert kill_process(pid)

    eventually(
        lambda: (
            (found := cluster.ask("addresses", "loaders")) and found != [address] and bool(found)
        ),
        60,
        "Ray has started the node again, at another port",
    )
    [other] = cluster.ask("addresses", "loaders")
    assert first(other) == before
    status, said, _ = cluster.ask("status", "loaders")
    assert status == 0
    assert f"loaders.0  {other}  ready" in said
    assert cluster.ask("up", str(file), "--nodes", "1", "--name", "loaders")[0] == 2
    pid = serving_process(other)
    assert cluster.ask("down", "loaders")[:2] == [0, "1 nodes have ended: loaders.0\n"]
    eventually(lambda: not Path(f"/proc/{pid}").exists(), 60, "the node has ended")
    assert "has no nodes of this name" in cluster.ask("addresses", "loaders")


def test_what_cannot_be_is_refused_before_ray_tries(cluster: RayCluster, file: Path) -> None:
    status, _, error = cluster.ask("up", str(file), "--nodes", "2")
    assert status == 2
    assert "2 nodes need one store" in error
    status, _, error = cluster.ask(
        "up", str(file), "--nodes", str(MACHINES + 1), "--", "--workers", "x"
    )
    assert status == 2
    assert "workers" in error
    assert cluster.ask("down", "loaders")[0] == 2
    assert cluster.ask("status", "no name!")[0] == 2
