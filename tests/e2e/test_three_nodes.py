"""One Loader over three real nodes, each a process with an address of its own."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority
from harness import Server, call_command, serving, write_job_file
from invariants import eventually
from penstock.client import Loader, Tls

LANES = 12
JOBS: dict[str, Any] = {
    "numbers": {
        "lanes": LANES,
        "epochs": 2,
        "source": {"type": "items", "items": [{"x": [number] * 9} for number in range(500)]},
        "batch_size": 2,
    }
}
READ: dict[str, Any] = {"rank": 0, "world_size": 1, "batches_per_step": 4, "as_numpy": True}


def job_file(folder: Path, number: int, **server: Any) -> Path:
    """Write the job file of a node, at an address of its own."""
    folder = folder / str(number)
    folder.mkdir()
    listen = f"127.0.0.{number}:0"
    return write_job_file(folder / "penstock.yaml", JOBS, listen=listen, **server)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Three nodes of one job file, each with a store of its own."""
    folder = tmp_path_factory.mktemp("nodes")
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(serving(job_file(folder, number))) for number in (1, 2, 3)]


def digests(target: Any, **options: Any) -> list[tuple[int, str]]:
    """Return the position of every batch, with what it holds."""
    with Loader(target, "numbers", **READ, **options) as loader:
        return [
            (batch.position, hashlib.sha256(batch.info.body.tobytes()).hexdigest())
            for batch in loader
            if batch.info is not None and batch.info.body is not None
        ]


def produced(server: Server) -> int:
    """Return how many batches a node has made."""
    status = json.loads(call_command("penstock", "top", server.address, "--json", "--once").stdout)
    return sum(job["produced"] for job in status["jobs"])


def test_three_nodes_give_what_one_gives_and_each_makes_its_part(nodes: list[Server]) -> None:
    """Position by position, byte by byte; and nothing is made twice."""
    usual = digests(nodes[0].address)
    before = [produced(server) for server in nodes]

    assert digests([server.address for server in nodes]) == usual

    made = [produced(server) - had for server, had in zip(nodes, before, strict=True)]
    assert all(made)
    assert sum(made) <= len(usual) + LANES  # a lane may be one batch ahead where it ends
    assert max(made) <= -(-LANES // 3) * -(-len(usual) // LANES)


def test_ranks_of_several_nodes_share_what_is_made(nodes: list[Server]) -> None:
    """Two ranks deal alike without asking each other, so each batch comes from one node."""
    target = ",".join(server.address for server in nodes)
    found = []
    for rank in range(2):
        options = {**READ, "rank": rank, "world_size": 2}
        with Loader(target, "numbers", **options) as loader:
            found.append([batch.position for batch in loader])

    assert sorted(found[0] + found[1]) == list(range(len(found[0]) + len(found[1])))


def test_commands_take_several_nodes(nodes: list[Server]) -> None:
    """`cat` reads from all of them; `ping` and `nodes` tell of each, and of one that is away."""
    target = ",".join([*(server.address for server in nodes), "127.0.0.4:9"])
    alone = call_command("penstock", "cat", nodes[0].address, "numbers", "--steps", "4", "--json")
    both = call_command("penstock", "cat", target, "numbers", "--steps", "4", "--json")
    assert both.stdout == alone.stdout
    assert both.returncode == 0

    ping = call_command("penstock", "ping", target)
    assert ping.returncode == 0
    for server in nodes:
        assert f"{server.address}: penstock" in ping.stdout
    assert "127.0.0.4:9" in ping.stderr

    told = call_command("penstock", "nodes", target, "--interval", "0.2")
    assert told.returncode == 0
    for server in nodes:
        assert re.search(
            rf"/{re.escape(server.address)} .*{re.escape(server.address)}", told.stdout
        )
    assert "left out: no answer from 127.0.0.4:9 (Connection refused)" in told.stdout
    found = json.loads(call_command("penstock", "nodes", target, "--json").stdout)
    assert sum(node["units"] for node in found["nodes"]) == LANES
    assert [left_out["address"] for left_out in found["left_out"]] == ["127.0.0.4:9"]

    top = call_command("penstock", "top", target, "--once", "--interval", "0.2")
    assert "3 of 4 nodes" in top.stdout
    assert "job numbers" in top.stdout


def test_certificates_hold_for_every_node(tmp_path: Path) -> None:
    """Nodes are called by address, and checked against the name that they share."""
    ca = Authority(tmp_path)
    pair = ca.sign("node", ["nodes.local"])
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(serving(job_file(tmp_path, number, tls=pair._asdict())))
            for number in (1, 2)
        ]
        target = [server.address for server in servers]
        tls = Tls(ca=ca.path, name="nodes.local")

        assert [at for at, _ in digests(target, tls=tls)] == list(range(504))
        with (
            Loader(target, "numbers", tls=Tls(ca=ca.path), deadline_s=5.0, **READ) as loader,
            pytest.raises(Exception, match=r"is for nodes\.local, and not for 127\.0\.0"),
        ):
            loader.state_dict()


def test_a_node_that_comes_is_noticed(nodes: list[Server], tmp_path: Path) -> None:
    """By a file that is written anew: the next pass is read from whoever is there then."""
    file = tmp_path / "nodes"
    file.write_text(nodes[0].address)
    with Loader(f"file:{file}", "numbers", **READ) as loader:
        usual = [batch.position for batch in loader]
        file.write_text(nodes[1].address)
        before = produced(nodes[1])

        def reads_from_it() -> bool:
            assert [batch.position for batch in loader] == usual
            return produced(nodes[1]) > before

        eventually(reads_from_it, 60.0, "a pass is read from the node that has come")


PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"


def test_the_commands_of_the_page_run(
    nodes: list[Server], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the addresses and the job of this test; and its Loader reads from all nodes."""
    text = PAGE.read_text()
    for number, server in enumerate(nodes, 1):
        text = text.replace(f"127.0.0.{number}:50051", server.address)
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    commands = [
        line
        for kind, block in blocks
        for line in block.splitlines()
        if kind == "sh" and line.startswith("penstock ")  # others need a Ray, or a Slurm
    ]

    assert {command.split()[1] for command in commands} == {"nodes", "ping", "top", "cat"}
    for command in commands:
        done = call_command(*command.replace(" main", " numbers").split())
        assert done.returncode == 0, done.stderr
        assert "left out" not in done.stderr
    [script] = [block for kind, block in blocks if kind == "python"]
    capsys.readouterr()
    exec(script.replace('"main"', '"numbers"'), {})
    assert capsys.readouterr().out.split() == ["0", "1", "2", "3"]


FORKING = """
import os, sys
from penstock.client import Loader
from penstock.client.errors import ForkedLoader

loader = Loader(sys.argv[1], "numbers", rank=0, world_size=1, as_numpy=True)
batches = iter(loader)
next(batches)
child = os.fork()
if not child:
    try:
        next(batches)
    except ForkedLoader:
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), sum(1 for _ in batches))
"""


def test_a_process_that_forks_or_just_ends_is_fine(nodes: list[Server]) -> None:
    """The fork is told whose Loader it is; the parent reads on, and ends without closing it."""
    target = ",".join(server.address for server in nodes)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, target],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "7 503\n"), done.stderr
