"""What people get wrong, through the real commands: one sentence with value, place and remedy.

Each case looks at what a person sees: the exit status, one line on stderr that ends in a stable
code, and no traceback of ours. A case of each kind runs in a process of its own, as a user's does.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness import (
    ENVIRONMENT,
    Server,
    call_command,
    kill_process,
    run_command,
    serving,
    write_job_file,
)
from invariants import eventually
from penstock.client import Loader
from penstock.wire.errors import (
    BadItem,
    InvalidJob,
    InvalidRequest,
    JobChanged,
    OtherStore,
    PenstockError,
    SourceChanged,
)

DEADLINE_S = 30.0

ROLES = """\
import json


def parse(raw):
    return json.loads("{" + raw["text"])


def to_sample(raw):
    return {"input_ids": parse(raw)}


def number(raw):
    return 7


def nothing(raw):
    return None
"""

GOOD: dict[str, Any] = {
    "lanes": 2,
    "batches_per_step": 4,
    "source": {"type": "parquet", "files": "data.parquet", "columns": ["text", "input_ids"]},
    "batcher": {"type": "best_fit", "max_tokens": 16, "pool_size": 4},
    "collator": {"type": "packed"},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and with roles."""
    folder = tmp_path_factory.mktemp("home")
    ids = [[n, n + 1, n + 2] for n in range(40)]
    table = pa.table({"text": [str(n) for n in range(40)], "input_ids": ids})
    pq.write_table(table, folder / "data.parquet", row_group_size=8)
    (folder / "roles.py").write_text(ROLES)
    return folder


def seen(ended: subprocess.CompletedProcess[str], command: str) -> str:
    """Return the one sentence that a command ended with; fail where it is more than that.

    A node that logs JSON, as it does where nobody watches, says it in its log.
    """
    assert ended.returncode != 0, f"it exits with 0 and says {ended.stdout}"
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    line = str(json.loads(line)["event"]) if line.startswith("{") else line
    assert line.startswith(f"{command}: error: ")
    assert line.endswith("]"), "it ends in its code"
    return line


