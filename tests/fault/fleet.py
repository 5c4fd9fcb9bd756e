"""Three nodes over one store in PostgreSQL, and ranks of one group, under faults of all of them."""

from __future__ import annotations

import contextlib
import json
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import psycopg

import postgres
from harness import Rank, Server, as_penstock, kill_process, write_job_file
from invariants import Attempts, Generation, check_bounds, eventually
from links import Link
from penstock.wire.errors import PenstockError
from penstock.wire.v1 import cursors_pb2

NODES, STEP, PROGRESS_S = 3, 12, 120.0
WORLD_SIZES = (1, 2, 3, 4)
ITEMS, BAD_EVERY, BAD_AT = 20_000, 997, 500
LARGEST_BATCH = 64 << 10

ROLES = '''
import pathlib

from penstock.server.roles import RawItemProcessor

HERE = pathlib.Path({folder!r})


class Fails(RawItemProcessor):
    """Some items fail, until they are repaired: a verdict about one holds on."""

    def process(self, raw, context):
        self.check(raw)
        shift = int(context.rng.integers(1000))
        tokens = [token + shift for token in raw["input_ids"]]
        return [{"input_ids": tokens} for _ in range(1 + raw["n"] % 2)]

    def check(self, raw):
        if raw["n"] % BAD_EVERY == BAD_AT and not (HERE / "repaired").exists():
            raise ValueError(f"item {raw['n']} is damaged")


class FailsSized(Fails):
    """It fails where its batch is made, not where it is planned."""

    one_to_one = True

    def process(self, raw, context):
        return super().process(raw, context)[0]

    def size(self, raw):
        return len(raw["input_ids"])
'''


def write_jobs(folder: Path, data: Path, **server: Any) -> Path:
    """Write the job file of a node; all of them have the same jobs."""
    common = {
        "seed": 11,
        "lanes": 6,
        "batches_per_step": STEP,
        "snapshot_every": 8,
        "source": {"type": "jsonl", "files": str(data / "items.jsonl"), "block_bytes": 20_000},
        "on_item_error": "quarantine",
        "max_quarantined": 100_000,
        "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 5, "rows": 2},
        "collator": {"type": "packed"},
    }
    roles = ROLES.replace("{folder!r}", repr(str(data)))
    roles = roles.replace("BAD_EVERY", str(BAD_EVERY)).replace("BAD_AT", str(BAD_AT))
    folder.mkdir(exist_ok=True)
    (folder / "roles.py").write_text(roles)
    jobs = {
        "drawn": {**common, "processor": {"type": "./roles.py:Fails"}},
        "sized": {**common, "processor": {"type": "./roles.py:FailsSized"}},
    }
    return write_job_file(
        folder / "jobs.yaml", jobs, **{"ready_bytes": "256 KiB", "snapshot_seconds": 0.1, **server}
    )


