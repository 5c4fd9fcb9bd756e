"""The order of events: serve, read, kill the server, kill the ranks, go on with more, compare."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.client.demo.account import (
    Account,
    DemoRun,
    account_of,
    group_file,
    rank_name,
    reference_name,
)
from penstock.client.demo.corpus import Input
from penstock.client.demo.demo_process import DemoFailed, DemoProcess, free_port
from penstock.common.terminal import columns_of, folded

BATCHES_PER_STEP = 12
WORLD_SIZES = [2, 3]
WORKERS = 2
REFERENCE_RANKS = 2

LINE_EVERY_S = 2.0
"""Between two lines about the progress, each with the rate since the one before."""

READY_S = 60.0

CLOCK_COLUMNS = len("   0.0 s  ")

SERVER, CLIENT = ("-m", "penstock.server.cli"), ("-m", "penstock.client.cli")


class ProgressLines:
    """Prints what happens, and now and then how far a run has come.

    Attributes:
        steps: How many steps it has; None = that is not known yet.
        verb: What is done with batches.
        every_s: Between two lines about the progress.
    """

    def __init__(self, steps: int | None) -> None:
        self.steps, self.verb, self.every_s = steps, "read", LINE_EVERY_S
        self._began = self._line_at = time.monotonic()
        self._tokens = self._padding = self._line_tokens = 0

    def event(self, sentence: str) -> None:
        """Print something that has happened."""
        columns = columns_of(sys.stdout)
        first, *more = folded(sentence, columns and columns - CLOCK_COLUMNS).split("\n")
        print(f"{self._clock()}  {first}", *(" " * CLOCK_COLUMNS + line for line in more), sep="\n")
        sys.stdout.flush()

    def batch(self, record: dict[str, Any]) -> None:
        """Count a batch, and print a line if the last one is old."""
        counts, now = record["counts"], time.monotonic()
        self._tokens += counts.get("tokens", 0)
        self._padding += counts.get("padding_tokens", 0)
        self._line_tokens += counts.get("tokens", 0)
        if (since := now - self._line_at) < self.every_s:
            return
        rate, self._line_at, self._line_tokens = self._line_tokens / since, now, 0
        packing = self._tokens / max(1, self._tokens + self._padding)
        of = "" if self.steps is None else f"/{self.steps}"
        print(
            f"{self._clock()}    {self.verb} step {record['step']}{of}  "
            f"{rate:,.0f} tokens/s  packing {packing:.4f}",
            flush=True,
        )

    def _clock(self) -> str:
        return f"{time.monotonic() - self._began:6.1f} s"


class Play:
    """One run of the demo. Used once, by one thread; `close` ends every process of it.

    Args:
        source: What is read.
        steps: How many steps the run has, at least 3.
        folder: Where records, output and the store of this run go.
    """

    group = "demo"
    options: Sequence[str] = ()
    """Of `penstock`, where ranks read."""

    def __init__(self, source: Input, steps: int, folder: Path) -> None:
        self.source, self.steps, self.folder = source, steps, folder
        self.target = f"127.0.0.1:{free_port()}"
        self.lines = ProgressLines(steps)
        self._processes: list[DemoProcess] = []
        self.nodes: dict[str, DemoProcess] = {}  # those that are meant to run

    def run(self) -> Account:
        """Play everything and return the account.

        Raises:
            DemoFailed: A process ended unexpectedly, or nothing moved for a minute.
        """
        self.begin()
        first = self._ranks(1, WORLD_SIZES[0])
        self.lines.event(self.reading_begins(WORLD_SIZES[0]))
        kill_ranks_at = self.kill_nodes(first)
        DemoRun(BATCHES_PER_STEP, self.steps, WORLD_SIZES, REFERENCE_RANKS).save(self.folder)
        self._kill(first, kill_ranks_at)
        cursor = self._look_at_group(1)
        second = self._ranks(2, WORLD_SIZES[1], self.steps - cursor)
        self.lines.event(
            f"{WORLD_SIZES[1]} ranks go on at step {cursor}, the cursor that {self.keeper} kept"
        )
        self.read(second, cursor, self.steps)
        self._finish(second)
        self._look_at_group(2)
        self.done_with_group()
        self._drain()
        self.lines.event(
            f"all {self.steps} steps are finished; SIGTERM drained {self.drained} exited with 0"
        )
        self._compare()
        return account_of(self.folder)

    def close(self) -> None:
        """End every process; idempotent."""
        for process in self._processes:
            process.end()

    # --- what differs with the number of nodes ---

    keeper, drained = "the server", "the server, it"

    def begin(self) -> None:
        """Start what is read from."""
        server = self._serve()
        self.lines.event(
            f"penstockd serves on {self.target} (pid {server.process.pid}, {WORKERS} workers)"
        )

    def reading_begins(self, ranks: int) -> str:
        """Return what is said when ranks read."""
        return f"{ranks} trainer ranks read from step 0, in {self.steps} steps"

    def kill_nodes(self, ranks: list[DemoProcess]) -> int:
        """Read, and kill what is read from; return the step within which ranks are to be killed."""
        kill_server_at, kill_ranks_at = self.steps // 3, 2 * self.steps // 3
        self.read(ranks, 0, kill_server_at, within=True)
        killed = self.kill_node("server")
        self.lines.event(
            f"SIGKILL to the server (pid {killed}) within step {kill_server_at}; starting it again"
        )
        server = self._serve()
        self.lines.event(
            f"the server serves again (pid {server.process.pid}); the ranks find it themselves"
        )
        self.read(ranks, 0, kill_ranks_at, within=True)
        return kill_ranks_at

    def done_with_group(self) -> None:
        """Called when nobody reads any more."""

    # --- the acts ---

    def _serve(self) -> DemoProcess:
        store = f"sqlite:///{self.folder / 'penstock.db'}"
        return self.serve("server", self.target, WORKERS, ("--store", store))

    def serve(
        self,
        name: str,
        address: str,
        workers: int,
        more: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> DemoProcess:
        """Start a node, and return it when it is ready.

        Raises:
            DemoFailed: It ended, or was not ready within a minute.
        """
        command = [*SERVER, "serve", str(self.source.job_file), "--listen", address]
        command += ["--metrics", "off", "--workers", str(workers), "--log-format", "json", *more]
        node = self._start(name, command, logs=True, environment=environment)
        self.nodes[name] = node
        until = time.monotonic() + READY_S
        while not node.has_logged("ready"):
            self.look_at_nodes()
            if time.monotonic() > until:
                raise node.failed(f"was not ready within {READY_S:.0f} s")
            time.sleep(0.05)
        return node

    def kill_node(self, name: str) -> int:
        """Kill a node with SIGKILL; return its pid."""
        node = self.nodes.pop(name)
        node.end()
        return node.process.pid

    def _drain(self) -> None:
        nodes = list(self.nodes.values())
        self.nodes.clear()
        for node in nodes:
            node.process.terminate()
        for node in nodes:
            if status := node.wait():
                raise node.failed(f"ended with status {status}")

    def _ranks(
        self, generation: int, world_size: int, steps: int | None = None
    ) -> list[DemoProcess]:
        more = ["--group", self.group, "--attempt", f"{self.group}-{generation}", "--commit"]
        more += [] if steps is None else ["--steps", str(steps)]  # those of the first are killed
        return [
            self._cat(rank_name(generation, rank), self.target, rank, world_size, more)
            for rank in range(world_size)
        ]

    def _kill(self, ranks: list[DemoProcess], step: int) -> None:
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            while rank.read(self.look_at_nodes) is not None:
                pass  # it had printed this before: it is on record
        self.lines.event(
            f"SIGKILL to both ranks within step {step}; starting {WORLD_SIZES[1]} in their place"
        )

    def _look_at_group(self, generation: int) -> int:
        """Keep what the node says of the group, and return its cursor."""
        said = self.cursors("show", "--json")
        group_file(self.folder, generation).write_text(said)
        cursor: int = json.loads(said)["cursor"]
        return cursor

    def cursors(self, action: str, *more: str) -> str:
        """Return what `penstock cursors` prints about the group.

        Raises:
            DemoFailed: It fails.
        """
        command = [*CLIENT, "cursors", "--group", self.group, self.target, self.source.job]
        done = subprocess.run(
            [sys.executable, *command, action, *more],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise DemoFailed(done.stderr.strip())
        return done.stdout

    def _compare(self) -> None:
        self.lines.event("computing every batch again with local:, without the server")
        self.lines.verb, self.lines.steps = "compared", self.steps
        target, more = f"local:{self.source.job_file}", ["--steps", str(self.steps)]
        references = [
            self._cat(reference_name(rank), target, rank, REFERENCE_RANKS, more)
            for rank in range(REFERENCE_RANKS)
        ]
        self.read(references, 0, self.steps)
        self._finish(references)

    # --- what ranks print ---

    def read(
        self, ranks: list[DemoProcess], start: int, until: int, *, within: bool = False
    ) -> None:
        """Read what the ranks print, step by step and rank by rank.

        Args:
            ranks: They read from step `start` on.
            start: See there.
            until: The first step that is not read.
            within: Read one batch of each rank of that step, too.
        """
        each = BATCHES_PER_STEP // len(ranks)
        for step in range(start, until + within):
            goal = (step - start) * each + (1 if step == until else each)
            for rank in ranks:
                while rank.lines < goal:
                    found = rank.read(self.look_at_nodes)
                    if found is None:
                        raise rank.failed(f"ended with status {rank.process.wait()}")
                    self.lines.batch(found)

    def _finish(self, ranks: list[DemoProcess]) -> None:
        """Wait for the ends of ranks that have printed all."""
        for rank in ranks:
            if rank.read(self.look_at_nodes) is not None:
                raise rank.failed("printed more than it was to read")
            if status := rank.process.wait():
                raise rank.failed(f"ended with status {status}")

    def look_at_nodes(self) -> None:
        """Fail if a node has ended that is meant to run."""
        for node in self.nodes.values():
            if (status := node.process.poll()) is not None:
                raise node.failed(f"ended with status {status}")

    # --- processes ---

    def _cat(
        self, name: str, target: str, rank: int, world_size: int, more: Sequence[str]
    ) -> DemoProcess:
        command = [*CLIENT, *self.options, "cat", target, self.source.job, "--json", *more]
        command += ["--rank", str(rank), "--world-size", str(world_size)]
        command += ["--batches-per-step", str(BATCHES_PER_STEP)]
        return self._start(name, command)

    def _start(
        self,
        name: str,
        command: Sequence[str],
        *,
        logs: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> DemoProcess:
        process = DemoProcess(name, command, self.folder, logs=logs, environment=environment)
        self._processes.append(process)
        return process
