"""One epoch of packed, filtered text over the network: read whole by any number of ranks."""

from __future__ import annotations

import itertools
import os
import signal
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import Server, call_command, run_command, serving, write_job_file
from penstock.client import Loader
from penstock.client.loop.steps import Batch

COUNT, LANES = 60, 5
ROLES = '''
import pathlib
import sys
import time

HELD = pathlib.Path(__file__).parent / "held"


def tokens(raw):
    """The tokens of an item; every fifth is filtered. While a file is there nobody counts."""
    while HELD.exists() and sys.argv[0].endswith("count.py"):
        time.sleep(0.05)
    number = raw["number"]
    return {"input_ids": [1 + number] * (1 + number % 9)} if number % 5 else None
'''
KEPT = {number: 1 + number % 9 for number in range(COUNT) if number % 5}
JOB: dict[str, Any] = {
    "epochs": 1,
    "lanes": LANES,
    "batches_per_step": 4,
    "snapshot_every": 2,
    "source": {"type": "items", "items": [{"number": number} for number in range(COUNT)]},
    "function": "./roles.py:tokens",
    "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 6},
    "collator": {"type": "packed", "pad_to": 16},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a job file and its roles; nobody can count its job."""
    folder = tmp_path_factory.mktemp("finite")
    (folder / "roles.py").write_text(ROLES)
    (folder / "held").touch()
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A node of two workers, which has to find out where lanes end as it serves them."""
    with serving(
        write_job_file(folder / "jobs.yaml", {"val": JOB}, workers=2, metrics="127.0.0.1:0")
    ) as server:
        yield server


def read(
    target: str, rank: int, world_size: int, **options: Any
) -> tuple[list[Batch], dict[str, Any]]:
    """Return all batches of a rank's whole pass, and the Loader's statistics after it."""
    options = {"mode": "eval", "as_numpy": True, "deadline_s": 90, **options}
    with Loader(target, "val", rank=rank, world_size=world_size, **options) as loader:
        return list(loader), loader.stats()


def read_all(target: str, world_size: int, **options: Any) -> list[list[Batch]]:
    """Return the batches of all ranks, which read at the same time."""
    with ThreadPoolExecutor(world_size) as threads:
        ranks = [
            threads.submit(read, target, rank, world_size, **options) for rank in range(world_size)
        ]
        return [rank.result()[0] for rank in ranks]


def items(ranks: list[list[Batch]]) -> Counter[int]:
    """Return how often each item came in batches that are not padding."""
    found: Counter[int] = Counter()
    for batch in (batch for batches in ranks for batch in batches if batch.weight):
        found.update({index for _, index, _ in batch.samples})
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
def test_every_item_is_evaluated_once_by_any_number_of_ranks(
    server: Server, world_size: int
) -> None:
    """As many batches on every rank; padding and fillers have shapes, and weigh nothing."""
    ranks = read_all(server.address, world_size, uneven="fill")

    assert items(ranks) == Counter(KEPT.keys())
    steps = {batch.step for batch in ranks[0]}
    assert {len(batches) for batches in ranks} == {len(steps) * -(-4 // world_size)}
    tokens = 0
    for batch in (batch for batches in ranks for batch in batches):
        assert batch["input_ids"].shape == (1, 16)
        tokens += batch.counts["tokens"]
        if batch.is_padding:
            assert batch.weight == 0
            assert not any(batch.counts.values())
            assert (np.asarray(batch["labels"]) == -100).all()
        assert not batch.is_filler or (batch.is_padding and batch.position % 4 == 3)
    assert tokens == sum(KEPT.values()), "a mean that is weighted by tokens is exact"
    fillers = sum(batch.is_filler for batches in ranks for batch in batches)
    assert fillers == len(steps) * (-4 % world_size)


def test_a_rank_without_a_batch_of_its_own_waits_for_nobody(server: Server) -> None:
    """It alone reads, its fillers are made for it, and its length is everybody's."""
    batches, stats = read(server.address, 5, 6, uneven="fill")

    assert all(batch.is_filler for batch in batches)
    assert [batch.position for batch in batches] == [4 * n + 3 for n in range(len(batches))]
    with Loader(server.address, "val", rank=0, world_size=6, uneven="fill", as_numpy=True) as other:
        assert len(other) == len(batches), "it is known now"
    assert stats["padding_batches"] == len(batches)


def test_dropped_batches_are_said_with_their_samples(server: Server, folder: Path) -> None:
    """By the Loader, by `penstock cat` and by the node: what is not delivered is counted."""
    whole = read_all(server.address, 1)[0]
    last = [batch for batch in whole if not batch.is_padding]
    last = last[len(last) - len(last) % 4 :]
    expected = {
        "dropped_batches": len(last),
        "dropped_samples": sum(len(batch.samples) for batch in last),
    }
    assert expected["dropped_batches"], "this job is to have a step that is not full"
    for target in (server.address, f"local:{folder / 'jobs.yaml'}"):
        batches, stats = read(target, 0, 2, tail="drop")
        assert not any(batch.is_padding for batch in batches)
        assert {name: stats[name] for name in expected} == expected
    dropped = Counter(KEPT.keys()) - items(read_all(server.address, 2, tail="drop"))
    assert dropped.keys() <= {index for batch in last for _, index, _ in batch.samples}

    cat = ["penstock.client.cli", "cat", server.address, "val", "--tail", "drop", "--json"]
    said = run_command(cat)
    samples = expected["dropped_samples"]
    assert f"the last {len(last)} batches, with {samples} samples" in said.stderr
    assert len(said.stdout.splitlines()) == sum(not b.is_padding for b in whole) - len(last)
    address = server.events("ready")[0]["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        page = reply.read().decode()
    assert f'penstock_tail_dropped_samples{{penstock_job="val"}} {samples:.1f}' in page


def test_here_and_there_the_same_bytes(server: Server, folder: Path) -> None:
    """`local:` counts first and by itself: batches, padding and fillers are those of the node."""
    there = read_all(server.address, 3, uneven="fill")
    here = [read(f"local:{folder / 'jobs.yaml'}", rank, 3, uneven="fill")[0] for rank in range(3)]

    for ours, theirs in zip(here, there, strict=True):
        assert [batch.header for batch in ours] == [batch.header for batch in theirs]
        for one, other in zip(ours, theirs, strict=True):
            assert all((one[name] == other[name]).all() for name in ("input_ids", "labels"))
    who = ["--rank", "2", "--world-size", "3", "--json"]
    last = str(there[2][-1].step)
    shown = call_command(
        *("penstockd", "show", "jobs.yaml", "val", "--step", last, "--uneven", *who), folder=folder
    )
    printed = call_command(
        *("penstock", "cat", server.address, "val", "--from-step", last, "--uneven", "fill", *who)
    )
    assert shown.stdout == printed.stdout
    assert len(shown.stdout.splitlines()) == 2


def read_step(
    address: str, state: dict[str, Any] | None, **options: Any
) -> tuple[dict[str, Any], list[tuple[int, bool, bytes]]] | None:
    """Read one step as a rank of an attempt, and commit; return where that leads and its batches.

    None = there is no step left.
    """
    options = {"group": "tail", "uneven": "fill", "as_numpy": True, "deadline_s": 90, **options}
    with Loader(address, "val", **options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for step in loader.steps():
            batches = [(b.position, b.is_padding, bytes(b.body)) for b in step if not b.is_filler]
            loader.commit()
            return loader.state_dict(), batches
    return None


def test_a_run_that_is_killed_in_the_tail_goes_on_in_it(server: Server) -> None:
    """From every step a new attempt begins, with any number of ranks, and a worker is killed.

    The ranks together are given what one rank is given that nobody disturbs.
    """
    whole = [(b.position, b.is_padding, bytes(b.body)) for b in read(server.address, 0, 1)[0]]
    seen: list[tuple[int, bool, bytes]] = []
    state: dict[str, Any] | None = None
    for attempt, world_size in enumerate(itertools.cycle([1, 3, 4, 5, 2, 6, 3])):
        if attempt % 3 == 1:
            os.kill(server.worker_pids()[0], signal.SIGKILL)
        options = {"attempt": f"attempt-{attempt}", "world_size": world_size}
        with ThreadPoolExecutor(world_size) as threads:
            ranks = [
                threads.submit(read_step, server.address, state, rank=rank, **options)
                for rank in range(world_size)
            ]
            found = [rank.result() for rank in ranks]
        if None in found:
            assert found == [None] * world_size, "all ranks end at the same step"
            break
        states = [{**told, "store": "", "world_size": 0} for told, _ in filter(None, found)]
        assert all(told == states[0] for told in states), "it is the same on every rank"
        state = found[0][0] if found[0] else None
        seen += sorted(batch for _, batches in filter(None, found) for batch in batches)

    assert seen == whole
    assert server.events("a worker died", at_least=2)
