"""The page on security: each of its commands runs, in the order in which it has them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness import serving, write_job_file
from penstock.client import Loader, Tls

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
BLOCKS = dict(re.findall(r"<!-- run: (\w+) -->\n```sh\n(.*?)```", PAGE, re.S))

JOB = {"small": {"source": {"type": "items", "items": [{"x": 1}] * 9}, "batch_size": 1}}


def run(name: str, folder: Path, address: str = "") -> str:
    """Run a block of the page as a user would, and return what it prints."""
    return run_script(BLOCKS[name].replace("127.0.0.1:50051", address), folder)


def run_script(script: str, folder: Path) -> str:
    """Run some lines of a shell, and return what they print."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_block_is_run() -> None:
    assert len(BLOCKS) == PAGE.count("```sh")


def test_a_node_is_given_certificates_as_the_page_says(tmp_path: Path) -> None:
    """An authority, a node, a client; then the node's certificate is renewed under a run."""
    run("authority", tmp_path)
    run("client", tmp_path)
    tls = {"cert": "node.crt", "key": "node.key"}

    with serving(write_job_file(tmp_path / "a.yaml", JOB, tls=tls)) as server:
        assert "small: 48 lanes" in run("ping", tmp_path, server.address)
        loader = Loader(
            server.address, "small", tls=Tls(ca=tmp_path / "ca.pem"), rank=0, world_size=1
        )
        with loader:
            batches = iter(loader)
            next(batches)
            run("rotate", tmp_path)
            run("ping", tmp_path, server.address)
            next(batches)
            assert loader.stats()["reconnects"] == 0
        server.events("the certificate has changed: new connections get it", at_least=1)
    tls["client_ca"] = "ca.pem"
    with serving(
        write_job_file(tmp_path / "b.yaml", JOB, tls=tls, store="sqlite:///b.db")
    ) as server:
        assert "small: 48 lanes" in run("mutual", tmp_path, server.address)


def test_the_status_page_is_opened_as_the_page_says(tmp_path: Path) -> None:
    """By the settings of its job file, but for the ports."""
    run("authority", tmp_path)
    [text] = re.findall(r"<!-- file: remote-page.yaml -->\n```yaml\n(.*?)```", PAGE, re.S)
    settings = yaml.safe_load(text)["server"]
    (tmp_path / "tokens.yaml").write_text("tokens:\n")
    for key in ("listen", "remote_page"):
        settings[key] = "127.0.0.1:0"

    with serving(write_job_file(tmp_path / "a.yaml", JOB, **settings)) as server:
        [ready] = server.events("ready")
        new, look = BLOCKS["page"].split("\n", 1)
        assert "token new" in new
        run_script(new, tmp_path)
        server.events("the file of tokens has changed", 1)
        found = run_script(look.replace("127.0.0.1:9443", ready["remote_page"]), tmp_path)

    assert [job["name"] for job in json.loads(found)["status"]["jobs"]] == ["small"]


def test_a_node_asks_for_tokens_as_the_page_says(tmp_path: Path) -> None:
    run("authority", tmp_path)
    listed = run("tokens", tmp_path)
    settings = {"tls": {"cert": "node.crt", "key": "node.key"}, "tokens": "tokens.yaml"}

    with serving(write_job_file(tmp_path / "a.yaml", JOB, **settings)) as server:
        said = run("shown", tmp_path, server.address)

    assert "run-7: read, commit; jobs small; groups run-7*; token" in listed
    assert "trainers: read, commit; jobs *; groups *; certificate *.trainers" in listed
    assert "small: 48 lanes" in said
    for name in ("run-7", "dashboards"):
        assert (tmp_path / f"{name}.token").read_text().startswith("pst_")


@pytest.mark.parametrize(
    "sentence",
    re.findall(r"^\| `([^`]+)`", PAGE[PAGE.index("## When a client is not let in") :], re.M),
)
def test_what_the_page_quotes_is_what_is_said(sentence: str) -> None:
    root = Path(__file__).parents[2]
    said = "".join(
        re.sub(r'"\s*f?"', "", (root / file).read_text())
        for file in (
            "client/penstock/client/calls/tls_trouble.py",
            "proto/penstock/common/certificates.py",
        )
    )
    words = re.split(r"FILE|NAMES|NAME|`, `", sentence)
    assert all(word.strip(", ") in said for word in words), sentence
