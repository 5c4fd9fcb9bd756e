"""The database is away as a node starts, or as a run begins: one is told, the other waits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import ports
import postgres
from harness import Server, run_command, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.wire.v1 import cursors_pb2 as pb

JOBS: dict[str, Any] = {
    "main": {
        "lanes": 2,
        "epochs": None,
        "source": {"type": "items", "items": [1, 2, 3]},
        "batch_size": 1,
    }
}


def test_a_node_that_starts_without_its_database_ends_with_the_stores_sentence(
    tmp_path: Path,
) -> None:
    """Whatever places it starts it again; a node that waited would look as if it was starting."""
    port = ports.free_port()
    store = f"postgresql://penstock@127.0.0.1:{port}/db"
    file = write_job_file(tmp_path / "jobs.yaml", JOBS, store=store)

    done = run_command(["penstock.server.cli", "serve", str(file)], 120.0)

    assert done.returncode == 2
    assert f"the store postgresql://127.0.0.1:{port}/db (role penstock" in done.stderr
    assert "look whether the server runs on that host, and listens on that port" in done.stderr
    assert "[store_unavailable]" in done.stderr


def test_a_run_that_begins_while_the_database_restarts_begins_once(tmp_path: Path) -> None:
    """The node answers that its store is away, and the reader asks again until it is there."""
    database = postgres.own_server()
    try:
        file = write_job_file(tmp_path / "jobs.yaml", JOBS, store=database.url)
        with serving(file) as node:
            database.stop()
            begun: list[int] = []
            run = threading.Thread(target=_begin, args=(node, begun))
            run.start()
            eventually(lambda: node.status()["store"]["away_s"] > 0, 60, "the node misses it")
            assert not begun
            database.start()
            run.join(120)

            assert begun == [1]
            [group] = node.cursors.List(pb.ListRequest(job="main", group="run"), timeout=60).groups
            assert (group.generation, group.cursor) == (1, 1)
    finally:
        database.end()


def _begin(node: Server, begun: list[int]) -> None:
    options: dict[str, Any] = {"rank": 0, "world_size": 1, "batches_per_step": 2}
    with Loader(node.address, "main", group="run", as_numpy=True, **options) as loader:
        assert len(list(next(loader.steps()))) == 2
        begun.append(loader.commit())
