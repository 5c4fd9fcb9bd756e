"""Roles that speak on their worker's own socket: they cost the worker and blame their item."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness import Server, serving, write_job_file
from penstock.wire.errors import WorkerCrashed

ROLES = '''
import ctypes
import os
import stat
import struct
import sys

import msgspec
from penstock.server.roles import RawItemProcessor


def speak(data):
    """Write to the worker's own socket: it has no other."""
    for fd in range(3, 100):
        try:
            is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        except OSError:
            continue
        if is_socket:
            os.write(fd, data)


def message(rows):
    data = msgspec.msgpack.encode(rows)
    return struct.pack("<I", len(data)) + data


class Forks(RawItemProcessor):
    """fork() returns twice, and both processes go on."""

    def process(self, raw, context):
        if raw["n"] == 2:
            os.fork()
        return {"n": raw["n"]}


class ForksNatively(RawItemProcessor):
    """The same in native code: Python does not hear of it."""

    def process(self, raw, context):
        if raw["n"] == 2:
            ctypes.PyDLL(None).fork()
        return {"n": raw["n"]}


class Garbage(RawItemProcessor):
    def process(self, raw, context):
        if raw["n"] == 2:
            speak(b"\\xff" * 100)
        return {"n": raw["n"]}


class AnswersForOthers(RawItemProcessor):
    def process(self, raw, context):
        if raw["n"] == 2:
            speak(message([["Done", 123456, None, b"", None, {}, False, [], {}]]))
        return {"n": raw["n"]}


class Exits(RawItemProcessor):
    def process(self, raw, context):
        if raw["n"] == 2:
            os._exit(3)
        return {"n": raw["n"]}


class ExitsAtStart(RawItemProcessor):
    """Its constructor ends a worker, and not the server process."""

    def __init__(self):
        if sys.argv[0].endswith("worker_main.py"):
            os._exit(4)

    def process(self, raw, context):
        return {"n": raw["n"]}


class Crashes(RawItemProcessor):
    def process(self, raw, context):
        if raw["n"] == 2:
            os.kill(os.getpid(), 11)
        return {"n": raw["n"]}
'''

HOW = {
    "Garbage": "for what it said on its socket (ProtocolError: ",
    "AnswersForOthers": "its ticket is 123456",
    "Exits": "with exit status 3: a role ended the process",
    "Crashes": "killed by signal SIGSEGV: a crash in native code",
}
AT_ONCE = {"ExitsAtStart": "with exit status 4"}
FORKS = ["Forks", "ForksNatively"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node of one worker."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    (folder / "roles.py").write_text(ROLES)
    job: dict[str, Any] = {
        "source": {"type": "items", "items": [{"n": n} for n in range(6)]},
        "distributor": {"type": "map", "shuffle": "none"},
        "lanes": 1,
        "batch_size": 1,
    }
    jobs = {
        name: {**job, "processor": {"type": f"./roles.py:{name}"}}
        for name in [*HOW, *AT_ONCE, *FORKS]
    }
    with serving(write_job_file(folder / "penstock.yaml", {**jobs, "good": job})) as server:
        yield server


@pytest.mark.parametrize("name", HOW)
def test_a_role_that_ends_its_worker_stops_its_lane_by_name(node: Server, name: str) -> None:
    """Whatever a worker says or does costs the worker and blames the item: other jobs go on."""
    reader = node.read(name, horizon=6)
    got = [one.header.position for one in reader.take(2)]
    with pytest.raises(WorkerCrashed) as caught:
        reader.take(1)

    assert "offset 2" in caught.value.message
    assert HOW[name] in caught.value.message
    assert got == [0, 1]
    assert node.process.poll() is None
    assert len(node.read("good", horizon=3).take(3)) == 3


@pytest.mark.parametrize("name", AT_ONCE)
def test_a_role_that_ends_its_worker_before_its_first_item_is_named(
    node: Server, name: str
) -> None:
    """A worker that cannot even begin is not replaced for ever."""
    with pytest.raises(WorkerCrashed) as caught:
        node.read(name, horizon=6).take(1)

    assert "stage setup" in caught.value.message
    assert AT_ONCE[name] in caught.value.message
    assert len(node.read("good", horizon=3).take(3)) == 3


@pytest.mark.parametrize("name", FORKS)
def test_a_fork_that_comes_back_changes_nothing(node: Server, name: str) -> None:
    """The child that comes out of a role is ended; its parent answers, once."""
    got = [one.header.position for one in node.read(name, horizon=6).take(6)]

    assert got == list(range(6))
    assert node.process.poll() is None
