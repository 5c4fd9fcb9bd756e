"""Nodes, readers and their store on machines of their own, and packets that are lost between them.

Nothing is reset and nothing is refused, as with a link that is cut: who waits for an answer hears
nothing at all.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import postgres
from fault.fleet_jobs import STEP, write_items, write_jobs
from harness import Rank, Server, run_command
from invariants import Attempts, Generation, eventually
from namespaces import Machine, Switch
from penstock.client.reading.silence import SILENT_S
from penstock.server.rpc.following import UNCHECKED_S

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]

LANES = 7
"""None of the ranks' positions have lanes of their own: each rank reads from each node."""

JOB, WORLD_SIZE, DEADLINE_S = "drawn", 2, 300.0


class Site:
    """Three nodes over one store, each on a machine of its own, and machines of readers.

    Args:
        folder: Where everything lies.
        stack: Takes it down.
    """

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder = folder
        self.groups = 0
        self.switch = stack.enter_context(Switch())
        self.store = self.switch.machine()
        settings = ["listen_addresses = '*'", "unix_socket_permissions = 0777"]
        self.postgres = postgres.own_server(within=self.store.within, settings=settings)
        stack.callback(self.postgres.end)
        with (self.postgres.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.99.0.0/24 trust\n")
        self.postgres.stop("fast")
        self.postgres.start()
        write_items(folder)
        self.machines = [self.switch.machine() for _ in range(3)]
        self.readers = [self.switch.machine() for _ in range(WORLD_SIZE)]
        url = f"postgresql://postgres@{self.store.address}/postgres"
        self.nodes = []
        for number, machine in enumerate(self.machines):
            listen = f"{machine.address}:50051"
            file = write_jobs(
                folder / f"node-{number}", folder,
                lanes=LANES, store=url, listen=listen, insecure=True,
            )  # fmt: skip
            node = Server(file, "--node-id", f"node-{number}", within=machine.within)
            stack.callback(node.close)
            self.nodes.append(node.start(wait=False))
        for node in self.nodes:
            eventually(
                lambda node=node: bool(node.address) or node.process.poll() is not None,
                DEADLINE_S, "a node is ready",
            )  # fmt: skip
            assert node.address, node.lines
        self.target = ",".join(node.address for node in self.nodes)

    def mend(self) -> None:
        """Lose no packet any more."""
        for machine in [self.store, *self.machines, *self.readers]:
            machine.loses_nothing()

    def rank(
        self, name: str, machine: Machine, *arguments: str, target: str = "", job: str = JOB
    ) -> Rank:
        """Start a reader on a machine."""
        return Rank(
            target or self.target,
            self.folder / f"{name}.jsonl",
            *[job, "--json", "--batches-per-step", str(STEP), *arguments],
            within=machine.within,
        )

    def cursor(self, group: str) -> int:
        """Return a group's cursor, as the store has it."""
        return int(self._asked("cursors", JOB, "show", "--group", group)["cursor"])

    def verdicts(self, job: str) -> list[Any]:
        """Return the verdicts about items of a job, as the store has them."""
        found: list[Any] = self._asked("quarantine", job, "list")
        return found

    def _asked(self, command: str, *arguments: str) -> Any:
        """Return what a command prints that asks a node whose links are whole."""
        node = self.nodes[1].address
        done = run_command(
            ["penstock.client.cli", command, node, *arguments, "--json"],
            within=self.machines[1].within,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


class PacedReader:
    """A reader without a group that reads no further than its lines are taken.

    They go through a pipe of a page, so that it waits in the middle of a line otherwise.

    Args:
        site: Where it reads.
        name: Of its files.
        machine: Where it runs.
        target: What it reads from.
        job: Which job.
    """

    def __init__(self, site: Site, name: str, machine: Machine, target: str, job: str) -> None:
        path = site.folder / f"{name}.jsonl"
        os.mkfifo(path)
        self._lines = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(self._lines, fcntl.F_SETPIPE_SZ, 4096)
        self.rank = site.rank(name, machine, target=target, job=job)

    def take(self, count: int) -> None:
        """Take so many lines, or some more."""
        end = time.monotonic() + DEADLINE_S
        while count > 0:
            assert time.monotonic() < end, f"{count} lines are missing: {self.rank.errors()}"
            count -= self.take_some(1.0)

    def take_some(self, wait_s: float) -> int:
        """Take the lines that are there, or come soon; return how many."""
        assert self.rank.process.poll() is None, self.rank.errors()
        ready, _, _ = select.select([self._lines], [], [], wait_s)
        return os.read(self._lines, 4096).count(b"\n") if ready else 0

    def close(self) -> None:
        """End it."""
        self.rank.kill()
        os.close(self._lines)


class SiteGroup:
    """A group with a rank on each machine of readers; ended, its batches are looked at.

    Args:
        site: Where it reads.
    """

    def __init__(self, site: Site) -> None:
        site.groups += 1
        self._site, self.name = site, f"run-{site.groups}"
        self.ranks = [
            site.rank(
                f"{self.name}-{number}", machine,
                *["--commit", "--group", self.name, "--attempt", "t", "--timeout", "150"],
                *["--rank", str(number), "--world-size", str(WORLD_SIZE)],
            )
            for number, machine in enumerate(site.readers)
        ]  # fmt: skip
        self.progress("they begin")

    def progress(self, what: str, ranks: list[Rank] | None = None) -> None:
        """Wait until each rank, or each of these, has read some steps more."""
        ranks = ranks or self.ranks
        before = [read(rank) for rank in ranks]
        eventually(
            lambda: self._all_read()
            and all(read(r) >= b + 20 * STEP for r, b in zip(ranks, before, strict=True)),
            DEADLINE_S, what,
        )  # fmt: skip

    def _all_read(self) -> bool:
        for rank in self.ranks:
            assert rank.process.poll() is None, rank.errors()
        return True

    def waits_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something holds, while no rank ends."""
        eventually(lambda: self._all_read() and holds(), DEADLINE_S, what)

    def end(self) -> int:
        """Kill all ranks, check what they got against a node alone; return the group's cursor."""
        assert self._all_read()
        site, done = self._site, Generation(0, WORLD_SIZE)
        digests = {}
        for number, rank in enumerate(self.ranks):
            rank.kill()
            records = rank.records()
            done.delivered[number] = [record["position"] for record in records]
            done.answered[number] = records[-1]["step"]
            digests.update({record["position"]: record["digest"] for record in records})
        cursor = site.cursor(self.name)
        Attempts(STEP, [done]).check(cursor)
        count = ["--count", str(max(digests) + 1)]
        alone = site.rank(
            f"{self.name}-alone", site.machines[1], *count, target=site.nodes[1].address
        )
        try:
            assert alone.wait(DEADLINE_S) == 0, alone.errors()
        finally:
            alone.kill()
        usual = {record["position"]: record["digest"] for record in alone.records()}
        differs = [position for position, found in digests.items() if usual[position] != found]
        assert not differs, sorted(differs)[:5]
        return cursor

    def close(self) -> None:
        """End what is left."""
        for rank in self.ranks:
            rank.kill()


def read(rank: Rank) -> int:
    """Return how many batches a rank has printed."""
    return rank.output.read_bytes().count(b"\n")


@pytest.fixture(scope="module")
def whole_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Machines whose links are whole."""
    with contextlib.ExitStack() as stack:
        yield Site(tmp_path_factory.mktemp("site"), stack)


@pytest.fixture
def site(whole_site: Site) -> Iterator[Site]:
    """The same; what a test has cut is mended after it."""
    yield whole_site
    whole_site.mend()


@pytest.fixture
def group(site: Site) -> Iterator[SiteGroup]:
    """A group that reads."""
    made = SiteGroup(site)
    yield made
    made.close()


@pytest.mark.parametrize("lost", ["what the node sends", "what the reader sends"])
def test_a_reader_that_is_cut_from_a_node_reads_what_others_make(
    site: Site, group: SiteGroup, lost: str
) -> None:
    """It alone: the other rank goes on reading from that node."""
    cut, reader = site.machines[0], site.readers[0]
    if lost == "what the node sends":
        cut.loses("OUTPUT", "-d", reader.address)
    else:
        cut.loses("INPUT", "-s", reader.address)
    left = f"{site.nodes[0].address} is left"

    group.waits_until(lambda: left in group.ranks[0].errors(), "the rank leaves the node")
    group.progress("both ranks read on")
    site.mend()
    group.progress("both ranks read on")

    assert left not in group.ranks[1].errors()
    assert group.end() > 0


def test_a_reader_that_is_cut_from_all_nodes_waits_and_goes_on_exactly(
    site: Site, group: SiteGroup
) -> None:
    """Its error, when it has waited for as long as it may, names every node."""
    alone = site.rank("short-of-time", site.readers[0], "--timeout", "25", "--steps", "100000")
    try:
        eventually(lambda: read(alone) > STEP, DEADLINE_S, "it reads")
        site.readers[0].loses("INPUT")
        code = alone.wait(DEADLINE_S)
        said = alone.errors()
    finally:
        alone.kill()
    assert code == 1
    assert all(node.address in said.splitlines()[-1] for node in site.nodes), said
    before = read(group.ranks[0])

    site.mend()
    group.waits_until(lambda: read(group.ranks[0]) > before + STEP, "it goes on")
    group.progress("both ranks read on")

    assert group.end() > 0


def test_a_node_that_is_cut_from_the_store_serves_on_for_a_minute(
    site: Site, group: SiteGroup
) -> None:
    """It refuses commits; then it serves no attempt any more, and those without a group go on."""
    cut, lonely = site.nodes[0], site.machines[0]
    commits = ["--commit", "--group", "lonely", "--attempt", "t", "--timeout", "60"]
    reader = PacedReader(site, "ephemeral", site.readers[0], cut.address, "whole")
    member = site.rank("lonely", site.readers[1], *commits, target=cut.address, job="whole")
    try:
        reader.take(STEP)
        eventually(lambda: read(member) > STEP, DEADLINE_S, "it reads")
        lonely.loses("OUTPUT", "-d", site.store.address)

        assert member.wait(DEADLINE_S) == 1
        assert "[store_unavailable]" in member.errors(), member.errors()
        why = f"{cut.address} is left"
        group.waits_until(
            lambda: all(why in rank.errors() for rank in group.ranks), "ranks leave the node"
        )
        for rank in group.ranks:
            assert "has not reached the store for" in rank.errors(), rank.errors()
        reader.take(20 * STEP)  # below what the node has told others that it plans
        group.progress("ranks read from the others")
    finally:
        reader.close()
        member.kill()
    site.mend()
    group.progress("ranks read on")

    assert group.end() > 0
    assert SILENT_S < UNCHECKED_S  # a reader leaves a node that refuses it after so long


def test_a_node_that_is_cut_from_the_store_writes_no_verdict(site: Site) -> None:
    """Its readers wait at the first item that fails, and are told for what; then they go on."""
    cut = site.nodes[0]
    reader = PacedReader(site, "judged", site.readers[0], cut.address, "sized")
    try:
        reader.take(STEP)
        site.machines[0].loses("OUTPUT", "-d", site.store.address)
        why = " is waiting for the store for "
        eventually(
            lambda: reader.take_some(1.0) == 0 and why in reader.rank.errors(),
            DEADLINE_S, "it waits for the store",
        )  # fmt: skip
        before = site.verdicts("sized")

        site.mend()
        reader.take(20 * STEP)

        assert len(site.verdicts("sized")) > len(before)
    finally:
        reader.close()


@pytest.mark.parametrize("how", ["fast", "immediate"])
def test_a_store_that_restarts_costs_no_commit(site: Site, group: SiteGroup, how: str) -> None:
    """Nodes wait for it, and repeat what it may not have done."""
    site.postgres.stop(how)
    site.postgres.start()

    group.progress("both ranks read on")

    assert group.end() > 0


def test_a_store_that_is_lost_to_all_holds_commits_up_and_no_batch_is_changed(
    site: Site, group: SiteGroup
) -> None:
    """For longer than a commit waits at one node, and less than a minute."""
    site.store.loses("OUTPUT")
    trouble = "store"
    group.waits_until(
        lambda: any(trouble in rank.errors() for rank in group.ranks), "a rank says what is away"
    )
    site.mend()

    group.progress("both ranks read on")

    assert group.end() > 0