class Fleet:
    """Nodes, their links to readers and to the store, the store's server, and a group's ranks.

    Args:
        folder: Where everything lies.
        seed: Decides what happens when, as far as the machine lets it.
        job: `drawn` or `sized`.

    Attributes:
        faults: What has happened so far.
    """

    def __init__(self, folder: Path, seed: int, job: str) -> None:
        self.folder, self.job = folder, job
        self.rng = random.Random(f"{seed} {job}")
        self.faults: Counter[str] = Counter()
        self.digests: dict[int, str] = {}
        self.repaired_at: int | None = None  # below it all was given before items were repaired
        self._down: dict[str, Callable[[], None]] = {}
        self._stack = contextlib.ExitStack()
        self.generation, self.finished = 0, 0
        self.attempt: Generation | None = None
        self.number = 0
        self.ranks: list[Rank] = []
        self.servers: list[Server] = []
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        with (self.folder / "items.jsonl").open("w") as file:
            for n in range(ITEMS):
                size = 1 + (n * 7919) % 41
                ids = [100 * n + k for k in range(size)]
                file.write(json.dumps({"n": n, "input_ids": ids}) + "\n")
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
        for rank in self.ranks:
            rank.kill()
        self._stack.close()

    def what_all_said(self) -> str:
        """Return the last lines of every process, for who looks into a failure."""
        found = [f"away: {sorted(self._down)}"]
        for server in self.servers:
            found += [f"--- {server.command[-1]}", *map(str.rstrip, server.lines[-30:])]
        for rank in self.ranks:
            found += [f"--- {rank.output.name}", *rank.errors().splitlines()[-30:]]
        return "\n".join(found)

    # --- faults ---

    def fault(self) -> None:
        """Let something happen; what is away comes back first, or later."""
        while self._down and self.rng.random() < 0.4:
            self._heal(self.rng.choice(sorted(self._down)))
        whats = {
            "kill": 3, "drain": 2, "stop": 2, "cut": 2, "cut from store": 2, "reset": 2,
            "postgres": 1, "backends": 2, "rank": 2, "seek": 1, "worker": 1, "release": 1,
        }  # fmt: skip
        what = self.rng.choices(list(whats), list(whats.values()))[0]
        up = [n for n in range(NODES) if not any(key.startswith(f"{n} ") for key in self._down)]
        if len(up) < 2 and what in ("kill", "drain", "stop", "cut", "cut from store"):
            self._heal(self.rng.choice(sorted(key for key in self._down if key[0].isdigit())))
            return self.fault()
        number = self.rng.choice(up)
        server = self.servers[number]
        self.faults[what] += 1
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
        elif what == "rank":
            self.end_attempt()
        elif what == "seek":
            self._seek()
        elif what == "release":
            self._release()

    def _heal(self, key: str) -> None:
        self._down.pop(key)()

    def mend(self) -> None:
        """Have every node up and every link whole."""
        for key in sorted(self._down):
            self._heal(key)
        for server in self.servers:
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

    def group(self) -> cursors_pb2.Group:
        """Return what the store has of the group."""
        reply = self.call("List", cursors_pb2.ListRequest(job=self.job, group="run"))
        found: cursors_pb2.Group = reply.groups[0]
        return found

    def _seek(self) -> None:
        """Go to a step at or below the cursor: the attempt that reads is told that it is over."""
        step = self.rng.randrange(self.group().cursor + 1)
        request = cursors_pb2.SeekRequest(
            job=self.job, group="run", step=step, request_id=f"seek-{self.number}"
        )
        moved = self.call("Seek", request)
        assert (moved.generation, moved.step) == (self.generation + 1, step)
        eventually(
            lambda: all(rank.process.poll() is not None for rank in self.ranks),
            PROGRESS_S, "every rank is told that its attempt is over",
        )  # fmt: skip
        for rank in self.ranks:
            assert rank.wait() == 1, rank.errors()
            assert "[stale_generation]" in rank.errors(), rank.errors()
        self._finish_attempt(sought=True)
        self.generation = moved.generation
        self.start_attempt()

    def repair(self) -> None:
        """Items fail no more; what verdicts left out stays out."""
        self.repaired_at = min((rank.records()[-1]["position"] for rank in self.ranks), default=0)
        (self.folder / "repaired").touch()

    def _release(self) -> None:
        """Let an item in again that was repaired."""
        if self.repaired_at is None:
            return
        request = cursors_pb2.ListVerdictsRequest(job=self.job)
        verdicts = self.call("ListVerdicts", request).verdicts
        if verdicts:
            index = self.rng.choice([verdict.index for verdict in verdicts])
            self.call("ReleaseItem", cursors_pb2.ReleaseItemRequest(job=self.job, index=index))

    # --- attempts ---

    def start_attempt(self) -> None:
        """Start all ranks of a new attempt; return when one of them has read something."""
        self.number += 1
        world_size = self.rng.choice(WORLD_SIZES)
        self.ranks = [
            Rank(
                self.target,
                self.folder / f"attempt{self.number}-rank{rank}.jsonl",
                *[self.job, "--json", "--commit", "--group", "run"],
                *["--attempt", f"token-{self.number}"],
                *["--rank", str(rank), "--world-size", str(world_size)],
                *["--batches-per-step", str(STEP), "--timeout", str(PROGRESS_S)],
                module="fault.hasty_rank",
            )
            for rank in range(world_size)
        ]
        self.progress(1)
        group = self.group()
        assert group.generation == self.generation + 1, (group.generation, self.generation)
        assert group.world_size == world_size
        self.generation = group.generation
        if self.attempt is not None:  # commits that were on their way have landed
            Attempts(STEP, [self.attempt]).check(group.start_step)
        self.attempt = Generation(group.start_step, world_size)

    def progress(self, batches: int) -> None:
        """Let the ranks read so many batches more, all together."""
        before = self._count()

        def has_read() -> bool:
            self.look_after_nodes()
            for rank in self.ranks:
                assert rank.process.poll() is None, rank.errors()
            return self._count() >= before + batches

        eventually(has_read, PROGRESS_S, f"ranks read on, with {sorted(self._down)}")

    def end_attempt(self) -> None:
        """SIGKILL all ranks, one by one, check what they got, and start others."""
        self.rng.shuffle(self.ranks)
        for rank in self.ranks:
            assert rank.process.poll() is None, rank.errors()
            rank.kill()
        self._finish_attempt(sought=False)
        self.start_attempt()

    def _finish_attempt(self, *, sought: bool) -> None:
        attempt = self.attempt
        assert attempt is not None
        for rank in self.ranks:
            records = rank.records()
            if not records:
                continue
            number = int(rank.output.stem.rpartition("rank")[2])
            attempt.delivered[number] = [record["position"] for record in records]
            # A step is printed when the commit of the step before it was answered.
            attempt.answered[number] = max(attempt.start_step, records[-1]["step"])
            for record in records:
                position, digest = record["position"], record["digest"]
                before = self.digests.setdefault(position, digest)
                assert before == digest, f"position {position} has come with other bytes"
        done = [attempt.answered.get(r, attempt.start_step) for r in range(attempt.world_size)]
        end = min(done) if sought else self.group().cursor
        Attempts(STEP, [attempt]).check(end)
        self.finished += 1
        self.ranks = []
        if sought:
            self.attempt = None

    def _count(self) -> int:
        return sum(rank.output.read_bytes().count(b"\n") for rank in self.ranks)

    # --- the end ---

    def check(self) -> None:
        """Compare all that any rank was given with what one undisturbed node gives."""
        for rank in self.ranks:
            assert rank.process.poll() is None, rank.errors()
            rank.kill()
        self.mend()
        self._finish_attempt(sought=False)
        for server in self.servers:
            check_bounds(server.status(), LARGEST_BATCH)
            assert server.terminate() == 0, server.lines[-5:]
        store = f"sqlite:///{self.folder}/alone.db"
        if self.repaired_at is not None:
            (self.folder / "repaired").unlink()
        if (until := self.repaired_at or max(self.digests)) > 0:
            self._compare("without verdicts of others", until, store)
        if self.repaired_at is not None:
            (self.folder / "repaired").touch()
        self._compare("with all verdicts", max(self.digests) + 1, self.postgres.url)

    def _compare(self, what: str, count: int, store: str) -> None:
        file = write_jobs(self.folder / "alone", self.folder, store=store)
        server = Server(file, "--node-id", "alone")
        try:
            server.start()
            rank = Rank(
                server.address, self.folder / f"alone-{count}.jsonl",
                *[self.job, "--json", "--count", str(count), "--batches-per-step", str(STEP)],
            )  # fmt: skip
            try:
                assert rank.wait(600) == 0, rank.errors()
            finally:
                rank.kill()
        finally:
            server.close()
        alone = {record["position"]: record["digest"] for record in rank.records()}
        assert len(alone) == count
        differs = [p for p, digest in self.digests.items() if alone.get(p, digest) != digest]
        assert not differs, f"{what}: {len(differs)} differ, the first are {sorted(differs)[:5]}"


__all__ = ["Fleet"]
