"""What lies under deploy/ for operators: true to the node, by the tools that will read it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from certificates import Authority
from harness import ENVIRONMENT, Server, run_command, serving, write_job_file
from invariants import eventually
from penstock.client import Loader, Tls
from penstock.server.access.callers import hash_of
from penstock.server.jobs.override import override
from penstock.server.jobs.settings import ServerSettings
from ports import free_port

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yaml"
SCRAPE = DEPLOY / "prometheus" / "scrape.yaml"
JOB = {
    "lanes": 2,
    "source": {"type": "items", "items": [{"n": n} for n in range(8)]},
    "batch_size": 2,
}

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="NOT RUN: promtool and prometheus are not installed (Debian: apt install prometheus)",
)


def promtool(*arguments: str, folder: Path, text: str | None = None) -> str:
    """Run promtool, and return what it says; it must agree."""
    done = subprocess.run(
        ["promtool", *arguments], cwd=folder, input=text, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def ask(url: str) -> Any:
    """Return what answers at a URL, parsed where it is JSON."""
    with urllib.request.urlopen(url, timeout=30) as reply:
        text = reply.read().decode()
    return json.loads(text) if "/api/" in url else text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node with TLS and tokens that all tests share; a reader holds its stream open."""
    folder = tmp_path_factory.mktemp("deploy")
    ca = Authority(folder)
    token = "pst_of-the-tests-of-deploy"
    (folder / "tokens.yaml").write_text(
        f"tokens: [{{name: run, sha256: {hash_of(token)}, scopes: [commit]}}]\n"
    )
    pq.write_table(pa.table({"n": range(8)}), folder / "rows.parquet")
    rows = {**JOB, "source": {"type": "parquet", "files": "rows.parquet"}}
    file = write_job_file(
        folder / "jobs.yaml",
        {"code": JOB, "rows": rows},
        metrics="127.0.0.1:0",
        tls=ca.sign()._asdict(),
        tokens="tokens.yaml",
    )
    with (
        serving(file) as node,
        Loader(
            node.address,
            "code",
            group="run",
            rank=0,
            world_size=1,
            as_numpy=True,
            tls=Tls(ca=ca.path),
            token=token,
        ) as loader,
    ):
        batches = iter(loader)
        for _ in range(6):
            next(batches)
        loader.commit()
        yield node


def metrics_address(server: Server) -> str:
    """Return where a node is scraped."""
    [ready] = server.events("ready")
    return str(ready["metrics"])


@needs_prometheus
def test_promtool_agrees_with_configuration_rules_and_their_tests() -> None:
    folder = DEPLOY / "prometheus"

    assert "SUCCESS" in promtool("check", "config", SCRAPE.name, folder=folder)
    assert "SUCCESS" in promtool("check", "rules", RULES.name, folder=folder)
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yaml", folder=folder)


@needs_prometheus
def test_promtool_finds_no_fault_with_the_metrics_of_a_node(server: Server) -> None:
    text = ask(f"http://{metrics_address(server)}/metrics")

    assert promtool("check", "metrics", folder=DEPLOY, text=text) == ""


def test_each_alert_is_tested_and_is_on_the_page_for_operators() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    names = {rule["alert"] for group in groups for rule in group["rules"]}
    tests = (RULES.parent / "alerts_test.yaml").read_text()
    page = (DEPLOY.parent / "docs" / "alerts.md").read_text()

    assert names == set(re.findall(r"\bPenstock\w+", tests))
    assert names == set(re.findall(r"\bPenstock\w+", page))


