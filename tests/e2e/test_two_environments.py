"""A node with another numpy beside one over one store: it proves what it makes, job by job."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import postgres
from harness import Server, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.server.node.supply.witnesses import PROOF_WITNESSES
from penstock.server.store import open_store
from penstock.server.store.contract import Store
from penstock.wire.errors import LogDiverged
from venvs import of_the_checkout, venv_with

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 13), reason="NOT RUN: numpy 1 has no wheel for this Python"
)

OLD = "1.26.4"
"""The last numpy whose float32 scalars become float64 beside a float of Python (NEP 50)."""

ROLES = """
import numpy as np
from penstock.server.roles import BatchCollator

class Counted(BatchCollator):
    version = 1
    def collate(self, rows, context):
        return {"x": np.array([sample["x"] for row in rows for sample in row])}

class Scaled(BatchCollator):
    version = 1
    def collate(self, rows, context):
        scaled = [np.float32(sample["x"]) * 0.1 for row in rows for sample in row]
        return {"x": np.asarray(scaled, dtype=np.float64)}
"""

LANES, BATCHES = 4, 400
"""Enough that each lane has six witnesses."""


def job(collator: str) -> dict[str, Any]:
    return {
        "lanes": LANES,
        "source": {"type": "items", "items": [{"x": n} for n in range(50)]},
        "batcher": {"type": "simple", "batch_size": 2},
        "collator": {"type": f"./roles.py:{collator}"},
    }


def read(target: str, name: str, count: int = BATCHES) -> list[bytes]:
    """Read the first batches of a job; return what they hold."""
    with Loader(target, name, rank=0, world_size=1, batches_per_step=4, as_numpy=True) as loader:
        return [batch["x"].tobytes() for batch, _ in zip(loader, range(count), strict=False)]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the Python of a venv with the older numpy."""
    return venv_with(tmp_path_factory.mktemp("older") / "venv", f"numpy=={OLD}")


@pytest.fixture
def url() -> str:
    """Give the address of a store that is empty."""
    return postgres.in_schema(postgres.local_18(), postgres.new_schema())


@pytest.fixture
def nodes(tmp_path: Path, older: Path, url: str) -> Iterator[tuple[Server, Server]]:
    """Give a node that serves, and one with the older numpy over its store, not started yet."""
    (tmp_path / "roles.py").write_text(ROLES)
    jobs = {"counted": job("Counted"), "scaled": job("Scaled")}
    file = write_job_file(tmp_path / "penstock.yaml", jobs, store=url)
    first = Server(file)
    second = Server(file, python=older, environment=of_the_checkout())
    try:
        first.start()
        yield first, second
    finally:
        first.close()
        second.close()


async def look(store: Store, log_id: bytes) -> tuple[int, list[dict[str, str]]]:
    """Return how many witnesses of a log are recorded, up to 8, and with what it was computed."""
    await store.open()
    try:
        witnesses = await store.some_witnesses(log_id, PROOF_WITNESSES)
        return len(witnesses), list((await store.environments(log_id)).values())
    finally:
        await store.close()


def recorded(url: str, node: Server, name: str) -> tuple[int, list[str]]:
    """Return how many witnesses of a job are recorded, and the versions of numpy."""
    [job] = [each for each in node.status()["jobs"] if each["name"] == name]
    found, environments = asyncio.run(look(open_store(url, Path()), bytes.fromhex(job["log_id"])))
    return found, sorted(each["numpy"] for each in environments)


def test_a_node_with_another_numpy_serves_the_jobs_that_it_makes_alike(
    nodes: tuple[Server, Server], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One job comes out alike and is served by both; the other is refused by name, by that node."""
    first, second = nodes
    ours = np.__version__
    truth = {name: read(first.address, name) for name in ("counted", "scaled")}
    for name in truth:
        eventually(
            lambda name=name: recorded(url, first, name) == (PROOF_WITNESSES, [ours]),
            60,
            f"the witnesses of {name} are recorded",
        )
    second.start()

    # Alike: eight batches are made again, then what was read before is given away.
    assert read(second.address, "counted") == truth["counted"]
    [alike] = second.events("a job is made alike with other packages", at_least=1)
    assert (alike["job"], alike["witnesses"]) == ("counted", PROOF_WITNESSES)
    eventually(
        lambda: recorded(url, second, "counted")[1] == sorted([OLD, ours]),
        60,
        "its packages are recorded",
    )

    # Different: nothing is given away, and the sentence has what differs, and how.
    with pytest.raises(LogDiverged, match=rf"here numpy {OLD} \(recorded: {ours}\)") as caught:
        read(second.address, "scaled")
    assert caught.value.fields["ours"] != caught.value.fields["theirs"]
    [refused] = second.events("a job is refused", at_least=1)
    assert (refused["job"], refused["code"]) == ("scaled", "log_diverged")
    assert "penstock" not in refused["error"].partition("here ")[2].partition(";")[0]
    assert recorded(url, second, "scaled") == (PROOF_WITNESSES, [ours])

    # Together: the job that differs is read from the other node alone, and not a byte differs.
    both = f"{first.address},{second.address}"
    sent = second.status()["jobs"][0]["counts"]["sent_batches"]
    with caplog.at_level(logging.WARNING, logger="penstock"):
        for name in truth:
            assert read(both, name) == truth[name]
    left = [line for line in caplog.messages if "is left" in line]
    assert len(left) == 1
    assert f"{second.address} is left" in left[0]
    assert "'scaled'" in left[0]
    of_second = {each["name"]: each["counts"] for each in second.status()["jobs"]}
    assert of_second["counted"]["sent_batches"] > sent
    assert of_second["scaled"]["sent_batches"] == 0
    assert second.terminate() == 0
    assert first.terminate() == 0