def penstockd(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return call_command("penstockd", *arguments, folder=home)


def alone(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `penstockd` in a process of its own."""
    return run_command(["penstock.server.cli", *arguments], folder=home)


# --- job files ------------------------------------------------------------------------------------


def test_serve_refuses_a_job_file_that_does_not_hold_together(home: Path) -> None:
    """Before anything listens; what is said of which mistake is in `e2e/test_error_sentences`."""
    file = write_job_file(home / "key.yaml", {"main": {**GOOD, "sed": 7}})

    ended = alone(home, "serve", file.name, "--store", "sqlite:///key.db")

    assert ended.returncode == 2
    assert re.fullmatch(
        rf"penstockd: error: {file.name}:\d+: jobs\.main\.sed is not a key of jobs\.main: "
        r"did you mean seed\? \[invalid_job\]",
        seen(ended, "penstockd"),
    )


def test_check_names_the_job_whose_batch_fails(home: Path) -> None:
    """Where a file holds many jobs, the sentence says which one."""
    file = write_job_file(
        home / "pad.yaml",
        {"good": GOOD, "narrow": {**GOOD, "collator": {"type": "packed", "pad_to": 4}}},
    )

    ended = penstockd(home, "check", file.name, "--json", "--items", "4", "--batches", "1")

    assert ended.returncode == 2
    [line] = ended.stderr.splitlines()
    assert "job 'narrow', lane 0, offset 0: row 0 has" in line
    assert [job["ok"] for job in json.loads(ended.stdout)["jobs"]] == [True, False]


def test_a_users_exception_shows_the_users_frames_alone(home: Path) -> None:
    """Their lines are shown, frames of libraries are counted, and none of ours is there."""
    file = write_job_file(
        home / "raises.yaml", {"main": {**GOOD, "function": "roles.py:to_sample"}}
    )
    file.write_text(file.read_text().replace("roles.py:", "./roles.py:"))

    ended = alone(home, "check", file.name, "main", "--items", "4", "--batches", "1")

    assert ended.returncode == 2
    lines = ended.stderr.splitlines()
    assert lines[0] == "Traceback of your code (most recent call last):"
    frames = [line.strip() for line in lines if line.startswith("  File ")]
    roles = home / "roles.py"
    assert frames == [
        f'File "{roles}", line 9, in to_sample',
        f'File "{roles}", line 5, in parse',
    ]
    assert sum("... in libraries" in line for line in lines) == 1
    assert lines[-1].startswith("penstockd: error: item main[")
    assert lines[-1].endswith("[bad_item]")


# --- addresses ------------------------------------------------------------------------------------

ADDRESSES = [
    ("127.0.0.1", "give an address: host:port or unix:/path"),
    ("192.0.2.1:50051", "give an address of this machine as --listen"),
    ("unix:{home}/data.parquet", "a file that is not a socket lies there, and it is left alone"),
    ("unix:{home}/none/node.sock", "none is not a folder that this process may write to"),
    ("unix:{home}/" + "x" * 120, "is longer than the 100 bytes that the system allows"),
]


@pytest.mark.parametrize(("listen", "says"), ADDRESSES)
def test_an_address_that_cannot_be_bound_is_refused(home: Path, listen: str, says: str) -> None:
    """With the system's reason, nothing of gRPC's own log, and no file of the user's removed."""
    file = write_job_file(home / "listen.yaml", {"main": GOOD})
    data = (home / "data.parquet").read_bytes()

    ended = alone(
        home,
        *("serve", file.name, "--store", "sqlite:///listen.db"),
        *("--listen", listen.replace("{home}", str(home))),
        *("--insecure", "true"),
        *("--log-level", "warning"),  # that it made a store is no part of this
    )

    assert ended.returncode == 2
    assert says in seen(ended, "penstockd")
    assert (home / "data.parquet").read_bytes() == data


# --- a running node -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    """A node with jobs that are right and jobs whose mistakes show when they are read."""
    jobs: dict[str, Any] = {
        "main": GOOD,
        "raises": {**GOOD, "function": "./roles.py:to_sample"},
        "number": {**GOOD, "function": "./roles.py:number"},
        "starved": {**GOOD, "function": "./roles.py:nothing"},
        "far": {**GOOD, "max_replay": 10},
        "finite": {
            "lanes": 3,
            "epochs": 1,
            "source": {"type": "items", "items": list(range(20))},
            "batch_size": 2,
        },
    }
    with serving(write_job_file(home / "served.yaml", jobs)) as running:
        yield running


BIG = str(2**63)

CALLS: list[tuple[list[str], str, str]] = [
    (["cat", "@", "man"], "there is no job 'man': did you mean main?", "unknown_job"),
    (
        ["cat", "@", "main", "--rank", "4", "--world-size", "4"],
        "rank 4 is not one of 4 ranks",
        "rank_out_of_range",
    ),
    (
        ["cat", "@", "main", "--rank", "0", "--world-size", "3"],
        "cannot be shared evenly by 3 ranks: use batches_per_step 3 or 6, or 2 ranks;",
        "uneven_step",
    ),
    (["cat", "@", "finite", "--from-step", "99"], "step 99 lies past the end", "past_end"),
    (
        ["cat", "@", "finite", "--from-position", "99", "--batches-per-step", "4"],
        "position 99 lies past the end",
        "past_end",
    ),
    (
        ["cat", "@", "finite", "--from-step", "99", "--group", "g", "--commit"],
        "step 99 lies past the end",
        "past_end",
    ),
    (["cat", "@", "far", "--from-position", "999"], "max_replay = 10", "position_far"),
    (["cat", "@", "far", "--from-step", str(2**62)], "lies beyond position", "invalid_request"),
    (["cat", "@", "main", "--group", "nobody"], "has no group 'nobody'", "unknown_group"),
    (["cat", "@", "number", "--count", "1"], "number returned int; return a dict", "bad_item"),
    (["cat", "@", "starved"], "items in a row without one sample (drawn: ", "lane_starved"),
    (["cat", "local:none.yaml", "main"], "/none.yaml': name one, or write", "invalid_job"),
    (["cat", "spawn:none.yaml", "main"], "did not start: there is no job file", "invalid_job"),
    (["cat", "@", "main", "--group", "a\nb", "--commit"], r"group='a\nb'", "invalid_request"),
    (["cursors", "@", "main", "--group", "nobody", "restore", "c"], "'nobody'", "unknown_group"),
]


@pytest.mark.parametrize(
    ("arguments", "says", "code"), CALLS, ids=[" ".join(case[0]) for case in CALLS]
)
def test_a_call_that_cannot_be_is_one_sentence(
    server: Server, arguments: list[str], says: str, code: str
) -> None:
    """From `penstock`: the node's sentence and code; the exit status is not 0."""
    given = [server.address if part == "@" else part for part in arguments]

    if code == "unknown_job":
        ended = run_command(["penstock.client.cli", *given])
    else:
        ended = call_command("penstock", *given)

    line = seen(ended, "penstock")
    assert says in line
    assert line.endswith(f"[{code}]")


@pytest.mark.parametrize(
    "arguments",
    [
        ["cursors", "@", "main", "--group", "g", "seek", "--to-step", BIG],
        ["cat", "@", "main", "--from-step", BIG],
        ["cat", "@", "main", "--batches-per-step", BIG],
    ],
)
def test_a_number_beyond_every_position_is_a_mistake_in_the_call(
    server: Server, arguments: list[str]
) -> None:
    """It is refused before anything is sent, with the limit."""
    given = [server.address if part == "@" else part for part in arguments]

    ended = call_command("penstock", *given)

    assert ended.returncode == 2
    assert f"{BIG} is above {2**63 - 1}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_users_exception_reaches_cat_and_the_trainers_log(server: Server) -> None:
    """The user's own lines stand in what `penstock cat` prints and below an uncaught error."""
    cat = run_command(["penstock.client.cli", "cat", server.address, "raises"])
    train = (
        "from penstock.client import Loader\n"
        f"for batch in Loader({server.address!r}, 'raises', as_numpy=True): pass\n"
    )

    trainer = subprocess.run(
        [sys.executable, "-c", train],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    for ended in (cat, trainer):
        assert ended.returncode == 1
        assert 'roles.py", line 5, in parse' in ended.stderr
        assert 'return json.loads("{" + raw["text"])' in ended.stderr
    assert cat.stderr.splitlines()[-1].endswith("[bad_item]")
    assert "penstock/server" not in cat.stderr
    logged = server.events("a batch cannot be made", at_least=1, job="raises")
    assert "line 5, in parse" in logged[0]["traceback"]


def test_the_loader_refuses_what_cannot_be_sent(server: Server) -> None:
    """Numbers and names that fit no message are InvalidRequest, and not an error of protobuf."""
    for options in (
        {"start": 2**63},
        {"batches_per_step": 2**63},
        {"group": "\ud800"},
        {"group": 5},
        {"group": "g", "attempt": 5},
    ):
        with pytest.raises(InvalidRequest):
            Loader(server.address, "main", as_numpy=True, **options)

    with Loader(server.address, "main", as_numpy=True, group="numbers") as loader:
        next(iter(loader))
        calls: list[tuple[Any, Any]] = [
            (loader.commit, 2**63),
            (loader.commit, -1),
            (loader.seek, "3"),
            (loader.mark, 0.5),
        ]
        for call, value in calls:
            with pytest.raises(InvalidRequest, match=call.__name__):
                call(value)
        with pytest.raises(InvalidRequest, match="checkpoint"):
            loader.checkpoint("c", 2**63)
        assert loader.commit() == 0


# --- another job, another store -------------------------------------------------------------------


def test_a_changed_job_is_refused_with_what_differs(tmp_path: Path) -> None:
    """To read, to look and to resume alike; a state of it too. The group stays as it was."""
    items = {"type": "items", "items": [{"input_ids": [n] * 3} for n in range(40)]}
    file = write_job_file(tmp_path / "jobs.yaml", {"main": {**GOOD, "source": items}})
    with serving(file) as server:
        with Loader(
            server.address, "main", as_numpy=True, group="run", deadline_s=DEADLINE_S
        ) as one:
            for step in one.steps():
                list(step)
                if step.index == 2:
                    break
            one.commit()
            state = one.state_dict()
        server.terminate()
        changed = {**GOOD, "source": items, "seed": 8}
        write_job_file(file, {"main": changed})
        server.start()

        cat = ["penstock", "cat", server.address, "main", "--group", "run"]
        reads = call_command(*cat, "--commit")
        looks = call_command(*cat)
        other = Loader(server.address, "main", as_numpy=True, group="run", start="state")
        with other, pytest.raises(JobChanged, match="serve the job as it was"):
            other.load_state_dict(state)
        shown = call_command(
            *("penstock", "cursors", server.address, "main", "--group", "run", "show", "--json")
        )

    assert "group 'run' stands at step 3 of another job 'main': seed: 0 → 8." in seen(
        reads, "penstock"
    )
    line = seen(looks, "penstock")
    assert "group 'run' stands at step 3 of log" in line
    assert line.endswith("[job_changed]")
    assert json.loads(shown.stdout)["cursor"] == 3


def test_an_empty_store_is_not_taken_for_a_fresh_start(tmp_path: Path) -> None:
    """A state from a store that was lost is refused by name, unless a start is named."""
    file = write_job_file(tmp_path / "jobs.yaml", {"main": {**GOOD, "source": _numbers()}})
    with serving(file) as server:
        with Loader(server.address, "main", as_numpy=True, group="run") as one:
            next(one.steps())
            state = one.state_dict()
        server.terminate()
        for path in tmp_path.glob("penstock.db*"):
            path.unlink()
        server.start()

        other = Loader(server.address, "main", as_numpy=True, group="run", start="state")
        with other, pytest.raises(OtherStore, match="give the server its store back"):
            other.load_state_dict(state)
        with Loader(
            server.address, "main", as_numpy=True, group="run", start=state["step"]
        ) as again:
            again.load_state_dict(state)
            assert next(iter(again)).step == state["step"]


def test_a_damaged_store_is_named_in_one_sentence(tmp_path: Path) -> None:
    """Cut, overwritten, another program's, a folder, of a newer penstock: refused, left alone."""
    file = write_job_file(tmp_path / "jobs.yaml", {"main": {**GOOD, "source": _numbers()}})
    with serving(file) as server:
        with Loader(server.address, "main", as_numpy=True, group="run") as one:
            next(one.steps())
        server.terminate()
    whole = (tmp_path / "penstock.db").read_bytes()
    torn = bytearray(whole)
    for start in range(4096, len(torn), 4096):
        torn[start : start + 200] = b"\xff" * 200
    (tmp_path / "cut.db").write_bytes(whole[:3000])
    (tmp_path / "torn.db").write_bytes(bytes(torn))
    (tmp_path / "newer.db").write_bytes(whole)
    for name, sql in (("newer", "PRAGMA user_version = 99"), ("foreign", "CREATE TABLE t (x)")):
        connection = sqlite3.connect(tmp_path / f"{name}.db")
        connection.execute(sql)
        connection.commit()
        connection.close()
    (tmp_path / "folder.db").mkdir()

    for name, says in (
        ("cut", "is damaged"),
        ("torn", "is damaged"),
        ("newer", "has format 99"),
        ("foreign", "not a penstock store"),
        ("folder", "is a folder"),
    ):
        path = tmp_path / f"{name}.db"
        before = path.read_bytes() if path.is_file() else None
        ended = penstockd(tmp_path, "serve", file.name, "--store", f"sqlite:///{name}.db")
        line = seen(ended, "penstockd")
        assert says in line
        assert str(path) in line
        assert line.endswith("[store_corrupt]")
        assert before is None or path.read_bytes() == before


def _numbers() -> dict[str, Any]:
    return {"type": "items", "items": [{"input_ids": [n] * 3} for n in range(40)]}


def test_every_named_error_shows_its_frames_once() -> None:
    """An error that was rebuilt, as a pickle or from the wire, notes the user's frames like new."""
    error = BadItem("item 3 fails", traceback='  File "roles.py", line 5\nValueError: 3')

    again: PenstockError = type(error)(error.message, **error.fields)

    assert again.__notes__ == error.__notes__ == [error.fields["traceback"]]
    assert not hasattr(BadItem("item 3 fails", traceback="ValueError: 3"), "__notes__")


def test_files_that_went_away_are_waited_for_and_changed_ones_are_named_to_every_lane(
    tmp_path: Path, home: Path
) -> None:
    """By workers that start anew, too; when the file is back as it was, reading goes on."""
    data, kept = tmp_path / "data.parquet", tmp_path / "kept"
    data.write_bytes((home / "data.parquet").read_bytes())
    file = write_job_file(tmp_path / "jobs.yaml", {"main": GOOD})
    with serving(file) as server:
        first = server.read("main", horizon=8).take(8)
        data.rename(kept)
        _restart_workers(server)
        # It makes these, others it may have kept; and it has read before: a new one is refused.
        reader = server.read("main", start=40, horizon=48, given_from=0)
        eventually(
            lambda: any(worker["stage"] == "retrying" for worker in server.status()["workers"]),
            DEADLINE_S,
            "a worker waits for the file",
        )
        kept.rename(data)
        assert len(reader.take(8)) == 8
        assert server.read("main", horizon=8).take(8) == first

        data.rename(kept)
        ids = [[n] * 3 for n in range(40)]
        table = pa.table({"text": [str(n) for n in range(40)], "input_ids": ids})
        pq.write_table(table, data)
        _restart_workers(server)
        for lane in range(2):
            reader = server.read("main", lanes=[lane], start=100, horizon=104, given_from=0)
            with pytest.raises(PenstockError, match="changed"):
                reader.take(1)
        assert "a bug" not in "".join(server.lines)


@pytest.mark.parametrize("group", [None, "run"])
def test_a_run_that_begins_is_told_at_once_which_file_is_missing_or_another(
    tmp_path: Path, home: Path, group: str | None
) -> None:
    """It has nothing to wait for, and no generation begins; with the file as it was one does."""
    data, kept = tmp_path / "data.parquet", tmp_path / "kept"
    data.write_bytes((home / "data.parquet").read_bytes())
    file = write_job_file(tmp_path / "jobs.yaml", {"main": GOOD})

    def first(address: str) -> int:
        with Loader(address, "main", group=group, rank=0, world_size=1, as_numpy=True) as loader:
            return int(next(iter(loader)).position)

    with serving(file) as server:
        data.rename(kept)
        with pytest.raises(SourceChanged, match=re.escape(f"{data} is not there any more: put it")):
            first(server.address)
        pq.write_table(pa.table({"text": ["1"], "input_ids": [[1]]}), data)
        with pytest.raises(SourceChanged, match=re.escape(f"{data} changed under an open source")):
            first(server.address)
        assert server.events("generation began") == []
        kept.rename(data)
        assert first(server.address) == 0

    data.unlink()
    ended = penstockd(tmp_path, "serve", file.name)
    assert ended.returncode == 2
    assert f"no file matches '{data}'" in seen(ended, "penstockd")
    with pytest.raises(InvalidJob, match=re.escape(f"no file matches '{data}'")):
        first(f"local:{file}")


def _restart_workers(server: Server) -> None:
    before = set(server.worker_pids())
    for pid in before:
        assert kill_process(pid)
    eventually(
        lambda: (now := set(server.worker_pids())) != set() and not now & before,
        DEADLINE_S,
        "the workers are back",
    )


def test_a_command_alone_prints_its_help() -> None:
    """On stderr and with a status that is not 0: nothing was done."""
    for module in ("penstock.server.cli", "penstock.client.cli"):
        ended = run_command([module])

        assert ended.returncode == 2
        assert ended.stderr.lower().startswith("usage: penstock")
        assert ended.stdout == ""
