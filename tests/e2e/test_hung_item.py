"""One item that hangs holds up its own lane, and no other job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import serving, write_job_file
from invariants import eventually
from penstock.wire.errors import WorkerCrashed

ROLES = '''
import pathlib
import time

from penstock.server.roles import RawItemProcessor

HERE = pathlib.Path(__file__).parent


class Hangs(RawItemProcessor):
    """Item 3 waits for a file that may never come."""

    def process(self, raw, context):
        if raw["n"] == 3:
            (HERE / "hung").touch()
            while not (HERE / "go").exists():
                time.sleep(0.02)
        return {"n": raw["n"]}


class Fine(RawItemProcessor):
    """Filters nothing, but might: so a lane's line lives in one worker."""

    def process(self, raw, context):
        return {"n": raw["n"]}
'''


def write_jobs(folder: Path, **server: Any) -> Path:
    """Write a job with an item that hangs, and one without."""
    (folder / "roles.py").write_text(ROLES)
    job = {
        "source": {"type": "items", "items": [{"n": n} for n in range(8)]},
        "distributor": {"type": "map", "shuffle": "none"},
        "lanes": 4,
        "batch_size": 1,
    }
    jobs = {
        "bad": {**job, "processor": {"type": "./roles.py:Hangs"}},
        "good": {**job, "processor": {"type": "./roles.py:Fine"}},
    }
    return write_job_file(folder / "penstock.yaml", jobs, **server)


def test_other_jobs_and_lanes_go_on_in_the_other_worker(tmp_path: Path) -> None:
    """Two workers, one of them hung: every lane but the item's own is made by the other."""
    with serving(write_jobs(tmp_path, workers=2, item_seconds=24)) as server:
        bad = server.read("bad", horizon=12)
        good = server.read("good", horizon=8)
        before = [one.header.position for one in good.take(8)]
        eventually((tmp_path / "hung").exists, 90, "an item hangs")
        good.extend(48)
        after = [one.header.position for one in good.take(40)]
        others = [one.header.lane for one in bad.take(9)]

        assert sorted(before + after) == list(range(48))
        assert set(others) == {0, 1, 2}
        assert not server.events("a worker is stuck")
        (tmp_path / "go").touch()
        assert [one.header.lane for one in bad.take(3)] == [3, 3, 3]
        assert not server.events("a worker died")


def test_a_single_worker_is_free_again_after_the_items_deadline(tmp_path: Path) -> None:
    """The other job waits for at most one deadline, is told for what, and goes first then.

    The lane stops by name, and says for which deadline.
    """
    with serving(write_jobs(tmp_path, workers=1, item_seconds=4)) as server:
        good = server.read("good", horizon=0)
        bad = server.read("bad", horizon=12)
        eventually((tmp_path / "hung").exists, 90, "an item hangs")
        good.extend(40)
        got = [one.header.position for one in good.take(40)]
        stuck = len(server.events("a worker is stuck"))
        with pytest.raises(WorkerCrashed) as caught:
            for _ in bad:
                pass

    assert sorted(got) == list(range(40))
    assert 1 <= stuck < 3, "it did not wait until the lane had stopped"
    ways = {one.item for one in good.waiting if one.stage == "queued"}
    assert "main[3] in epoch 0 of job 'bad'" in ways
    assert "main[3] in epoch 0" in caught.value.message
    assert "still at it after item_seconds = 4" in caught.value.message
