"""The rendered chart, run: its arguments, environment, mounts and probes start a real node."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("helm_python", reason="NOT RUN: helm-python-sdk is not installed (make dev)")

from certificates import Authority
from harness import call_command, run_command
from pods import World, addresses, why_not

pytestmark = pytest.mark.skipif(
    why_not() is not None, reason=f"NOT RUN: the rendered chart is not run: {why_not()}"
)

VALUES = {
    "preStopSeconds": 0,
    "server": {"snapshot_seconds": 0.5},
    "tls": {"secretName": "node", "clientCa": True, "minVersion": "1.3"},
    "tokens": {"secretName": "tokens"},
    "tests": {"tlsSecretName": "client", "tokenSecretName": "token"},
}
NAME = "rel-penstock-demo-0.rel-penstock.ns.svc"
COUNT = 120


def secrets(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return what an operator puts into secrets: certificates for both sides, and a token."""
    authority = Authority(folder)
    ca = Path(authority.path).read_bytes()

    def pair(name: str, *names: str) -> dict[str, bytes]:
        signed = authority.sign(name, names)
        read = {"tls.crt": Path(signed.cert), "tls.key": Path(signed.key)}
        return {"ca.crt": ca, **{file: path.read_bytes() for file, path in read.items()}}

    tokens = folder / "tokens"
    new = ["token", "new", str(tokens), "tester", "--scope", "commit", "--scope", "read"]
    made = call_command("penstockd", *new).stdout
    return {
        "node": pair("node", NAME),
        "client": pair("client"),
        "tokens": {"tokens": tokens.read_bytes()},
        "token": {"token": made.strip().encode()},
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A cluster with the rendered chart, closed on both sides, in which nothing runs yet."""
    world = World(tmp_path, VALUES, secrets=secrets(tmp_path))
    yield world
    world.close()


def records(lines: list[str]) -> list[tuple[Any, Any]]:
    """Return position and digest of what `cat --json` printed."""
    return [(one["position"], one["digest"]) for one in map(json.loads, lines)]


def test_a_loader_reads_across_the_restart_of_a_rendered_pod(world: World) -> None:
    """By name, while the Pod is stopped and comes back at another address with its volume.

    The reader prints into a small pipe, so that it is in the middle when the node goes.
    """
    first, second = addresses()
    node = world.node(first)
    ready_s = node.until_ready()
    world.publish(node)
    status, mounts = node.status(), node.mounts()
    arguments = ["cat", world.target, "numbers", "--group", "run", "--commit"]
    reader = world.cluster.run(
        ["penstock", *arguments, "--count", str(COUNT), "--json"], world.test, pipesize=4096
    )
    with reader:
        read = [reader.stdout.readline() for _ in range(20)]
        assert node.probe("livenessProbe")
        world.publish(None)
        stopped, took_s = node.stop()
        again = world.node(second)
        again.until_ready()
        world.publish(again)
        back = time.monotonic()
        read += reader.stdout.readlines()
        resumed_s = time.monotonic() - back

    assert reader.returncode == 0
    local = ["cat", f"local:{world.jobs}", "numbers", "--count", str(COUNT), "--json"]
    alone = run_command(["penstock.client.cli", *local]).stdout.splitlines()
    assert records(read) == records(alone)
    assert len(read) == COUNT
    assert stopped == 0
    assert took_s < 25
    assert ready_s < 20
    assert resumed_s < 15  # not the half minute that gRPC waits between two look-ups of a name
    assert any('"event": "ready"' in line for line in node.log)
    assert status["Uid"].split()[0] == str(os.getuid())
    assert (status["CapEff"], status["NoNewPrivs"]) == ("0" * 16, "1")
    assert status["NSpid"].split()[1] == "1"
    assert {path for path, options in mounts.items() if "rw" in options} >= {"/data", "/tmp"}
    assert "ro" in mounts["/"]
    assert "ro" in mounts["/jobs"]


def test_helm_test_compares_what_the_rendered_pod_serves(world: World) -> None:
    """The test's own Pod, in the same cluster; it fails where a digest differs."""
    node = world.node(addresses()[0])
    node.until_ready()
    world.publish(node)

    assert world.compare() == "ok: numbers: 8 batches are those that are computed alone\n"
