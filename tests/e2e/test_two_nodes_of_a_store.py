"""Two nodes over one store in PostgreSQL: what is done through one holds at the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import postgres
from harness import Server, call_command, write_job_file
from invariants import eventually
from penstock.client import Loader
from penstock.wire import PROTOCOL
from penstock.wire.v1 import cursors_pb2 as pb

SECRET = "open-sesame"

JOBS: dict[str, Any] = {
    "main": {
        "lanes": 2,
        "epochs": None,
        "source": {"type": "items", "items": [1, 2, 3]},
        "batch_size": 1,
    }
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """Give two nodes; each has a job file of its own. The server asks for no password."""
    url = postgres.in_schema(postgres.local_18(), postgres.new_schema())
    store = url.replace("postgres@", f"postgres:{SECRET}@")
    made = []
    try:
        for name in ("one", "two"):
            folder = tmp_path / name
            folder.mkdir()
            write_job_file(folder / "jobs.yaml", JOBS, store=store)
            made.append(Server(folder / "jobs.yaml", "--workers", "1").start(wait=False))
        for node in made:
            node.wait_ready()
        yield made[0], made[1]
    finally:
        for node in made:
            node.close()


def begin(node: Server, token: str) -> pb.BeginReply:
    """Begin an attempt of one rank."""
    request = pb.BeginRequest(
        protocol=PROTOCOL, job="main", group="run", token=token, rank=0, world_size=1
    )
    reply: pb.BeginReply = node.cursors.Begin(request, timeout=60)
    return reply


def commit(node: Server, token: str, generation: int, step: int) -> int:
    """Commit; return the group's cursor."""
    request = pb.CommitRequest(
        job="main", group="run", token=token, generation=generation, rank=0, step=step
    )
    return int(node.cursors.Commit(request, timeout=60).cursor)


def cursor(node: Server) -> int:
    """Return the group's cursor."""
    (group,) = node.cursors.List(pb.ListRequest(job="main", group="run"), timeout=60).groups
    return int(group.cursor)


def test_what_is_done_through_one_node_holds_at_the_other(
    nodes: tuple[Server, Server], tmp_path: Path
) -> None:
    """A group, its commits, and that an attempt is over; and no log has the password."""
    one, two = nodes

    first = begin(one, "t1")
    joined = begin(two, "t1")
    assert (joined.generation, joined.joined) == (first.generation, True)
    assert joined.store == first.store
    assert commit(one, "t1", first.generation, 5) == 5
    assert cursor(two) == 5
    assert commit(two, "t1", first.generation, 7) == 7
    assert cursor(one) == 7

    second = begin(two, "t2")
    assert (second.generation, second.start_step) == (first.generation + 1, 7)
    with pytest.raises(grpc.RpcError, match="is read by generation 2"):
        commit(one, "t1", first.generation, 8)
    assert cursor(one) == 7

    shown = call_command(
        "penstockd", "show", str(tmp_path / "one" / "jobs.yaml"), "main", "--position", "1"
    )
    assert shown.returncode == 0, shown.stderr
    for node in nodes:
        assert node.terminate() == 0
    said = ["".join(node.lines) for node in nodes]
    assert sum("created an empty store" in lines for lines in said) == 1
    assert SECRET not in "".join(said)
    assert SECRET not in shown.stdout + shown.stderr


def test_a_group_that_is_read_at_one_node_is_not_deleted_through_another(
    nodes: tuple[Server, Server],
) -> None:
    """A node knows its own readers alone: the commands ask all nodes of the target."""
    one, two = nodes
    call = ("penstock", "cursors", f"{one.address},{two.address}", "main")

    with Loader(
        two.address, "main", group="run", rank=0, world_size=1, batches_per_step=1, as_numpy=True
    ) as loader:
        next(iter(loader))
        [listed] = json.loads(call_command(*call, "list", "--json").stdout)
        shown = call_command(*call, "show", "--group", "run")
        refused = call_command(*call, "delete", "run", "--yes")
        loader.commit()
    assert listed["readers"] == 1
    assert "1 now, the most at one of 2 nodes" in shown.stdout
    assert refused.returncode != 0
    assert "has 1 reader now" in refused.stderr
    assert "[group_in_use]" in refused.stderr

    deleted = eventually_deleted(*call, "delete", "run", "--yes")
    assert "group 'run' of job 'main' is deleted" in deleted


