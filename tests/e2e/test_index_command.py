"""`penstockd index`: many processes, any of which may die, make the same file."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from e2e.test_commands_on_a_terminal import on_a_terminal
from harness import ENVIRONMENT, children, kill_process, run_command, write_job_file
from invariants import eventually
from penstock.server.jobs.load import load
from penstock.server.planning.index.index_file import SizeIndex
from penstock.server.planning.make.dealt_blocks import BlockTask, all_blocks
from penstock.server.planning.make.measuring import Measuring
from penstock.server.planning.make.measuring_pool import Answer, MeasuringPool
from penstock.wire.errors import SourceUnavailable

ROLES = """
import os, signal, time

def words(raw, context):
    print("a word of a role's own")
    if raw["text"].startswith("/"):
        open(raw["text"]).close()
    if raw["text"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if raw["text"] == "hang":
        time.sleep(1000)
    if raw["text"] == "fail":
        raise ValueError("cannot be decoded")
    words = raw["text"].split()
    if not words:
        return context.skip("no words")
    if len(words) > 25:
        return [{"input_ids": words[:10]}, {"input_ids": words[10:]}]
    return {"input_ids": words}

words.uses_global_rng = False

def slow(raw, context):
    sum(range(10_000))
    return words({**raw, "text": "x " * raw["n"]}, context)

slow.uses_global_rng = False
"""


def write_jobs(folder: Path, items: tuple[int, int] = (1200, 300), **texts: str) -> Path:
    """Write a corpus of two files, and jobs over it.

    Args:
        folder: Where.
        items: How many each file has.
        texts: Replace those of some items, in each file that has so many.
    """
    (folder / "roles.py").write_text(ROLES)
    for name, count in zip(("first", "second"), items, strict=True):
        rows = [{"n": 7 * n % 30, "text": "x " * (7 * n % 30)} for n in range(count)]
        for number, text in texts.items():
            if (place := int(number.removeprefix("item"))) < count:
                rows[place]["text"] = text
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    both = {
        "sources": {
            "a": {"type": "jsonl", "files": "first.jsonl"},
            "b": {"type": "jsonl", "files": "second.jsonl"},
        },
        "function": "./roles.py:words",
        "batcher": {"type": "best_fit", "max_tokens": 64},
        "collator": {"type": "packed"},
    }
    jobs = {
        "both": both,
        "slow": {**both, "function": "./roles.py:slow"},
        "lenient": {**both, "on_item_error": "quarantine"},
    }
    return write_job_file(folder / "jobs.yaml", jobs, workers=2)


def index(
    folder: Path, job: str, *flags: str, output: str = "x"
) -> subprocess.CompletedProcess[str]:
    arguments = ["index", str(folder / "jobs.yaml"), job, "--output", output, *flags]
    return run_command(["penstock.server.cli", *arguments], 120.0, folder=folder)


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_number_of_workers_leaves_no_trace(tmp_path: Path) -> None:
    """Nor does what roles print: it is not among the results."""
    write_jobs(tmp_path)

    one = told(index(tmp_path, "both", "--workers", "1", "--json", output="one"))
    three = index(tmp_path, "both", "--workers", "3", output="three")
    again = told(index(tmp_path, "both", "--json", output="three"))

    assert (tmp_path / "one").read_bytes() == (tmp_path / "three").read_bytes()
    per_text = [7 * n % 30 for n in range(1200)]
    assert one["items"] == 1500
    assert one["sources"]["a"] == {
        "items": 1200,
        "samples": 1200 - per_text.count(0) + sum(n > 25 for n in per_text),
        "tokens": sum(per_text),
        "left_out": {"filtered:no words": per_text.count(0)},
    }
    assert one["root"] == SizeIndex.open(str(tmp_path / "one")).root.hex()
    assert one["bytes"] == (tmp_path / "one").stat().st_size
    assert (one["depends_on_seed"], one["made"], again["made"]) == (False, True, False)
    assert again == {**one, "index": "three", "made": False, "seconds": 0}
    assert three.stdout.splitlines()[:3] == [
        "index three",
        f"  root               {one['root']}",
        "  items              1,500",
    ]
    assert "  filtered:no words  50\n" in three.stdout


def test_what_is_killed_at_any_moment_goes_on(tmp_path: Path) -> None:
    """The command three times, each after some more blocks; then one of its processes."""
    write_jobs(tmp_path)
    rng = random.Random(5)
    told(index(tmp_path, "slow", "--json", output="whole"))
    parts = tmp_path / "x.parts"
    arguments = [str(tmp_path / "jobs.yaml"), "slow", "--output", "x"]
    command = ["penstock.server.cli", "index", *arguments]

    def is_as_far(wanted: int) -> bool:
        return len([*parts.glob("[0-9]*")]) >= wanted

    wanted = 0
    for _ in range(3):
        kill_when(command, tmp_path, partial(is_as_far, wanted))
        wanted += rng.randrange(2)
    assert not (tmp_path / "x").exists()
    process = started(command, tmp_path)
    eventually(lambda: is_as_far(wanted) and children(process.pid) != [], 60.0, "it goes on")
    kill_process(children(process.pid)[0])
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()

    assert process.wait() == 0, said
    assert "ended a process, with SIGKILL; its block is measured again" in said
    assert (tmp_path / "x").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not parts.exists()


def started(command: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", *command],
        env=ENVIRONMENT,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_when(command: list[str], folder: Path, when: Callable[[], bool]) -> None:
    """Start a command, and kill it when something is so and it has processes of its own."""
    process = started(command, folder)
    eventually(lambda: when() and children(process.pid) != [], 60.0, "it is far enough")
    workers = children(process.pid)
    process.kill()
    process.wait()
    assert process.stderr is not None
    process.stderr.close()
    eventually(lambda: not any(map(is_alive, workers)), 20.0, "its processes end with it")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_an_item_that_ends_its_process_three_times_is_named(tmp_path: Path) -> None:
    """And what was finished is kept: the command goes on when the item is repaired."""
    write_jobs(tmp_path, item280="kill")

    done = index(tmp_path, "both", "--workers", "1")

    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("penstockd: error: the index of job 'both' cannot be made: a[280] in ")
    assert "ended the process that measures it 3 times, at last with SIGKILL" in last
    assert last.endswith("[worker_crashed]")
    assert (tmp_path / "x.parts" / "0-00000000").exists()


def test_an_item_that_hangs_is_told_from_one_that_crashes(tmp_path: Path) -> None:
    """Both end by SIGKILL, but for this one item_seconds can be raised."""
    write_jobs(tmp_path, item280="hang")
    path = tmp_path / "jobs.yaml"
    arguments = ["index", str(path), "both", "--output", "x", "--workers", "1"]

    done = run_command(
        ["penstock.server.cli", *arguments],
        environment={**ENVIRONMENT, "PENSTOCK_ITEM_SECONDS": "1"},
        folder=tmp_path,
    )

    *warnings, last = done.stderr.splitlines()
    assert "killed because it was still at it after item_seconds = 1;" in last
    assert last.startswith("penstockd: error: the index of job 'both' cannot be made: a[280] in ")
    assert sum("after item_seconds = 1; its block is measured" in each for each in warnings) == 3


class Failing:
    """Keeps no block: as soon as so many were finished, all of them fail."""

    def __init__(self, together: int) -> None:
        self.calls, self.together = 0, together
        self.enough = asyncio.Event()

    async def finished(self, block: BlockTask, answer: Answer) -> None:
        """Fail.

        Raises:
            SourceUnavailable: Always.
        """
        self.calls += 1
        if self.calls == self.together:
            self.enough.set()
        await self.enough.wait()
        raise SourceUnavailable("the disk is full", item="x")

    def progressed(self, block: BlockTask, done: int) -> None:
        """Tell nobody."""

    def died(self, block: BlockTask, how: str) -> None:
        """No process dies."""
        pytest.fail(how)


async def test_blocks_that_cannot_be_kept_end_it_with_one_error(tmp_path: Path) -> None:
    """Other processes had finished blocks, too: their errors are the same, and nobody's."""
    job = load(str(write_jobs(tmp_path))).jobs["both"]
    measuring = Measuring(job)
    pool = MeasuringPool(job.name, job.definition, {0: measuring.inputs}, 2, 60.0)
    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, told: unheard.append(told))

    with pytest.raises(SourceUnavailable, match="the disk is full"):
        await pool.run(list(all_blocks(measuring.positions)), Failing(2))

    gc.collect()
    assert unheard == []


