"""What tests of several folders share."""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from harness import ENVIRONMENT
from penstock.server.sources.catalog import VARIABLE

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


LONGEST = (
    "test_frameworks",
    "test_commands_init_check_show",
    "test_index_ray",
    "test_hung_item",
    "test_bad_items",
    "test_examples",
    "test_demo",
    "test_kill_run",
    "test_readme",
    "test_same_host",
    "test_client_interrupts",
    "test_every_pair",
    "test_index_command",
    "test_planned",
    "test_matrix",
    "test_damaged_files",
)
"""Files that take longest, the longest one first: each runs in one process of several, and the
others would wait at the end for one that began last. A name that is missing here costs seconds."""


HERE = Path(__file__).parent
THOROUGH = frozenset(HERE.joinpath("thorough.txt").read_text().splitlines())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what only `make test-all` runs."""
    name = item.nodeid.removeprefix("tests/")
    if name in THOROUGH or name.partition("[")[0] in THOROUGH:
        item.add_marker("thorough")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; the order of the rest, and within files, is random."""
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


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
