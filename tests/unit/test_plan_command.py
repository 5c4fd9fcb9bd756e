"""`penstockd plan`: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import call_command
from penstock.common.terminal import folded
from penstock.server.planning.report.along import along

GOLDEN = Path(__file__).parents[1] / "data" / "plan" / "report.json"

JOBS = """
jobs:
  two:
    seed: 3
    lanes: 4
    epochs: 2
    batches_per_step: 6
    sources:
      web: {type: parquet, files: web.parquet}
      code: {type: parquet, files: code.parquet}
    batcher: {type: best_fit, max_tokens: 64, rows: 2, pool_size: 8, overlong: truncate}
    collator: {type: packed, pad_to: 64}
  endless:
    lanes: 3
    source: {type: parquet, files: web.parquet}
    batcher: {type: best_fit, max_tokens: 64, pool_size: 8}
    collator: {type: packed}
  filtered:
    source: {type: parquet, files: web.parquet}
    function: ./roles.py:long_enough
    batcher: {type: best_fit, max_tokens: 64}
    collator: {type: packed}
  stepped:
    lanes: 2
    batches_per_step: 4
    choice: step
    joint:
      a: {source: {type: parquet, files: web.parquet}, batch_size: 2, collator: {type: padded}}
      b: {source: {type: parquet, files: code.parquet}, batch_size: 3, collator: {type: padded}}
    epochs: 1
