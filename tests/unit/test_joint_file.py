"""Joint jobs in job files: their sets, what is refused there, and what of them is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.server.job.joint_job import JointJob
from penstock.server.job.role_set import RoleSet
from penstock.server.jobs.definition import decode, rebuild
from penstock.server.jobs.load import load
from penstock.server.roles import MapDistributor
from penstock.server.sources import ItemsSource
from penstock.wire.errors import InvalidJob

FILE = """
jobs:
  mixed:
    lanes: 6
    batches_per_step: 4
    joint:
      web:
        ratio: 7
        source: {type: items, items: [1, 2, 3]}
        distributor: {type: map, shuffle: none}
        batch_size: 2
      chat:
        ratio: 3
        exhausted: repeat
        sources:
          one: {type: items, items: [4, 5]}
          two: {type: items, items: [6]}
        batcher: {type: simple, batch_size: 3}
        collator: default
"""


def write(folder: Path, text: str) -> str:
    (folder / "jobs.yaml").write_text(text)
    return str(folder / "jobs.yaml")


def test_a_file_says_what_python_says(tmp_path: Path) -> None:
    """The same log; workers build it again from its definition."""
    job = load(write(tmp_path, FILE), environ={}).job("mixed")
    sets = {
        "web": RoleSet(
            ItemsSource([1, 2, 3]), MapDistributor(shuffle="none"), batch_size=2, ratio=0.7
        ),
        "chat": RoleSet(
            {"one": ItemsSource([4, 5]), "two": ItemsSource([6])},
            batch_size=3,
            ratio=0.3,
            exhausted="repeat",
        ),
    }

    assert isinstance(job, JointJob)
    assert job.log_id == JointJob(sets, lanes=6, batches_per_step=4).log_id
    assert job.shares() == {"web": 0.7, "chat": 0.3}
    again = rebuild(job.definition, job.log_id)
    assert [roles.name for roles in again.role_sets] == ["web", "chat"]


def test_credentials_of_a_set_go_into_no_store(tmp_path: Path) -> None:
    """Its sources' storage_options are in the definition of workers alone."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "a.parquet")
    source = "{type: parquet, files: a.parquet, storage_options: {auto_mkdir: false}}"
    text = "jobs:\n  j:\n    choice: batch\n    joint:\n"
    text += f"      a: {{batch_size: 1, source: {source}}}\n"
    text += f"      b: {{batch_size: 1, sources: {{s: {source}}}}}\n"
    job = load(write(tmp_path, text), environ={}).job("j")

    assert "auto_mkdir" in job.definition.decode()
    assert "auto_mkdir" not in job.stored_definition.decode()
    settings: Any = decode(job.stored_definition).settings
    assert settings["joint"]["a"]["source"]["files"] == "a.parquet"


@pytest.mark.parametrize(
    ("old", "new", "key", "says"),
    [
        ("ratio: 7", "ratio: 0", "joint.web.ratio", "is 0: give a number above 0"),
        ("ratio: 7", "ration: 7", "joint.web.ration", "did you mean ratio"),
        ("exhausted: repeat", "exhausted: no", "joint.chat.exhausted", "give stop or repeat"),
        ("      web:", "      we b:", "joint", "'we b' is not a name for a set of roles"),
        ("    joint:", "    batch_size: 2\n    joint:", "batch_size", "put batch_size into them"),
        ("batches_per_step: 4", "seed: 1", "batches_per_step", "or choice: batch"),
        ("    lanes: 6", "    choice: rank", "choice", "give step, batch or lane"),
        ("batch_size: 2", "seed: 3", "joint.web.seed", "is not a key of"),
        ("        batch_size: 2\n", "", "joint.web.batcher", "neither batcher nor batch_size"),
        ("{type: map, shuffle: none}", "mop", "joint.web.distributor.type", "did you mean map"),
        ("          two:", "          web:", "joint", "a source of the same name"),
        ("joint:", "jiont:", "jiont", "did you mean joint"),
    ],
)
def test_a_mistake_in_a_set_is_named_with_its_key(
    tmp_path: Path, old: str, new: str, key: str, says: str
) -> None:
    """By the key of the set, and with the remedy."""
    assert old in FILE
    with pytest.raises(InvalidJob) as caught:
        load(write(tmp_path, FILE.replace(old, new)), environ={}).job("mixed")

    assert says in caught.value.message
    assert caught.value.fields["key"] == f"jobs.mixed.{key}"


def test_a_choice_without_sets_is_refused(tmp_path: Path) -> None:
    """It would mean nothing."""
    text = "jobs:\n  a: {choice: batch, batch_size: 1, source: {type: items, items: [1]}}\n"

    with pytest.raises(InvalidJob, match="give several in joint, or remove it"):
        load(write(tmp_path, text), environ={})
