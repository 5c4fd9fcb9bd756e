"""Three nodes over one store in PostgreSQL, their links, and faults of all of them."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psycopg

import postgres
from fault.fleet_jobs import write_items, write_jobs
from harness import Server, as_penstock, kill_process
from invariants import check_bounds, eventually
from links import Link
from penstock.wire.errors import PenstockError

NODES, PROGRESS_S = 3, 240.0
LARGEST_BATCH = 64 << 10

FAULTS = {
    "kill": 3, "drain": 2, "stop": 2, "cut": 2, "cut from store": 2, "reset": 2, "postgres": 1,
    "backends": 2, "worker": 1,
}  # fmt: skip
"""What may happen to nodes, with how often it does."""


class Fleet:
    """Nodes, their links to readers and to the store, and the store's server.

    Args:
        folder: Where everything lies.
        rng: Decides what happens when, as far as the machine lets it.

    Attributes:
        faults: What has happened so far.
        target: What readers are given.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.faults: Counter[str] = Counter()
        self._down: dict[str, Callable[[], None]] = {}
        self._stack = contextlib.ExitStack()
        self.servers: list[Server] = []
        self._began_s = time.monotonic()
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        write_items(self.folder)
        self.postgres = postgres.own_server()
        self._stack.callback(self.postgres.end)
        socket = str(self.postgres.folder / ".s.PGSQL.5432")
        self.to_store = [self._stack.enter_context(Link(socket)) for _ in range(NODES)]
        for number, link in enumerate(self.to_store):
            place = self.folder / f"node-{number}"
            port = link.address.rpartition(":")[2]
            store = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            file = write_jobs(place, self.folder, store=store, drain_seconds=3.0)
            server = Server(file, "--node-id", f"node-{number}")
            self._stack.callback(self._end, server)
            self.servers.append(server)
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            self.wait_ready(server)
            server.command += ["--listen", server.address]  # it comes back where it was
        self.links = [self._stack.enter_context(Link(server.address)) for server in self.servers]
        self.target = ",".join(link.address for link in self.links)

    def _end(self, server: Server) -> None:
        if server._process is not None:
            with contextlib.suppress(ProcessLookupError):
                server.process.send_signal(signal.SIGCONT)
        server.close()

    def close(self) -> None:
        """End everything."""
        self._stack.close()

    def note(self, what: str) -> None:
        """Count what happens, and write down when it did."""
        self.faults[what] += 1
        with (self.folder / "faults.log").open("a") as file:
            file.write(
                f"{time.strftime('%H:%M:%S')} {time.monotonic() - self._began_s:8.2f} s "
                f"{self.faults.total():5} {what}; away: {self.away}\n"
            )

    def what_all_said(self) -> str:
        """Return the last lines of every process, for who looks into a failure."""
        happened = (self.folder / "faults.log").read_text() if self.faults else ""
        found = [f"away: {self.away}", *happened.splitlines()[-10:]]
        for server in self.servers:
            found += [f"--- {server.command[-1]}", *map(str.rstrip, server.lines[-30:])]
        return "\n".join(found)

    @property
    def away(self) -> list[str]:
        """Which nodes are away, and how."""
        return sorted(self._down)

    # --- faults ---

    def fault(self, what: str) -> None:
        """Let one of `FAULTS` happen; at least one node stays as it is."""
        up = [n for n in range(NODES) if not any(key.startswith(f"{n} ") for key in self._down)]
        if len(up) < 2 and what in ("kill", "drain", "stop", "cut", "cut from store"):
            self._heal(self.rng.choice(self.away))
            return self.fault(what)
        number = self.rng.choice(up)
        server = self.servers[number]
        self.note(f"{what}")
        if what in ("kill", "drain"):
            if what == "kill":
                server.kill()
            else:
                server.process.terminate()
            self._down[f"{number} away"] = lambda: self._start_again(number)
        elif what == "stop":
            server.process.send_signal(signal.SIGSTOP)
            self._down[f"{number} stopped"] = lambda: server.process.send_signal(signal.SIGCONT)
        elif what == "cut":
            self.links[number].cut()
            self._down[f"{number} cut"] = self.links[number].mend
        elif what == "cut from store":
            self.to_store[number].cut()
            self._down[f"{number} cut from store"] = self.to_store[number].mend
        elif what == "reset":
            self.rng.choice([self.links, self.to_store])[number].reset()
        elif what == "postgres":
            self.postgres.stop(self.rng.choice(["fast", "immediate"]))
            if self.rng.random() < 0.5:  # a node starts while it is away, and has to wait for it
                server.kill()
                server.start(wait=False)
            self.postgres.start()
        elif what == "backends":
            self._end_backends()
        elif what == "worker":
            self._kill_worker(server)
        else:
            raise ValueError(what)

    def drain_twice(self, moves: Callable[[], bool]) -> None:
        """Drain a node, and the one that takes over, at the moment when streams move.

        Args:
            moves: Tells whether a reader has left a node since this began.
        """
        self.mend()
        first, second = self.rng.sample(range(NODES), 2)
        self.note("drain twice")
        for number in (first, second):
            self.servers[number].process.terminate()
            self._down[f"{number} away"] = lambda number=number: self._start_again(number)
            if number == first:  # where nobody reads from it, nothing moves
                eventually(
                    lambda: moves() or self.servers[first].process.poll() is not None,
                    PROGRESS_S, "a reader moves",
                )  # fmt: skip
        self._heal(f"{first} away")

    def heal_some(self) -> None:
        """Bring back what is away, or not yet."""
        while self._down and self.rng.random() < 0.4:
            self._heal(self.rng.choice(self.away))

    def heal_links_to_store(self) -> None:
        """Let every node reach its store."""
        for key in self.away:
            if key.endswith("from store"):
                self._heal(key)

    def _heal(self, key: str) -> None:
        self._down.pop(key)()

    def mend(self) -> None:
        """Have every node up and every link whole."""
        for key in self.away:
            self._heal(key)
        for server in self.servers:
            self.wait_ready(server)

    def restart_all(self) -> None:
        """Drain and start each node, one after another, as an update does."""
        self.mend()
        for number, server in enumerate(self.servers):
            server.process.terminate()
            self._start_again(number)
            self.wait_ready(server)

    def _start_again(self, number: int) -> None:
        self.servers[number].wait_end()
        self.servers[number].start(wait=False)

    def wait_ready(self, server: Server) -> None:
        """Wait for a node, and start it again where it could not reach its store."""
        while True:
            eventually(
                lambda: bool(server.address) or server.process.poll() is not None,
                PROGRESS_S, "a node is ready",
            )  # fmt: skip
            if server.address and server.process.poll() is None:
                return
            self._check_ended(server)

    def _check_ended(self, server: Server) -> None:
        """Do as an engine does with a node that has ended by itself: if it has said why."""
        server.wait_end()
        lines = "".join(server.lines[-20:])
        assert "store_unavailable" in lines, lines
        self.faults["a start without the store"] += 1
        server.start(wait=False)

    def _end_backends(self) -> None:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE "
                "application_name = 'penstockd' AND (state <> 'idle' OR random() < 0.5)"
            )

    def _kill_worker(self, server: Server) -> None:
        self.wait_ready(server)
        for pid in server.worker_pids()[:1]:
            kill_process(pid)

    # --- operators ---

    def call(self, name: str, request: Any) -> Any:
        """Ask any node that answers, as clients do, until one does."""
        found: list[Any] = []

        def answered() -> bool:
            for number, server in enumerate(self.servers):
                if server.process.poll() is not None or not server.address:
                    continue
                if any(key.startswith(f"{number} ") for key in self._down):
                    continue
                try:
                    found.append(getattr(server.cursors, name)(request, timeout=20))
                except grpc.RpcError as error:
                    named = as_penstock(error)
                    if isinstance(named, PenstockError) and named.status != "UNAVAILABLE":
                        raise named from error
                    continue
                return True
            self.look_after_nodes()
            return False

        eventually(answered, PROGRESS_S, f"a node answers {name}")
        return found[0]

    def look_after_nodes(self) -> None:
        """Start nodes again that could not reach their store; no other one may end by itself."""
        for number, server in enumerate(self.servers):
            if f"{number} away" not in self._down and server.process.poll() is not None:
                self._check_ended(server)

    def end_nodes(self) -> None:
        """Have every node end by itself, within its bounds until then."""
        for server in self.servers:
            check_bounds(server.status(), LARGEST_BATCH)
            assert server.terminate() == 0, server.lines[-5:]


__all__ = ["FAULTS", "PROGRESS_S", "Fleet"]
