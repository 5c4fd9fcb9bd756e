"""The docs and the JSON Schema say what the code does."""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.client.loader import DEADLINE_S
from penstock.server.commands import memory_formula as memory
from penstock.server.files import catalog
from penstock.server.jobs.docstrings import argument_docs
from penstock.server.jobs.load import load
from penstock.server.jobs.reference import json_schema, markdown, parameter_rows
from penstock.server.jobs.registry import FUNCTIONS, KINDS
from penstock.server.jobs.settings import (
    MAX_READY_BYTES,
    MIN_READY_BYTES,
    JobSettings,
    ServerSettings,
)
from penstock.server.pipeline.line import Line
from penstock.server.roles import MapDistributor, RankPartitionedDistributor
from penstock.server.roles.distributors import default_windows as windows
from penstock.server.sources import ItemsSource
from penstock.server.store.thinning import CROWDED

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> dict[str, str]:
    """Return the code blocks of a page that are marked as files, by file name."""
    found = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", (DOCS / page).read_text(), re.S)
    return dict(found)


def test_the_reference_has_the_tables_of_the_models() -> None:
    """Every key with its default and meaning; `penstockd schema --markdown` writes them anew."""
    assert (DOCS / "reference.md").read_text().endswith("\n\n" + markdown())


def test_every_key_and_parameter_has_a_meaning() -> None:
    """A table without a sentence in it helps nobody."""
    for model in (ServerSettings, JobSettings):
        for name, field in model.model_fields.items():
            assert field.description, name
    roles = [cls for kind in KINDS.values() for cls in kind.builtins.values()]
    for cls in [*roles, *FUNCTIONS.values()]:
        for row in parameter_rows(cls):
            assert row.meaning, f"{cls.__name__}.{row.name}"


def test_figures_in_the_sentences_are_those_of_the_code() -> None:
    """What a setting costs is said with numbers: they are constants somewhere."""
    node, job = ServerSettings.model_fields, JobSettings.model_fields
    draws = argument_docs(inspect.getdoc(MapDistributor))

    assert f"memory: {memory.WORKER_MIB} MiB" in str(node["workers"].description)
    assert f"up to {memory.BATCHES_SPREAD} times" in str(node["ready_bytes"].description)
    assert f"{MIN_READY_BYTES >> 20} MiB to {MAX_READY_BYTES >> 30} GiB" in str(
        node["ready_bytes"].description
    )
    assert f"at most {catalog.MAX_FOLDER_BYTES >> 20} MiB" in str(node["hash_cache"].description)
    assert f"`deadline_s` ({DEADLINE_S:.0f})" in str(node["item_seconds"].description)
    assert f"at most {CROWDED} for a lane" in str(job["snapshot_every"].description)
    assert f"into {windows.ROOMY_BYTES >> 30} GiB over all groups" in draws["window_blocks"]
    assert f"up to {windows.MANY_GROUPS}, as memory allows" in draws["reading_groups"]
    assert f"at most {windows.SMALL_BYTES >> 20} MiB" in draws["reading_groups"]


def test_the_example_of_the_page_is_a_valid_job_file(tmp_path: Path) -> None:
    """What the page shows first passes the check of keys."""
    [example] = re.findall(r"```yaml\n(server:.*?)```", (DOCS / "jobs.md").read_text(), re.S)
    (tmp_path / "penstock.yaml").write_text(example)

    config = load(str(tmp_path / "penstock.yaml"), environ={})

    assert list(config.jobs) == ["code"]


def test_the_python_example_of_the_page_gives_jobs(tmp_path: Path) -> None:
    """`jobs.py:jobs` as the page shows it."""
    (tmp_path / "jobs.py").write_text(blocks("jobs.md")["jobs.py"])

    config = load(f"{tmp_path}/jobs.py:jobs", environ={})

    assert len(config.job("numbers").log_id) == 32


