"""What people get wrong in a job file, and what they are told: one sentence, with place and remedy.

The table is `data/sentences/wrong.yaml`: an input, a code, a place and words. Each row is loaded,
and given to `penstockd serve`, whose user sees one line on stderr that ends in the code.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from harness import call_command
from penstock.server.jobs.load import load
from penstock.server.jobs.registry import KINDS
from penstock.wire.errors import PenstockError

TABLE = yaml.safe_load(
    Path(__file__).parents[1].joinpath("data/sentences/wrong.yaml").read_text("utf-8")
)
BASE: str = TABLE.pop("base")
ROWS: list[dict[str, Any]] = [row for rows in TABLE.values() for row in rows]
FILE = "penstock.yaml"

ROLES = """\
from penstock.server.roles import DataDistributor, ItemRef, RawItemProcessor


class Doubled(RawItemProcessor):
    def __init__(self, factor: int = 2, *, table=None) -> None:
        self.factor = factor

    def process(self, raw, context):
        return raw


class Picky(RawItemProcessor):
    def __init__(self, size):
        self.size = size

    def process(self, raw, context):
        return raw


class Abstract(RawItemProcessor):
    pass


class NoRole:
    pass


class Endless(DataDistributor):
    def draw(self, lane, lanes, k):
        return ItemRef("main", k % 40, 0)


def to_sample(raw):
    return raw
"""

JOBS = """\
from penstock.server.job.job import Job
from penstock.server.sources import ItemsSource

jobs = {"code": Job(ItemsSource([1]), batch_size=1)}
number = 7
wrong = {"code": 7}


def broken():
    return 1 / 0
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of good and broken data files, roles and jobs."""
    from tokenizers import Tokenizer, models

    folder = tmp_path_factory.mktemp("home")
    ids = [[n, n + 1, n + 2] for n in range(40)]
    table = pa.table({"text": [str(n) for n in range(40)], "input_ids": ids})
    pq.write_table(table, folder / "data.parquet", row_group_size=8)
    pq.write_table(table.slice(0, 0), folder / "empty.parquet")
    (folder / "cut.parquet").write_bytes((folder / "data.parquet").read_bytes()[:200])
    (folder / "no_tokenizer.json").write_text('{"hello": 1}')
    Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>")).save(
        str(folder / "tokenizer.json")
    )
    for name, text in (("roles", ROLES), ("jobs", JOBS), ("broken", "def f(:\n")):
        (folder / f"{name}.py").write_text(text)
    return folder


def text_of(row: dict[str, Any]) -> str:
    """Return the job file of a row."""
    if "text" in row:
        return str(row["text"])
    if "edit" in row:
        old, new = row["edit"]
        assert old in BASE
        return BASE.replace(old, new, 1)
    whole = yaml.safe_load(BASE)
    whole["server"]["metrics"] = "off"  # which YAML of another kind takes for a truth value
    whole["jobs"]["code"].update(row.get("job", {}))
    return yaml.safe_dump(whole, sort_keys=False)


def build_all(target: str, **options: Any) -> None:
    """Build every job of a target, as a node does that serves it."""
    config = load(target, **options)
    for name in config.jobs:
        config.job(name).check_end()


def first_change(text: str) -> int:
    """Return the first line that is other than in the base."""
    lines = zip(text.splitlines(), [*BASE.splitlines(), ""], strict=False)
    return next(number for number, (one, two) in enumerate(lines, start=1) if one != two)


@pytest.mark.parametrize("row", ROWS, ids=[row["words"][:40] for row in ROWS])
def test_a_mistake_is_one_sentence_with_its_place(
    row: dict[str, Any], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same from `load`, which names key and line, and from the command, before it listens."""
    text, target, given = text_of(row), row.get("target", FILE), row.get("set", [])
    (home / FILE).write_text(text)
    sources = ", ".join(sorted(KINDS["source"].builtins))
    words = row["words"].replace("{home}", str(home)).replace("{sources}", sources)
    environ, flags = row.get("environ", {}), row.get("flags", {})

    with pytest.raises(PenstockError) as caught:
        build_all(str(home / target), environ=environ, overrides=flags, assignments=given)

    error, fields = caught.value, caught.value.fields
    assert words in error.message
    assert "\n" not in error.message
    assert error.code == row.get("code", "invalid_job")
    if "key" in row:
        assert fields["key"] == row["key"]
    line = row.get("line", first_change(text) if "edit" in row else None)
    if line is not None:
        assert fields["line"] == line
        assert error.message.startswith(f"{home / FILE}:{line}: ")
    if given and "edit" not in row:
        assert f"{FILE}:" not in error.message, "an option has no line"

    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    options += [part for assignment in given for part in ("--set", assignment)]
    ended = call_command("penstockd", "serve", str(home / target), *options, folder=home)

    assert (ended.returncode, ended.stdout) == (2, "")
    *frames, said = ended.stderr.splitlines()
    assert not frames or fields["traceback"], "more lines are frames of the user's code"
    said = str(json.loads(said)["event"]) if said.startswith("{") else said
    assert said == f"penstockd: error: {error.message} [{error.code}]"
