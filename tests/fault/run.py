"""One training run whose server, workers and ranks are killed at random moments."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from fault.jobs import STEP, write_jobs, write_robot_job
from harness import Rank, Server, kill_process
from invariants import Attempts, Generation, Purity, eventually
from penstock.server.jobs.load import load
from penstock.wire.v1 import cursors_pb2

WORLD_SIZES = (1, 2, 3, 4)

PROGRESS_S = 90.0


class Run:
    """A group that is read by one attempt of `penstock cat --commit` ranks after another.

    Args:
        folder: Where everything lies.
        seed: Decides what is killed when, as far as the machine lets it.
        job: One of `write_jobs`, or `robots`.
        workers: Of the node.
    """

    def __init__(
        self, folder: Path, seed: int | str, job: str = "packed", workers: int = 2
    ) -> None:
        self.folder, self.job = folder, job
        self.rng = random.Random(f"{seed} {job}")
        write = write_robot_job if job == "robots" else write_jobs
        self.file = write(folder, workers=workers, snapshot_seconds=0.1)
        self.address = f"unix:{folder}/n.sock"
        self.server = Server(self.file, "--listen", self.address).start()
        self.purity = Purity(load(str(self.file)).jobs[job])
        self.attempts = Attempts(STEP)
        self.ranks: list[Rank] = []
        self.kills: Counter[str] = Counter()

    def close(self) -> None:
        """End everything."""
        for rank in self.ranks:
            rank.kill()
        self.server.close()

    def group(self) -> cursors_pb2.Group:
        """Return what the store has of the group."""
        request = cursors_pb2.ListRequest(job=self.job, group="run")
        reply = self.server.cursors.List(request, timeout=30)
        found: cursors_pb2.Group = reply.groups[0]
        return found

    def start_attempt(self, world_size: int) -> None:
        """Start all ranks of a new attempt; return when one of them has read something."""
        number = len(self.attempts.generations) + 1
        start = self.group().cursor if number > 1 else 0
        self.attempts.generations.append(Generation(start, world_size))
        self.ranks = [
            Rank(
                self.address,
                self.folder / f"attempt{number}-rank{rank}.jsonl",
                *[self.job, "--json", "--commit", "--group", "run", "--attempt", f"token-{number}"],
                *["--rank", str(rank), "--world-size", str(world_size)],
                *["--batches-per-step", str(STEP), "--timeout", str(PROGRESS_S)],
            )
            for rank in range(world_size)
        ]
        self.progress(1)

    def progress(self, batches: int) -> None:
        """Let the ranks that live read so many batches more, all together."""
        before = self._count()
        if any(rank.process.poll() is None for rank in self.ranks):
            eventually(
                lambda: self._count() >= before + batches or self._all_ended(),
                PROGRESS_S,
                "the ranks read on",
            )
        for rank in self.ranks:
            assert rank.process.poll() in (None, -9), rank.errors()

    def kill_rank(self) -> None:
        """SIGKILL one rank."""
        alive = [rank for rank in self.ranks if rank.process.poll() is None]
        if alive:
            self.rng.choice(alive).kill()
            self.kills["rank"] += 1

    def kill_worker(self) -> None:
        """SIGKILL one worker."""
        pids = self.server.worker_pids()
        if pids:
            self.kills["worker"] += kill_process(self.rng.choice(pids))

    def kill_server(self) -> None:
        """SIGKILL the server, and start it again."""
        self.server.kill()
        self.server.start()
        self.kills["server"] += 1

    def end_attempt(self) -> None:
        """SIGKILL all ranks, and check the five invariants over all attempts so far."""
        for rank in self.ranks:
            if rank.process.poll() is None:
                self.kills["rank"] += 1
            rank.kill()
        one = self.attempts.generations[-1]
        for number, rank in enumerate(self.ranks):
            records = rank.records()
            for record in records:
                self.purity.saw_digest(record["position"], record["digest"])
            one.delivered[number] = [record["position"] for record in records]
            if records:
                # A step is printed when the commit of the step before it was answered.
                one.answered[number] = max(one.start_step, records[-1]["step"])
        group = self.group()
        assert group.generation == len(self.attempts.generations)
        assert (group.start_step, group.world_size) == (one.start_step, one.world_size)
        self.attempts.check(group.cursor)
        self.ranks = []

    def _count(self) -> int:
        return sum(rank.output.read_bytes().count(b"\n") for rank in self.ranks)

    def _all_ended(self) -> bool:
        return all(rank.process.poll() is not None for rank in self.ranks)


__all__ = ["WORLD_SIZES", "Run"]
