"""`penstockd ray`: nodes as actors of a real Ray, which restarts them when they die."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray  # noqa: F401  of the dev extra: without it these tests fail, and are not skipped

import postgres
from e2e.test_index_ray import on_ray
from harness import kill_process, write_job_file
from invariants import eventually

MACHINES = 3

CLUSTER = f"""
import contextlib, io, json, os, sys
from ray.cluster_utils import Cluster

head = {{"num_cpus": 0, "include_dashboard": False}}
cluster = Cluster(initialize_head=True, head_node_args=head)
for _ in range({MACHINES}):
    cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address
from penstock.client import Loader
from penstock.client.nodes.ray_addresses import RayAddresses
from penstock.server.cli import run
from penstock.wire.errors import PenstockError

def answer(command, *rest):
    if command == "read":
        with Loader(f"ray:{{rest[0]}}", "main", as_numpy=True) as loader:
            return [int(batch["x"].item()) for batch, _ in zip(loader, range(10))]
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
        "lanes": 6,
        "source": {"type": "items", "items": [{"x": number} for number in range(10)]},
        "batch_size": 1,
    }
    store = postgres.in_schema(postgres.local_18(), postgres.new_schema())
    return write_job_file(tmp_path / "jobs.yaml", {"main": job}, store=store, insecure=True)


def serving_process(address: str) -> int:
    """Return the process of the node that listens there."""
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
    nodes = str(MACHINES)
    status, said, error = cluster.ask("up", str(file), "--nodes", nodes, "--name", "loaders")
    assert status == 0, error
    assert "Loader('ray:loaders', ...)" in said
    addresses = cluster.ask("addresses", "loaders")
    assert len(set(addresses)) == MACHINES
    before = cluster.ask("read", "loaders")
    assert len(before) == 10

    assert kill_process(serving_process(addresses[0]))

    def is_back() -> bool:
        found = cluster.ask("addresses", "loaders")
        return len(found) == MACHINES and found != addresses

    eventually(is_back, 60, "Ray has started the node again, at another port")
    assert cluster.ask("read", "loaders") == before
    status, said, _ = cluster.ask("status", "loaders")
    assert status == 0
    assert said.count("  ready") == MACHINES
    assert cluster.ask("up", str(file), "--nodes", "1", "--name", "loaders")[0] == 2
    pids = [serving_process(address) for address in cluster.ask("addresses", "loaders")]
    names = ", ".join(f"loaders.{number}" for number in range(MACHINES))
    assert cluster.ask("down", "loaders")[:2] == [0, f"{MACHINES} nodes have ended: {names}\n"]
    eventually(
        lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60, "the nodes have ended"
    )
    assert "has no nodes of this name" in cluster.ask("addresses", "loaders")


def test_what_cannot_be_is_refused_before_ray_tries(
    cluster: RayCluster, file: Path, tmp_path: Path
) -> None:
    sqlite = f"sqlite:///{tmp_path}/store.db"
    status, _, error = cluster.ask("up", str(file), "--nodes", "2", "--", "--store", sqlite)
    assert status == 2
    assert "2 nodes need one store" in error
    more = str(MACHINES + 1)
    status, _, error = cluster.ask("up", str(file), "--nodes", more, "--", "--workers", "x")
    assert status == 2
    assert "workers" in error
    assert cluster.ask("down", "loaders")[0] == 2
    assert cluster.ask("status", "no name!")[0] == 2
