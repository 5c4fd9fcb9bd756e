"""Planned jobs over the network, from `local:` and by `show`: the same bytes, whoever dies."""

from __future__ import annotations

import json
import random
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from harness import Server, call_command, kill_process, serving, write_job_file
from invariants import Purity
from penstock.client import Loader
from penstock.client.loop.steps import Batch
from penstock.server.jobs.load import load
from penstock.wire.errors import InvalidJob
from planned import write_index_of

COUNT, LANES, G = 150, 6, 12
ROLES = '''
def tokens(raw):
    """The tokens of an item: every seventh is filtered, and some are two samples."""
    number = raw["number"]
    if number % 7 == 3:
        return None
    size = 1 + number * 5 % 23
    return [{"input_ids": [100 * number + k for k in range(size)]}] * (1 + (number % 5 == 0))
'''
KEPT = {number: 1 + (number % 5 == 0) for number in range(COUNT) if number % 7 != 3}

COMMON: dict[str, Any] = {
    "seed": 4,
    "lanes": LANES,
    "batches_per_step": G,
    "source": {"type": "items", "items": [{"number": number} for number in range(COUNT)]},
    "function": "./roles.py:tokens",
    "batcher": {"type": "best_fit_decreasing", "max_tokens": 32, "rows": 2},
    "collator": {"type": "packed", "pad_to": 32},
}
JOBS: dict[str, Any] = {
    "endless": {**COMMON, "plan": {"index": "sizes", "window": 40}},
    "balanced": {
        **COMMON,
        "epochs": 3,
        "plan": {"index": "sizes", "window": 40, "balance": "tokens"},
    },
    "grouped": {
        **{key: value for key, value in COMMON.items() if key not in ("batcher", "collator")},
        "batch_size": 5,
        "collator": "padded",
        "epochs": 2,
        "plan": {"index": "lengths", "group_by_length": True},
    },
}


