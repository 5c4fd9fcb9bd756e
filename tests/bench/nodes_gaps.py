"""How far apart batches come at ranks while others commit through the same node.

Two nodes share a PostgreSQL; four ranks read from one of them. A process beside them commits 1,000
times a second, as 256 ranks of another run do: to that node, or to the other one, which costs this
machine as much and the node nothing. A gap is the time between two batches of one rank.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from os import environ

import grpc
import numpy as np
from several_nodes import ROUNDS, Ranks, nodes, ranks
from support import HERE, Results, compare, constant, interleaved, middle, ranged, ratio, table

from penstock.wire import PROTOCOL
from penstock.wire.v1 import cursors_pb2, cursors_pb2_grpc

RATE, COMMITTERS, READERS = 1000, 256, 4
STEP_S, LEG_S = 0.02, float(environ.get("BENCH_LEG_S", "6"))

ALONE, SAME, OTHER = "no commits", "commits through this node", "commits through the other node"


def run(url: str) -> None:
    """Print the tables."""
    with (
        nodes(url, {"main": constant(1 << 18)}, 2) as served,
        ranks(served.addresses[:1], READERS) as reading,
    ):
        reading.read(int(2 / STEP_S), STEP_S)
        for title, step_s in (
            (f"a step each {STEP_S * 1e3:.0f} ms", STEP_S),
            ("a step as soon as its batch is there", 0.0),
        ):
            ways = {
                ALONE: partial(_leg, reading, step_s, None),
                SAME: partial(_leg, reading, step_s, served.addresses[0]),
                OTHER: partial(_leg, reading, step_s, served.addresses[1]),
            }
            _print(title, interleaved(ways, ROUNDS))


def _print(title: str, results: Results) -> None:
    compare(
        f"Gaps between batches of 256 KiB at {READERS} ranks, {title}; {ROUNDS} rounds",
        "what",
        results,
        ranged("p50, ms", "p50", ".2f"),
        ranged("p99, ms", "p99", ".2f"),
        middle("batches/s", "rate", ",.0f"),
        middle("commits/s", "commits", ",.0f"),
    )
    rows = []
    for other in (ALONE, OTHER):
        ratios = (ratio(results, SAME, other, key) for key in ("p50", "p99"))
        rows.append([f"{SAME} / {other}", *ratios])
    table(
        "The same, as ratios of one round, in the middle (goal: p99 at most 1.1 of no commits)",
        ("what", "p50", "p99"),
        rows,
    )


def _leg(reading: Ranks, step_s: float, commits_to: str | None) -> dict[str, float]:
    with _committing(commits_to) as found:
        if step_s:
            taken = reading.read(int(LEG_S / step_s), step_s)
        else:  # as many as take about as long
            probe = reading.read(200)
            per_step_s = (max(map(max, probe)) - min(map(min, probe))) / 200
            taken = reading.read(int(LEG_S / per_step_s))
    gaps = np.array([b - a for each in taken for a, b in pairwise(each)]) * 1e3
    took_s = max(map(max, taken)) - min(map(min, taken))
    return {
        "p50": float(np.percentile(gaps, 50)),
        "p99": float(np.percentile(gaps, 99)),
        "rate": sum(map(len, taken)) / took_s,
        "commits": found.get("commits/s", 0.0),
    }


@contextmanager
def _committing(address: str | None) -> Iterator[dict[str, float]]:
    """Have a process commit during the block; what it reached is there after it."""
    found: dict[str, float] = {}
    if address is None:
        yield found
        return
    process = subprocess.Popen(
        [sys.executable, str(HERE / "nodes_gaps.py"), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    try:
        yield found
    finally:
        out, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"who commits ended with {process.returncode}")
        found.update(json.loads(out))


async def _commit(address: str) -> None:
    """Commit `RATE` times a second until standard input ends; print how many a second it was."""
    loop = asyncio.get_running_loop()
    async with grpc.aio.insecure_channel(address) as channel:
        stub = cursors_pb2_grpc.CursorsStub(channel)  # type: ignore[no-untyped-call]
        run = {"job": "main", "group": f"of {loop.time()}", "token": "t"}
        begun = [
            await stub.Begin(
                cursors_pb2.BeginRequest(protocol=PROTOCOL, rank=rank, world_size=COMMITTERS, **run)
            )
            for rank in range(COMMITTERS)
        ]
        start, count, ended = loop.time(), 0, asyncio.Event()

        async def rank_commits(rank: int) -> None:
            nonlocal count
            step = 0
            while not ended.is_set():
                step += 1
                due = start + (step + rank / COMMITTERS) * COMMITTERS / RATE
                await asyncio.sleep(max(0.0, due - loop.time()))
                await stub.Commit(
                    cursors_pb2.CommitRequest(
                        job=run["job"],
                        group=run["group"],
                        token=begun[rank].token,
                        generation=begun[rank].generation,
                        rank=rank,
                        step=step,
                    )
                )
                count += 1

        committing = [asyncio.create_task(rank_commits(rank)) for rank in range(COMMITTERS)]
        print("begun", flush=True)
        await loop.run_in_executor(None, sys.stdin.read)
        took_s = loop.time() - start
        reached = count / took_s
        ended.set()
        await asyncio.gather(*committing)
    print(json.dumps({"commits/s": reached}))


if __name__ == "__main__":
    asyncio.run(_commit(sys.argv[1]))
