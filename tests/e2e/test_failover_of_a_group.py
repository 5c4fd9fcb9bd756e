"""Three nodes of one store: a group reads and commits while they go, each in its way."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

import postgres
from harness import Server, write_job_file
from penstock.client import Batch, Loader

STEP = 6
JOB = {
    "lanes": 6,
    "source": {"type": "items", "items": [{"x": [number] * 9} for number in range(61)]},
    "batch_size": 2,
    "snapshot_every": 4,
}


def digest(batch: Batch) -> tuple[int, str]:
    return batch.position, hashlib.sha256(batch["x"].tobytes()).hexdigest()


def test_a_group_reads_and_commits_whichever_node_goes(tmp_path: Path) -> None:
    """Cursors are the store's, so any node answers; positions are exact, and so are the bytes."""
    store = postgres.in_schema(postgres.postgres_18(), postgres.new_schema())
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            file = write_job_file(
                tmp_path / str(number) / "jobs.yaml", {"code": JOB}, store=store, drain_seconds=3.0
            )
            server = Server(file)
            stack.callback(server.close)
            servers.append(server.start())
            server.command += ["--listen", server.address]
        target = ",".join(server.address for server in servers)
        options = {"rank": 0, "world_size": 1, "batches_per_step": STEP, "as_numpy": True}
        with Loader(servers[0].address, "code", **options) as loader:  # type: ignore[arg-type]
            batches = iter(loader)
            expected = [digest(next(batches)) for _ in range(60 * STEP)]

        found = []
        options |= {"group": "run", "deadline_s": 120.0}
        with Loader(target, "code", attempt="one", **options) as loader:  # type: ignore[arg-type]
            for number, batch in enumerate(loader):
                found.append(digest(batch))
                if number == 10 * STEP - 1:
                    servers[1].kill()
                if number == 20 * STEP - 1:
                    assert loader.commit() == 20
                    servers[1].start()
                    servers[0].terminate()
                if number == 30 * STEP - 1:
                    assert loader.commit() == 30
                    break
        assert found == expected[: 30 * STEP]

        with Loader(target, "code", attempt="two", **options) as loader:  # type: ignore[arg-type]
            batches = iter(loader)
            found += [digest(next(batches)) for _ in range(15 * STEP)]
            servers[2].kill()
            found += [digest(next(batches)) for _ in range(15 * STEP)]
            assert loader.commit() == 60
        assert found == expected
