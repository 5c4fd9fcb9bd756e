"""A database whose disk is full: it is said, nothing that was answered is lost, and it goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import postgres
from penstock.server.store import open_store
from penstock.server.store.records import SnapshotRecord
from penstock.server.testing.store import LOG, ask
from penstock.wire.errors import StoreUnavailable

DISK_BYTES = 160 << 20
BODY_BYTES = 1 << 20
DEADLINE_S = 120.0


@pytest.fixture
def disk() -> Iterator[Path]:
    """A file system of a few megabytes: in memory, so only root may make it."""
    place = Path(tempfile.mkdtemp(prefix="disk"))
    place.chmod(0o755)  # the server runs as another user
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(place)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        place.rmdir()
        pytest.skip(f"NOT RUN: no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
        place.rmdir()


async def test_a_full_disk_is_said_and_costs_no_answered_commit(disk: Path) -> None:
    """Something else fills it; calls are refused or go on; with room again all of them go on."""
    data = disk / "data"
    data.mkdir(mode=0o700)
    # What it writes ahead is bounded: else it alone fills so small a disk.
    settings = ["min_wal_size = 32MB", "max_wal_size = 32MB"]
    server = await asyncio.to_thread(postgres.own_server, data=data, settings=settings)
    try:
        store = open_store(server.url, Path())
        await store.open()
        await store.begin(ask(world_size=1))
        filler = disk / "filler"
        await asyncio.to_thread(fill, filler)
        said, answered = [], 0
        for number in range(1, 60):
            record = SnapshotRecord(LOG, 0, number, os.urandom(BODY_BYTES))
            for call in (
                store.put_snapshots([record]),
                store.commit("code", "run", "t1", 1, 0, number),
            ):
                try:
                    done = await call
                except StoreUnavailable as error:
                    said.append(error.message)
                else:
                    answered = done.row if done is not None else answered
            if len(said) > 3:
                break

        filler.unlink()
        end, last = time.monotonic() + DEADLINE_S, None
        while last is None:  # where it could not write ahead it has ended itself, and comes back
            assert time.monotonic() < end, said[-1]
            with contextlib.suppress(StoreUnavailable):
                last = await store.commit("code", "run", "t1", 1, 0, answered + 1)
        assert last.row == answered + 1 > 1
        await store.put_snapshots([SnapshotRecord(LOG, 1, 5, b"there is room again")])
        kept = await store.nearest_snapshot(LOG, 1, 9)
        await store.close()
    finally:
        server.end()

    assert kept is not None
    assert kept.data == b"there is room again"
    full = [text for text in said if "its disk is full" in text]
    assert full, said
    assert all("No space left on device" in text for text in full)
    assert all("make room on the database's disk" in text for text in full)


def fill(path: Path) -> None:
    """Take all room that a file system has."""
    with path.open("wb") as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 20))
            file.flush()