def test_an_item_that_fails_stops_or_is_left_out(tmp_path: Path) -> None:
    write_jobs(tmp_path, item280="fail")

    stopped = index(tmp_path, "both")
    left_out = told(index(tmp_path, "lenient", "--json"))

    assert stopped.returncode == 2
    assert "item a[280] in epoch 0" in stopped.stderr or "item b[280] in epoch 0" in stopped.stderr
    assert "ValueError: cannot be decoded" in stopped.stderr.splitlines()[-1]
    assert left_out["left_out"]["quarantined:index"] == 2
    assert sorted(left_out["quarantined"]) == [
        ["a[280] in epoch 0", "ValueError: cannot be decoded"],
        ["b[280] in epoch 0", "ValueError: cannot be decoded"],
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["both"], "lies: give --output, or the job a plan"),
        (["none", "--output", "x"], "there is no job 'none'"),
        (["both", "--output", "memory://x"], "'memory://x' lies in the memory of this command"),
        (["both", "--output", "x", "--workers", "0"], "0 is not in the range x>=1"),
        (["both", "--output", "nope://x"], "'nope://x' is not a place for an index"),
        (
            ["both", "--output", "/proc/x"],
            "the index '/proc/x.parts/inputs.json' cannot be written",
        ),
    ],
    ids=["no place", "no job", "memory", "no workers", "no protocol", "not writable"],
)
def test_what_cannot_be_done_is_told_in_a_sentence(
    tmp_path: Path, arguments: list[str], said: str
) -> None:
    write_jobs(tmp_path)

    done = run_command(
        ["penstock.server.cli", "index", str(tmp_path / "jobs.yaml"), *arguments], folder=tmp_path
    )

    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_that_code_builds_has_an_index_too(tmp_path: Path) -> None:
    """Its processes run the code again."""
    write_jobs(tmp_path)
    (tmp_path / "jobs.py").write_text(
        "from penstock.server.job.job import Job\n"
        "from penstock.server.roles.batchers import BestFitPackingBatcher\n"
        "from penstock.server.sources import ItemsSource\n"
        "def jobs():\n"
        "    rows = [{'input_ids': [1] * (n % 9)} for n in range(1000)]\n"
        "    return {'code': Job(ItemsSource(rows), batcher=BestFitPackingBatcher(64))}\n"
    )
    arguments = ["index", "jobs.py:jobs", "code", "--output", "x", "--json"]

    done = told(run_command(["penstock.server.cli", *arguments], folder=tmp_path))

    assert done["tokens"] == sum(n % 9 for n in range(1000))


def test_a_terminal_shows_how_far_it_is(tmp_path: Path) -> None:
    """A bar with rate and time, which is gone before the results."""
    write_jobs(tmp_path)

    status, written = on_a_terminal(tmp_path, "index", "jobs.yaml", "slow", "--output", "x")

    assert status == 0, written
    during, _, results = written.rpartition("index x")
    assert "of 1,500 items" in during
    assert "items/s" in during
    assert "items/s" not in results
    assert os.listdir(tmp_path).count("x.parts") == 0