"""

ROLES = """
def long_enough(raw, context):
    return raw if len(raw["input_ids"]) > 3 else None
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job file and its data: 100 and 40 rows of 1 to 80 tokens."""
    found = tmp_path_factory.mktemp("planned")
    (found / "jobs.yaml").write_text(JOBS)
    (found / "roles.py").write_text(ROLES)
    for name, count in (("web", 100), ("code", 40)):
        rows = [list(range(1 + number * number % 80)) for number in range(count)]
        column = pa.array(rows, pa.list_(pa.int32()))
        pq.write_table(pa.table({"input_ids": column}), found / f"{name}.parquet")
    return found


_said: dict[tuple[str, ...], str] = {}


def plan(folder: Path, *arguments: str) -> str:
    """Return what the command prints: run once for the same arguments, unless it writes a file."""
    if arguments not in _said or "--html" in arguments:
        _said[arguments] = run(folder, *arguments)
    return _said[arguments]


def run(folder: Path, *arguments: str) -> str:
    done = call_command("penstockd", "plan", "jobs.yaml", *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(folder: Path, *arguments: str) -> str:
    done = call_command("penstockd", "plan", "jobs.yaml", *arguments, folder=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) <= 2, "one sentence, and where to find help"
    return done.stderr


def test_the_json_has_one_form(folder: Path) -> None:
    """Names and figures as they were: scripts read them. What may differ is what libraries hash.

    To write it anew after a change that is meant, remove the file and run this once.
    """
    found = json.loads(plan(folder, "two", "--ranks", "2,3", "--lanes", "2,4", "--json"))
    del found["log_id"]
    if not GOLDEN.exists():
        GOLDEN.write_text(json.dumps(found, indent=1) + "\n")
        pytest.fail(f"wrote {GOLDEN}: look at it")

    assert found == json.loads(GOLDEN.read_text())


def test_figures_of_a_job_are_the_same_for_people(folder: Path) -> None:
    """The table says what the JSON says."""
    found = json.loads(plan(folder, "two", "--json"))
    text = plan(folder, "two")

    for said in (
        f"{found['batches']:,}, {found['batches_per_epoch']:,.1f} per epoch",
        f"{found['rows']:,} rows, {found['samples']:,} samples",
        f"{found['padding_tokens']:,} tokens, as the collator pads",
        f"{found['efficiency']:.4f}",
        f"{found['tail']['pad']['steps']} steps",
        f"{found['tail']['drop']['left_out_batches']} batch",
        f"{found['batcher']['truncated_tokens']:,}",
        f"{found['sources']['code']['tokens']:,} tokens",
    ):
        assert said in text
    assert re.search(rf"steps +{found['steps']} whole ones", text)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("job", ["two", "endless", "stepped"])
def test_no_line_of_a_table_is_folded(folder: Path, job: str, columns: int) -> None:
    """On a terminal of 80 columns; notes are sentences, which may be."""
    lines = plan(folder, job).splitlines()

    for line in lines:
        if not line.lstrip().startswith("note "):
            assert folded(line, columns) == line


class Reader(HTMLParser):
    """Notes what a page loads, its tags that stay open, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        if tag not in ("meta", "br") and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in LOADING]

    def handle_endtag(self, tag: str) -> None:
        """Close a tag."""
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag without content."""
        self.loads += [f"{tag} {name}={value}" for name, value in attrs if name in LOADING]

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text.append(data)


LOADING = ("src", "href", "srcset", "data", "action", "xlink:href")


@pytest.mark.parametrize("job", ["two", "endless", "stepped"])
def test_the_page_needs_nothing_else_and_says_what_the_json_says(folder: Path, job: str) -> None:
    """Nothing is loaded, no script runs, every tag is closed; the figures are the same."""
    options = (job, "--lanes", "2,4")
    found = json.loads(plan(folder, *options, "--json", "--html", f"{job}.html"))
    page = (folder / f"{job}.html").read_text()
    reader = Reader()
    reader.feed(page)

    assert reader.open == []
    assert reader.loads == []
    assert not re.search(r"url\(|@import|https?:", page)
    [script] = re.findall(r"<script(.*?)>(.*?)</script>", page)
    assert script[0] == ' type="application/json" id="plan"'
    assert json.loads(script[1]) == found
    cells = set(reader.text)
    for start, stop, count in found["length_histogram"]:
        name = f"{start:,}" if start + 1 == stop else f"{start:,} - {stop - 1:,}"
        assert {name, f"{count:,}"} <= cells
    for ranks in found["ranks"]:
        for skew in ranks["cost_skew"].values():
            shares = [skew[kind][name] for kind in ("micro", "step") for name in ("mean", "p95")]
            assert {f"{share:.2%}" for share in shares} <= cells
    for row in found["other_lanes"]:
        assert {f"{row['batches']:,}", f"{row['padding_tokens']:,}"} <= cells


def test_the_page_says_what_made_it_and_what_its_axes_are_of(folder: Path) -> None:
    """File, version and date; and the cost of a step along the run."""
    plan(folder, "two", "--html", "two.html")
    page = (folder / "two.html").read_text()

    assert re.search(
        rf"penstock {version('penstock')}, job two of \S+, \d{{4}}-\d\d-\d\d \d\d:\d\d UTC", page
    )
    assert page.count("<svg") - page.count("Tokens by source</h2>") == page.count(
        '<text class="name" x="0" y="12">'
    )
    assert "Cost of a step along the run: tokens" in page


def test_the_cost_along_a_run_is_that_of_its_steps() -> None:
    """Parts are as equal as can be, and what is left after the last whole step is left out."""
    costs = np.arange(1, 2 * 7 + 2)

    found = along(costs, 2, parts=3)

    steps = costs[:14].reshape(7, 2).sum(axis=1) / costs[:14].reshape(7, 2).sum(axis=1).mean()
    pieces = [steps[0:2], steps[2:4], steps[4:7]]
    assert found is not None
    assert found.firsts == [0, 2, 4]
    assert found.mean == pytest.approx([piece.mean() for piece in pieces])
    assert found.least == pytest.approx([piece.min() for piece in pieces])
    assert found.most == pytest.approx([piece.max() for piece in pieces])
    assert along(costs[:3], 2) is None
    assert along(np.zeros(8), 2) is None


def test_names_that_html_means_something_by_are_text(folder: Path) -> None:
    """A job's name may hold no such character, and a reason may."""
    from penstock.server.commands.plan import report
    from penstock.server.commands.plan_page import page
    from penstock.server.job.job import Job
    from planned_read import SizedItems
    from resume.plans import BATCHERS

    job = Job(SizedItems([{"input_ids": [1]}]), batcher=BATCHERS["concat"].clone(), lanes=1)
    job.name = "</script><b>&"
    found = page(report(job, (1, "option"), [1]))

    assert "<b>" not in found
    assert found.count("</script>") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none",), "[unknown_job]"),
        (("two", "--ranks", "4"), "6 batches per step cannot be shared evenly by 4 ranks"),
        (("two", "--ranks", "two"), "'two' is not whole numbers from 1 on, such as 8 or 8,16"),
        (("two", "--lanes", "0"), "'0' is not whole numbers from 1 on"),
        (("filtered",), "make an index of them with `penstockd index FILE filtered --output"),
        (("two", "--index", "none.index"), "there is no index of sizes at 'none.index'"),
        (("stepped", "--batches-per-step", "3"), "a step would hold several sets"),
        (("two", "--html", "no/such/folder.html"), "cannot be written to 'no/such/folder.html'"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    folder: Path, arguments: tuple[str, ...], said: str
) -> None:
    """With exit status 2, and nothing on stdout."""
    assert said in refused(folder, *arguments)


def test_world_sizes_are_the_divisors_of_a_step_if_none_are_named(folder: Path) -> None:
    """And a step is as many batches as there are lanes, where nothing says another number."""
    two, endless = (json.loads(plan(folder, name, "--json")) for name in ("two", "endless"))

    assert [ranks["world_size"] for ranks in two["ranks"]] == [2, 3, 6]
    assert two["batches_per_step_from"] == "job"
    assert (endless["batches_per_step"], endless["batches_per_step_from"]) == (3, "lanes")
    named = json.loads(plan(folder, "endless", "--ranks", "2,4", "--json"))
    assert (named["batches_per_step"], named["batches_per_step_from"]) == (4, "ranks")


def test_epochs_can_be_few(folder: Path) -> None:
    """Of a finite job the first ones, as of one that goes on."""
    found = json.loads(plan(folder, "two", "--epochs", "1", "--json"))
    every = json.loads(plan(folder, "two", "--epochs", "2", "--json"))

    assert (found["items"], found["all"], found["tail"]) == (140, False, None)
    assert (every["items"], every["all"]) == (280, True)
    assert every["tokens"] == 2 * sum(
        int(np.minimum(64, 1 + np.arange(count) ** 2 % 80).sum()) for count in (100, 40)
    )
