"""How processes with roles are started: forks of one process, each as good as a fresh program."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import ENVIRONMENT
from invariants import eventually
from penstock.server.node.node import Node
from penstock.server.process.environment import FIXED
from penstock.server.processes.start import Process, await_zygote, program_environment, start
from penstock.server.store.in_memory import MemoryStore
from penstock.wire.errors import Internal

TASK = "e2e.zygote_task"
DEADLINE_S = 60.0


@contextmanager
def reported_by(*arguments: object, **how: Any) -> Iterator[tuple[Process, dict[str, Any]]]:
    """Start the task; yield it with what it says, and end it."""
    started = start(TASK, *arguments, **how)
    try:
        with started.socket.makefile("r") as channel:
            yield started, json.loads(channel.readline())
    finally:
        started.socket.close()
        started.process.kill()
        started.process.wait()


def zygotes() -> list[int]:
    """Return the process ids of this process's zygotes."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return [
        pid
        for pid in found
        if b"penstock.server.processes.zygote" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def state(pid: int) -> str | None:
    """Return the state of a process, `Z` once it has ended; None = it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def test_a_process_is_a_child_of_the_one_that_starts_it() -> None:
    """So that one hears of its end, and its status, as of any child; nothing stays of it."""
    with reported_by("a", 1, definition=b"a job") as (started, told):
        assert told["parent"] == os.getpid()
        assert (told["arguments"], told["definition"]) == (["a", "1"], "a job")
        assert started.process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            started.process.wait(0.01)

        started.socket.sendall(b"7\n")

        assert started.process.wait(DEADLINE_S) == 7
        assert started.process.poll() == 7
        assert state(started.process.pid) is None
    with reported_by() as (started, _):
        started.process.kill()
        assert started.process.wait() == -signal.SIGKILL
    with reported_by() as (started, _):
        started.socket.shutdown(socket.SHUT_RDWR)
        assert started.process.wait(DEADLINE_S) == 0


def test_it_is_what_a_fresh_program_would_be() -> None:
    """Environment, hash seed, folder, signals and descriptors; no thread, own randomness."""
    with reported_by() as (_, told), reported_by() as (_, other):
        assert {name: told["environment"].get(name) for name in FIXED} == dict(FIXED)
        assert not {"LD_PRELOAD", "PENSTOCKD_LOG"} & told["environment"].keys() - os.environ.keys()
        assert told["folder"] == os.getcwd()
        held = {told["held"].pop(number) for number in ("0", "1", "2", str(told["socket"]))}
        assert "/dev/null" in held
        assert list(told["held"].values()) == ["/memfd:penstock-page (deleted)"]
        assert told["threads"] == 1
        assert told["ignored"] == [True, True]
        assert not told["forked"]
        assert told["program"].endswith("zygote_task.py")
        assert told["command"].rstrip("\0").split("\0") == [sys.executable, "-P", "-m", TASK]
        assert told["name"] == "zygote_task"
        assert told["hash"] == other["hash"]
        assert told["random"] != other["random"]
        program = "print(hash('penstock'))"
        done = subprocess.run(
            [sys.executable, "-c", program], env=program_environment(), capture_output=True
        )
        assert told["hash"] == int(done.stdout)


def test_the_process_that_forks_has_no_thread_and_no_code_of_users() -> None:
    """A fork with threads may wait for a lock that nobody holds; gRPC does not survive one."""
    with reported_by() as (_, told):
        [zygote] = zygotes()

        assert len(os.listdir(f"/proc/{zygote}/task")) == 1
        unwanted = ("grpc", "asyncio", "numpy.random", "pyarrow", "datasets", "torch")
        assert not set(unwanted) & set(told["modules"])


def test_another_environment_is_another_zygote(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where code that builds jobs changes it, or where modules are found; the old one ends."""
    with reported_by():
        before = zygotes()
        with reported_by():
            assert zygotes() == before
        monkeypatch.setenv("SOMEBODY_SAID", "this")

        with reported_by() as (_, told):
            assert told["environment"]["SOMEBODY_SAID"] == "this"
            assert zygotes() != before
            assert state(before[0]) is None


