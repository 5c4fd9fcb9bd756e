"""`penstockd index --engine ray`: the bytes of the command without Ray, and its errors.

To start a Ray takes seconds, so there are two: one with two cores, for all commands but that which
is killed; that one starts a Ray of its own, with one core, as a command of a user does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray  # noqa: F401  of the dev extra: without it these tests fail, and are not skipped

from e2e.test_index_command import index, told, write_jobs
from harness import ENVIRONMENT, kill_process, run_command
from invariants import eventually
from penstock.server.planning.make import on_ray as on_ray_engine

COMMANDS = """
import contextlib, io, json, sys
import ray

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
from penstock.server.cli import run

for line in sys.stdin:
    folder, job = json.loads(line)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.chdir(folder):
        status = run(["index", "jobs.yaml", job, "--engine", "ray", "--output", "x", "--json"])
    print(json.dumps([status, out.getvalue(), err.getvalue()]), flush=True)
ray.shutdown()
"""
"""A process that has a Ray with two cores, and makes an index for each line that it is told."""

ITEMS = (300, 600)
"""Blocks hold 256 at least: these are five, in two sources."""

AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
"""What outlives a Ray whose command was killed, for a minute: they want to tell of its end."""

Command = Callable[[Path, str], subprocess.CompletedProcess[str]]


@contextlib.contextmanager
def on_ray(*command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command that uses Ray; kill it if it runs at the end, and wait for its Ray's end.

    What the environment sets for Ray's processes decides no size. They write below a folder of this
    test's, whose path is short because their sockets lie in it, and not into the user's home. They
    listen on the loopback alone, and tell nobody that Ray is used. All are of one session of the
    system; their environment cannot tell them apart, because Ray writes their titles over it.

    Args:
        command: What Python is given.
        variables: Further ones of its environment.
    """
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        environment = {
            **ENVIRONMENT,
            "HOME": folder,
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # as there: one that no other machine joins
            "RAY_TMPDIR": folder,
            "TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            # Ray asks clouds all the same whether this machine is theirs: no port is open there.
            "http_proxy": "http://127.0.0.1:9",
            "no_proxy": "127.0.0.1,localhost",
            "TZ": "Asia/Kabul",
            **variables,
        }
        with subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if variables else None,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()
        session = process.pid
        eventually(lambda: set(session_of(session).values()) <= AGENTS, 60.0, "its Ray has ended")
        for pid in session_of(session):
            kill_process(pid)
        eventually(lambda: not session_of(session), 30.0, "the agents have ended")


def session_of(leader: int) -> dict[int, str]:
    """Return the title of each process of the session that a process has begun."""
    found = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):  # it has just ended
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline()).strip()
    return found


@pytest.fixture(scope="module")
def two_cores() -> Iterator[Command]:
    """Makes the index `x` of a job in a folder, on a Ray with two cores."""
    with on_ray("-c", COMMANDS) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        heard, said = process.stdin, process.stdout

        def command(where: Path, job: str) -> subprocess.CompletedProcess[str]:
            heard.write(json.dumps([str(where), job]) + "\n")
            heard.flush()
            return subprocess.CompletedProcess([job], *json.loads(said.readline()))

        yield command
        heard.close()
        assert process.wait(60) == 0


def command_in(folder: Path) -> list[str]:
    """Return what makes the index `x` of a folder, as a user says it."""
    job, output = str(folder / "jobs.yaml"), str(folder / "x")
    command = ["-m", "penstock.server.cli", "index", job, "lenient"]
    return [*command, "--engine", "ray", "--output", output]


def test_ray_makes_the_same_index(tmp_path: Path, two_cores: Command) -> None:
    """Items that fail and items that are filtered are left out as they are without it."""
    write_jobs(tmp_path, items=ITEMS, item280="fail")
    here = told(index(tmp_path, "lenient", "--json", output="here"))

    made = told(two_cores(tmp_path, "lenient"))

    assert (tmp_path / "x").read_bytes() == (tmp_path / "here").read_bytes()
    assert here["left_out"] == {"filtered:no words": 30, "quarantined:index": 2}
    for found in (made, here):
        found["quarantined"].sort()  # they come as they are found
    assert made == {**here, "index": "x", "seconds": made["seconds"]}


