"""One training run that reads from a fleet of nodes: its attempts, and what its operators do."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fault.fleet import FAULTS, PROGRESS_S, Fleet
from fault.fleet_jobs import LANES, STEP, write_jobs
from harness import Rank, Server
from invariants import Attempts, Generation, eventually
from penstock.wire.v1 import cursors_pb2
from run_ledger import RunLedger

WORLD_SIZES = (1, 2, 3, 4)

OPERATIONS = {
    "rank": 2, "seek": 1, "release": 1, "drain twice": 1, "fence": 1, "restore": 1, "move": 1,
    "halt": 1,
}  # fmt: skip
"""What may happen to the run, with how often it does, beside the faults of nodes."""


class FleetRun:
    """A group whose ranks end, are fenced, halted and moved while nodes come and go.

    Args:
        folder: Where everything lies.
        seed: Decides what happens when, as far as the machine lets it.
        job: `drawn` or `sized`.

    Attributes:
        fleet: The nodes.
        ledger: What became of all batches.
    """

    def __init__(self, folder: Path, seed: int, job: str) -> None:
        self.folder, self.job = folder, job
        self.rng = random.Random(f"{seed} {job}")
        self.ledger = RunLedger(STEP, LANES)
        self.digests: dict[int, str] = {}
        self.repaired_at: int | None = None  # below it all was given before items were repaired
        self.generation, self.number, self._moves = 0, 0, 0
        self.attempt: Generation | None = None
        self.ranks: list[Rank] = []
        self.states = folder / "states"
        self.states.mkdir()
        self.fleet = Fleet(folder, self.rng)

    def close(self) -> None:
        """End everything."""
        for rank in self.ranks:
            rank.kill()
        self.fleet.close()

    def what_all_said(self) -> str:
        """Return the last lines of every process, for who looks into a failure."""
        found = [self.fleet.what_all_said()]
        for rank in self.ranks:
            found += [f"--- {rank.output.name}", *rank.errors().splitlines()[-30:]]
        return "\n".join(found)

    def fault(self) -> None:
        """Let something happen; what is away comes back first, or later."""
        self.fleet.heal_some()
        all_of_them = {**FAULTS, **OPERATIONS}
        what = self.rng.choices(list(all_of_them), list(all_of_them.values()))[0]
        if what in FAULTS:
            self.fleet.fault(what)
        elif what == "drain twice":
            before = self._left()
            self.fleet.drain_twice(lambda: self._left() > before)
        else:
            self.fleet.note(what)
            operation = {
                "rank": self.end_attempt, "seek": self._seek, "release": self._release,
                "fence": self._fence, "restore": self._restore, "move": self._move,
                "halt": self._halt,
            }  # fmt: skip
            operation[what]()

    def _left(self) -> int:
        """Return how often ranks have left a node."""
        return sum(rank.errors().count(" is left: ") for rank in self.ranks)

    # --- operators ---

    def group(self) -> cursors_pb2.Group:
        """Return what the store has of the group."""
        reply = self.fleet.call("List", cursors_pb2.ListRequest(job=self.job, group="run"))
        found: cursors_pb2.Group = reply.groups[0]
        return found

    def _seek(self) -> None:
        """Go to a step at or below the cursor: the attempt that reads is told that it is over."""
        step = self.rng.randrange(self.group().cursor + 1)
        request = cursors_pb2.SeekRequest(
            job=self.job, group="run", step=step, request_id=f"seek-{self.number}"
        )
        moved = self.fleet.call("Seek", request)
        assert (moved.generation, moved.step) == (self.generation + 1, step)
        self._await_end("stale_generation", self.ranks)
        self._take(self.ranks)
        self._enter(step, moved=True)
        self.generation = moved.generation
        self.start_attempt()

    def _fence(self) -> None:
        """Start other ranks beside those that read: these are told that they are over."""
        old = self.ranks
        self.start_attempt(beside=old)

    def _restore(self) -> None:
        """Start ranks with a saved state, while the group goes on from where it stands."""
        if (state := self._saved_state()) is not None:
            self.start_attempt(beside=self.ranks, state=state)

    def _move(self) -> None:
        """Have the ranks that read go back to a saved state, all of them at one step."""
        state = self._saved_state()
        if state is None or not self.trains:
            return
        step = json.loads(state.read_text())["step"]
        self._moves += 1
        place = self.states / f"token-{self.number}.move-{self._moves}"
        part = place.with_suffix(".part")
        at = max(rank.records()[-1]["step"] for rank in self.ranks if rank.records()) + 2
        part.write_text(json.dumps({"at": at, "state": json.loads(state.read_text())}))
        part.rename(place)
        moved = f'"moved_to": {step}'.encode()
        eventually(
            lambda: self._all_read() and all(
                rank.output.read_bytes().count(b"moved_to") == self._moves for rank in self.ranks
            ),
            PROGRESS_S, "all ranks load the state",
        )  # fmt: skip
        assert all(moved in rank.output.read_bytes() for rank in self.ranks)
        self.progress(1)  # a state is gone to when the next batch is asked for
        self._take(self.ranks, self._moves - 1)
        self._enter(step, moved=True)
        self.generation += 1
        group = self.group()
        assert group.generation == self.generation, (group.generation, self.generation)
        assert group.start_step == step
        self.attempt = Generation(step, len(self.ranks))

    def _saved_state(self) -> Path | None:
        """Return a state that every rank has gone past, as a checkpoint of all ranks is."""
        given = [self._given(rank) for rank in self.ranks]
        if not all(given):
            return None
        done = min(records[-1]["step"] for records in given)
        found = [
            path for path in sorted(self.states.glob("step-*.json"))
            if int(path.stem.partition("-")[2]) <= done
        ]  # fmt: skip
        return self.rng.choice(found) if found else None

    def _halt(self) -> None:
        """Let an item end every worker that reads it: all ranks are told, and no rank waits."""
        # What stops at a node that is cut off from the store is known there alone.
        self.fleet.heal_links_to_store()
        deadly = self.folder / "deadly"
        deadly.touch()
        self._await_end("worker_crashed", self.ranks)
        deadly.unlink()
        self.fleet.restart_all()
        self._take_ended()
        self.start_attempt()

    def repair(self) -> None:
        """Items fail no more; what verdicts left out stays out."""
        given = [self._given(rank) for rank in self.ranks]
        self.repaired_at = min(records[-1]["position"] if records else 0 for records in given)
        (self.folder / "repaired").touch()

    def _release(self) -> None:
        """Let an item in again that was repaired."""
        if self.repaired_at is None:
            return
        request = cursors_pb2.ListVerdictsRequest(job=self.job)
        verdicts = self.fleet.call("ListVerdicts", request).verdicts
        if verdicts:
            index = self.rng.choice([verdict.index for verdict in verdicts])
            release = cursors_pb2.ReleaseItemRequest(job=self.job, index=index)
            self.fleet.call("ReleaseItem", release)

    # --- attempts ---

    def start_attempt(self, beside: list[Rank] | None = None, state: Path | None = None) -> None:
        """Start all ranks of a new attempt; return when one of them has read something.

        Args:
            beside: The ranks of the attempt before, which read on until they are fenced.
            state: What the new ranks load.
        """
        self.number += 1
        self._moves = 0
        world_size = self.rng.choice(WORLD_SIZES)
        self.trains = state is not None or self.rng.random() < 0.5
        more = ["--states", str(self.states)] if self.trains else []
        if state is not None:
            more += ["--state", str(state)]
        self.ranks = [
            Rank(
                self.fleet.target,
                self.folder / f"attempt{self.number}-rank{rank}.jsonl",
                *[self.job, "--json", "--commit", "--group", "run"],
                *["--attempt", f"token-{self.number}"],
                *["--rank", str(rank), "--world-size", str(world_size)],
                *["--batches-per-step", str(STEP), "--timeout", str(PROGRESS_S)],
                *more,
                module="fault.hasty_trainer" if self.trains else "fault.hasty_rank",
            )
            for rank in range(world_size)
        ]
        try:
            self.progress(1)
        except BaseException:
            self.ranks += beside or []  # they are ended, and their lines are looked at, too
            raise
        group = self.group()
        assert group.generation == self.generation + 1, (group.generation, self.generation)
        assert group.world_size == world_size
        self.generation = group.generation
        if state is not None:
            assert group.start_step == json.loads(state.read_text())["step"]
        if beside:
            self._await_end("stale_generation", beside)
            self._take(beside)
        if self.attempt is not None:  # commits that were on their way have landed
            self._enter(group.start_step, moved=state is not None)
        self.attempt = Generation(group.start_step, world_size)

    def progress(self, batches: int) -> None:
        """Let the ranks read so many batches more, all together."""
        before = self._count()
        eventually(
            lambda: self._all_read() and self._count() >= before + batches,
            PROGRESS_S, f"ranks read on, with {self.fleet.away}",
        )  # fmt: skip

    def _all_read(self) -> bool:
        """Check that no rank has ended; look after nodes."""
        self.fleet.look_after_nodes()
        for rank in self.ranks:
            assert rank.process.poll() is None, rank.errors()
        return True

    def _await_end(self, code: str, ranks: list[Rank]) -> None:
        """Wait until every rank is told why it may not go on."""

        def all_ended() -> bool:
            self.fleet.look_after_nodes()
            return all(rank.process.poll() is not None for rank in ranks)

        eventually(all_ended, PROGRESS_S, f"every rank ends with [{code}]")
        for rank in ranks:
            assert rank.wait() == 1, rank.errors()
            assert f"[{code}]" in rank.errors(), rank.errors()

    def end_attempt(self) -> None:
        """SIGKILL all ranks, one by one, check what they got, and start others."""
        self.rng.shuffle(self.ranks)
        for rank in self.ranks:
            assert rank.process.poll() is None, rank.errors()
            rank.kill()
        self._take_ended()
        self.start_attempt()

    def _given(self, rank: Rank, pass_: int = -1) -> list[dict[str, Any]]:
        """Return what a rank was given, since it has loaded so many states; -1 = since the last."""
        passes: list[list[dict[str, Any]]] = [[]]
        for record in rank.records():
            if "moved_to" in record:
                passes.append([])
            else:
                passes[-1].append(record)
        return passes[pass_]

    def _take(self, ranks: list[Rank], pass_: int = -1) -> None:
        """Note what the ranks of the attempt were given."""
        attempt = self.attempt
        assert attempt is not None
        for rank in ranks:
            records = self._given(rank, pass_)
            if not records:
                continue
            number = int(rank.output.stem.rpartition("rank")[2])
            attempt.delivered[number] = [record["position"] for record in records]
            # A step is printed when the commit of the step before it was answered.
            attempt.answered[number] = max(attempt.start_step, records[-1]["step"])
            for record in records:
                position, digest = record["position"], record["digest"]
                assert (record["offset"], record["lane"]) == divmod(position, LANES)
                before = self.digests.setdefault(position, digest)
                assert before == digest, f"position {position} has come with other bytes"

    def _take_ended(self) -> None:
        """Take in an attempt whose ranks are all gone; where it ended the next one will show."""
        self._take(self.ranks)
        assert self.attempt is not None
        Attempts(STEP, [self.attempt]).check(self.group().cursor)
        self.ranks = []

    def _enter(self, begins: int, *, moved: bool) -> None:
        """Enter the attempt into the ledger, and where the next one begins."""
        attempt, self.attempt = self.attempt, None
        assert attempt is not None
        answered = [attempt.answered.get(r, attempt.start_step) for r in range(attempt.world_size)]
        # Whoever moves the group says where the next attempt begins, so that this one ended there
        # or later is all that is known.
        self.ledger.end(attempt, max(begins, min(answered)) if moved else begins)
        self.ledger.begin(begins, moved=moved)

    def _count(self) -> int:
        return sum(rank.output.read_bytes().count(b"\n") for rank in self.ranks)

    # --- the end ---

    def check(self) -> None:
        """Compare all that any rank was given with what one undisturbed node gives."""
        assert self._all_read()
        for rank in self.ranks:
            rank.kill()
        self.fleet.mend()
        self._take_ended()
        assert self.attempt is not None
        self.ledger.end(self.attempt, self.group().cursor)
        self.ledger.check()
        self.fleet.end_nodes()
        store = f"sqlite:///{self.folder}/alone.db"
        if self.repaired_at is not None:
            (self.folder / "repaired").unlink()
        if (until := self.repaired_at or max(self.digests)) > 0:
            self._compare("without verdicts of others", until, store)
        if self.repaired_at is not None:
            (self.folder / "repaired").touch()
        self._compare("with all verdicts", max(self.digests) + 1, self.fleet.postgres.url)

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


__all__ = ["FleetRun"]