@needs_prometheus
def test_a_real_prometheus_finds_every_series_that_the_alerts_name(
    server: Server, tmp_path: Path
) -> None:
    """The scrape configuration as it is, but for the target; a renamed metric would be missed."""
    scrape = SCRAPE.read_text()
    assert scrape.count("127.0.0.1:9090") == 1
    scrape = scrape.replace("127.0.0.1:9090", metrics_address(server))
    (tmp_path / "scrape.yaml").write_text(scrape.replace("15s", "1s"))
    shutil.copy(RULES, tmp_path)
    text = RULES.read_text()
    series = set(re.findall(r"\bpenstock_\w+", "".join(re.findall(r"expr:[^#]*?labels:", text))))
    series -= {"penstock_job"}
    # A verdict makes this one's first series; nothing is left out here.
    series -= {"penstock_quarantined_items"}
    here = f"127.0.0.1:{free_port()}"
    prometheus = subprocess.Popen(
        [
            "prometheus",
            *("--config.file=scrape.yaml", f"--web.listen-address={here}"),
            # Debian's own default is one folder for all.
            "--storage.tsdb.path=data",
        ],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:

        def found(query: str) -> list[Any]:
            try:
                reply = ask(f"http://{here}/api/v1/query?query={urllib.parse.quote(query)}")
            except OSError:
                assert prometheus.poll() is None, prometheus.communicate()[1]
                return []
            return list(reply["data"]["result"])

        eventually(lambda: bool(found('up{job="penstock"} == 1')), 60, "the node was scraped")

        assert len(series) > 8
        assert {name: bool(found(name)) for name in series} == dict.fromkeys(series, True)

        def evaluated() -> list[dict[str, Any]]:
            groups = ask(f"http://{here}/api/v1/rules")["data"]["groups"]
            return [rule for group in groups for rule in group["rules"]]

        eventually(
            lambda: all(rule["health"] != "unknown" for rule in evaluated()), 60, "each rule ran"
        )
        assert {(rule["health"], rule.get("lastError")) for rule in evaluated()} == {("ok", None)}
        assert {rule["name"] for rule in evaluated() if rule["state"] != "inactive"} == set()
    finally:
        prometheus.kill()
        prometheus.communicate()


def test_the_systemd_unit_starts_a_node_with_options_that_exist() -> None:
    unit = (DEPLOY / "systemd" / "penstockd.service").read_text().replace("\\\n", " ")
    [command] = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    program, *arguments = shlex.split(command)
    help_text = run_command(["penstock.server.cli", "serve", "--help"]).stdout

    assert Path(program).name == "penstockd"
    assert arguments[0] == "serve"
    options = [argument for argument in arguments if argument.startswith("--")]
    assert len(options) == 3
    assert [option for option in options if option not in help_text] == []


def test_the_store_of_several_hosts_comes_from_a_file_and_not_by_arguments() -> None:
    """As systemd reads it: what the file gives wins over what the unit gives."""
    folder = DEPLOY / "systemd"
    unit = (folder / "penstockd.service").read_text()
    lines = [line.partition("=")[2] for line in unit.splitlines() if line.startswith("Environment")]
    own = dict(one.split("=", 1) for line in lines[:-1] for one in line.split())
    given = dict(
        line.split("=", 1)
        for line in (folder / "store.env").read_text().splitlines()
        if not line.startswith("#")
    )

    alone, shared = (
        override(ServerSettings(), None, {k: v for k, v in found.items() if k[:4] == "PENS"})
        for found in (own, {**own, **given})
    )

    assert lines[-1] == "-/etc/penstock/store.env"
    assert alone.store == "sqlite:////var/lib/penstock/penstock.db"
    assert urllib.parse.urlsplit(shared.store).scheme == "postgresql"
    assert urllib.parse.urlsplit(shared.store).password is None
    assert set(given) == {"PENSTOCK_STORE", "PGPASSWORD"}


def test_the_list_of_hosts_is_one_that_a_loader_reads(tmp_path: Path) -> None:
    """The file as it is, with nodes of this machine in place of the examples: all are read."""
    text = (DEPLOY / "systemd" / "nodes").read_text()
    hosts = [line for line in text.splitlines() if not line.startswith("#")]
    file = write_job_file(tmp_path / "jobs.yaml", {"code": JOB})
    with serving(file) as node:
        (tmp_path / "nodes").write_text(text.replace("\n".join(hosts), node.address))
        with Loader(f"file:{tmp_path}/nodes", "code", rank=0, world_size=1, as_numpy=True) as reads:
            first = next(iter(reads))

    assert len(hosts) == 3
    assert first["n"].shape == (2,)


def test_compose_starts_two_nodes_over_one_store_with_settings_that_exist() -> None:
    """As the chart does: closed, with time to drain, and scraped under their names."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    nodes = {name: one for name, one in compose["services"].items() if name.startswith("node-")}
    scrape, own = (
        yaml.safe_load((DEPLOY / "prometheus" / name).read_text())
        for name in ("scrape.yaml", "compose.yaml")
    )
    [job] = own["scrape_configs"]
    database = compose["services"]["postgres"]

    assert len(nodes) == 2
    assert [node["hostname"] for node in nodes.values()] == list(nodes)
    for node in nodes.values():
        given = {k: v for k, v in node["environment"].items() if k.startswith("PENSTOCK_")}
        settings = override(ServerSettings(), None, given)
        store = urllib.parse.urlsplit(settings.store)
        assert settings.listen == "0.0.0.0:50051"
        assert int(node["stop_grace_period"].removesuffix("s")) > settings.drain_seconds + 1
        assert (node["read_only"], node["cap_drop"]) == (True, ["ALL"])
        assert (store.scheme, store.hostname, store.password) == ("postgresql", "postgres", None)
        assert store.username == database["environment"]["POSTGRES_USER"]
        assert store.path == f"/{database['environment']['POSTGRES_DB']}"
        assert node["environment"]["PGPASSWORD"] == database["environment"]["POSTGRES_PASSWORD"]
        assert node["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    ports = [port for node in nodes.values() for port in node["ports"]]
    assert len(set(ports)) == 2
    assert job["static_configs"] == [{"targets": [f"{name}:9090" for name in nodes]}]
    assert {**own, "scrape_configs": 0} == {**scrape, "scrape_configs": 0}
    known = set(compose["volumes"])
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        assert not service["image"].endswith(":latest")
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("./") and source != "./grafana":
                assert (DEPLOY / source).exists(), source
            elif re.fullmatch(r"[a-z-]+", source):
                known.discard(source)
    assert known == set()


def test_the_database_of_the_example_is_the_one_that_the_chart_takes() -> None:
    """The secret that CloudNativePG makes is called after the cluster, its key is `uri`."""
    found = yaml.safe_load((DEPLOY / "kubernetes" / "cloudnative-pg.yaml").read_text())
    values = yaml.safe_load((DEPLOY.parent / "helm" / "penstock" / "values.yaml").read_text())
    several = DEPLOY.parent / "helm" / "penstock" / "ci" / "several-values.yaml"
    store = yaml.safe_load(several.read_text())["store"]

    assert (found["kind"], found["spec"]["instances"]) == ("Cluster", 3)
    assert f"{found['metadata']['name']}-app" == store["existingSecret"]
    assert values["store"]["secretKey"] == "uri"
    # A node refuses a store that may forget an answered commit.
    assert found["spec"]["postgresql"]["synchronous"]["number"] >= 1
    assert "synchronous_commit" not in found["spec"]["postgresql"]["parameters"]


def test_the_slurm_script_ends_the_node_when_the_training_has_ended(tmp_path: Path) -> None:
    """With a stand-in for `srun`, which starts what it is given here; its status is the job's."""
    rows = {**JOB, "source": {"type": "items", "items": list(range(8))}}
    write_job_file(tmp_path / "jobs.yaml", {"main": rows})
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    srun = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'
    (bin_folder / "srun").write_text(srun)
    (bin_folder / "srun").chmod(0o755)
    train = (
        "import os, sys; from penstock.client import Loader\n"
        "with Loader(os.environ['NODE'], 'main', rank=0, world_size=1, as_numpy=True) as loader:\n"
        "    batches = iter(loader); first = next(batches); next(batches)\n"
        "sys.exit(7)\n"
    )
    done = subprocess.run(
        ["bash", str(DEPLOY / "slurm" / "train.sbatch"), "jobs.yaml", sys.executable, "-c", train],
        cwd=tmp_path,
        env={
            **ENVIRONMENT,
            "PATH": f"{bin_folder}:{sysconfig.get_path('scripts')}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "1",
            "FOLDER": str(tmp_path / "run"),
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 7, done.stdout + done.stderr
    log = (tmp_path / "run" / "node.log").read_text()
    assert log.count('"event": "reader joined"') == 1
    assert '"event": "stopped"' in log.splitlines()[-1]
    assert (tmp_path / "run" / "penstock.db").exists()
