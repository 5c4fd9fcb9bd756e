"""docs/operate.md, "Adding data": each of its sentences, on a real node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import Server, kill_process, write_job_file
from penstock.client import Loader
from penstock.wire.errors import JobChanged, SourceChanged
from ports import free_port

JOB: dict[str, Any] = {
    "lanes": 4,
    "batches_per_step": 4,
    "batch_size": 2,
    # Read again for every batch, so that a changed file is met soon.
    "source": {"type": "parquet", "files": "corpus/*.parquet", "cache_bytes": 1},
}
OLD = {**JOB, "source": {**JOB["source"], "files": ["corpus/a.parquet", "corpus/b.parquet"]}}


def write(folder: Path, name: str, first: int) -> None:
    """Write 100 rows in 10 row groups."""
    rows = pa.table({"n": list(range(first, first + 100))})
    pq.write_table(rows, folder / "corpus" / name, row_group_size=10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A node over two files, on a port that stays its own when it is started again."""
    (tmp_path / "corpus").mkdir()
    write(tmp_path, "a.parquet", 0)
    write(tmp_path, "b.parquet", 1000)
    port = free_port()
    file = write_job_file(tmp_path / "jobs.yaml", {"main": JOB}, snapshot_seconds=0)
    running = Server(file, "--listen", f"127.0.0.1:{port}")
    try:
        yield running.start()
    finally:
        running.close()


def reader(server: Server, group: str, job: str = "main", **options: Any) -> Loader:
    """Return a Loader of one rank."""
    place = {"rank": 0, "world_size": 1, "as_numpy": True, "prefetch": 1}
    return Loader(server.address, job, group=group, **{**place, **options})


def take(loader: Loader, steps: int) -> list[int]:
    """Read so many steps and return their items."""
    return [n for batch in islice(loader, 4 * steps) for n in batch["n"].tolist()]


def restart(server: Server) -> None:
    """Drain the node and start it again."""
    assert server.terminate() == 0
    server.start()


def test_an_added_file_is_seen_at_the_next_start_and_refused_there(
    server: Server, tmp_path: Path
) -> None:
    """Then one of three ways: the file out again, the old list beside the new one, a new group."""
    with reader(server, "run") as loader:
        items = take(loader, 2)
        write(tmp_path, "c.parquet", 2000)
        [worker] = server.worker_pids()
        assert kill_process(worker)
        items += take(loader, 30)  # into the second epoch
        loader.commit()
        state = loader.state_dict()
        assert sorted(set(items)) == [*range(100), *range(1000, 1100)]
        restart(server)

        with pytest.raises(JobChanged, match="put the old"):
            take(loader, 10)
    with reader(server, "run") as loader, pytest.raises(JobChanged, match=r"added \(c.parquet\)"):
        take(loader, 1)
    with reader(server, "run", start="state") as loader, pytest.raises(JobChanged):
        loader.load_state_dict(state)
    with reader(server, "wider", start=state["step"]) as loader:
        wider = take(loader, 3)
        assert loader.commit() == state["step"] + 3

    (tmp_path / "corpus" / "c.parquet").rename(tmp_path / "c.parquet")
    restart(server)
    with reader(server, "run") as loader:
        expected = take(loader, 3)

    (tmp_path / "c.parquet").rename(tmp_path / "corpus" / "c.parquet")
    write_job_file(tmp_path / "jobs.yaml", {"main": OLD, "more": JOB}, snapshot_seconds=0)
    restart(server)
    with reader(server, "run") as loader:
        assert take(loader, 3) == expected
    with reader(server, "wider", job="more", start=state["step"]) as loader:
        assert take(loader, 3) == wider
    assert max(expected) < 2000 <= max(wider)


def test_a_file_that_changes_stops_its_readers_until_it_is_back(
    server: Server, tmp_path: Path
) -> None:
    """By name, not with other rows; its old bytes put back, the run goes on where it stood."""
    with reader(server, "run") as loader:
        take(loader, 2)
        loader.commit()
        write(tmp_path, "b.parquet", 5000)
        with pytest.raises(SourceChanged, match=r"b.parquet changed under an open source"):
            take(loader, 50)
    write(tmp_path, "b.parquet", 1000)
    restart(server)

    with reader(server, "run") as loader:
        assert len(take(loader, 60)) == 480
        assert loader.commit() == 62
