"""What tests of several folders share."""

from __future__ import annotations

import gc
import multiprocessing.util
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from harness import ENVIRONMENT
from penstock.server.files.catalog import VARIABLE
from penstock.server.processes import start as processes

pytest.register_assert_rewrite("penstock.server.testing.store")  # its asserts say what they found

# What a developer's shell says of Python is not for the processes that tests start. Unbuffered, a
# line is two writes, and lines of ranks that share a pipe run into each other; without bytecode,
# each compiles penstock anew, which takes longer than most of what it does.
for _name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(_name, None)

# A shell without job control lets what it starts in the background ignore Ctrl-C, and so do the
# processes that tests start from there: those that are to be interrupted would never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine may be busy: how long an example takes says nothing.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")

HERE = Path(__file__).parent
THOROUGH = frozenset(HERE.joinpath("thorough.txt").read_text().splitlines())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what only `make test-all` runs."""
    name = item.nodeid.removeprefix("tests/")
    if name in THOROUGH or name.partition("[")[0] in THOROUGH:
        item.add_marker("thorough")


# --- a library that a test uses changes nothing that all later processes inherit ---


@pytest.fixture(autouse=True)
def scheduled_as_before() -> Iterator[None]:
    """Let a test fail that leaves its process with another priority.

    An encoder of videos made it a real-time one, and all that later tests started, too: now and
    then these left no time to the rest of the machine, for an hour.
    """
    before = os.sched_getscheduler(0), os.nice(0)
    yield
    assert (os.sched_getscheduler(0), os.nice(0)) == before


# --- `unit/` starts no process ---

STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})

STARTERS = frozenset({
    "unit/test_client_background.py::test_a_process_that_ends_does_it_without_a_thread",
    "unit/test_client_ranks.py::test_processes_of_torch_distributed_share_a_token_and_sum_over_all",
    "unit/test_client_cursor.py::test_what_no_reader_could_be_given_is_refused_wherever_a_step_is_named",
    "unit/test_client_reading.py::test_a_batch_says_of_which_epoch_it_is",
})  # fmt: skip
"""Those that do, in files of which they are a small part. No more are added."""

_starts_none = False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test of `unit/` fail that starts a process."""
    global _starts_none
    name = item.nodeid.removeprefix("tests/")
    _starts_none = name.startswith("unit/") and name not in STARTERS
    try:
        return (yield)
    finally:
        _starts_none = False


LOOKS_FOR_LIBRARIES = "/sbin/ldconfig"
"""What ctypes runs for packages that look for a library as they are imported, such as cupy."""


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if _starts_none and event in STARTS and arguments[:1] != (LOOKS_FOR_LIBRARIES,):
        raise AssertionError("a test of unit/ starts a process: move it to e2e/")


def _watched(start: Callable[..., Any]) -> Callable[..., Any]:
    def watched(*arguments: Any) -> Any:
        sys.audit("os.fork")
        return start(*arguments)

    return watched


sys.addaudithook(_watch)
# These let another process fork, or tell nobody.
processes._fork = _watched(processes._fork)
multiprocessing.util.spawnv_passfds = _watched(multiprocessing.util.spawnv_passfds)  # type: ignore[attr-defined]


def pytest_sessionstart() -> None:
    """Find no garbage while tests are collected: there are only modules and functions."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave out of every later search for garbage what is there now, and stays: 0.2 s each."""
    global _KNOWN
    gc.collect()
    gc.freeze()
    gc.enable()
    _KNOWN = len(sys.modules)


_KNOWN = 0
"""Modules that were there when garbage was last left out."""

MANY = 200
"""Modules that a file may import before what they hold is left out, too."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Leave out what tests have imported since, between two files: it grows to 1 s each."""
    global _KNOWN
    if nextitem is not None and nextitem.path != item.path and len(sys.modules) > _KNOWN + MANY:
        pytest_collection_finish()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which roles were resumed with which others, if any were: see `resume.table`."""
    from resume.table import of_reports, table

    reports = (*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed"))
    resumed = of_reports([dict(report.user_properties) for report in reports])
    if resumed:
        terminalreporter.section("resume: roles by roles")
        for line in table(resumed):
            terminalreporter.line(line)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the sockets of `spawn:` nodes: their paths may have 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="pst-") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.fixture(scope="session", autouse=True)
def hash_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of this run for hashes of data files: tests neither find nor leave any."""
    folder = tmp_path_factory.mktemp("hashes")
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ENVIRONMENT[VARIABLE] = str(folder)
    yield folder
    if before is None:
        del os.environ[VARIABLE]
    else:
        os.environ[VARIABLE] = before
