"""What the log of a node says to those who read nothing else, and what its groups come to."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness import (
    ENVIRONMENT,
    Rank,
    Server,
    call_command,
    kill_process,
    refused,
    serving,
    write_job_file,
)
from invariants import eventually
from penstock.client import Loader
from penstock.wire import PROTOCOL
from penstock.wire.errors import (
    PenstockError,
    StaleGeneration,
    StepSizeMismatch,
    StoreUnavailable,
    UnknownGroup,
)
from penstock.wire.v1 import cursors_pb2

DEADLINE_S = 90.0

JOB: dict[str, Any] = {
    "lanes": 3,
    "batches_per_step": 4,
    "source": {"type": "items", "items": [{"x": n} for n in range(20)]},
    "batch_size": 2,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node that all tests share."""
    folder = tmp_path_factory.mktemp("log")
    with serving(write_job_file(folder / "jobs.yaml", {"code": JOB}, workers=2)) as running:
        yield running


def cursors(server: Server, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call_command("penstock", "cursors", server.address, "code", *arguments)


def of(events: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(event.get(name) for name in names) for event in events]


def test_a_run_that_cannot_begin_is_told(server: Server) -> None:
    """Its own log has the sentence too, and may lie on a machine that is gone."""
    options: dict[str, Any] = {"group": "misfit", "as_numpy": True}
    with Loader(server.address, "code", **options) as loader:
        next(iter(loader))
    with (
        Loader(server.address, "code", batches_per_step=6, **options) as loader,
        pytest.raises(StepSizeMismatch) as caught,
    ):
        next(iter(loader))

    [told] = server.events("a run was refused", 1, group="misfit")
    assert of([told], "job", "rank", "code", "error", "level") == [
        ("code", 0, "step_size_mismatch", caught.value.message, "warning")
    ]


def test_a_run_can_be_followed_in_the_log(server: Server, tmp_path: Path) -> None:
    """Who began what and from where, who reads, who was fenced by whom, how far all came."""
    [ready] = server.events("ready")
    rank = Rank(
        server.address,
        tmp_path / "rank",
        *("code", "--group", "run", "--commit", "--attempt", "one", "--json"),
    )
    try:
        eventually(lambda: len(rank.records()) > 20, DEADLINE_S, "a rank reads")
        status = server.status()["jobs"][0]
        moved = cursors(server, "--group", "run", "seek", "--to-step", "3", "--json")
        assert rank.wait() == 1
    finally:
        rank.kill()
    with Loader(server.address, "code", group="run", start=2, as_numpy=True) as loader:
        assert next(iter(loader)).position == 8
    with Loader(server.address, "code", group="run", as_numpy=True) as loader:
        assert next(iter(loader)).position == 8

    owner = json.loads(moved.stdout)
    assert owner["step"] == 3
    assert ready["store"] == str((Path(str(server.file)).parent / "penstock.db").resolve())
    began = server.events("generation began", 3, group="run")
    number = began[0]["generation"]
    [left] = server.events("reader left", 1, group="run", generation=number)
    [joined] = server.events("reader joined", 1, group="run", generation=number)
    [fenced] = server.events("readers fenced", 1, group="run")
    assert of([joined], "job", "rank", "world_size", "position") == [("code", 0, 1, 0)]
    assert joined["peer"].startswith("ipv4:127.0.0.1:")
    assert left["why"] == "fenced"
    # What was on its way when the call ended counts as given, and not as sent.
    assert left["position"] >= left["sent_batches"] > 20
    assert of(began, "generation", "start_step", "start") == [
        (number, 0, "a new group"),
        (number + 2, 2, "start="),
        (number + 3, 2, f"the cursor of generation {number + 2}"),
    ]
    assert began[0]["world_size"] == 1
    assert of([fenced], "readers", "generation", "current") == [(1, number, number + 1)]
    assert fenced["by"] == server.events("cursor moved", 1, group="run")[0]["by"]
    assert server.events("cursor committed") == [], "each commit would be too much"
    [reader] = status["groups"]
    assert 0 < status["cursors"]["run"] <= reader["next"] // reader["batches_per_step"]
    assert server.events("reader left", 3, group="run")[-1]["why"] == "hung up"


def test_a_flood_of_readers_is_bounded_in_the_log(tmp_path: Path) -> None:
    """Forty ranks come and go: eight lines of each kind, and the others in sums.

    A sum is told after ten seconds (`unit/test_event_log.py`), or here when the node ends.
    """
    whole = {"world_size": 40, "batches_per_step": 40, "group": "many", "horizon": 80}
    with serving(write_job_file(tmp_path / "jobs.yaml", {"code": JOB})) as server:
        before = len(server.lines)
        ranks = [server.read("code", rank=rank, **whole) for rank in range(40)]
        for reader in ranks:
            reader.take(1)
            reader.cancel()
        eventually(lambda: not server.status()["jobs"][0]["groups"], DEADLINE_S, "all have gone")
        assert server.terminate() == 0
        [joined] = server.events("readers joined", 1, group="many")

    assert joined["count"] == 32
    assert len(server.events("reader joined", 8, group="many")) == 8
    assert len(server.lines) - before < 40


def test_a_worker_that_was_replaced_is_told(server: Server) -> None:
    """Its death is a warning, and that all is well again is a line, too."""
    [pid, _] = server.worker_pids()
    kill_process(pid)

    [replaced] = server.events("a worker was replaced", 1)

    assert replaced["pid"] in server.worker_pids()
    assert replaced["after_s"] > 0
    assert server.events("a worker died", pid=pid)


def test_a_store_that_fails_is_told_once_and_once_that_it_is_back(tmp_path: Path) -> None:
    """However many calls fail meanwhile; with the file's place, and how long it was away.

    The node's disk is full: no file may grow.
    """
    file = write_job_file(tmp_path / "jobs.yaml", {"code": JOB}, store="sqlite:///p.db")
    begin = cursors_pb2.BeginRequest(protocol=PROTOCOL, job="code", group="g", token="t")
    with serving(file) as server:
        server.cursors.Begin(begin, timeout=DEADLINE_S)
        commit = cursors_pb2.CommitRequest(job="code", group="g", token="t", generation=1, step=1)
        _, most = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, most))
        for _ in range(2):
            assert isinstance(refused(server.cursors.Commit, commit), StoreUnavailable)
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (most, most))
        [back] = server.events("the store is back", 1)
        [fails] = server.events("the store fails")

    assert fails["store"] == back["store"] == str((tmp_path / "p.db").resolve())
    assert "disk" in fails["error"]
    assert back["failed_calls"] == 2
    assert back["after_s"] >= 0