def without_plan(job: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in job.items() if key != "plan"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with roles and the two indexes."""
    folder = tmp_path_factory.mktemp("planned")
    (folder / "roles.py").write_text(ROLES)
    bare = {name: without_plan(job) for name, job in JOBS.items()}
    jobs = load(str(write_job_file(folder / "bare.yaml", bare))).jobs
    write_index_of(jobs["endless"], folder / "sizes")
    write_index_of(jobs["grouped"], folder / "lengths")
    write_job_file(folder / "jobs.yaml", JOBS)
    return folder


def job_file(folder: Path, name: str, jobs: dict[str, Any] = JOBS, **server: Any) -> Path:
    """Write a job file of a node with a store of its own."""
    return write_job_file(folder / f"{name}.yaml", jobs, store=f"sqlite:///{name}.db", **server)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """A node of three workers, over TCP."""
    file = job_file(folder, "three", workers=3, metrics="127.0.0.1:0")
    with serving(file) as server:
        yield server


@pytest.fixture(scope="module")
def purity(folder: Path) -> dict[str, Purity]:
    """What this process computes."""
    return {name: Purity(job) for name, job in load(str(folder / "jobs.yaml")).jobs.items()}


def read(target: str, job: str, rank: int = 0, world_size: int = 1, **options: Any) -> list[Batch]:
    """Return the first batches of a rank, or all of a finite job."""
    count = options.pop("count", None)
    if "epochs" in JOBS[job]:
        options["mode"] = "eval"
    options = {"as_numpy": True, "deadline_s": 90, **options}
    with Loader(target, job, rank=rank, world_size=world_size, **options) as loader:
        return list(islice(loader, count))


def test_three_workers_one_and_none_give_the_same_bytes(
    server: Server, folder: Path, purity: dict[str, Purity], runtime: Path
) -> None:
    """Over TCP, on one host, from `local:`, and by `penstockd show`, position by position."""
    there = {name: read(server.address, name, count=40) for name in JOBS}
    here = {name: read(f"local:{folder / 'jobs.yaml'}", name, count=40) for name in JOBS}
    file = job_file(folder, "one", workers=1, listen=f"unix:{runtime}/node.sock")
    with serving(file) as other:
        beside = {name: read(other.address, name, count=40) for name in JOBS}

    for name, batches in there.items():
        truth = purity[name]
        for same in (batches, here[name], beside[name]):
            assert [batch.position for batch in same] == [batch.position for batch in batches]
            for batch in same:
                if not batch.is_padding:
                    truth.saw(batch.header, bytes(batch.body))
    for name in JOBS:
        shown = call_command(
            "penstockd", "show", "jobs.yaml", name, "--step", "1", "--json", folder=folder
        )
        printed = call_command(
            "penstock", "cat", server.address, name, "--from-step", "1", "--json", "--count", str(G)
        )
        assert shown.stdout == printed.stdout
        assert len(shown.stdout.splitlines()) == G


def drawn_items(ranks: list[list[Batch]]) -> Counter[tuple[int, int, int]]:
    """Return how often each sample (epoch, item, part) came in batches that are not padding."""
    return Counter(
        (s.epoch, s.index, s.part)
        for batches in ranks
        for batch in batches
        if not batch.is_padding
        for s in batch.header.samples
        if not s.HasField("stop") or s.start == 0
    )


def read_all(target: str, job: str, world_size: int, **options: Any) -> list[list[Batch]]:
    """Return the batches of all ranks, which read at the same time."""
    with ThreadPoolExecutor(world_size) as threads:
        ranks = [
            threads.submit(read, target, job, rank, world_size, **options)
            for rank in range(world_size)
        ]
        return [rank.result() for rank in ranks]


@pytest.mark.parametrize(
    ("job", "world_size", "options"),
    [
        ("balanced", 1, {}),
        ("balanced", 2, {}),
        ("balanced", 3, {"tail": "drop"}),
        ("balanced", 5, {"uneven": "fill"}),
        ("grouped", 4, {}),
    ],
)
def test_ranks_together_read_each_sample_once_an_epoch(
    server: Server, job: str, world_size: int, options: dict[str, Any]
) -> None:
    """As many batches on each rank; and the length is known before anything is read."""
    with Loader(
        server.address, job, rank=0, world_size=world_size, as_numpy=True, **options
    ) as loader:
        length = len(loader)

    ranks = read_all(server.address, job, world_size, **options)

    assert {len(batches) for batches in ranks} == {length}
    epochs = JOBS[job]["epochs"]
    expected = {
        (epoch, item, part)
        for epoch in range(epochs)
        for item, parts in KEPT.items()
        for part in range(parts)
    }
    found = drawn_items(ranks)
    assert set(found.values()) == {1}
    if options.get("tail") == "drop":
        assert set(found) < expected
    else:
        assert set(found) == expected
    assert not server.events("a job is counted")


def test_batches_of_a_step_come_sorted_by_cost(server: Server) -> None:
    """So for every number of ranks that divides it, those of a micro batch cost alike."""
    batches = [batch for batch in read(server.address, "balanced") if not batch.is_padding]
    tokens = [batch.counts["tokens"] for batch in batches]
    steps = [tokens[first : first + G] for first in range(0, len(tokens), G)]

    assert len(steps) > 3
    assert all(step == sorted(step) for step in steps)
    assert len(set(map(tuple, steps))) > 1


@pytest.mark.parametrize("job", JOBS)
def test_a_run_goes_on_with_other_ranks_after_each_step(server: Server, job: str) -> None:
    """A group resumes from its state at any step, with another number of ranks each time."""
    whole = [(b.position, bytes(b.body)) for b in read(server.address, job, count=4 * G)]
    seen: list[tuple[int, bytes]] = []
    state: dict[str, Any] | None = None
    for attempt, world_size in enumerate((1, 3, 2, 4)):
        ranks = []
        for rank in range(world_size):
            with Loader(
                server.address,
                job,
                group=f"run-{job}",
                attempt=f"attempt-{attempt}",
                rank=rank,
                world_size=world_size,
                as_numpy=True,
                deadline_s=90,
            ) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                step = next(iter(loader.steps()))
                seen += [(b.position, bytes(b.body)) for b in step]
                loader.commit()
                ranks.append(loader.state_dict())
        state = ranks[0]
    assert sorted(seen) == whole


def test_workers_and_the_server_may_die_at_any_moment(
    folder: Path, purity: dict[str, Purity], tmp_path: Path
) -> None:
    """Each time the stream goes on at the exact position, with the bytes of `local:`."""
    chance = random.Random(3)
    jobs = job_file(folder, "killed", workers=2)
    got: list[int] = []
    with serving(jobs) as server:
        for turn in range(3):
            reader = server.read("endless", horizon=len(got) + 6, start=len(got))
            batches = iter(reader)
            for _ in range(3):
                for _ in range(chance.randrange(4, 12)):
                    delivered = next(batches)
                    purity["endless"].saw(*delivered)
                    got.append(delivered.header.position)
                    reader.extend(len(got) + 6)
                if pids := server.worker_pids():
                    kill_process(chance.choice(pids))
            reader.cancel()
            # Lanes overtake each other below the horizon: what came before the first gap is kept.
            got = [position for n, position in enumerate(sorted(got)) if position == n]
            if turn < 2:
                server.kill()
                server.start()
        assert not server.events("a bug")

    assert len(got) > 30


def test_a_damaged_index_is_said_to_who_reads(folder: Path, tmp_path: Path) -> None:
    """When its block is read, in a worker: an error with what to do, and no batch."""
    jobs = {
        "endless": {**COMMON, "plan": {"index": str(tmp_path / "sizes"), "window": 40}},
        "grouped": JOBS["grouped"],
    }
    data = bytearray((folder / "sizes").read_bytes())
    data[60] ^= 1  # in the first block
    (tmp_path / "sizes").write_bytes(data)
    file = job_file(folder, "damaged", jobs, workers=1)

    with serving(file) as server:
        for _ in range(2):
            with pytest.raises(InvalidJob, match="is damaged: block 0 of source 'main' does not"):
                read(server.address, "endless", count=1)
        assert len(read(server.address, "grouped", count=5)) == 5
        assert not server.events("a bug")


# --- what people see ------------------------------------------------------------------------------


def metrics_of(server: Server) -> dict[str, float]:
    address = server.events("ready")[0]["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        lines = reply.read().decode().splitlines()
    found = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in found}


def test_a_node_counts_what_its_batches_bear(folder: Path) -> None:
    """Items without a sample by reason, once, and of a run that goes on only what comes then."""
    file = job_file(folder, "counted", workers=2, metrics="127.0.0.1:0")
    filtered = 'penstock_samples_skipped_total{penstock_job="balanced",reason="filtered:none"}'
    with serving(file) as server:
        assert metrics_of(server)[filtered] == 0
        read(server.address, "balanced")
        whole = metrics_of(server)
    with serving(file) as server:
        with Loader(server.address, "balanced", rank=0, world_size=1, as_numpy=True) as loader:
            steps = len(loader) // G
        reader = server.read("balanced", start=steps * 2 // 3 * G, horizon=steps * G)
        reader.take((steps - steps * 2 // 3) * G)
        reader.cancel()
        late = metrics_of(server)

    per_epoch = COUNT - len(KEPT)
    assert whole[filtered] == 3 * per_epoch
    assert 0 < late[filtered] < 1.5 * per_epoch


def test_check_says_what_a_planned_job_is(folder: Path) -> None:
    """Its length, what a window takes to pack, no pool, and no note about one."""
    said = call_command("penstockd", "check", "jobs.yaml", "balanced", "--json", folder=folder)

    assert said.returncode == 0, said.stderr
    [job] = json.loads(said.stdout)["jobs"]
    assert "batch per item" not in job["ms"]
    assert job["ms"]["pack per window"] > 0
    assert job["pool_filled"] is None
    assert not [note for note in job["warnings"] if "pool" in note]
    assert "plans" in job["memory"]
    assert job["batches"] > 3 * G


def test_check_refuses_a_collator_without_room_for_all_documents(folder: Path) -> None:
    """Whole windows are packed for it: the few batches that `check` makes may all have room."""
    collator = {**COMMON["collator"], "max_documents": 7}
    tight = {"tight": {**JOBS["endless"], "collator": collator}}
    job_file(folder, "tight", tight)

    said = call_command("penstockd", "check", "tight.yaml", "tight", folder=folder)

    assert said.returncode == 2
    assert re.search(r"jobs\.tight: lane \d, offset \d+: there are \d+ documents", said.stderr)
    assert "[bad_batch]" in said.stderr
