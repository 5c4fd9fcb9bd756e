"""A store whose process is killed at any moment holds everything that it had answered."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fault.store_writer import JOB
from harness import ENVIRONMENT
from penstock.common.readable import readable
from penstock.server.store import SqliteStore
from penstock.server.store.records import BeginRequest, SnapshotRecord
from penstock.wire.errors import StoreLocked

pytestmark = pytest.mark.fault

LOG = JOB.log_id


class Writer:
    """The child process, and everything that it told."""

    def __init__(self, path: Path, token: str) -> None:
        read, write = os.pipe()
        command = [sys.executable, "-m", "fault.store_writer", str(path), token]
        self.process = subprocess.Popen(command, env=ENVIRONMENT, stdout=write)
        os.close(write)
        self.out = os.fdopen(read, "rb", buffering=0)
        self.text = b""

    def listen(self, lines: int, timeout_s: float) -> None:
        """Read until so many lines have come, or the time is over."""
        while self.text.count(b"\n") < lines:
            if not readable([self.out], timeout_s):
                return
            data = self.out.read(65536)
            assert data, f"the writer ended by itself: {self.process.wait()}"
            self.text += data

    def kill(self) -> list[list[object]]:
        """Kill it and return its answers; a line cut by the kill was not heard."""
        self.process.send_signal(signal.SIGKILL)
        rest = self.out.read
        while data := rest(65536):
            self.text += data
        self.out.close()
        assert self.process.wait() == -signal.SIGKILL
        return [json.loads(line) for line in self.text.split(b"\n")[:-1]]


async def check(path: Path, answers: list[list[object]]) -> int:
    """Reopen at once and hold the store against every answer; return the cursor."""
    store = SqliteStore(path)
    await store.open()
    try:
        groups = await store.groups("code")
        told = {kind: [value for k, value in answers if k == kind] for kind, _ in answers}
        if "open" in told:
            assert told["open"] == [store.uuid]
        if not groups:
            assert "cursor" not in told
            return 0
        (group,) = groups
        steps = [step for step in told.get("cursor", []) if isinstance(step, int)]
        assert group.cursor >= max(steps, default=0)
        assert max(group.rows) - group.cursor <= 1, "no row moved without a commit"
        named = {stands.name: stands.step for stands in group.checkpoints}
        for step in told.get("checkpoint", []):
            assert named[f"at-{step}"] == step
        for step in told.get("snapshot", []):
            assert isinstance(step, int)
            found = await store.nearest_snapshot(LOG, 0, step)
            assert found == SnapshotRecord(LOG, 0, step, b"%d" % step * 3000)
        return group.cursor
    finally:
        await store.close()


def test_answered_commits_survive_kills_at_any_moment(tmp_path: Path) -> None:
    """30 kills of one store while it writes: the cursor never falls below an answer."""
    path = tmp_path / "penstock.db"
    cursor = 0
    for seed in range(30):
        rng = random.Random(seed)
        writer = Writer(path, f"t{seed}")
        writer.listen(rng.randrange(2, 200), timeout_s=60)

        answers = writer.kill()

        try:
            after = asyncio.run(check(path, answers))
        except AssertionError as error:
            error.add_note(f"seed {seed}, last answers {answers[-3:]}")
            raise
        assert after >= cursor, f"seed {seed}"
        cursor = after
    assert cursor > 30


def test_kills_while_opening_and_creating_leave_a_store(tmp_path: Path) -> None:
    """12 kills of fresh stores around their creation: each opens afterwards, empty or right."""
    for seed in range(12):
        rng = random.Random(seed)
        path = tmp_path / f"{seed}" / "penstock.db"
        path.parent.mkdir()
        writer = Writer(path, "t")
        # Not to wait for something: to die somewhere between the start and the first commits.
        writer.listen(rng.randrange(1, 4), timeout_s=rng.uniform(0.0, 0.06))

        answers = writer.kill()

        asyncio.run(check(path, answers))


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    """While it lives the store is refused with its pid; once it is dead the store is free."""
    path = tmp_path / "penstock.db"
    writer = Writer(path, "t")
    writer.listen(3, timeout_s=60)
    with pytest.raises(StoreLocked) as caught:
        asyncio.run(SqliteStore(path).open())

    pid = writer.process.pid
    writer.kill()

    async def take_over() -> int:
        store = SqliteStore(path)
        await store.open()
        begun = await store.begin(BeginRequest(JOB, "run", "next", 0, 2))
        await store.close()
        return begun.generation

    assert caught.value.fields["pid"] == pid
    assert asyncio.run(take_over()) == 2
