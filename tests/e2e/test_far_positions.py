"""Far positions without a server's help: from a store's snapshots, beside the node that has it."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import run_command, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.server.commands.show import computed_batches
from penstock.server.job.job import Job
from penstock.server.jobs.load import load
from penstock.server.pipeline.line import LONG_REPLAY, Computed, Line
from penstock.server.store.recorded import Recorded
from penstock.server.store.sqlite_schema import FORMAT
from penstock.wire import frame
from penstock.wire.v1 import feed_pb2

ROLES = """
import numpy

def document(raw):
    return {"input_ids": numpy.full(5 + raw["n"] * 7919 % 32, raw["n"], numpy.int32)}
"""
LANES, FAR = 2, 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job whose lanes restart from snapshots alone."""
    folder = tmp_path_factory.mktemp("far")
    (folder / "roles.py").write_text(ROLES)
    job = {
        "lanes": LANES,
        "source": {"type": "items", "items": [{"n": number} for number in range(200)]},
        "function": "./roles.py:document",
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 16},
        "collator": {"type": "packed", "pad_to": 64},
    }
    write_job_file(folder / "jobs.yaml", {"job": job}, store="sqlite:///p.db", snapshot_seconds=0)
    return folder


@pytest.fixture(scope="module")
def beside(folder: Path) -> Iterator[dict[int, bytes]]:
    """While a node holds the store: what it sent, by position."""
    with serving(folder / "jobs.yaml") as server:
        sent: dict[int, bytes] = {}
        with Loader(server.address, "job", rank=0, world_size=1, as_numpy=True) as loader:
            for batch in loader:
                assert batch.info.body is not None
                sent[batch.info.position] = batch.info.body.tobytes()
                if batch.info.position == FAR:
                    break
        log_id = open_job(folder).log_id
        recorded = Recorded("sqlite:///p.db", folder)
        eventually(
            lambda: all(
                (found := recorded.snapshot(log_id, lane, 1 << 40)) is not None
                and found.offset > FAR // LANES - 3 * 16
                for lane in range(LANES)
            ),
            30,
            "snapshots are written",
        )
        yield sent


def open_job(folder: Path) -> Job:
    return load(str(folder / "jobs.yaml")).job("job")


def body_of(batch: Computed) -> bytes:
    """Return the body of a batch as its reader has it."""
    header = feed_pb2.BatchHeader.FromString(batch.header)
    return bytes(frame.completed(header, batch.body))


def start(folder: Path, store: str, position: int) -> int:
    """Return the offset from which `show` would go to a position."""
    job = open_job(folder)
    address = job.order.lane_offset(position)
    found = Recorded(store, folder).snapshot(job.log_id, *address)
    return Line(job, address.lane, snapshot=None if found is None else found.data).offset


def test_show_and_local_start_from_the_snapshots_beside_a_running_node(
    folder: Path, beside: dict[int, bytes]
) -> None:
    """The bytes are those that the node has sent, and those of a replay from the beginning."""
    files = sorted(path.name for path in folder.iterdir())
    store = "sqlite:///p.db"
    for position in (FAR, FAR - 1, 63):
        found = {
            where: [
                body_of(batch)
                for batch in computed_batches(
                    open_job(folder),
                    range(position, position + 1),
                    1,
                    share=None,
                    recorded=Recorded(where, folder),
                )
            ]
            for where in (store, "sqlite:///none.db")
        }
        assert found[store] == found["sqlite:///none.db"] == [beside[position]]
    # Which are kept before it depends on how far the node went beyond, but for the last of all.
    assert start(folder, store, FAR) > 0
    beyond = Recorded(store, folder).snapshot(open_job(folder).log_id, 0, 1 << 40)
    assert beyond is not None
    assert start(folder, store, LANES * (beyond.offset + 3)) == beyond.offset
    assert start(folder, "sqlite:///none.db", FAR) == 0

    target = f"local:{folder / 'jobs.yaml'}"
    with Loader(target, "job", rank=0, world_size=1, start=FAR, as_numpy=True) as loader:
        batch = next(iter(loader))

    assert batch.info.body is not None
    assert batch.info.body.tobytes() == beside[FAR]
    assert sorted(path.name for path in folder.iterdir()) == files


def test_what_does_not_fit_is_not_used(folder: Path, beside: dict[int, bytes]) -> None:
    """Damaged snapshots, a store of another format, no store at all: a replay."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)  # with its journal: the node may go on with its own
    expected = beside[FAR]

    def show() -> bytes:
        recorded = Recorded("sqlite:///p.db", copy)
        job = open_job(folder)
        [batch] = computed_batches(job, range(FAR, FAR + 1), 1, share=None, recorded=recorded)
        return body_of(batch)

    for change, is_used in (
        ("PRAGMA user_version = 999", False),
        (f"PRAGMA user_version = {FORMAT}", True),
        ("UPDATE bodies SET data = x'00' || substr(data, 2)", False),
    ):
        with contextlib.closing(sqlite3.connect(copy / "p.db", isolation_level=None)) as db:
            db.execute(change)
        assert (start(copy, "sqlite:///p.db", FAR) > 0) is is_used
        assert show() == expected
    (copy / "p.db").write_bytes(b"no store at all")
    assert show() == expected
    assert "cannot be read" in why(copy)
    (copy / "p.db").unlink()
    assert show() == expected
    assert "no store" in why(copy)
    assert not (copy / "p.db").exists()


def why(folder: Path) -> str:
    recorded = Recorded("sqlite:///p.db", folder)
    recorded.snapshot(bytes(32), 0, 1)
    return recorded.why_none()


def test_a_long_way_is_told_with_what_it_costs(folder: Path) -> None:
    """Once, on stderr: the records on stdout are the same; nothing is written beside the file."""
    position = LANES * (LONG_REPLAY + 5)

    shown = run_command(
        [
            *("penstock.server.cli", "show", str(folder / "jobs.yaml"), "job", "--json"),
            *("--position", str(position), "--store", "sqlite:///none.db"),
        ]
    )

    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == (
        "penstockd: 1,005 batches of lane 0 are planned again to reach offset 1,005: "
        "there is no store to look for a snapshot in\n"
    )
    assert not (folder / "none.db").exists()
