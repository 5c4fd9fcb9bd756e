"""What an update of three real nodes, one after the other, has made twice, and how ranks wait.

Four ranks read a job that packs small documents through a pool, at a step of 0.2 s and 4 batches
ahead, from three nodes over one PostgreSQL. Each node is ended by SIGTERM and started again: the
next one goes as soon as it is ready again, or 45 s after the one before; one round takes about four
minutes, so that there is one unless `BENCH_ROUNDS` says more. Roles count what they do:
batches that are made beyond those that ranks took, and items that are processed beyond those of a
quiet time.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from rolling_roles import VARIABLE
from support import HERE, free_port, interleaved, median, serving, spread, table, write_job

sys.path.append(str(HERE.parent))

import postgres
from penstock.client import Loader

NODES, RANKS, LANES, STEP_S = 3, 4, 12, 0.2
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "1"))
QUIET_S, EVERY_S = 10.0, 45.0
AFTER_S = 40.0
"""All units are at their nodes again by then."""

JOB = {
    "lanes": LANES,
    "source": {"type": "items", "items": [{"n": n} for n in range(1000)]},
    "function": f"{HERE / 'rolling_roles.py'}:document",
    "batcher": {"type": "best_fit", "max_tokens": 64, "pool_size": 64},
    "collator": {"type": f"{HERE / 'rolling_roles.py'}:CountingCollator", "pad_to": 64},
}


def run() -> None:
    """Print the table."""
    results = interleaved(
        {
            "each as soon as the one before is ready": partial(_round, 0.0),
            f"one every {EVERY_S:.0f} s": partial(_round, EVERY_S),
        },
        ROUNDS,
    )
    table(
        f"Three nodes are updated in turn; rounds: {ROUNDS} (goal: made again below 5 %)",
        ("what", "made again, %", "range", "items more, %", "longest wait, s"),
        [
            (
                name,
                f"{median(rounds, 'again'):.1f}",
                spread(rounds, "again", ".1f"),
                f"{median(rounds, 'items'):.1f}",
                f"{median(rounds, 'wait_s'):.1f}",
            )
            for name, rounds in results.items()
        ],
    )


class _Node:
    """A node at an address of its own, which may be ended and started again."""

    def __init__(self, folder: Path, number: int, store: str) -> None:
        folder.mkdir()
        self.listen = f"127.0.0.1:{free_port()}"
        name = f"penstock-{number}"
        self.file = write_job(folder, {"job": JOB}, workers=1, store=store, node_id=name)
        self.ended = contextlib.ExitStack()

    def start(self) -> None:
        _, self.process = self.ended.enter_context(serving(self.file, listen=self.listen))

    def drain(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.ended.close()


class _Readers:
    """Ranks that read at a steady pace, each on a thread of its own."""

    def __init__(self, target: list[str]) -> None:
        self.taken, self.waits_s = [0] * RANKS, [0.0] * RANKS
        self.ends, self.errors = threading.Event(), []
        self._loaders = [
            Loader(target, "job", rank=rank, world_size=RANKS, as_numpy=True, prefetch=4)
            for rank in range(RANKS)
        ]
        self._threads = [threading.Thread(target=self._read, args=(n,)) for n in range(RANKS)]
        for thread in self._threads:
            thread.start()

    def _read(self, rank: int) -> None:
        try:
            with self._loaders[rank] as loader:
                batches, due_s = iter(loader), time.monotonic()
                while not self.ends.is_set():
                    due_s += STEP_S
                    began_s = time.monotonic()
                    next(batches)
                    self.waits_s[rank] = max(self.waits_s[rank], time.monotonic() - began_s)
                    self.taken[rank] += 1
                    time.sleep(max(0.0, due_s - time.monotonic()))
                    due_s = max(due_s, time.monotonic() - STEP_S)
        except BaseException as error:
            self.errors.append(error)

    def end(self) -> None:
        self.ends.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


@contextlib.contextmanager
def _counting() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pst-") as name:
        os.environ[VARIABLE] = name
        yield Path(name)
        del os.environ[VARIABLE]


def _round(every_s: float) -> dict[str, float]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_counting())

        def made() -> tuple[int, int]:
            return tuple((folder / what).stat().st_size for what in ("batches", "items"))

        store = postgres.in_schema(postgres.local_18(), postgres.new_schema())
        nodes = [_Node(folder / str(number), number, store) for number in range(NODES)]
        for node in nodes:
            stack.callback(node.ended.close)
            node.start()
        target = [node.listen for node in nodes]
        readers = _Readers(target)
        stack.callback(readers.end)
        time.sleep(QUIET_S)
        readers.waits_s = [0.0] * RANKS
        batches, items, taken = *made(), sum(readers.taken)
        per_batch = items / batches
        for node in reversed(nodes):
            begun_s = time.monotonic()
            node.drain()
            node.start()
            time.sleep(max(0.0, begun_s + every_s - time.monotonic()))
        time.sleep(AFTER_S)
        batches_after, items_after, taken_after = *made(), sum(readers.taken)
        delivered = taken_after - taken
        return {
            "again": 100 * (batches_after - batches - delivered) / delivered,
            "items": 100 * ((items_after - items) / per_batch - delivered) / delivered,
            "wait_s": max(readers.waits_s),
        }