def test_the_console_tells_the_same(tmp_path: Path) -> None:
    """For people at a terminal: one line each, with the same fields."""
    file = write_job_file(tmp_path / "jobs.yaml", {"code": JOB}, listen=f"unix:{tmp_path}/s")
    server = Server(file, "--log-format", "console").start(wait=False)
    try:
        eventually(lambda: any(" ready " in line for line in server.lines), DEADLINE_S, "ready")
        with Loader(f"unix:{tmp_path}/s", "code", group="run", as_numpy=True) as loader:
            next(iter(loader))
        assert server.terminate() == 0
    finally:
        server.close()

    text = "".join(server.lines)
    for event in ("generation began", "reader joined", "reader left"):
        [line] = [line for line in server.lines if event in line]
        assert "group=run" in line
    assert "peer=unix:" in text
    assert "job=code" in text


# --- deleting a group ---


def begin(server: Server, group: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"group": group, "token": "t", "world_size": 1}
    request = cursors_pb2.BeginRequest(protocol=PROTOCOL, job="code", **fields)
    return {**fields, "generation": server.cursors.Begin(request, timeout=DEADLINE_S).generation}


def test_a_group_that_is_read_is_not_deleted_unless_its_readers_are_fenced(server: Server) -> None:
    """The refusal names them; with --fence they end with one error, as do later commits."""
    attempt = begin(server, "mine")
    reader = server.read("code", **attempt, batches_per_step=4, horizon=8)
    reader.take(2)
    looking = server.read("code", group="mine", batches_per_step=4, horizon=8)
    looking.take(2)

    refusal = cursors(server, "delete", "mine", "--yes")
    listed = json.loads(cursors(server, "--json").stdout)
    asked = cursors(server, "delete", "mine", "--fence")
    deleted = cursors(server, "delete", "mine", "--fence", "--yes")
    with pytest.raises(UnknownGroup, match=r"was deleted by .* at step 0, while this attempt"):
        reader.take(9)
    number = attempt["generation"]
    commit = cursors_pb2.CommitRequest(
        job="code", group="mine", token="t", generation=number, step=1
    )
    late = refused(server.cursors.Commit, commit)
    again = cursors(server, "delete", "mine", "--yes")
    looking.cancel()

    assert (refusal.returncode, refusal.stdout) == (1, "")
    assert f"has 1 reader now (generation {number}" in refusal.stderr
    assert "[group_in_use]" in refusal.stderr
    assert [one["readers"] for one in listed if one["group"] == "mine"] == [1]
    assert asked.returncode == 2
    assert "add --yes" in asked.stderr
    assert deleted.stdout == (
        "group 'mine' of job 'code' is deleted; 1 reader ended with an error\n"
    )
    assert isinstance(late, UnknownGroup)
    assert f"generation {number}, is not in the store any more: it was deleted" in str(late)
    assert (again.returncode, "[unknown_group]" in again.stderr) == (1, True)
    [told] = server.events("group deleted", 1, group="mine")
    assert of([told], "readers", "cursor", "generation") == [(1, 0, number)]
    assert server.events("reader left", 1, group="mine", why="unknown_group")


