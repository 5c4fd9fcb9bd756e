"""A loop that is interrupted again and again while its nodes come and go."""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import ENVIRONMENT
from links import Link
from unit.served import ServedNode

COUNT = 12_000

COMMAND = [sys.executable, "-m", "unit.interrupted_reader"]


@pytest.mark.parametrize("how", ["bytecodes", "signals"])
def test_nothing_is_lost_where_signals_meet_moves(how: str) -> None:
    """The loop's thread has no part in moving: wherever it is broken off, the next call goes on."""
    with contextlib.ExitStack() as stack:
        nodes = [ServedNode(), ServedNode()]
        nodes[1].memory = nodes[0].memory  # one store
        links = []
        for node in nodes:
            stack.enter_context(node)
            links.append(stack.enter_context(Link(node.address)))
        over = threading.Event()

        def go_and_come() -> None:
            for link in itertools.cycle(links):
                if over.wait(1.0):
                    return
                link.refuses = True
                link.reset()
                if over.wait(3.0):
                    return
                link.refuses = False
                if over.wait(4.0):  # it is asked every few seconds whether it is back
                    return

        moving = threading.Thread(target=go_and_come)
        moving.start()
        target = ",".join(link.address for link in links)
        try:
            done = subprocess.run(
                [*COMMAND, target, how, str(COUNT), "--seed", "5", "--stride", "20"],
                env={**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[1])},
                capture_output=True,
                text=True,
                timeout=300,
            )
        finally:
            over.set()
            moving.join()
        assert done.stdout, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])

    assert "is left" in done.stderr, found
    assert found["position"] > 50
    assert found["wrong"] is None, (found, done.stderr[-2000:])
    assert found["interrupts"] >= COUNT
    assert found["close_s"] < 8


def test_the_thread_that_reads_takes_no_lock_of_several_nodes_either() -> None:
    one, other = ServedNode(), ServedNode()
    other.memory = one.memory  # one store
    with one, other:
        done = subprocess.run(
            [*COMMAND, f"{one.address},{other.address}", "entered", "1000"],
            env={**ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.stdout, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])

    assert found["wrong"] is None, found
    assert found["position"] > 100
