"""What decides bytes beside the log id is recorded, or said aloud: libraries, a Dataset's files."""

from __future__ import annotations

import asyncio
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Server, run_command, serving, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.server.jobs.load import load
from penstock.server.store import SqliteStore
from penstock.server.usercode import libraries

DATASET = """\
class {name}:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        import numpy
        return {{"n": numpy.int64(index)}}
"""


def write(folder: Path, jobs: tuple[str, ...] = ("plain", "known")) -> Path:
    text = DATASET.format(name="Plain") + "\n" + DATASET.format(name="Known")
    (folder / "data.py").write_text(text + "\n    def fingerprint(self):\n        return 'v1'\n")
    source = {"plain": "Plain", "known": "Known"}
    return write_job_file(
        folder / "jobs.yaml",
        {
            name: {
                "lanes": 2,
                "source": {"type": "torch", "factory": f"./data.py:{source[name]}"},
                "batch_size": 2,
            }
            for name in jobs
        },
        store="sqlite:///p.db",
        workers=1,
    )


def recorded(folder: Path, log_id: bytes, versions: dict[str, str]) -> dict[str, str]:
    async def note() -> dict[str, str]:
        store = SqliteStore(folder / "p.db")
        await store.open()
        try:
            return await store.note_libraries(log_id, versions)
        finally:
            await store.close()

    return asyncio.run(note())


def warnings(server: Server, *words: str) -> list[str]:
    found = []
    for line in list(server.lines):
        event = json.loads(line)
        if event["level"] == "warning" and all(word in event["event"] for word in words):
            found.append(event["event"])
    return found


def test_libraries_are_recorded_and_others_are_said_once(tmp_path: Path) -> None:
    """The node's own versions are recorded; recorded ones that differ are named, with both."""
    file = write(tmp_path)
    log_ids = {name: job.log_id for name, job in load(str(file)).jobs.items()}
    recorded(tmp_path, log_ids["known"], {"numpy": "0.0.1", "processor": "abacus"})

    with serving(file, "--workers", "2") as server:
        for job in ("plain", "known"):
            for reader in [server.read(job, horizon=8) for _ in range(2)]:
                reader.take(8)
                reader.cancel()
        server.terminate()
        said = warnings(server, "computed here with")
        unseen = warnings(server, "has no fingerprint()")

    kept = recorded(tmp_path, log_ids["plain"], {})
    assert kept == {key: kept[key] for key in libraries.in_use() if key in kept}
    assert {"penstock", "Python", "processor", "numpy"} <= set(kept)
    assert kept["numpy"] == np.__version__
    [sentence] = said
    assert f"numpy {np.__version__} (recorded: 0.0.1)" in sentence
    assert f"processor {libraries.processor_class()} (recorded: abacus)" in sentence
    assert "'known'" in sentence
    assert recorded(tmp_path, log_ids["known"], {})["numpy"] == "0.0.1"
    [caution] = unseen
    assert "source 'main': Plain has no fingerprint()" in caution


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one for one in caplog.messages if "computed here with" in one]


def test_a_local_reader_with_a_group_says_it_in_its_own_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per process and log: the first batch records, or names what differs."""
    file = write(tmp_path)
    options: dict[str, Any] = {"as_numpy": True, "rank": 0, "world_size": 1}
    log_ids = {name: job.log_id for name, job in load(str(file)).jobs.items()}
    recorded(tmp_path, log_ids["known"], {"Python": "2.7.18"})

    with (
        caplog.at_level("WARNING", logger="penstock"),
    ):
        for job in ("plain", "known"):
            with Loader(f"local:{file}", job, group="run", **options) as loader:
                next(iter(loader))
                next(iter(loader))
                if job == "known":  # its node says it in its own time
                    eventually(lambda: any(told(caplog)), 60, "what differs is said")

    [said] = told(caplog)
    assert f"Python {platform.python_version()} (recorded: 2.7.18)" in said
    assert "'known'" in said
    assert recorded(tmp_path, log_ids["plain"], {})["Python"] == platform.python_version()


def test_who_holds_no_store_says_it_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`show`, `check`, and `local:` without a group look into the store, and leave it as it is."""
    file = write(tmp_path)
    log_id = load(str(file)).job("known").log_id
    options: dict[str, Any] = {"as_numpy": True, "rank": 0, "world_size": 1}
    with Loader(f"local:{file}", "known", **options) as loader:
        next(iter(loader))
    assert not (tmp_path / "p.db").exists(), "looking makes no store"
    recorded(tmp_path, log_id, {"Python": "2.7.18"})
    before = sorted(path.name for path in tmp_path.iterdir())
    sentence = f"Python {platform.python_version()} (recorded: 2.7.18)"

    with (
        caplog.at_level("WARNING", logger="penstock"),
        Loader(f"local:{file}", "known", **options) as loader,
    ):
        assert len([batch for batch, _ in zip(loader, range(2), strict=False)]) == 2
    shown = run_command(["penstock.server.cli", "show", str(file), "known", "--position", "0"])

    assert [sentence in one for one in caplog.messages if "computed here" in one] == [True]
    checked = run_command(["penstock.server.cli", "check", str(file), "known"])
    assert (shown.returncode, checked.returncode) == (0, 0)
    assert sentence in shown.stderr
    assert sentence in checked.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with serving(file):  # a node holds the store: it is read beside it
        shown = run_command(["penstock.server.cli", "show", str(file), "known", "--position", "0"])
    assert sentence in shown.stderr


def test_check_says_what_a_dataset_does_not_tell(tmp_path: Path) -> None:
    """A sentence for the Dataset without `fingerprint()`, none for the other."""
    file = write(tmp_path)

    done = run_command(["penstock.server.cli", "check", str(file), "--json"])

    found = {job["job"]: job["warnings"] for job in json.loads(done.stdout)["jobs"]}
    assert any("Plain has no fingerprint()" in sentence for sentence in found["plain"])
    assert not any("fingerprint" in sentence for sentence in found["known"])