def test_a_trainer_whose_group_was_deleted_ends_with_one_sentence(server: Server) -> None:
    """Its next batch or commit says what happened and what to do."""
    with Loader(server.address, "code", group="gone", attempt="a", as_numpy=True) as loader:
        batches = iter(loader)
        next(batches)
        cursors(server, "delete", "gone", "--yes", "--fence", "--json")

        def train() -> None:
            for _ in batches:
                loader.commit()

        with pytest.raises(PenstockError) as caught:
            train()

    assert caught.value.code == "unknown_group"
    assert "deleted" in caught.value.message
    assert "start the run again" in caught.value.message
    with Loader(server.address, "code", group="gone", as_numpy=True) as loader:
        assert next(iter(loader)).position == 0


def test_who_outlived_a_deleted_group_is_fenced_in_the_next_one(
    server: Server, tmp_path: Path
) -> None:
    """A trainer that was stopped, with the token of the run that took its name, moves nothing."""
    read = ("code", "--group", "zombie", "--commit", "--attempt", "job-7", "--json")
    old = Rank(server.address, tmp_path / "old", *read)
    try:
        eventually(lambda: len(old.records()) > 8, DEADLINE_S, "the first run reads")
        [began] = server.events("generation began", 1, group="zombie")
        generation = began["generation"]
        old.process.send_signal(signal.SIGSTOP)
        cursors(server, "delete", "zombie", "--yes", "--fence")
        new = Loader(server.address, "code", group="zombie", attempt="job-7", as_numpy=True)
        with new:
            first = next(iter(new))
            old.process.send_signal(signal.SIGCONT)
            assert old.wait() == 1
            listed = json.loads(cursors(server, "--group", "zombie", "show", "--json").stdout)
            commit = cursors_pb2.CommitRequest(
                job="code", group="zombie", token="job-7", generation=generation, step=5
            )
            late = refused(server.cursors.Commit, commit)
            new.commit(step=1)
    finally:
        old.kill()

    assert first.position == 0
    assert re.search(r"\[(unknown_group|stale_generation)\]", old.errors())
    assert isinstance(late, StaleGeneration)
    assert (listed["generation"] > generation, listed["cursor"]) == (True, 0)
    begun = server.events("generation began", 2, group="zombie")
    assert begun[1]["start"] == "a new group"
    assert begun[1]["generation"] == listed["generation"]


