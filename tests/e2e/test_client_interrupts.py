"""A signal handler that raises, at any moment, leaves a Loader usable and its positions exact.

`TEST_INTERRUPTS` says how many interrupts each test makes; the default keeps it short.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from harness import ENVIRONMENT, write_job_file
from unit.served import ServedNode

COUNT = int(os.environ.get("TEST_INTERRUPTS", "1500"))
DEADLINE_S = 60 + COUNT / 50


def interrupted(target: str, how: str, *options: Any) -> dict[str, Any]:
    """Read and be interrupted, in a process of its own; return what it found."""
    command = [sys.executable, "-m", "unit.interrupted_reader", target, how]
    done = subprocess.run(
        [*command, *map(str, options)],
        env={**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("how", "options", "packed"),
    [
        ("signals", ("--seed", 1), False),
        ("signals", ("--seed", 2, "--longest-s", 1e-4), False),
        ("bytecodes", ("--seed", 3), False),
        ("bytecodes", ("--seed", 4, "--stride", 30), False),
        ("signals", ("--seed", 5), True),
        ("bytecodes", ("--seed", 6, "--stride", 30), True),
    ],
)
def test_a_loader_that_is_interrupted_reads_on_at_the_same_position(
    how: str, options: tuple[Any, ...], packed: bool
) -> None:
    """Nothing lost, nothing repeated, no call that hangs, and a close that takes no seconds."""
    count = COUNT if how == "bytecodes" else COUNT // 2  # by chance, and each takes its time
    with ServedNode(packed=packed) as node:
        found = interrupted(node.address, how, count, *options)

    assert found["wrong"] is None, found
    assert found["interrupts"] >= count
    assert found["close_s"] < 5


@pytest.mark.parametrize("options", [(), pytest.param(("--ahead",), marks=pytest.mark.torch)])
def test_the_thread_that_reads_enters_no_code_that_takes_locks_in_python(
    options: tuple[str, ...],
) -> None:
    """Whatever of it is broken off between the right two bytecodes keeps its lock for ever."""
    with ServedNode() as node:
        found = interrupted(node.address, "entered", 1000, *options)

    assert found["wrong"] is None, found
    assert found["position"] > 100


@pytest.mark.parametrize("how", ["signals", "bytecodes"])
def test_a_loader_of_a_local_job_is_interrupted_as_well(tmp_path: Path, how: str) -> None:
    items = [{"input_ids": number} for number in range(50)]
    job = {"lanes": 2, "source": {"type": "items", "items": items}, "batch_size": 1}
    file = write_job_file(tmp_path / "jobs.yaml", {"code": job})

    found = interrupted(f"local:{file}", how, COUNT // 5, "--positions-only", "--stride", 20)

    assert found["wrong"] is None, found
    assert found["interrupts"] >= COUNT // 5


CTRL_C = """
import os, signal, sys, threading, time
from penstock.client import Loader

loader = Loader(sys.argv[1], "code", rank=0, world_size=1, as_numpy=True)
batches = iter(loader)
next(batches)
for _ in range(3):
    try:  # also around the timer: on a busy machine it may fire before the next line
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        next(batches)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
sys.stdin.readline()
print(next(batches).position, flush=True)
began = time.monotonic()
loader.close()
print(f"{time.monotonic() - began:.1f}")
"""


def test_ctrl_c_while_it_waits_leaves_the_iterator_usable() -> None:
    """As in a notebook: the cell is stopped, and the next one reads on with the same iterator."""
    with ServedNode() as node:
        node.gate.held.add(1)
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(CTRL_C), node.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3)]
        node.gate.released.set()
        out, _ = process.communicate("\n", timeout=60)

    assert said == ["interrupted\n"] * 3
    position, close_s = out.split()
    assert position == "1"
    assert float(close_s) < 2


UNREACHABLE = """
import os, signal, sys, threading, time
from penstock.client import Loader

loader = Loader("127.0.0.1:1", "code", rank=0, world_size=1, as_numpy=True)
try:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    len(loader)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_a_process_that_was_interrupted_while_it_connects_ends_at_once() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", UNREACHABLE], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")
    assert time.monotonic() - began < 20
