"""The simulation of many nodes says what three real ones show."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Server, call_command, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.client.calls.control import Control
from penstock.client.calls.grpc_transport import open_transport
from virtual_nodes import Setting, Simulation

NODES, RANKS, LANES, EVERY, STEPS = 3, 4, 12, 4, 6
JOBS: dict[str, Any] = {
    "numbers": {
        "lanes": LANES,
        "source": {"type": "items", "items": [{"x": [number] * 9} for number in range(61)]},
        "batch_size": 2,
        "snapshot_every": EVERY,
    }
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Server]]:
    """Three nodes, each with a store of its own."""
    with contextlib.ExitStack() as stack:
        servers = []
        for number in range(NODES):
            folder = tmp_path / str(number)
            folder.mkdir()
            file = write_job_file(folder / "jobs.yaml", JOBS, node_id=f"penstock-{number}")
            servers.append(Server(file).start(wait=False))
            stack.callback(servers[-1].close)
        for server in servers:
            server.wait_ready()
        yield servers


def told(servers: list[Server]) -> dict[str, tuple[int, int]]:
    """Return the streams and the units of each node, as `penstock nodes` has them."""
    target = ",".join(server.address for server in servers)
    done = call_command("penstock", "nodes", target, "--json", "--interval", "0.1")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["nodes"]
    return {node["node"]: (node["readers"], node["units"]) for node in found}


def test_three_nodes_have_the_streams_and_move_the_units_that_are_simulated(
    nodes: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    """Four ranks read; one node is killed; each rank opens streams to the nodes of its lanes."""
    with contextlib.closing(open_transport(nodes[0].address)) as transport:
        info = Control(transport, "numbers", nodes[0].address, 60.0).describe()
    setting = Setting(
        NODES,
        RANKS,
        LANES,
        snapshot_every=EVERY,
        salt=info.log_id,
        views=RANKS,
        workers=info.workers,
    )
    simulation = Simulation(setting, 0)
    before = simulation.streams()[1]
    units = {name: simulation.views[0].placement.owners.count(name) for name in before}
    simulation.run(50.0)
    simulation.kills(1)
    simulation.run(60.0)
    after = simulation.streams()[1]

    with contextlib.ExitStack() as stack:
        target = [server.address for server in nodes]
        readers = []
        for rank in range(RANKS):
            options = {"rank": rank, "world_size": RANKS, "as_numpy": True}
            loader = stack.enter_context(Loader(target, "numbers", **options))
            readers.append(iter(loader))
        for _ in range(STEPS):
            for reader in readers:
                next(reader)
        assert told(nodes) == {name: (before[name], units[name]) for name in before}

        with caplog.at_level(logging.WARNING, "penstock"):
            nodes[1].kill()
            for _ in range(4 * LANES):
                for reader in readers:
                    next(reader)
            eventually(
                lambda: len(moved(caplog)) >= before["penstock-1"],
                60.0,
                "each rank that had a stream to the node says that it is left",
            )
        eventually(
            lambda: streams(told([nodes[0], nodes[2]])) == after,
            60.0,
            f"the nodes have the streams that are simulated, {after}",
        )

    assert set(moved(caplog)) == {int(simulation.moved)}


def streams(found: dict[str, tuple[int, int]]) -> dict[str, int]:
    """Return the streams of each node."""
    return {name: count for name, (count, _) in found.items()}


def moved(caplog: pytest.LogCaptureFixture) -> list[int]:
    """Return how many units moved, as each rank that left a node has said."""
    said = [record.getMessage() for record in caplog.records]
    return [
        int(count)
        for line in said
        if "is left: " in line
        for count in re.findall(rf"(\d+) of {LANES} units move", line)
    ]
