"""A storage block is read by one worker: lanes of a reading group stay together."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness import kill_process, run_command, serving, write_job_file
from invariants import Purity
from penstock.client import Loader
from penstock.server.jobs.load import load

ROLES = """
import os, sys
from penstock.server.roles import Blocks, IndexedSource, SimpleBatcher

class Noting(IndexedSource):
    version = 1
    gives_fresh_items = True

    def __init__(self, blocks, rows, notes):
        self.sizes, self.notes = [rows + number % 3 for number in range(blocks)], notes

    def __len__(self):
        return sum(self.sizes)

    def blocks(self):
        return Blocks(self.sizes)

    def parameters(self):
        return {name: value for name, value in super().parameters().items() if name != "notes"}

    def fetch(self, indices):
        if not sys.argv[0].endswith("count.py"):  # what counts the job reads all of it, too
            with open(self.notes, "a") as notes:
                notes.write("".join(f"{os.getpid()} {index}\\n" for index in indices))
        return [{"x": index} for index in indices]

class Looking(SimpleBatcher):
    version = 1
    needs_content = True
"""

LANES, BLOCKS = 12, 48
ALL = "every worker reads and decodes all of a job; shuffle: blocks deals it to them"
IDLE = "some workers have no work for a job; more reading_groups give them some"


def job(folder: Path, name: str, batcher: str, **more: Any) -> dict[str, Any]:
    (folder / "roles.py").write_text(ROLES)
    return {
        "lanes": LANES,
        "source": {
            "type": "./roles.py:Noting",
            "blocks": BLOCKS,
            "rows": 15,
            "notes": str(folder / f"{name}.notes"),
        },
        "distributor": {"type": "map", "window_blocks": 2, **more.pop("distributor", {})},
        "batcher": {"type": batcher, "batch_size": 3},
        "collator": "default",
        **more,
    }


def readers_of_blocks(folder: Path, name: str) -> dict[int, set[int]]:
    """Return by block the processes that have fetched rows of it."""
    sizes = [15 + number % 3 for number in range(BLOCKS)]
    block_of = [block for block, size in enumerate(sizes) for _ in range(size)]
    found: dict[int, set[int]] = defaultdict(set)
    for line in (folder / f"{name}.notes").read_text().splitlines():
        pid, index = map(int, line.split())
        found[block_of[index]].add(pid)
    return found


def test_a_block_is_read_by_one_worker_but_for_those_on_a_border(tmp_path: Path) -> None:
    """Planned from refs or from what was processed, by 3 workers: an epoch, each item once."""
    jobs = {
        "planned": job(tmp_path, "planned", "simple", epochs=1),
        "processed": job(tmp_path, "processed", "./roles.py:Looking", epochs=1),
        "few": job(
            tmp_path, "few", "./roles.py:Looking", epochs=1, distributor={"reading_groups": 2}
        ),
    }
    file = write_job_file(tmp_path / "penstock.yaml", jobs, workers=3)
    seen: dict[str, list[int]] = {}
    with serving(file) as server:
        for name in jobs:
            with Loader(server.address, name, rank=0, world_size=1, as_numpy=True) as loader:
                seen[name] = [x for b in loader if not b.info.is_padding for x in b["x"].tolist()]
        told = server.events("a job reads by groups", at_least=3)
        warned = server.events(IDLE, job="few", at_least=1)

    for name, items in seen.items():
        assert sorted(items) == list(range(len(items)))
        readers = readers_of_blocks(tmp_path, name)
        workers = set.union(*readers.values())
        shared = [block for block, pids in readers.items() if len(pids) > 1]
        assert len(readers) == BLOCKS
        assert len(workers) == (2 if name == "few" else 3)
        assert all(len(readers[block]) == 2 for block in shared)
        assert len(shared) < len(workers)
        # Each has its part: 4 of 12 groups, or one of two.
        parts = [sum(pid in pids for pids in readers.values()) for pid in workers]
        assert max(parts) - min(parts) <= 3
    assert {event["groups"] for event in told} == {12, 2}
    assert warned[0]["groups"] == 2


def test_in_the_order_of_the_source_every_worker_reads_all_and_says_so(tmp_path: Path) -> None:
    """All lanes go through one block at a time; steps hold the items in order."""
    spec = job(tmp_path, "ordered", "./roles.py:Looking", epochs=1)
    spec["distributor"] = {"type": "map", "shuffle": "none"}
    spec["source"]["rows"] = 400
    file = write_job_file(tmp_path / "penstock.yaml", {"ordered": spec}, workers=2)
    reading = load(str(file)).job("ordered").role_sets[0].distributor.reading()
    with serving(file) as server:
        with Loader(
            server.address, "ordered", batches_per_step=LANES, rank=0, world_size=1, as_numpy=True
        ) as loader:
            seen = [x for b in islice(loader, 60 * LANES) for x in b["x"].tolist()]
        [warned] = server.events(ALL, job="ordered", at_least=1)

    in_steps = LANES * 3
    steps = [seen[at : at + in_steps] for at in range(0, len(seen), in_steps)]
    assert [sorted(step) for step in steps] == [
        list(range(n * in_steps, (n + 1) * in_steps)) for n in range(60)
    ]
    pids = {line.split()[0] for line in (tmp_path / "ordered.notes").read_text().splitlines()}
    assert len(pids) == 2
    assert (warned["blocks"], warned["workers"]) == (BLOCKS, 2)
    assert reading is not None
    assert reading.is_read_by_all
    assert reading.held == 1 + -(-64 * LANES // 401), "a worker keeps what the lanes are in"


@pytest.mark.parametrize("batcher", ["simple", "./roles.py:Looking"])
def test_a_worker_that_dies_hands_its_groups_on_and_gets_its_part_again(
    tmp_path: Path, batcher: str
) -> None:
    """No byte changes; the process that replaces it reads for as many groups as the others."""
    jobs = {"main": job(tmp_path, "main", batcher, snapshot_every=4)}
    file = write_job_file(tmp_path / "penstock.yaml", jobs, workers=2)
    purity = Purity(load(str(file)).jobs["main"])
    (tmp_path / "main.notes").unlink(missing_ok=True)
    with serving(file) as server:
        reader = server.read("main", horizon=24)
        batches = iter(reader)
        read = 0

        def go_on(until: int) -> None:
            nonlocal read
            reader.extend(until)
            while read < until:
                purity.saw(*next(batches))
                read += 1

        go_on(24)
        first = set(server.worker_pids())
        killed = min(first)
        assert kill_process(killed)
        new: set[int] = set()
        while not new:
            go_on(read + LANES)
            new = {*server.worker_pids()} - first
        notes = tmp_path / "main.notes"
        # It gets its groups as soon as the lines of these have answered what they were asked.
        for _ in range(40):
            go_on(read + LANES)
        notes.write_text("")
        start = read
        go_on(read + 20 * LANES)
        reader.cancel()
        workers = set(server.worker_pids())  # this process computes the truth, and reads, too
        pids = [int(line.split()[0]) for line in notes.read_text().splitlines()]

    assert read == start + 20 * LANES
    share = sum(pid in new for pid in pids) / sum(pid in workers for pid in pids)
    assert 0.35 < share < 0.65


def test_few_blocks_are_told_before_they_are_read_more_than_once(tmp_path: Path) -> None:
    """`penstockd check` says how often, by the borders between the node's workers alone."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n:3d}}}\n' for n in range(90)))
    source = {"type": "jsonl", "files": "a.jsonl", "block_bytes": 300}
    grouped = {"type": "map", "reading_groups": 2, "window_blocks": 1}
    jobs = {
        name: {"lanes": 2, "source": source, "distributor": distributor, "batch_size": 1}
        for name, distributor in (("grouped", grouped), ("whole", {"type": "map"}))
    }
    file = write_job_file(tmp_path / "penstock.yaml", jobs, workers=2)

    done = run_command(["penstock.server.cli", "check", str(file), "--json"], 120.0)

    said = {job["job"]: job["warnings"] for job in json.loads(done.stdout)["jobs"]}
    told = "2 workers read the 4 storage blocks 1.25 times in an epoch"
    assert sum(told in warning for warning in said["grouped"]) == 1, said
    assert not any(" times in an epoch" in warning for warning in said["whole"])