def test_of_readers_at_nodes_that_are_not_named_it_is_said_that_they_were_not_counted(
    nodes: tuple[Server, Server],
) -> None:
    """A node does not know those of others: nothing else can tell before a group is gone."""
    one, two = nodes
    for group in ("a", "b"):
        request = pb.BeginRequest(
            protocol=PROTOCOL, job="main", group=group, token="t", rank=0, world_size=1
        )
        one.cursors.Begin(request, timeout=60)

    alone = call_command("penstock", "cursors", one.address, "main", "delete", "a", "--yes")
    both = f"{one.address},{two.address}"
    together = call_command("penstock", "cursors", both, "main", "delete", "b", "--yes")

    assert (alone.returncode, together.returncode) == (0, 0)
    assert "Readers at other nodes of this store were not counted" in alone.stderr
    assert "not counted" not in together.stderr


def test_every_node_shows_the_cursor_that_was_committed_through_another(
    nodes: tuple[Server, Server],
) -> None:
    """Commits of a run go through one node, and whoever looks at the other sees how far it is."""
    target = ",".join(node.address for node in nodes)

    def shown(node: Server) -> int | None:
        told = json.loads(call_command("penstock", "top", node.address, "--once", "--json").stdout)
        cursors: dict[str, int | None] = told["jobs"][0]["cursors"]
        return cursors.get("run")

    with Loader(
        target, "main", group="run", rank=0, world_size=1, batches_per_step=2, as_numpy=True
    ) as loader:
        step = next(loader.steps())
        assert len(list(step)) == 2
        eventually(lambda: [*map(shown, nodes)] == [0, 0], 60, "both nodes know the group")
        loader.commit()
        eventually(lambda: [*map(shown, nodes)] == [1, 1], 60, "both nodes show step 1")


def eventually_deleted(*call: str) -> str:
    """Return what a deletion says, once the nodes have noticed that the reader is gone."""
    said: list[str] = []

    def is_deleted() -> bool:
        done = call_command(*call)
        said.append(done.stdout)
        return done.returncode == 0

    eventually(is_deleted, 60, "the group is deleted")
    return said[-1]


def test_a_password_in_arguments_is_refused(tmp_path: Path) -> None:
    """Every user of the machine reads them; it is not repeated either."""
    write_job_file(tmp_path / "jobs.yaml", JOBS)
    url = f"postgresql://u:{SECRET}@host/db"
    for command in (
        ("serve", "jobs.yaml", "--store", url),
        ("show", "jobs.yaml", "main", "--position", "0", "--store", f"{url}?sslmode=require"),
        ("store", "copy", "sqlite:///p.db", f"postgresql://host/db?password={SECRET}"),
        ("store", "upgrade", url),
    ):
        done = call_command("penstockd", *command, folder=tmp_path)

        assert done.returncode == 2
        assert "the store's address has a password" in done.stderr
        assert SECRET not in done.stderr


def test_a_store_is_copied_and_brought_up_by_commands(tmp_path: Path) -> None:
    """And a place that is not empty is refused, with status 2."""
    url = postgres.in_schema(postgres.local_18(), postgres.new_schema())
    made = call_command("penstockd", "store", "upgrade", url)
    assert made.returncode == 2
    assert "is not there" in made.stderr

    write_job_file(tmp_path / "jobs.yaml", JOBS, store="sqlite:///p.db")
    node = Server(tmp_path / "jobs.yaml", "--workers", "1").start()
    try:
        first = begin(node, "t1")
        commit(node, "t1", first.generation, 5)
        held = call_command("penstockd", "store", "copy", "sqlite:///p.db", url, folder=tmp_path)
        assert held.returncode == 2
        assert "is held by process" in held.stderr
        assert node.terminate() == 0
    finally:
        node.close()

    copied = call_command("penstockd", "store", "copy", "sqlite:///p.db", url, folder=tmp_path)
    again = call_command("penstockd", "store", "copy", "sqlite:///p.db", url, folder=tmp_path)
    current = call_command("penstockd", "store", "upgrade", url)

    assert "1 groups" in copied.stdout, copied.stderr
    assert again.returncode == 2
    assert "is not empty" in again.stderr
    assert "that of this version" in current.stdout
    write_job_file(tmp_path / "jobs.yaml", JOBS, store=url)
    moved = Server(tmp_path / "jobs.yaml", "--workers", "1").start()
    try:
        assert cursor(moved) == 5
        assert begin(moved, "t1").store == first.store
    finally:
        moved.close()
