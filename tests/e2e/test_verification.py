"""One batch in 1,000 is made twice in production: a role that is not pure is found and named."""

from __future__ import annotations

import urllib.request
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from harness import serving, write_job_file
from penstock.client import Loader
from penstock.wire.errors import LogDiverged
from unit.served import wait_until

ROLES = """
import itertools
import numpy as np
from penstock.server.roles import BatchCollator

class Pure(BatchCollator):
    version = 1
    def collate(self, rows, context):
        return {"x": np.array([sample["x"] for row in rows for sample in row])}

class Counting(Pure):
    calls = itertools.count()
    def collate(self, rows, context):
        return {**super().collate(rows, context), "calls": next(self.calls)}
"""


def _metric(address: str, name: str) -> float:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


@pytest.mark.parametrize(("collator", "impure"), [("Pure", 0), ("Counting", 1)])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_batch_in_a_thousand_is_made_twice(
    tmp_path: Path, collator: str, impure: int, workers: int
) -> None:
    """What differs stops its lane, and readers are told; what is pure is counted as verified."""
    (tmp_path / "roles.py").write_text(ROLES)
    job: dict[str, Any] = {
        "lanes": 4,
        "source": {"type": "items", "items": [{"x": n} for n in range(50)]},
        "batcher": {"type": "simple", "batch_size": 1},
        "collator": {"type": f"./roles.py:{collator}"},
    }
    file = write_job_file(tmp_path / "penstock.yaml", {"job": job}, metrics="127.0.0.1:0")

    with serving(file, "--workers", str(workers)) as server:
        loader = Loader(server.address, "job", rank=0, world_size=1, prefetch=64)
        told = pytest.raises(LogDiverged, match="was made twice") if impure else nullcontext()
        with loader, told as caught:
            for batch in loader:
                if batch.position == 1500 and not impure:
                    break
        if caught is not None:
            assert caught.value.fields["ours"] != caught.value.fields["theirs"]
        [ready] = server.events("ready")
        address = ready["metrics"]
        verified = "penstock_verified_batches_total"
        wait_until(lambda: _metric(address, verified) == 1, "a verified batch", 60)
        found = _metric(address, "penstock_impure_batches_total")
        server.terminate()

    stopped = server.events("a lane stopped", job="job", code="log_diverged")
    assert found == impure
    assert len(stopped) == impure
