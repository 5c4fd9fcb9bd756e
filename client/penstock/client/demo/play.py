"""The order of events: serve, read, kill the server, kill the ranks, go on with more, compare."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.client.demo.board import Board, RankRow
from penstock.client.demo.corpus import Input, named_error
from penstock.client.demo.display import Display
from penstock.client.demo.node import NodeWatch
from penstock.client.demo.processes import Child, Event, Events, free_port
from penstock.client.demo.verdict import Plan, Verdict, judge, rank_name, reference_name
from penstock.wire.errors import MissingExtra, PenstockError

GROUP = "demo"
BATCHES_PER_STEP = 12
WORLD_SIZES = [2, 3]
WORKERS = 2
REFERENCE_RANKS = 2
SILENCE_S = 60.0
"""If no process says anything for this long, the demo has failed, and names the silent ones."""

TICK_S = 0.1


class DemoFailed(PenstockError):
    """A process of the demo ended unexpectedly, or nothing moved any more.

    Attributes:
        folder: The folder with the output of its processes.
    """

    code, status = "demo_failed", "ABORTED"

    folder: str | None = None


@dataclass(frozen=True)
class Generation:
    """The ranks of one attempt.

    Attributes:
        number: From 1.
        children: Their processes, by rank.
        rows: Their rows on the board, by rank.
    """

    number: int
    children: list[Child]
    rows: list[RankRow]


class Play:
    """One run of the demo. Used once, by one thread; `close` ends every process of it.

    Args:
        source: What is read.
        steps: How many steps the run has, at least 3.
        folder: Where records, output and the store of this run go.
        display: Where it is shown.
    """

    def __init__(self, source: Input, steps: int, folder: Path, display: Display) -> None:
        self.source, self.steps, self.folder, self._display = source, steps, folder, display
        self.plan = Plan(BATCHES_PER_STEP, steps, WORLD_SIZES, REFERENCE_RANKS)
        self.board = Board(source.title, steps, BATCHES_PER_STEP)
        self._events: Events = queue.SimpleQueue()
        self._children: list[Child] = []
        self._expected: set[Child] = set()  # whose end is part of the play
        self._server: Child | None = None
        self._is_ready = False
        self._generation: Generation | None = None
        self._done: dict[int, set[int]] = {}  # step -> the ranks that wait at its end
        self._address = f"127.0.0.1:{free_port()}"
        self._watch = NodeWatch(self._address)

    def run(self) -> Verdict:
        """Play everything and return the verdict.

        Raises:
            DemoFailed: A process ended unexpectedly, or nothing moved for a minute.
        """
        self.plan.save(self.folder)
        kill_server_at, kill_ranks_at = self.steps // 3, 2 * self.steps // 3
        self._start_server()
        first = self._start_ranks(WORLD_SIZES[0])
        self._until(lambda: self._is_within(kill_server_at))
        self._kill_server(kill_server_at)
        self._start_server()
        self._until(lambda: self._is_within(kill_ranks_at))
        self._kill_ranks(first, kill_ranks_at)
        self._start_ranks(WORLD_SIZES[1])
        self._until(lambda: self.board.finished_steps >= self.steps)
        self._finish()
        self._compare()
        return judge(self.folder)

    def close(self) -> None:
        """End every process; idempotent."""
        self._watch.close()
        for child in self._children:
            child.end()

    # --- the acts ---

    def _start_server(self) -> None:
        server = self.board.server
        again = server.starts > 0
        server.state, self._is_ready = "starting", False
        server.starts += 1
        command = ["-m", "penstock.server.cli", "serve", str(self.source.job_file)]
        command += ["--listen", self._address, "--metrics", "off", "--workers", str(WORKERS)]
        command += ["--store", f"sqlite:///{self.folder / 'penstock.db'}", "--log-format", "json"]
        self._server = self._start(
            Child("server", command, self.folder, self._events, lines="stderr")
        )
        server.pid, server.address = self._server.pid, self._address
        self._until(lambda: self._is_ready)
        server.state = "serving"
        if again:
            self._tell(f"the server serves again (pid {server.pid}); the ranks find it themselves")
        else:
            self._tell(f"penstockd serves on {self._address} (pid {server.pid}, {WORKERS} workers)")

    def _kill_server(self, step: int) -> None:
        assert self._server is not None
        self._expected.add(self._server)
        self._server.kill()
        self.board.server.state = "killed"
        self._tell(
            f"SIGKILL to the server (pid {self._server.pid}) within step {step}; starting it again"
        )
        self._server.process.wait()

    def _start_ranks(self, world_size: int) -> Generation:
        number = 1 if self._generation is None else self._generation.number + 1
        children = [
            self._start_rank(
                rank_name(number, rank),
                self._address,
                rank,
                world_size,
                ["--group", GROUP, "--attempt", f"{GROUP}-{number}", "--lockstep"],
            )
            for rank in range(world_size)
        ]
        rows = [RankRow(rank, world_size, child.pid) for rank, child in enumerate(children)]
        self._generation = Generation(number, children, rows)
        self._done.clear()
        self.board.ranks = rows
        if number == 1:
            self._tell(f"{world_size} trainer ranks read from step 0, in {self.steps} steps")
        return self._generation

    def _kill_ranks(self, generation: Generation, step: int) -> None:
        self._expected.update(generation.children)
        for child in generation.children:
            child.kill()
        self._until(lambda: all(row.state == "killed" for row in generation.rows))
        self._tell(
            f"SIGKILL to both ranks within step {step}; starting {WORLD_SIZES[1]} in their place"
        )

    def _finish(self) -> None:
        generation = self._generation
        assert generation is not None
        assert self._server is not None
        self._until(lambda: all(row.state == "finished" for row in generation.rows))
        self._expected.add(self._server)
        self._server.stop()
        self._until(lambda: self.board.server.state == "stopped")
        self._tell(
            f"all {self.steps} steps are finished; SIGTERM drained the server, it exited with 0"
        )

    def _compare(self) -> None:
        self.board.compared = 0
        self._tell("computing every batch again with local:, without the server")
        for rank in range(REFERENCE_RANKS):
            self._start_rank(
                reference_name(rank), f"local:{self.source.job_file}", rank, REFERENCE_RANKS, []
            )
        references = self._children[-REFERENCE_RANKS:]
        self._until(lambda: not (set(references) - self._expected))

    # --- processes and what they say ---

    def _start_rank(
        self, name: str, target: str, rank: int, world_size: int, more: list[str]
    ) -> Child:
        command = ["-m", "penstock.client.demo.rank", target, self.source.job]
        command += ["--rank", str(rank), "--world-size", str(world_size)]
        command += ["--batches-per-step", str(BATCHES_PER_STEP), "--until-step", str(self.steps)]
        return self._start(Child(name, command + more, self.folder, self._events))

    def _start(self, child: Child) -> Child:
        self._children.append(child)
        return child

    def _until(self, reached: Callable[[], bool]) -> None:
        heard_at = time.monotonic()
        while not reached():
            try:
                event = self._events.get(timeout=TICK_S)
            except queue.Empty:
                if time.monotonic() - heard_at > SILENCE_S:
                    raise DemoFailed(
                        f"nothing has moved for {SILENCE_S:.0f} s: {self._silent()}; the output of "
                        f"all processes is in {self.folder}",
                        folder=str(self.folder),
                    ) from None
            else:
                heard_at = time.monotonic()
                self._heard(event)
            self._watch.show(self.board.server)
            self._display.refresh(self.board)

    def _heard(self, event: Event) -> None:
        if event.kind == "exit":
            self._ended(event.child, int(event.fields["status"]))
        elif event.child is self._server:
            self._is_ready |= event.kind == "ready"
        elif event.kind == "batch" and event.child.name.startswith("local"):
            self.board.compared = (self.board.compared or 0) + 1
        elif self._generation is not None and event.child in self._generation.children:
            self._rank_says(self._generation, event)

    def _rank_says(self, generation: Generation, event: Event) -> None:
        rank = generation.children.index(event.child)
        row = generation.rows[rank]
        if event.kind == "started":
            row.state, row.heard_at = "reading", time.monotonic()
            if generation.number > 1 and rank == 0:
                self._tell(
                    f"{len(generation.rows)} ranks go on at step {event.fields['step']}, the "
                    "cursor that the server kept"
                )
        elif event.kind == "batch":
            self.board.batch(row, event.fields)
        elif event.kind == "done":
            self._meet(generation, rank, int(event.fields["step"]))
        elif event.kind == "finished":
            self.board.finished_steps = max(self.board.finished_steps, int(event.fields["cursor"]))

    def _meet(self, generation: Generation, rank: int, step: int) -> None:
        """Let the ranks go on when all have come to the end of a step, as an all-reduce would."""
        waiting = self._done.setdefault(step, set())
        waiting.add(rank)
        if len(waiting) == len(generation.children):
            del self._done[step]
            for child in generation.children:
                child.tell()

    def _ended(self, child: Child, status: int) -> None:
        generation = self._generation
        row = None
        if generation is not None and child in generation.children:
            row = generation.rows[generation.children.index(child)]
        if child in self._expected:
            if row is not None:
                row.state = "killed"
            elif child is self._server and self.board.server.state == "serving":
                if status:
                    raise self._failed(child, status)
                self.board.server.state = "stopped"
            return
        if status or child is self._server:
            raise self._failed(child, status)
        self._expected.add(child)
        if row is not None:
            row.state = "finished"

    def _failed(self, child: Child, status: int) -> PenstockError:
        words = child.last_words()
        if isinstance(error := named_error(words), MissingExtra):
            return error
        return DemoFailed(
            f"{child.name} (pid {child.pid}) ended with status {status}: {words} "
            f"(the output of all processes is in {self.folder})",
            folder=str(self.folder),
        )

    def _silent(self) -> str:
        return ", ".join(
            f"{child.name}: {child.last_words()}"
            for child in self._children
            if child not in self._expected
        )

    def _is_within(self, step: int) -> bool:
        """Tell whether a rank is within a step: it has some of its batches, but not all."""
        assert self._generation is not None
        share = BATCHES_PER_STEP // len(self._generation.rows)
        for row in self._generation.rows:
            into = row.batches - step * share
            if row.step == step and 0 < into < share:
                return True
        return False

    def _tell(self, sentence: str) -> None:
        self.board.story.append((self.board.elapsed_s, sentence))
        self._display.tell(self.board, sentence)


__all__ = ["BATCHES_PER_STEP", "GROUP", "WORLD_SIZES", "DemoFailed", "Play"]