def test_the_folder_is_the_one_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not that in which the zygote was started."""
    with reported_by():
        before = zygotes()
    monkeypatch.chdir(tmp_path)
    with reported_by() as (_, told):
        assert told["folder"] == str(tmp_path)
        assert zygotes() == before


@pytest.mark.parametrize("when", ["idle", "stopped"])
def test_a_zygote_that_dies_ends_no_other_and_is_replaced(
    when: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its children live on, the next start says so, and works."""
    with reported_by() as (started, _), caplog.at_level(logging.WARNING):
        [zygote] = zygotes()
        if when == "idle":
            os.kill(zygote, signal.SIGKILL)
            eventually(lambda: state(zygote) in ("Z", None), DEADLINE_S, "it has ended")
        else:  # it ends while it is waited for
            os.kill(zygote, signal.SIGSTOP)
            threading.Timer(0.3, os.kill, (zygote, signal.SIGKILL)).start()

        with reported_by() as (_, told):
            assert told["parent"] == os.getpid()

        assert started.process.poll() is None
        assert zygotes() != [zygote]
        assert "the process that starts workers has ended with status -9" in caplog.text


def test_a_zygote_that_does_not_answer_is_said_and_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where it was stopped, or the machine does too much else; the next start has another."""
    with reported_by() as (started, _):
        [zygote] = zygotes()
        os.kill(zygote, signal.SIGSTOP)
        monkeypatch.setattr("penstock.server.processes.start.LOADED_S", 0.2)
        with pytest.raises(TimeoutError, match="has not answered within 0 s, so it is stopped"):
            await_zygote()
        monkeypatch.undo()

        with reported_by() as (_, told):
            assert told["parent"] == os.getpid()

        assert started.process.poll() is None
        assert zygotes() != [zygote]


def test_threads_may_ask_at_the_same_time() -> None:
    """Each gets its own process."""

    def ask(number: int) -> tuple[int, list[str]]:
        with reported_by(number) as (started, told):
            return started.process.pid, told["arguments"]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, range(32)))

    assert len({pid for pid, _ in found}) == 32
    assert [arguments for _, arguments in found] == [[str(number)] for number in range(32)]


ASKS = """
import os, sys
from penstock.server.processes.start import start

kept = []
while True:
    kept.append(start("e2e.zygote_task"))
    print(kept[-1].process.pid, flush=True)
"""


@pytest.mark.parametrize("count", [1, 2, 5])
def test_processes_end_with_the_one_that_has_started_them(count: int) -> None:
    """However it ends, and in the middle of a start too; so does its zygote."""
    asking = subprocess.Popen(
        [sys.executable, "-c", ASKS],
        env={**ENVIRONMENT, MARK: f"test {os.getpid()} {count}"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert asking.stdout is not None
    with asking.stdout:
        for _ in range(count):
            assert asking.stdout.readline()
        assert marked(count)
        asking.kill()
        asking.wait()

    eventually(lambda: not marked(count), DEADLINE_S, "all of them have ended")


MARK = "PENSTOCK_TEST_MARK"


def marked(count: int) -> list[int]:
    """Return the processes that live and were started with a mark in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            there = (
                f"{MARK}=test {os.getpid()} {count}".encode() in (folder / "environ").read_bytes()
            )
        except OSError:
            continue
        if there and state(int(folder.name)) not in ("Z", None):
            found.append(int(folder.name))
    return found


def test_signals_of_a_terminal_end_none_of_them() -> None:
    """Ctrl-C and SIGTERM reach whole groups, and are the asking process's to handle."""
    with reported_by() as (started, _):
        for number in (signal.SIGINT, signal.SIGTERM):
            for pid in (*zygotes(), started.process.pid):
                os.kill(pid, number)

        with reported_by():
            assert started.process.poll() is None


async def test_a_node_that_can_start_no_worker_says_why(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the system says; or, where an installation is broken, the zygote on standard error."""
    monkeypatch.setattr("penstock.server.processes.start._modules", ["penstock.server.not_there"])
    monkeypatch.setenv("SOMEBODY_SAID", "this")
    node = Node({}, MemoryStore(), workers=1, bound_bytes=0)

    with pytest.raises(Internal, match="the process that forks others has ended"):
        await node.start()

    await node.close()
    assert "No module named 'penstock.server.not_there'" in capfd.readouterr().err
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    node = Node({}, MemoryStore(), workers=1, bound_bytes=0)
    with pytest.raises(Internal, match=r"cannot be started: .* '/nonexistent/python'"):
        await node.start()
    await node.close()
