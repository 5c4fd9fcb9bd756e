"""docs/kubernetes.md: each command is run, as far as it goes without a cluster."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import yaml

import charts
from penstock.server.commands import check
from penstock.server.jobs.override import override
from penstock.server.jobs.settings import ServerSettings

PAGE = (charts.ROOT / "docs" / "kubernetes.md").read_text()
COMMANDS = [
    line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S) for line in block.splitlines()
]
[VALUES] = re.findall(r"<!-- file: values.yaml -->\n```yaml\n(.*?)```", PAGE, re.S)
JOB = "jobs: {main: {batch_size: 2, lanes: 2, source: {type: items, items: [1, 2, 3]}}}\n"


def test_every_command_of_the_page_is_of_a_kind_that_a_test_knows() -> None:
    """Those of kubectl need a cluster: the names in them are checked below."""
    kinds = {" ".join(shlex.split(line)[:2]) for line in COMMANDS}

    assert kinds == {
        "docker build",
        "docker push",
        "PENSTOCK_READY_BYTES=1 GiB penstockd",
        "helm install",
        "helm test",
        "helm upgrade",
        "helm uninstall",
        "kubectl --namespace",
    }


@pytest.mark.skipif(
    charts.helm_3() is None,
    reason="NOT RUN: Helm 3 is not installed (make helm-3)",
)
def test_what_the_page_installs_is_what_its_other_commands_name(tmp_path: Path) -> None:
    """The values and flags of install and upgrade, by a real Helm, in place of a cluster."""
    (tmp_path / "values.yaml").write_text(VALUES)
    (tmp_path / "penstock.yaml").write_text(JOB)
    (tmp_path / "helm").symlink_to(charts.CHART.parent)
    renders = []
    for line in COMMANDS:
        _, verb, *rest = shlex.split(line)
        if verb in ("install", "upgrade"):
            command = [str(charts.helm_3()), "template", *rest, "--kube-version", "1.31.0"]
            done = subprocess.run(
                command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            renders.append(charts.parsed(done.stdout))
    [found, again] = renders
    [node] = charts.of(found, "StatefulSet")
    [jobs] = charts.of(found, "ConfigMap")
    named = {word for line in COMMANDS for word in re.findall(r"loaders-penstock-\w+", line)}

    assert found == again
    assert named == {node["metadata"]["name"]}
    assert node["metadata"]["namespace"] == "training"
    assert jobs["data"]["penstock.yaml"] == JOB
    [claim] = node["spec"]["volumeClaimTemplates"]
    [selected] = re.findall(r"--selector (\S+)=(\S+)", "\n".join(COMMANDS))
    assert claim["metadata"]["labels"][selected[0]] == selected[1]
    [container] = node["spec"]["template"]["spec"]["containers"]
    assert charts.environment(container)["PENSTOCK_STORE"] == "sqlite:////data/penstock.db"


@pytest.mark.parametrize("name", ["several.yaml", "scaled.yaml"])
def test_the_values_of_several_nodes_give_what_the_page_says(name: str) -> None:
    """With a job file, as install gives it; the names and the query that the page has."""
    [text] = re.findall(rf"<!-- file: {name} -->\n```yaml\n(.*?)```", PAGE, re.S)
    values = yaml.safe_load(text)
    values["loaderGroups"][0]["jobFile"] = JOB
    texts = charts.rendered(values, release="loaders")
    found = charts.objects(values, release="loaders")
    place = PAGE.replace("training", charts.NAMESPACE)

    [target] = set(re.findall(r'Loader\("(dns:[^"]+)"', texts["NOTES.txt"]))
    assert f'Loader("{target}", ...)' in place
    for one in charts.of(found, "ScaledObject"):
        [trigger] = one["spec"]["triggers"]
        assert trigger["metadata"]["query"] in place.splitlines()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="NOT RUN: promtool is not installed")
def test_the_query_of_several_nodes_is_the_largest_answer_of_each_job(tmp_path: Path) -> None:
    """Three nodes of a group, one of which nobody asked, and a node of another group."""
    [asked] = [line for line in PAGE.splitlines() if line.startswith("sum(max by")]
    series = {"a": 3, "b": 3, "c": 0}
    text = "loader_group='loaders-penstock-text', namespace='training'"
    inputs = [
        {"series": f"penstock_wanted_nodes{{instance='{name}', {text}, penstock_job='code'}}"}
        | {"values": f"{wanted}x5"}
        for name, wanted in series.items()
    ]
    inputs += [
        {"series": f"penstock_wanted_nodes{{instance='b', {text}, penstock_job='web'}}"}
        | {"values": "1x5"},
        {"series": "penstock_wanted_nodes{instance='d', loader_group='other'}", "values": "9x5"},
    ]
    case = {"promql_expr_test": [{"expr": asked, "eval_time": "4m"}], "input_series": inputs}
    case["promql_expr_test"][0]["exp_samples"] = [{"labels": "{}", "value": 4}]
    (tmp_path / "query.yaml").write_text(json.dumps({"tests": [{"interval": "1m", **case}]}))

    done = subprocess.run(
        ["promtool", "test", "rules", "query.yaml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_check_of_the_page_prints_the_figure_that_it_names() -> None:
    """It takes seconds, and has tests of its own: here are the words and the setting."""
    [line] = [line for line in COMMANDS if "penstockd check" in line]
    setting, *_ = shlex.split(line)
    name, _, value = setting.partition("=")

    assert "`memory where readers stall`" in PAGE
    assert '"memory where readers stall"' in inspect.getsource(check)
    assert override(ServerSettings(), None, {name: value}).ready_bytes == 1 << 30
    assert yaml.safe_load(VALUES)["server"]["ready_bytes"] == value


def test_the_backup_of_the_page_is_a_copy(tmp_path: Path) -> None:
    [line] = [line for line in COMMANDS if "sqlite3" in line]
    code = shlex.split(line)[-1].replace("/data/", f"{tmp_path}/")
    with closing(sqlite3.connect(tmp_path / "penstock.db")) as store:
        store.execute("PRAGMA journal_mode = wal")
        store.execute("CREATE TABLE kept (n)")
        store.execute("INSERT INTO kept VALUES (7)")
        store.commit()
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    with closing(sqlite3.connect(tmp_path / "backup.db")) as copy:
        assert copy.execute("SELECT n FROM kept").fetchall() == [(7,)]