def test_an_item_that_fails_is_named(tmp_path: Path, two_cores: Command) -> None:
    """In a sentence of ours, and not in one of Ray's."""
    write_jobs(tmp_path, items=ITEMS, item280="fail")

    failed = two_cores(tmp_path, "both")

    assert failed.returncode == 2
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("penstockd: error: ")
    assert "[280] in epoch 0 of job 'both' fails" in last
    assert "ValueError: cannot be decoded" in last


def wait_for_the_last_block(folder: Path, process: subprocess.Popen[str]) -> None:
    """Wait until all other blocks are finished, or the command has ended."""
    eventually(
        lambda: len([*folder.glob("x.parts/[0-9]*")]) == 4 or process.poll() is not None,
        200.0,
        "all blocks but the last one are finished",
    )


def test_a_killed_command_goes_on(tmp_path: Path, two_cores: Command) -> None:
    """Of five blocks, one core makes four, and two the last one; the killed one's Ray ends, too."""
    gate = tmp_path / "gate"
    gate.touch()
    write_jobs(tmp_path, items=ITEMS, item280="fail", item590=str(gate))
    told(index(tmp_path, "lenient", "--json", output="here"))
    gate.unlink()
    os.mkfifo(gate)  # whoever opens it waits: the process at the last block

    one_core = json.dumps({"CPU": 1})
    with on_ray(*command_in(tmp_path), RAY_OVERRIDE_RESOURCES=one_core) as process:
        wait_for_the_last_block(tmp_path, process)
        process.kill()
        _, said = process.communicate()

    assert process.returncode == -signal.SIGKILL, said
    assert not (tmp_path / "x").exists()
    gate.unlink()
    gate.touch()
    made = told(two_cores(tmp_path, "lenient"))
    assert made["items_of_earlier_commands"] == sum(ITEMS) - (600 - 512)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "here").read_bytes()


def test_a_stopped_command_ends_its_ray(tmp_path: Path) -> None:
    """At Ctrl-C, while a run is measured that would not end by itself."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    write_jobs(tmp_path, items=ITEMS, item590=str(gate))

    one_core = json.dumps({"CPU": 1})
    with on_ray(*command_in(tmp_path), RAY_OVERRIDE_RESOURCES=one_core) as process:
        wait_for_the_last_block(tmp_path, process)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=240)

    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "penstockd: stopped"
    assert "Traceback" not in said


def test_a_machine_without_penstock_is_said(tmp_path: Path) -> None:
    """Here it has a package of that name in which nothing is."""
    (tmp_path / "bare" / "penstock").mkdir(parents=True)
    (tmp_path / "bare" / "penstock" / "__init__.py").touch()
    write_jobs(tmp_path, items=ITEMS)

    there = {"runtime_env": {"env_vars": {"PYTHONPATH": str(tmp_path / "bare")}}}
    with on_ray(*command_in(tmp_path), RAY_JOB_CONFIG_JSON_ENV_VAR=json.dumps(there)) as process:
        _, said = process.communicate(timeout=200)

    assert process.returncode == 2, said
    last = said.splitlines()[-1]
    assert last.startswith("penstockd: error: the Ray of this machine has failed (")
    assert "No module named 'penstock.server'" in last
    assert "each has the same versions of Ray, Python and penstock as this one" in last
    assert "Traceback" not in said


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:99999"])
def test_a_cluster_that_is_not_there_is_named(address: str, tmp_path: Path) -> None:
    """At once: Ray itself looks for it for many minutes."""
    write_jobs(tmp_path, items=ITEMS)

    done = run_command(
        command_in(tmp_path)[1:], environment={**ENVIRONMENT, "RAY_ADDRESS": address}
    )

    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"penstockd: error: RAY_ADDRESS is '{address}', and no Ray lets")
    assert last.endswith("or unset RAY_ADDRESS, for a Ray of this machine [unreachable]")
    assert "Traceback" not in done.stderr


class Handling:
    """Takes SIGTERM for itself, as `ray.init` does, and may be ended by it."""

    def __init__(self, *, ended: bool) -> None:
        self.ended = ended

    def init(self, **options: Any) -> None:
        """Set the handler; meet a signal, if it shall."""
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        if self.ended:
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("while_it_starts", [True, False])
def test_a_command_that_is_told_to_end_does_not_blame_a_role(
    while_it_starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SystemExit would be taken for that of code that the job names."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    before = signal.getsignal(signal.SIGTERM)

    def command() -> None:
        on_ray_engine._start(Handling(ended=while_it_starts))
        signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(KeyboardInterrupt):
            command()
    finally:
        signal.signal(signal.SIGTERM, before)