def test_the_mixture_of_the_page_has_the_shares_that_it_says(tmp_path: Path) -> None:
    """Of its tokens, nested parts multiplied; only what the condition keeps is drawn."""
    (tmp_path / "mixture.yaml").write_text(blocks("jobs.md")["mixture.yaml"])
    rows = [
        {"input_ids": [n] * (5 + n % 60), "language": ("en", "de")[n % 2], "score": n % 10 / 10}
        for n in range(200)
    ]
    for name in ("web/a", "web/b", "code/a", "math", "proofs"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")

    job = load(str(tmp_path / "mixture.yaml"), environ={}).job("pretrain")
    tokens: Counter[str] = Counter()
    line = Line(job, 3)
    for _ in range(60):
        for ref in (ref for row in line.advance().rows for ref in row):
            tokens[ref.item.source] += ref.size
            if ref.item.source == "web":
                row = rows[ref.item.index % 200]
                assert row["language"] == "en"
                assert row["score"] >= 0.5

    shares = {name: count / sum(tokens.values()) for name, count in tokens.items()}
    said = {"web": 0.6, "code": 0.3, "math": 0.075, "proofs": 0.025}
    assert shares == pytest.approx(said, abs=0.02)


def test_lanes_of_their_own_are_as_many_as_the_page_says() -> None:
    """Of 48 lanes by weights of 6, 3 and 1."""
    distributor = RankPartitionedDistributor({"web": 6, "code": 3, "math": 1})
    distributor.bind({name: ItemsSource([1]) for name in ("web", "code", "math")}, 0, None, 48)

    assert distributor.lanes_of == [29, 14, 5]
    assert "of 48 lanes these get 29, 14 and 5" in (DOCS / "jobs.md").read_text()


def test_the_joint_examples_of_the_page_have_the_shares_that_it_says(tmp_path: Path) -> None:
    """Of every 10 steps of a lane 7 are of the one set; the file's sets go together, too."""
    (tmp_path / "joint.py").write_text(blocks("jobs.md")["joint.py"])

    job = load(f"{tmp_path}/joint.py:mixed", environ={}).job("job")

    for lane in range(8):
        for first in range(0, 50, 10):
            names = [job.choice(lane, first + k) for k in range(10)]
            assert names.count(0) == 7


def test_the_joint_file_of_the_page_is_read(tmp_path: Path) -> None:
    """Its keys, its roles, and that their values go together."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(
        str(tmp_path / "tokenizer.json")
    )
    for name in ("web", "chat"):
        (tmp_path / name).mkdir()
    pq.write_table(pa.table({"text": ["a"] * 5}), tmp_path / "web" / "a.parquet")
    for shard in range(2):
        (tmp_path / "chat" / f"{shard}.jsonl").write_text('{"text": "a"}\n' * 3)
    (tmp_path / "joint.yaml").write_text(blocks("jobs.md")["joint.yaml"])

    job = load(str(tmp_path / "joint.yaml"), environ={}).job("mixed")

    assert [roles.name for roles in job.role_sets] == ["web", "chat"]
    assert "dataset_name" in {spec.name for spec in job.specs()}


def resolve(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in node:
        found: dict[str, Any] = schema["$defs"][node["$ref"].rpartition("/")[2]]
        return found
    return node


def test_the_schema_knows_every_key_and_no_other() -> None:
    """An editor completes what the loader accepts and underlines what it refuses."""
    schema = json_schema()
    job = schema["$defs"]["JobSettings"]
    server = resolve(schema, schema["properties"]["server"])

    assert set(job["properties"]) == set(JobSettings.model_fields)
    assert set(server["properties"]) == set(ServerSettings.model_fields)
    assert job["additionalProperties"] is server["additionalProperties"] is False
    assert [one["required"] for one in job["oneOf"]] == [
        ["source"],
        ["sources"],
        ["joint"],
    ]
    assert job["properties"]["sources"]["additionalProperties"] == {"$ref": "#/$defs/source"}
    json.dumps(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_knows_the_parameters_of_builtins(kind: str) -> None:
    """For a built-in type the parameters are known, and which of them are required."""
    schema = json_schema()
    role = resolve(schema, schema["$defs"]["JobSettings"]["properties"][kind])
    cases = role["anyOf"][2]["allOf"]
    known = {
        case["if"]["properties"]["type"]["const"]: case["then"]
        for case in cases
        if "properties" in case["if"]
    }
    called = [case["then"] for case in cases if case["if"] == {"not": {"required": ["type"]}}]

    assert set(known) == set(KINDS[kind].builtins)
    assert [set(then["properties"]) for then in called] == [
        {row.name for row in parameter_rows(cls)} for cls in FUNCTIONS.values() if cls.kind == kind
    ]
    for name, cls in KINDS[kind].builtins.items():
        rows = list(parameter_rows(cls))
        assert set(known[name]["properties"]) == {"type", *(row.name for row in rows)}
        assert known[name]["required"] == [row.name for row in rows if row.default == "required"]


def test_argument_docs_reads_google_sections() -> None:
    """Continuation lines are joined, and the next section ends it."""
    doc = "First.\n\nArgs:\n    a: One\n        and more.\n    b: Two.\n\nRaises:\n    c: No.\n"

    assert argument_docs(doc) == {"a": "One and more.", "b": "Two."}
    assert argument_docs("No arguments.") == {}
