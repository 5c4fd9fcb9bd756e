"""Verdicts and snapshots that come late: what readers were given never moves, or they are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import Server, serving, write_job_file
from penstock.client import Loader
from penstock.wire.errors import LogDiverged

ROLES = """
import pathlib

from penstock.server.roles import RawItemProcessor

HERE = pathlib.Path(__file__).parent


class Ages(RawItemProcessor):
    \"\"\"Item 2 begins to fail.\"\"\"

    def process(self, raw, context):
        if raw["x"] == 2 and (HERE / "aged").exists():
            raise ValueError("the file went bad")
        return raw
"""


def make_file(folder: Path, *, lanes: int = 1, **job: Any) -> Path:
    """Write a job of 40 items, two per batch, whose item 2 fails once `aged` is there."""
    (folder / "roles.py").write_text(ROLES)
    one = {
        "lanes": lanes,
        "batches_per_step": lanes,
        "on_item_error": "quarantine",
        "source": {"type": "items", "items": [{"x": number} for number in range(40)]},
        "distributor": {"type": "map", "shuffle": "none"},
        "processor": {"type": "./roles.py:Ages"},
        "batch_size": 2,
        **job,
    }
    return write_job_file(folder / "jobs.yaml", {"job": one})


def train(target: str, steps: int, group: str = "run") -> list[list[int]]:
    """Read and commit some steps of a group."""
    got: list[list[int]] = []
    with Loader(target, "job", group=group, as_numpy=True, deadline_s=60) as loader:
        for step in loader.steps():
            got += [batch["x"].tolist() for batch in step]
            loader.commit()
            if len(got) >= steps:
                return got
    raise AssertionError("the job ended")


def no_snapshots(server: Server) -> None:
    """See that there is none: the tests below are of a lane that is planned from its beginning."""
    assert not server.events("a snapshot was refused")


def test_an_item_that_fails_later_stops_its_lane_and_loses_no_other(tmp_path: Path) -> None:
    """Below what a committed run was given nothing may move: the item is named, none is lost."""
    with serving(make_file(tmp_path, snapshot_every=1000)) as server:
        assert train(server.address, 6) == [[2 * n, 2 * n + 1] for n in range(6)]
        server.kill()
        (tmp_path / "aged").touch()
        server.start()

        with pytest.raises(LogDiverged, match=r"main\[2\]") as caught:
            train(server.address, 1)
        assert caught.value.fields["lane"] == 0
        with pytest.raises(LogDiverged):
            train(server.address, 1, "another")
        server.events("a lane stopped", at_least=1, code="log_diverged")

        (tmp_path / "aged").unlink()  # repaired: the same log goes on
        server.kill()
        server.start()
        assert train(server.address, 2) == [[12, 13], [14, 15]]
