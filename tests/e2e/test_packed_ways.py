"""Packed rows come complete by every way: the same bytes, aligned, and no loan outlives them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import ENVIRONMENT, serving, write_job_file
from invariants import eventually
from penstock.client import Limits, Loader
from penstock.server.jobs.load import load
from penstock.wire import PROTOCOL
from penstock.wire.describe import batch_record
from penstock.wire.frame import decode_values, read_header
from penstock.wire.v1 import feed_pb2
from truth import Truth

ROLES = """
import numpy

class Items:
    def __init__(self, masked=False):
        self.masked = masked

    def __len__(self):
        return 300

    def __getitem__(self, index):
        draws = numpy.random.default_rng(index)
        ids = draws.integers(0, 50_000, draws.integers(1, 4_000), numpy.int32)
        return {"input_ids": ids} | ({"loss_mask": ids % 3} if self.masked else {})

    def fingerprint(self):
        return "v1"

def masked():
    return Items(masked=True)
"""
COUNT = 14
SHOW = (sys.executable, "-m", "penstock.server.cli", "show")


def job_file(folder: Path, **server: Any) -> Path:
    """Write jobs whose packed rows are large enough to be lent, and one with labels of its own."""
    (folder / "data.py").write_text(ROLES)
    job = {
        "lanes": 3,
        "source": {"type": "torch", "factory": "./data.py:Items"},
        "batcher": {
            "type": "best_fit",
            "max_tokens": 8192,
            "pool_size": 16,
            "rows": 4,
            "overlong": "split",
        },
        "collator": {"type": "packed", "pad_to": 8192},
    }
    masked = job | {
        "source": {"type": "torch", "factory": "./data.py:masked"},
        "collator": {"type": "packed", "pad_to": 8192, "layout": "megatron"},
    }
    return write_job_file(folder / "jobs.yaml", {"plain": job, "masked": masked}, **server)


def records(target: str, job: str, count: int = COUNT) -> list[dict[str, Any]]:
    """Read and check where each batch lies; return what `cat --json` says of them."""
    found = []
    with Loader(target, job, rank=0, world_size=1, as_numpy=True) as loader:
        for batch in loader:
            body = batch.body
            assert body is not None
            assert body.ctypes.data % 64 == 0
            arrays = [value for value in batch.values() if isinstance(value, np.ndarray)]
            assert all(np.shares_memory(array, body) for array in arrays)
            assert all(array.ctypes.data % 64 == 0 for array in arrays)
            found.append(batch_record(batch.header, body, batch.step))
            if len(found) == count:
                return found
    raise AssertionError("the job is endless")


@pytest.mark.parametrize("job", ["plain", "masked"])
def test_every_way_gives_what_is_computed(tmp_path: Path, runtime: Path, job: str) -> None:
    """Sent by a node, lent by it, and computed in a process beside this one; `show` agrees."""
    file = job_file(tmp_path)
    truth = Truth(load(str(file)).jobs[job])
    expected = []
    for position in range(COUNT):
        encoded, body, _ = truth.batch(position)
        expected.append(batch_record(read_header(encoded), body, position))

    for beside in (f"local:{file}", f"spawn:{file}?workers=1"):
        assert records(beside, job) == expected
    for listen in ("127.0.0.1:0", f"unix:{runtime}/node.sock"):
        with serving(job_file(tmp_path, listen=listen)) as node:
            assert records(node.address, job) == expected
            [event] = node.events("reader joined", at_least=1)
            assert event["bodies"] == ("lent" if listen.startswith("unix") else "sent")
    shown = subprocess.run(
        [*SHOW, str(file), job, "--position", "5", "--json"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert expected[5]["digest"] in shown.stdout
    assert expected[5]["bytes"] >= 28 * 4 * 8192, "of the body that the loop has"


def test_what_was_lent_is_back_before_the_batch_is_used(tmp_path: Path, runtime: Path) -> None:
    """A loop that keeps every batch keeps no memory of the node's, and each stays as it was."""
    with serving(job_file(tmp_path, listen=f"unix:{runtime}/node.sock")) as node:
        expected = [record["digest"] for record in records(node.address, "plain", 40)]
        with Loader(node.address, "plain", rank=0, world_size=1, as_numpy=True) as loader:
            batches = iter(loader)
            held = [next(batches) for _ in range(40)]
            eventually(lambda: node.status()["lent_bytes"] == 0, 60, "every loan has come back")
            found = [batch_record(one.header, one.body, 0)["digest"] for one in held]  # type: ignore[arg-type]
            assert found == expected


def test_bounds_count_what_a_batch_takes_here(tmp_path: Path) -> None:
    """Not what travels of it, a seventh: else a Loader would hold seven times its limit."""
    limit = 4_000_000
    with serving(job_file(tmp_path)) as node:
        limits = Limits(prefetch_bytes=limit)
        with Loader(
            node.address, "plain", rank=0, world_size=1, prefetch=1000, limits=limits, as_numpy=True
        ) as loader:
            batches = iter(loader)
            largest = next(batches).nbytes
            assert largest > 4 * 8192 * 28
            # It fills: three more fit, and the next one comes whatever it takes.
            held = limit // largest
            eventually(lambda: loader.stats()["buffered_batches"] >= held - 1, 60, "it fills")
            for _ in range(60):
                next(batches)
                assert loader.stats()["buffer_bytes"] <= limit + largest
        request = feed_pb2.DescribeRequest(protocol=PROTOCOL, job="plain")
        assert node.feed.Describe(request).max_body_bytes >= largest
    encoded, body = Truth(load(str(tmp_path / "jobs.yaml")).jobs["plain"]).batch(0)[:2]
    assert len(body) * 6.9 < read_header(encoded).body_bytes
    assert decode_values(read_header(encoded), body)["labels"].dtype == np.int64