@pytest.mark.parametrize(("answer", "status"), [("y", 0), ("", 1)])
def test_a_terminal_is_asked_before_a_group_is_deleted(
    server: Server, answer: str, status: int
) -> None:
    """It is told what would be lost; anything but yes leaves all as it was."""
    group = f"asked-{answer}"
    begin(server, group)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "penstock.client.cli", "cursors", server.address, "code"]
    process = subprocess.Popen(
        [*command, "delete", group],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    os.close(theirs)
    os.write(ours, f"{answer}\n".encode())
    out, err = process.communicate(timeout=DEADLINE_S)
    os.close(ours)

    assert process.returncode == status
    assert f"group {group!r} of job 'code': step 0, 0 checkpoints, committed never." in err
    assert err.endswith("Delete it? [y/N] ")
    assert ("is deleted" in out) == (status == 0)
    left = [one["group"] for one in json.loads(cursors(server, "list", "--json").stdout)]
    assert (group in left) == (status == 1)


ROLES = """
import logging
import os
import subprocess
import sys
import warnings


def rows(raw):
    number = raw["n"]
    if number == 7:
        print("printed by a role", file=sys.stderr)
        sys.stderr.write("half of ")
        sys.stderr.write("a line\\n")
        os.write(2, b"of native code \\xff\\x1b[0m\\nwithout an ")
        subprocess.run(["sh", "-c", "echo end >&2; printf 'of a program' >&2"], check=True)
        logging.getLogger("role").warning("logged by a %s", "role")
        warnings.warn("warned by a role", stacklevel=1)
        raise ValueError("no such number:\\nseven")
    return {"x": number}
"""


def test_every_line_of_a_json_log_is_an_event(tmp_path: Path) -> None:
    """Of the server process and its workers, of libraries and roles, while a source fails, too.

    And what opening several data sets took is said at `info`: items, tokens where files tell, ratio
    and seconds of each, and how many were open at once.
    """
    (tmp_path / "roles.py").write_text(ROLES)
    for name, count in (("a", 4), ("b", 8)):
        rows = "".join(json.dumps({"n": n}) + "\n" for n in range(count))
        (tmp_path / f"{name}.jsonl").write_text(rows)
    np.save(tmp_path / "ids.npy", np.arange(35, dtype=np.uint16))
    ids = {"file_name": "ids.npy", "type": "tokens", "options": {"sequence_length": 10}}
    sets = {"a": {"file_name": "a.jsonl", "ratio": 0.5}, "b": {"file_name": "b.jsonl"}}
    (tmp_path / "meta.json").write_text(json.dumps(sets))
    (tmp_path / "more.json").write_text(json.dumps({"ids": ids}))
    jobs = {
        "job": {
            "source": {"type": "meta", "file": "meta.json"},
            "function": "./roles.py:rows",
            "batch_size": 1,
            "lanes": 2,
        },
        "ids": {"source": {"type": "meta", "file": "more.json"}, "batch_size": 1, "lanes": 1},
    }
    file = write_job_file(tmp_path / "jobs.yaml", jobs, workers=2)
    with serving(file) as server:
        with pytest.raises(PenstockError, match="no such number"):
            server.read("job", horizon=60).take(60)
        said = {
            name: server.events(name, 1)[0]
            for name in ("printed by a role", "half of a line", "logged by a role")
        }
        for line in (r"of native code \xff\x1b[0m", "without an end", "of a program"):
            server.events(line, 1, logger="stderr")
        eventually(
            lambda: any("warned by a role" in line for line in server.lines),
            DEADLINE_S,
            "a warning",
        )
        (tmp_path / "b.jsonl").unlink()
        with pytest.raises(PenstockError):
            server.read("job", horizon=9).take(9)
        assert server.terminate() == 0
        lines = list(server.lines)

    events = [json.loads(line) for line in lines]
    assert all({"event", "level", "timestamp"} <= event.keys() for event in events)
    assert of(list(said.values()), "level", "logger") == [
        ("warning", "stderr"),
        ("warning", "stderr"),
        ("warning", "role"),
    ]
    assert [event["error"] for event in events if event["event"] == "a batch cannot be made"]
    seconds = r"\d+\.\d\d s"
    opened = [event for event in events if event["event"].startswith("opened ")]
    assert {event["level"] for event in opened} == {"info"}
    for sentence in (
        rf"opened 2 data sets with 12 items in {seconds}, \d+\.\d at once: ",
        rf"a: 4 items, ratio 0\.5, {seconds};",
        rf"ids: 4 items of 35 tokens, ratio 1, {seconds}",
    ):
        assert any(re.search(sentence, event["event"]) for event in opened), opened
