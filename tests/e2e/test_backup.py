"""docs/operate.md, "Restoring a backup": each of its sentences, on real nodes."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness import Server, run_command, write_job_file
from penstock.client import Loader
from penstock.wire.errors import LogDiverged, StaleGeneration, UnknownGroup
from ports import free_port

ITEMS = [{"input_ids": [n] * (1 + n % 7)} for n in range(60)]
JOB: dict[str, Any] = {
    "lanes": 3,
    "batches_per_step": 3,
    "snapshot_every": 2,
    "source": {"type": "items", "items": ITEMS},
    "distributor": {"type": "map", "shuffle": "none"},
    "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 2},
    "collator": {"type": "packed", "pad_to": 16},
}
BAD = """\
def to_sample(raw):
    if raw["input_ids"][0] == 96:
        raise ValueError("a bad item")
    return raw
"""


@contextlib.contextmanager
def node(folder: Path, **job: Any) -> Iterator[Server]:
    """A node on a port that stays its own when it is started again."""
    port = free_port()
    file = write_job_file(folder / "jobs.yaml", {"main": {**JOB, **job}}, snapshot_seconds=0)
    server = Server(file, "--listen", f"127.0.0.1:{port}")
    try:
        yield server.start()
    finally:
        server.close()


def back_up(folder: Path) -> None:
    """Copy the store of a running node by SQLite's own means."""
    with (
        contextlib.closing(sqlite3.connect(folder / "penstock.db")) as store,
        contextlib.closing(sqlite3.connect(folder / "copy.db")) as copy,
    ):
        store.backup(copy)


def restore(server: Server, folder: Path) -> None:
    """Kill the node, do as the page says, and start it again."""
    server.kill()
    lost = Path(tempfile.mkdtemp(dir=folder))
    for one in folder.glob("penstock.db*"):
        one.rename(lost / one.name)
    shutil.copy(folder / "copy.db", folder / "penstock.db")
    server.start()


def reader(server: Server, group: str = "run", **options: Any) -> Loader:
    """Return a Loader of one rank."""
    return Loader(
        server.address,
        "main",
        **{"as_numpy": True, "group": group, "prefetch": 1, "rank": 0, "world_size": 1, **options},
    )


def take(loader: Loader, steps: int) -> list[tuple[int, bytes]]:
    """Read so many steps: positions and bytes."""
    return [(batch.position, bytes(batch.body)) for batch in islice(loader, 3 * steps)]


def test_a_run_ahead_of_its_backup_goes_on_by_its_own_state(tmp_path: Path) -> None:
    """By state nothing is lost or repeated; by the cursor alone, what came since comes again."""
    with node(tmp_path) as server:
        with reader(server) as old:
            before = take(old, 3)
            old.commit()
            back_up(tmp_path)
            later = take(old, 4)
            old.commit()
            old.checkpoint("later")
            state = old.state_dict()
        restore(server, tmp_path)

        with reader(server, group="looks") as looks:
            everything = take(looks, 9)
        with reader(server) as by_cursor:
            repeated = take(by_cursor, 1)
        with reader(server, start="state") as by_state:
            by_state.load_state_dict(state)
            after = take(by_state, 2)
            assert by_state.commit() == 9
        gone = run_command(
            [
                *("penstock.client.cli", "cursors", server.address, "main"),
                *("--group", "run", "restore", "later"),
            ]
        )

    assert repeated == later[:3]
    assert before + later + after == everything
    assert gone.returncode == 1
    assert gone.stderr.strip().endswith("[unknown_checkpoint]")


def test_what_reads_while_a_backup_comes_back_goes_on_or_ends_by_name(tmp_path: Path) -> None:
    """An attempt that the backup knows goes on; one that began since is told so; none is mixed."""
    with node(tmp_path) as server, contextlib.ExitStack() as stack:
        same = stack.enter_context(reader(server, group="same"))
        take(same, 2)
        with reader(server, group="again") as first:
            take(first, 1)
            first.commit()
        back_up(tmp_path)
        again = stack.enter_context(reader(server, group="again"))
        fresh = stack.enter_context(reader(server, group="fresh"))
        take(again, 1)
        take(fresh, 1)
        states = {"again": again.state_dict(), "fresh": fresh.state_dict()}
        restore(server, tmp_path)

        assert [position for position, _ in take(same, 2)] == list(range(6, 12))
        assert same.commit() == 4
        with pytest.raises(StaleGeneration):
            again.commit()
        with pytest.raises(UnknownGroup):
            fresh.commit()
        for group, state in states.items():
            with reader(server, group=group, start="state") as loader:
                loader.load_state_dict(state)
                assert take(loader, 1)[0][0] == 3 * state["step"]
                assert loader.commit() == state["step"] + 1


def test_verdicts_since_the_backup_are_found_again_from_the_cursor(tmp_path: Path) -> None:
    """By a newer state the item is `[log_diverged]`: what was read without it is not changed."""
    (tmp_path / "data.py").write_text(BAD)
    quarantine = {"function": "./data.py:to_sample", "on_item_error": "quarantine"}
    # The bad item lies beyond what a node makes ahead of the backup, and before `later` ends.
    items = [{"input_ids": [n] * (1 + n % 7)} for n in range(200)]
    with node(tmp_path, source={"type": "items", "items": items}, **quarantine) as server:
        with reader(server) as old:
            take(old, 2)
            old.commit()
            back_up(tmp_path)
            later = take(old, 20)
            old.commit()
            state = old.state_dict()
        restore(server, tmp_path)

        with reader(server, start="state") as by_state:
            by_state.load_state_dict(state)
            with pytest.raises(LogDiverged, match=r"item main\[96\] .*a bad item"):
                take(by_state, 10)
        restore(server, tmp_path)
        with reader(server) as by_cursor:
            found = take(by_cursor, 20)

    assert found == later
