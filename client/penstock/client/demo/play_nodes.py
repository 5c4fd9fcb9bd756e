"""The order of events with several nodes: each is killed and comes back, then ranks are killed."""

from __future__ import annotations

import os
import re
import time
import uuid
from pathlib import Path
from string import ascii_lowercase

from penstock.client.demo.corpus import Input
from penstock.client.demo.demo_process import DemoProcess, free_port
from penstock.client.demo.play import LINE_EVERY_S, Play

WORKERS = 1
"""Of each node."""

STORE = "PENSTOCK_STORE"

MOVED_S = 90.0
"""Readers leave a node within two seconds, and give one its units back after half a minute."""

PACE_S = 1.0
"""Ranks take a step so often while a node comes back: it takes half a minute, and as fast as they
can they would read thousands of batches by then."""

SLOW_LINE_EVERY_S = 10.0
"""Between two lines about the progress, meanwhile."""

LOOK_S = 0.05

MOVES = re.compile(
    r"; (?P<moved>\d+) of (?P<units>\d+) units move(?: \((?P<to>[^)]*)\))?; going on at position "
    r"(?P<position>\d+)"
)
"""What a rank logs when units go to other nodes."""


class PlayNodes(Play):
    """One run of the demo with several nodes that share a store.

    Args:
        source: What is read.
        steps: Of these as many are read before each kill, and after the last, as come to its share;
            while a node comes back there are more.
        folder: As for `Play`.
        count: How many nodes.
        store: The store's address.
        is_ours: The store is the demo's own.
    """

    keeper, drained = "the store", "the nodes, each"
    options = ("--verbose",)  # ranks say when a node has its units again

    def __init__(
        self, source: Input, steps: int, folder: Path, count: int, *, store: str, is_ours: bool
    ) -> None:
        super().__init__(source, steps, folder)
        self.addresses = {name_of(n): f"127.0.0.1:{free_port()}" for n in range(count)}
        self.target = ",".join(self.addresses.values())
        self._share, self.lines.steps = steps // (count + 2), None
        # In the argument list `ps` would show a password.
        self._environment = {**os.environ, STORE: store}
        self._is_ours = is_ours
        if not is_ours:
            self.group = f"demo-{uuid.uuid4().hex[:8]}"

    def begin(self) -> None:
        """Start the nodes."""
        for name, address in self.addresses.items():
            node = self._serve_node(name)
            self.lines.event(f"{name} serves on {address} (pid {node.process.pid}, 1 worker)")

    def reading_begins(self, ranks: int) -> str:
        """Return what is said when ranks read."""
        return (
            f"{ranks} trainer ranks read from step 0, each from all {len(self.addresses)} nodes; "
            f"group {self.group}"
        )

    def kill_nodes(self, ranks: list[DemoProcess]) -> int:
        """Kill one node after the other, each when those before have their units again."""
        step = 0
        for name in self.addresses:
            step += self._share
            self.read(ranks, 0, step, within=True)
            seen = _sizes(ranks)
            pid = self.kill_node(name)
            self.lines.event(f"SIGKILL to {name} (pid {pid}) within step {step}")
            left = f"{self.addresses[name]} is left: "
            step = self._read_until_all_say(left, ranks, seen, step)
            self.lines.event(f"the ranks leave {name}: {self._moves(left, ranks[0], seen[0])}")
            seen = _sizes(ranks)
            node = self._serve_node(name)
            self.lines.event(
                f"{name} serves again (pid {node.process.pid}); it has its units back when it has "
                "been well for 30 s"
            )
            back, self.lines.every_s = "nodes have come or gone", SLOW_LINE_EVERY_S
            step = self._read_until_all_say(back, ranks, seen, step)
            self.lines.every_s = LINE_EVERY_S
            self.lines.event(f"{name} is back: {self._moves(back, ranks[0], seen[0])}")
        step += self._share
        self.read(ranks, 0, step, within=True)
        self.steps = self.lines.steps = step + self._share
        return step

    def done_with_group(self) -> None:
        """Leave no group in a store that is another's."""
        if not self._is_ours:
            self.cursors("delete", "--yes")
            self.lines.event(f"group {self.group} is deleted from the store")

    def _serve_node(self, name: str) -> DemoProcess:
        more = ("--node-id", name)
        return self.serve(name, self.addresses[name], WORKERS, more, self._environment)

    def _read_until_all_say(
        self, words: str, ranks: list[DemoProcess], seen: list[int], step: int
    ) -> int:
        """Read, a step in a while, until each rank has logged something; return the last step."""
        until = time.monotonic() + MOVED_S
        while True:
            next_at = time.monotonic() + PACE_S
            while time.monotonic() < next_at:
                if all(_line(words, rank, size) for rank, size in zip(ranks, seen, strict=True)):
                    return step
                self.look_at_nodes()
                time.sleep(LOOK_S)
            if time.monotonic() > until:
                raise ranks[0].failed(f"has not said for {MOVED_S:.0f} s that {words}")
            step += 1
            self.read(ranks, 0, step, within=True)

    def _moves(self, words: str, rank: DemoProcess, seen: int) -> str:
        """Return what a rank has logged of units, with the names of nodes."""
        line = _line(words, rank, seen)
        found = MOVES.search(line)
        if found is None:
            return line
        names = {address: name for name, address in self.addresses.items()}
        parts = [part.rpartition(" to ") for part in (found["to"] or "").split(", ") if part]
        counts = sorted((names.get(target, target), count) for count, _, target in parts)
        to = " and ".join(f"{count} to {name}" for name, count in counts)
        return (
            f"{found['moved']} of {found['units']} units go, {to}, from batch {found['position']} "
            "on"
        )


def name_of(number: int) -> str:
    """Return the name of a node: `node-a` is the first."""
    return f"node-{ascii_lowercase[number]}"


def _sizes(ranks: list[DemoProcess]) -> list[int]:
    return [rank.output_path.stat().st_size for rank in ranks]


def _line(words: str, rank: DemoProcess, seen: int) -> str:
    """Return the whole line with these words that a rank has logged since, or nothing."""
    logged = rank.output_path.read_bytes()[seen:].decode(errors="replace")
    return next((line for line in logged.split("\n")[:-1] if words in line), "")
