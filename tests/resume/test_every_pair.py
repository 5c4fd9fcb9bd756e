"""Exact resume at every offset, for every shipped role with every other.

Each two roles of different kinds meet, if any job has both; RESUME_MATRIX=all takes every
combination, which is a matter of an hour. What was resumed is printed at the end of the run.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.server.jobs.load import load
from penstock.server.jobs.registry import FUNCTIONS, KINDS
from penstock.server.pipeline.line import Line
from penstock.server.testing.job_contract import LaneStep, step
from penstock.wire.errors import PastEnd, PenstockError
from penstock.wire.v1 import feed_pb2
from resume.matrix import FACTORS, TEXTS, Combination, every_pair, jobs, pairs, product, why_not
from resume.table import COMBINATION, OFFSETS, of_reports, table
from resume.written import TYPES, write_all, write_job

LANES = 3

MOST = 12
"""Offsets of a lane; more where rows are so small that these lie in one epoch."""

COMBINATIONS = list(product()) if os.environ.get("RESUME_MATRIX") == "all" else every_pair()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same rows in every format."""
    import datasets

    folder = tmp_path_factory.mktemp("roles")
    write_all(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        yield folder


def steps(line: Line, count: int) -> list[LaneStep]:
    """Return the next batches of a line, with the snapshot before each; fewer where it ends."""
    found: list[LaneStep] = []
    while len(found) < count:
        try:
            found.append(step(line))
        except PastEnd:
            break
    return found


def crosses(truth: list[LaneStep]) -> bool:
    """Tell whether batches hold samples of more than the first epoch."""
    headers = (feed_pb2.BatchHeader.FromString(each.header) for each in truth)
    return any(sample.epoch for header in headers for sample in header.samples)


@pytest.mark.parametrize(
    ("number", "roles", "job"),
    [
        pytest.param(number, roles, job, id="-".join(roles))
        for number, (roles, job) in enumerate(zip(COMBINATIONS, jobs(COMBINATIONS), strict=True))
    ],
)
def test_every_offset_restores_exactly(
    folder: Path,
    number: int,
    roles: Combination,
    job: dict[str, Any],
    record_property: Callable[[str, object], None],
) -> None:
    """The next two batches and the snapshots between are those of the uninterrupted lane.

    The job of the restored lines was built anew from the job file; they go from the end to the
    start, so what sources have read before never lies just ahead.
    """
    record_property(COMBINATION, list(roles))
    file = write_job(folder / "job.yaml", job)
    lane = number % LANES
    line = Line(load(file).job("job"), lane)
    truth = steps(line, MOST + 1)
    assert truth
    if roles.end == "endless":
        while not crosses(truth) and len(truth) < 4 * MOST:
            truth += steps(line, 1)
        assert crosses(truth), "the proof must cross the border of an epoch"
    offsets = len(truth) - (len(truth) > MOST)  # of a lane that goes on, one batch follows

    fresh = load(file).job("job")
    for offset in reversed(range(offsets)):
        restored = Line(fresh, lane, snapshot=truth[offset].snapshot)
        assert restored.offset == offset
        assert steps(restored, 2) == truth[offset : offset + 2], f"offset {offset}"
    record_property(OFFSETS, offsets)


def test_every_pair_is_chosen_that_any_job_has() -> None:
    """And the others say why there is none."""
    chosen = every_pair()

    assert all(why_not(roles._asdict()) is None for roles in chosen)
    met = {pair for roles in chosen for pair in itertools.combinations(roles._asdict().items(), 2)}
    exists = {
        pair for roles in product() for pair in itertools.combinations(roles._asdict().items(), 2)
    }
    assert met == exists
    for pair in pairs():
        assert (why_not(dict(pair)) is None) == (pair in exists), pair


ELSEWHERE = {"folder", "lerobot", "robot"}
"""Their items are names of files, or frames of robots, which few roles take: see
`test_a_folder.py`, `test_robot_episodes.py` and `test_robot_processor.py`."""


def test_every_shipped_role_is_resumed() -> None:
    """Those that job files name, those that this package would offer as entry points, functions."""
    for name, kind in KINDS.items():
        offered = (
            point.name
            for point in kind.entry_points().values()
            if point.dist is not None and point.dist.name == "penstock"
        )
        functions = {"function"} & {"function" for function in FUNCTIONS if function == name}
        shipped = {*kind.builtins, *offered, *functions} - ELSEWHERE
        assert shipped == FACTORS[name].keys() - TYPES.keys(), name


# Roles that go with all others.
PLAIN = {
    "source": "parquet",
    "distributor": "mixture",
    "processor": "function",
    "batcher": "simple",
    "collator": "function",
    "end": "endless",
}
REFUSED = [
    Combination(**{**PLAIN, **dict(pair)}) for pair in pairs() if why_not(dict(pair)) is not None
] + [
    Combination(**{**PLAIN, "source": kind, "processor": "identity", "collator": collator})
    for kind in TEXTS
    for collator in ("padded", "packed", "vlm")
]


@pytest.mark.parametrize("roles", REFUSED, ids=["-".join(roles) for roles in REFUSED])
def test_what_does_not_exist_is_refused(folder: Path, roles: Combination) -> None:
    """Where the job is built, or at the first batch."""
    [job] = jobs([roles])
    file = write_job(folder / "job.yaml", {**job, "on_item_error": "stop"})

    with pytest.raises(PenstockError) as error:
        step(Line(load(file).job("job"), 0))

    assert error.value.code in ("invalid_job", "bad_item", "bad_batch")


def test_the_table_says_what_was_resumed_what_failed_and_what_cannot_be() -> None:
    """Combinations and offsets of each two roles, of those that had a part."""
    properties = [
        {COMBINATION: ["items", "map", "identity", "simple", "default", "endless"], OFFSETS: 12},
        {COMBINATION: ["items", "map", "identity", "simple", "packed", "two epochs"], OFFSETS: 5},
        {COMBINATION: ["items", "map", "function", "pool", "packed", "endless"]},
        {
            COMBINATION: ["hf_stream", "iterable", "function", "pool", "packed", "endless"],
            OFFSETS: 3,
        },
        {},
    ]

    lines = table(of_reports(properties))

    assert "3 combinations were resumed" in lines[0]
    assert "20 offsets" in lines[0]
    assert "1 of them failed" in lines[1]
    rows: dict[str, list[str]] = {}
    for line in lines:
        name, _, rest = line.strip().removeprefix("1 ").removeprefix("2 ").partition(" ")
        rows.setdefault(name, rest.split())
    assert rows["hf_stream"] == ["a", "1/3", ".", "1/3", ".", "1/3"]
    assert rows["items"] == ["2/17!", "b", "2/17", "0/0!", "1/12", "1/5!"]
    assert rows["simple"] == ["2/17", ".", "2/17", ".", "1/12", "1/5"]
    assert rows["pool"] == ["0/0!", "1/3", ".", "1/3!", ".", "1/3!"]
    assert rows["iterable"] == [".", "1/3", ".", "1/3"]
    assert [line.split() for line in lines[-6:-4]] == [
        ["hf_stream", ".", "1/3"],
        ["items", "2/17", "0/0!"],
    ]
    assert [line for line in lines if line.startswith(("a: ", "b: "))] == [
        "a: map draws items by number, and a stream has none",
        "b: iterable deals the shards of a stream, and these sources give items by number",
    ]
    assert lines[-1] == ".: not in this run"
