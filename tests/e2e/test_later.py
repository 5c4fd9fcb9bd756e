"""Samples that are larger than told come later in a run, too: the same for all who read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from harness import Server, call_command, serving, write_job_file
from penstock.client import Loader
from penstock.client.loop.steps import Batch
from penstock.server.jobs.load import load
from penstock.server.pipeline.line import Line
from penstock.wire.errors import PastEnd

COUNT, LANES = 120, 4
ROLES = '''
from penstock.server.roles import RawItemProcessor


class Estimating(RawItemProcessor):
    """Tells a size that is 0 to 2 tokens off, and of every fortieth item far off."""

    one_to_one = True

    def size(self, raw):
        return 3 + raw % 9

    def process(self, raw, context):
        more = 50 if raw % 40 == 7 else (-2, 0, 2, 1, -1)[raw % 5]
        return {"input_ids": [1 + raw] * (3 + raw % 9 + more)}


class Wavering(RawItemProcessor):
    """Gives another size in each epoch."""

    def process(self, raw, context):
        return {"input_ids": [1 + raw] * int(3 + raw % 9 + context.rng.integers(-2, 3))}
'''
JOB: dict[str, Any] = {
    "epochs": 2,
    "lanes": LANES,
    "batches_per_step": 4,
    "snapshot_every": 2,
    "source": {"type": "items", "items": list(range(COUNT))},
    "collator": {"type": "packed", "pad_to": 16},
    "on_item_error": "quarantine",
    "later_within": 3,
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job file with two jobs: sizes told by a processor, and by the index of a plan."""
    folder = tmp_path_factory.mktemp("later")
    (folder / "roles.py").write_text(ROLES)
    told = {
        **JOB,
        "processor": {"type": "./roles.py:Estimating"},
        "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 6, "rows": 2},
    }
    planned = {
        **JOB,
        "processor": {"type": "./roles.py:Wavering"},
        "batcher": {"type": "best_fit_decreasing", "max_tokens": 16, "rows": 2},
        "plan": {"index": "sizes.index"},
    }
    jobs = {"told": told, "planned": planned}
    file = write_job_file(folder / "jobs.yaml", jobs, workers=2)
    call_command("penstockd", "index", str(file), "planned")
    return file


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    """A node of two workers."""
    with serving(file) as server:
        yield server


Seen = tuple[bytes, list[Any], dict[str, int]]


def read(target: str, job: str, rank: int, world_size: int, **options: Any) -> dict[int, Seen]:
    """Return what a rank sees of a whole pass, by position; padding aside."""
    options = {"mode": "eval", "as_numpy": True, "deadline_s": 90, **options}
    with Loader(target, job, rank=rank, world_size=world_size, **options) as loader:
        return {batch.position: seen(batch) for batch in loader if not batch.is_padding}


def seen(batch: Batch) -> Seen:
    return batch["input_ids"].tobytes(), list(batch.samples), dict(batch.counts)


def computed(file: Path, job: str) -> tuple[Counter[str], int]:
    """Return what this process counts of a job, and how many batches it has."""
    built, told, batches = load(str(file)).job(job), Counter[str](), 0
    for lane in range(LANES):
        line = Line(built, lane)
        try:
            while True:
                told.update(line.make(line.advance()).accounting)
        except PastEnd:
            batches += line.offset
    return told, batches


@pytest.mark.parametrize("job", ["told", "planned"])
def test_all_who_read_get_the_same_and_each_sample_once(
    server: Server, file: Path, job: str
) -> None:
    """One rank, two ranks of which one is ahead, and `local:`; what has no room is named."""
    with ThreadPoolExecutor(2) as threads:
        ranks = [threads.submit(read, server.address, job, rank, 2) for rank in range(2)]
        both = {position: one for rank in ranks for position, one in rank.result().items()}
    alone = read(server.address, job, 0, 1)
    local = read(f"local:{file}", job, 0, 1)

    assert both == alone == local
    told, batches = computed(file, job)
    assert len(alone) == batches
    assert told["size:later"] > 3
    given = Counter(sample[1:] for _, samples, _ in alone.values() for sample in samples)
    assert max(given.values()) == 1
    assert len(given) == 2 * COUNT - told["quarantined:size"]
    assert told["size:put_off"] == told["size:later"] + told["quarantined:size"]
    verdicts = {each["item"] for each in server.events("item quarantined") if each["job"] == job}
    missing = {(n, epoch) for n in range(COUNT) for epoch in range(2)} - set(given)
    assert {f"main[{index}]" for index, _ in missing} == {each.split(" ")[0] for each in verdicts}
