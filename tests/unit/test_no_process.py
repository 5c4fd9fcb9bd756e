"""`unit/` holds what needs no process: what a test starts for itself is refused by `conftest`."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from harness import run_command


@pytest.mark.parametrize(
    "start",
    [
        lambda: subprocess.run([sys.executable, "-c", ""], check=False),
        os.fork,
        lambda: run_command(["penstock.client.cli"]),
        lambda: multiprocessing.get_context("spawn").Process().start(),
    ],
    ids=["Popen", "fork", "a command", "spawn"],
)
def test_a_process_that_a_test_starts_is_refused(start: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match="move it to e2e/"):
        start()
