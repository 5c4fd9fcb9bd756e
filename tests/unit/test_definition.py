"""A job's definition: the same bytes for the same job, and the same job from the bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import write_job_file
from penstock.server.job.job import Job
from penstock.server.jobs.definition import decode, rebuild
from penstock.server.jobs.load import load
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob, JobChanged

ROLES = """
from penstock.server.roles import RawItemProcessor


class Add(RawItemProcessor):
    one_to_one = True

    def __init__(self, table):
        self.first = next(iter(table))

    def process(self, raw, context):
        return {"x": raw["x"] + self.first.encode()[0]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a job file whose job depends on the order of keys, and on a file beside it."""
    (tmp_path / "roles.py").write_text(ROLES)
    job = {
        "lanes": 2,
        "sources": {
            name: {"type": "items", "items": [{"x": n} for n in range(count)]}
            for name, count in (("z", 3), ("a", 4))
        },
        "processor": {"type": "./roles.py:Add", "table": {"z": 1, "a": 1e-4}},
        "batch_size": 2,
    }
    return write_job_file(tmp_path / "jobs.yaml", {"job": job, "again": {**job, "seed": 1}})


def test_the_job_comes_back_without_its_file(file: Path) -> None:
    """With its order of sources and of keys, which the log id does not hold."""
    job = load(str(file)).job("job")
    file.unlink()

    again = rebuild(job.definition, job.log_id)

    assert (again.name, again.log_id, again.plan) == ("job", job.log_id, job.plan)
    assert list(again.sources) == list(job.sources)
    assert list(again.role_sets[0].processor.arguments["table"]) == list(
        job.role_sets[0].processor.arguments["table"]
    )
    assert again.definition == job.definition


def test_the_same_section_has_the_same_bytes(file: Path) -> None:
    """In whatever process, and whatever else the file holds; another section has others."""
    first = {name: job.definition for name, job in load(str(file)).jobs.items()}
    second = {name: job.definition for name, job in load(str(file)).jobs.items()}

    assert first == second
    assert first["job"] != first["again"]


def test_code_or_data_that_changed_is_named(file: Path) -> None:
    job = load(str(file)).job("job")
    (file.parent / "roles.py").write_text(ROLES + "\n# edited\n")

    with pytest.raises(JobChanged, match=r"'job' is not what it was .* data or code"):
        rebuild(job.definition, job.log_id)


def test_code_that_builds_jobs_is_named_and_runs_again(file: Path) -> None:
    """It may make of its job what no text can say."""
    code = file.parent / "jobs.py"
    code.write_text(
        "from penstock.server.job.job import Job\n"
        "from penstock.server.sources import ItemsSource\n"
        "def make():\n"
        "    job = Job(ItemsSource([object.__name__] * 5), batch_size=1)\n"
        "    job.source_of = open\n"
        "    return {'one': job, 'two': lambda: Job(ItemsSource([1]), batch_size=1)}\n"
    )
    config = load(f"{code}:make")
    for name in config.jobs:
        job = config.job(name)
        again = rebuild(job.definition, job.log_id)

        assert decode(job.definition).settings is None
        assert (again.name, again.log_id) == (name, job.log_id)
        assert hasattr(again, "source_of") is hasattr(job, "source_of")


def test_a_job_that_nobody_can_build_elsewhere_says_so() -> None:
    job = Job(ItemsSource([1]), batch_size=1)

    with pytest.raises(InvalidJob, match=r"serve it as jobs\.py:NAME"):
        rebuild(job.definition, job.log_id)


@pytest.mark.parametrize("data", [b"{}", b"[]", b"\xff", b'{"format": 1, "more": 2}', b"7"])
def test_what_is_no_definition_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidJob, match="the definition of a job is none"):
        decode(data)


def test_a_newer_definition_is_refused(file: Path) -> None:
    told = json.loads(load(str(file)).job("job").definition)

    with pytest.raises(InvalidJob, match=r"has format 2 .this penstock reads format 1"):
        decode(json.dumps({**told, "format": 2}).encode())


def test_a_definition_of_another_folder_is_another(file: Path, tmp_path: Path) -> None:
    """The log is the same: paths decide no byte, and a node must know where to look."""
    other = tmp_path / "other"
    other.mkdir()
    shutil.copyfile(file, other / file.name)
    shutil.copyfile(file.parent / "roles.py", other / "roles.py")
    here, there = (load(str(one)).job("job") for one in (file, other / file.name))

    assert here.log_id == there.log_id
    assert here.definition != there.definition


@pytest.mark.parametrize("several", [False, True])
def test_no_credentials_are_stored(tmp_path: Path, several: bool) -> None:
    """Workers need them, and whoever reads the store does not."""
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "data.parquet")
    source = {"type": "parquet", "files": "data.parquet", "storage_options": {"secret": "hush"}}
    given = {"sources": {"one": source}} if several else {"source": source}
    job = load(str(write_job_file(tmp_path / "j.yaml", {"job": {**given, "batch_size": 1}}))).job(
        "job"
    )

    assert b"hush" in job.definition
    assert b"hush" not in job.stored_definition
    assert rebuild(job.stored_definition, job.log_id).plan == job.plan
