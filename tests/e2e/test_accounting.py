"""Everything that is left out, cut, tried again or not as told is counted, and alike everywhere."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness import Server, call_command, serving, write_job_file
from invariants import eventually
from penstock.server.jobs.load import load
from penstock.server.pipeline.line import Line

ROLES = '''
import pathlib

from penstock.server.roles import RawItemProcessor

HERE = pathlib.Path(__file__).parent


class Choosy(RawItemProcessor):
    """Leaves some items out, makes two samples of others, fails on one, and on one only once."""

    def process(self, raw, context):
        if raw % 7 == 3:
            return context.skip("every seventh")
        if raw == 11:
            raise ValueError("a damaged record")
        if raw == 5 and not (HERE / "tried").exists():
            (HERE / "tried").touch()
            raise ValueError("not at once")
        return [{"input_ids": [raw] * (raw + part)} for part in range(1 + raw % 2)]


class Lies(RawItemProcessor):
    """Tells sizes that are not those of the samples, and fails on one item."""

    one_to_one = True

    def size(self, raw):
        return raw + 1

    def process(self, raw, context):
        if raw == 6:
            raise ValueError("a damaged record")
        return {"input_ids": [raw] * (raw + 1 + (0, 1, -1)[raw % 3])}
'''

LANES, BATCHES = 2, 40


def write(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "roles.py").write_text(ROLES)
    job = {
        "lanes": LANES,
        "source": {"type": "items", "items": list(range(24))},
        "collator": {"type": "packed", "pad_to": 16},
        "on_item_error": "quarantine",
        "snapshot_every": 8,
    }
    jobs = {
        "drawn": {
            **job,
            "processor": {"type": "./roles.py:Choosy"},
            "batcher": {"type": "first_fit", "max_tokens": 16, "open_rows": 3, "rows": 2},
        },
        "told": {
            **job,
            "processor": {"type": "./roles.py:Lies"},
            "batcher": {"type": "knapsack", "max_tokens": 16, "window": 6, "overlong": "truncate"},
        },
    }
    return write_job_file(folder / "jobs.yaml", jobs, metrics="127.0.0.1:0", workers=1)


def cat(server: Server, job: str) -> tuple[Counter[str], str]:
    """What the batches bear, summed, and what `cat` says to people."""
    arguments = ("penstock", "cat", server.address, job, "--count", str(BATCHES))
    records = call_command(*arguments, "--json").stdout.splitlines()
    sums: Counter[str] = Counter()
    for record in map(json.loads, records):
        sums.update(record["accounting"])
    assert len(records) == BATCHES
    return sums, call_command(*arguments).stderr


def counted(server: Server, job: str) -> dict[str, float]:
    """What /metrics has of a job that is not 0, under the names of the accounting."""
    address = server.events("ready")[0]["metrics"]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.labels.get("penstock_job") != job or not one.value:
                continue
            if one.name == "penstock_samples_skipped_total":
                found[one.labels["reason"]] = one.value
            elif one.name == "penstock_batcher_counts_total":
                count = one.labels["count"]
                found[count if count.startswith("size:") else f"batcher:{count}"] = one.value
            elif one.name == "penstock_retries_total":
                found[f"retries:{one.labels['reason']}"] = one.value
    return found


def planned(file: Path, job: str) -> Mapping[str, int]:
    """What the same lanes count in this process, up to the same batches."""
    sums: Counter[str] = Counter()
    for lane in range(LANES):
        line = Line(load(str(file)).job(job), lane)
        for _ in range(BATCHES // LANES):
            made = line.make(line.advance())
            sums.update(made.accounting)
    return sums


REASONS = {
    "drawn": {
        "filtered:every seventh",
        "quarantined:draw",
        "batcher:overlong_split",
        "dropped:empty",
    },
    "told": {
        "quarantined:exit",
        "batcher:overlong_truncated",
        "batcher:truncated_tokens",
        "size:larger",
        "size:larger_tokens",
        "size:smaller",
        "size:smaller_tokens",
    },
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    file = write(tmp_path_factory.mktemp("accounting"))
    with serving(file) as server:
        yield server, file


@pytest.mark.parametrize("job", REASONS)
def test_what_is_left_out_is_counted_alike_in_cat_and_in_metrics(
    served: tuple[Server, Path], job: str
) -> None:
    """Filters, drops, splits, truncations, verdicts of all stages, and sizes that lie."""
    server, file = served

    sums, said = cat(server, job)
    assert sums == planned(file, job)
    reasons = set(sums) - {"drawn"}
    assert reasons - {"quarantined:size"} == REASONS[job]

    # A node plans and makes ahead of readers, so it has counted that much at least.
    eventually(
        lambda: all(counted(server, job).get(name, 0) >= sums[name] for name in reasons),
        20,
        f"{dict(sums)} of job {job} in /metrics",
    )
    for name in reasons:
        assert f"{sums[name]:,} {name}" in said


def test_retries_are_counted(served: tuple[Server, Path]) -> None:
    """An item that fails twice is tried twice, and so is one that fails once."""
    server, _ = served
    cat(server, "drawn")

    eventually(lambda: counted(server, "drawn").get("retries:second_try", 0) >= 2, 20, "retries")
