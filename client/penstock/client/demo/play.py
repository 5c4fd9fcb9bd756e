"""The order of events: serve, read, kill the server, kill the ranks, go on with more, compare."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
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

GROUP = "demo"
BATCHES_PER_STEP = 12
WORLD_SIZES = [2, 3]
WORKERS = 2
REFERENCE_RANKS = 2

LINE_EVERY_S = 2.0
"""Between two lines about the progress, each with the rate since the one before."""

READY_S = 60.0

SERVER, CLIENT = ("-m", "penstock.server.cli"), ("-m", "penstock.client.cli")


class ProgressLines:
    """Prints what happens, and now and then how far a run has come.

    Args:
        steps: How many steps it has.

    Attributes:
        verb: What is done with batches.
    """

    def __init__(self, steps: int) -> None:
        self._steps, self.verb = steps, "read"
        self._began = self._line_at = time.monotonic()
        self._tokens = self._padding = self._line_tokens = 0

    def event(self, sentence: str) -> None:
        """Print something that has happened."""
        print(f"{self._clock()}  {sentence}", flush=True)

    def batch(self, record: dict[str, Any]) -> None:
        """Count a batch, and print a line if the last one is old."""
        counts, now = record["counts"], time.monotonic()
        self._tokens += counts.get("tokens", 0)
        self._padding += counts.get("padding_tokens", 0)
        self._line_tokens += counts.get("tokens", 0)
        if (since := now - self._line_at) < LINE_EVERY_S:
            return
        rate, self._line_at, self._line_tokens = self._line_tokens / since, now, 0
        packing = self._tokens / max(1, self._tokens + self._padding)
        print(
            f"{self._clock()}    {self.verb} step {record['step']}/{self._steps}  "
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

    def __init__(self, source: Input, steps: int, folder: Path) -> None:
        self._source, self._steps, self._folder = source, steps, folder
        self._address = f"127.0.0.1:{free_port()}"
        self._lines = ProgressLines(steps)
        self._processes: list[DemoProcess] = []
        self._server: DemoProcess | None = None

    def run(self) -> Account:
        """Play everything and return the account.

        Raises:
            DemoFailed: A process ended unexpectedly, or nothing moved for a minute.
        """
        steps, folder = self._steps, self._folder
        DemoRun(BATCHES_PER_STEP, steps, WORLD_SIZES, REFERENCE_RANKS).save(folder)
        kill_server_at, kill_ranks_at = steps // 3, 2 * steps // 3
        server = self._serve()
        self._lines.event(
            f"penstockd serves on {self._address} (pid {server.process.pid}, {WORKERS} workers)"
        )
        first = self._ranks(1, WORLD_SIZES[0], steps)
        self._lines.event(f"{WORLD_SIZES[0]} trainer ranks read from step 0, in {steps} steps")
        self._read(first, 0, kill_server_at, within=True)
        self._server = None
        server.end()
        self._lines.event(
            f"SIGKILL to the server (pid {server.process.pid}) within step {kill_server_at}; "
            "starting it again"
        )
        server = self._serve()
        self._lines.event(
            f"the server serves again (pid {server.process.pid}); the ranks find it themselves"
        )
        self._read(first, 0, kill_ranks_at, within=True)
        self._kill(first, kill_ranks_at)
        cursor = self._look_at_group(1)
        second = self._ranks(2, WORLD_SIZES[1], steps - cursor)
        self._lines.event(
            f"{WORLD_SIZES[1]} ranks go on at step {cursor}, the cursor that the server kept"
        )
        self._read(second, cursor, steps)
        self._finish(second)
        self._look_at_group(2)
        self._server = None
        server.process.terminate()
        if status := server.wait():
            raise server.failed(f"ended with status {status}")
        self._lines.event(
            f"all {steps} steps are finished; SIGTERM drained the server, it exited with 0"
        )
        self._compare()
        return account_of(folder)

    def close(self) -> None:
        """End every process; idempotent."""
        for process in self._processes:
            process.end()

    # --- the acts ---

    def _serve(self) -> DemoProcess:
        command = [*SERVER, "serve", str(self._source.job_file), "--listen", self._address]
        command += ["--metrics", "off", "--workers", str(WORKERS), "--log-format", "json"]
        command += ["--store", f"sqlite:///{self._folder / 'penstock.db'}"]
        self._server = server = self._start("server", command, logs=True)
        until = time.monotonic() + READY_S
        while not server.has_logged("ready"):
            self._look_at_server()
            if time.monotonic() > until:
                raise server.failed(f"was not ready within {READY_S:.0f} s")
            time.sleep(0.05)
        return server

    def _ranks(self, generation: int, world_size: int, steps: int) -> list[DemoProcess]:
        more = ["--group", GROUP, "--attempt", f"{GROUP}-{generation}", "--commit"]
        more += ["--steps", str(steps)]
        return [
            self._cat(rank_name(generation, rank), self._address, rank, world_size, more)
            for rank in range(world_size)
        ]

    def _kill(self, ranks: list[DemoProcess], step: int) -> None:
        for rank in ranks:
            rank.process.kill()
        for rank in ranks:
            while rank.read(self._look_at_server) is not None:
                pass  # it had printed this before: it is on record
        self._lines.event(
            f"SIGKILL to both ranks within step {step}; starting {WORLD_SIZES[1]} in their place"
        )

    def _look_at_group(self, generation: int) -> int:
        """Keep what the node says of the group, and return its cursor."""
        command = [*CLIENT, "cursors", "--json", "--group", GROUP, self._address, self._source.job]
        done = subprocess.run(
            [sys.executable, *command, "show"], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise DemoFailed(done.stderr.strip())
        group_file(self._folder, generation).write_text(done.stdout)
        cursor: int = json.loads(done.stdout)["cursor"]
        return cursor

    def _compare(self) -> None:
        self._lines.event("computing every batch again with local:, without the server")
        self._lines.verb = "compared"
        target, more = f"local:{self._source.job_file}", ["--steps", str(self._steps)]
        references = [
            self._cat(reference_name(rank), target, rank, REFERENCE_RANKS, more)
            for rank in range(REFERENCE_RANKS)
        ]
        self._read(references, 0, self._steps)
        self._finish(references)

    # --- what ranks print ---

    def _read(
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
                    found = rank.read(self._look_at_server)
                    if found is None:
                        raise rank.failed(f"ended with status {rank.process.wait()}")
                    self._lines.batch(found)

    def _finish(self, ranks: list[DemoProcess]) -> None:
        """Wait for the ends of ranks that have printed all."""
        for rank in ranks:
            if rank.read(self._look_at_server) is not None:
                raise rank.failed("printed more than it was to read")
            if status := rank.process.wait():
                raise rank.failed(f"ended with status {status}")

    def _look_at_server(self) -> None:
        server = self._server
        if server is not None and (status := server.process.poll()) is not None:
            raise server.failed(f"ended with status {status}")

    # --- processes ---

    def _cat(
        self, name: str, target: str, rank: int, world_size: int, more: Sequence[str]
    ) -> DemoProcess:
        command = [*CLIENT, "cat", target, self._source.job, "--json", *more]
        command += ["--rank", str(rank), "--world-size", str(world_size)]
        command += ["--batches-per-step", str(BATCHES_PER_STEP)]
        return self._start(name, command)

    def _start(self, name: str, command: Sequence[str], *, logs: bool = False) -> DemoProcess:
        process = DemoProcess(name, command, self._folder, logs=logs)
        self._processes.append(process)
        return process
