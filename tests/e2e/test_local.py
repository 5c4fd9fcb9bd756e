"""`local:` computes beside the training process, which keeps its generators and its life."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from harness import ENVIRONMENT, children, kill_process, run_command, write_job_file
from invariants import Purity, eventually
from penstock.client import Loader
from penstock.server.jobs.load import load
from penstock.wire.errors import (
    ForkedLoader,
    InvalidJob,
    InvalidRequest,
    PenstockError,
    UnknownJob,
    WorkerCrashed,
)

ROLES = '''
import ctypes, os, random, sys, time
from pathlib import Path

import numpy as np

from penstock.server.roles import BatchCollator, RawItemProcessor


def augment(raw):
    """Draws from the generators that a training loop draws from, too."""
    return {"x": np.array([raw["x"], random.random(), np.random.rand()])}


def augment_slowly(raw):
    """The same, with time for others to draw between one draw and the next."""
    first = random.random()
    time.sleep(0.001)
    return {"x": np.array([raw["x"], first, random.random(), np.random.rand()])}


def announce(raw):
    print("item", raw["x"])
    return raw


class Slow(RawItemProcessor):
    """Says that it has begun, and holds the interpreter: no thread of its process runs."""

    def __init__(self, begun):
        self.begun = begun

    def process(self, raw, context):
        Path(self.begun).write_text(str(os.getpid()))
        ctypes.PyDLL(None).sleep(60)


class Sleeps(RawItemProcessor):
    """One item takes for ever."""

    def __init__(self, begun):
        self.begun = begun

    def process(self, raw, context):
        if raw["x"] == 40:
            Path(self.begun).write_text("")
            time.sleep(60)
        return raw


class Killed(RawItemProcessor):
    """One item ends its process, as a crash in native code does."""

    def process(self, raw, context):
        if raw["x"] == 5:
            os.kill(os.getpid(), 9)
        return raw


class Ends(RawItemProcessor):
    """Calls sys.exit() wherever it is told to."""

    def __init__(self, where):
        self.where = where
        self.ends("constructor")

    def ends(self, where):
        if where == self.where:
            sys.exit()

    def setup(self):
        self.ends("setup")

    def process(self, raw, context):
        self.ends("process")
        return raw


class Interrupts(BatchCollator):
    """Raises what a Ctrl-C raises, where there was none."""

    def collate(self, rows, context):
        raise KeyboardInterrupt
'''

ITEMS = [{"x": number} for number in range(12)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    # Its own text for each test: a module that a process has imported is not imported again.
    (tmp_path / "roles.py").write_text(f"{ROLES}\n# {tmp_path}\n")
    (tmp_path / "exits.py").write_text("import sys\nsys.exit()\n")
    return tmp_path


def job(**keys: Any) -> dict[str, Any]:
    return {
        "lanes": 1,
        "source": {"type": "items", "items": ITEMS},
        "distributor": {"type": "map", "shuffle": "none"},
        "batch_size": 2,
        **keys,
    }


def one_job(folder: Path, **keys: Any) -> str:
    return str(write_job_file(folder / "jobs.yaml", {"one": job(**keys)}))


def own_children() -> set[int]:
    return set(children(os.getpid()))


def looking(target: str, **options: Any) -> Loader:
    return Loader(target, "one", rank=0, world_size=1, as_numpy=True, **options)


def test_a_loops_own_generators_are_not_disturbed(folder: Path) -> None:
    """Bytes are those of the log while the loop draws, and its own draws are its seeded ones."""
    torch = pytest.importorskip("torch")
    file = one_job(folder, function="./roles.py:augment_slowly")
    truth = Purity(load(file).job("one"))
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    expected = [draw(torch) for _ in range(3000)]
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)

    drawn, batches = [], []
    with looking(f"local:{file}") as loader:
        for batch in loader:
            batches.append((batch.header, bytes(batch.body)))
            drawn += [draw(torch) for _ in range(30)]
            if len(batches) == 100:
                break

    assert drawn == expected
    for header, body in batches:
        truth.saw(header, body)


def draw(torch: Any) -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(1))


FRESH_TRAINER = """
import random, sys
from penstock.client import Loader

random.seed(7)
before = random.getstate()
with Loader(sys.argv[1], "one", group="run", rank=0, world_size=1, as_numpy=True) as loader:
    next(iter(loader))
    loader.commit()
assert random.getstate() == before
print(sorted({"structlog", "rich", "uvloop", "pydantic", "yaml", "pyarrow"} & set(sys.modules)))
"""


def test_a_fresh_trainer_imports_nothing_that_draws(folder: Path) -> None:
    """Some libraries draw as they are imported; a trainer of its own shows it, this one may not."""
    file = one_job(folder, function="./roles.py:augment")

    done = subprocess.run(
        [sys.executable, "-c", FRESH_TRAINER, f"local:{file}"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_the_trainers_process_runs_no_code_of_the_job(folder: Path) -> None:
    """The role's file is imported, its constructor called and its items processed elsewhere."""
    before = set(sys.modules)

    with looking(f"local:{one_job(folder, function='./roles.py:augment')}") as loader:
        next(iter(loader))

    assert not [name for name in set(sys.modules) - before if "penstock_user" in name]


def test_what_a_role_prints_reaches_the_terminal_at_once(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with looking(f"local:{one_job(folder, function='./roles.py:announce')}") as loader:
        next(iter(loader))
        eventually(lambda: "item 0" in capfd.readouterr().out, 20, "the role's line is printed")


TRAINER = """
import sys
from penstock.client import Loader
for batch in Loader(sys.argv[1], "one", rank=0, world_size=1, as_numpy=True):
    pass
"""


def test_a_killed_trainer_leaves_nothing(folder: Path) -> None:
    """Even where a role holds its interpreter, and no thread there could notice."""
    begun = folder / "begun"
    file = one_job(folder, processor={"type": "./roles.py:Slow", "begun": str(begun)})
    trainer = subprocess.Popen([sys.executable, "-c", TRAINER, f"local:{file}"], env=ENVIRONMENT)
    eventually(lambda: begun.exists() and begun.read_text() != "", 60, "the role is at work")
    child = psutil.Process(int(begun.read_text()))

    trainer.kill()
    trainer.wait()

    eventually(lambda: not child.is_running(), 20, "the child has ended")


def test_a_loader_that_is_dropped_leaves_nothing(folder: Path) -> None:
    """Closed twice, collected, or opened beside another: every child is gone afterwards."""
    file = one_job(folder)
    before = own_children()
    first, second = looking(f"local:{file}"), looking(f"local:{file}")
    assert next(iter(first))["x"].tolist() == next(iter(second))["x"].tolist() == [0, 1]
    assert len(own_children() - before) == 2

    first.close()
    first.close()
    del second
    gc.collect()

    eventually(lambda: own_children() <= before, 20, "both children have ended")
    with pytest.raises(InvalidRequest, match="closed"):
        next(iter(first))


def test_what_a_killed_trainer_left_goes_with_the_next_start(
    folder: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket stays, as nobody is there to remove it; one that is in use is left alone."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    file = one_job(folder)
    first = looking(f"local:{file}")
    next(iter(first))
    [used] = sockets(runtime)
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = used.with_name(f"{gone.pid}-0a1b2c3d.sock")
    left.touch()

    with looking(f"local:{file}") as second:
        next(iter(second))
        assert left not in sockets(runtime)
        assert len(sockets(runtime)) == 2
    first.close()

    assert sockets(runtime) == []


def sockets(runtime: Path) -> list[Path]:
    return sorted(runtime.glob("penstock-*/*.sock"))


def test_other_jobs_of_the_file_are_not_built(folder: Path) -> None:
    """Nor must they hold together: a notebook looks at one of them."""
    broken = job(source={"type": "parquet", "files": "none.parquet"})
    file = write_job_file(folder / "jobs.yaml", {"broken": broken, "one": job()})

    with looking(f"local:{file}") as loader:
        assert next(iter(loader))["x"].tolist() == [0, 1]
    with (
        Loader(f"local:{file}", "two", rank=0, world_size=1) as loader,
        pytest.raises(UnknownJob, match="broken"),
    ):
        next(iter(loader))


def test_a_role_that_kills_the_node_as_its_job_is_built_is_an_error(folder: Path) -> None:
    """Once: nothing was given yet, so nothing is lost by saying so."""
    (folder / "exits.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    with (
        looking(f"local:{one_job(folder, processor='./exits.py:Any')}") as loader,
        pytest.raises(WorkerCrashed, match="ended by SIGKILL before it was ready"),
    ):
        next(iter(loader))


def kill_at_work(file: str, count: int) -> list[int]:
    """Read so many batches, and kill the child before every fourth of them."""
    before = own_children()
    positions = []
    with looking(f"local:{file}") as loader:
        for batch in loader:
            positions.append(batch.position)
            if len(positions) % 4 == 0:
                for pid in own_children() - before:
                    kill_process(pid)
            if len(positions) == count:
                break
    eventually(lambda: own_children() <= before, 20, "the child has ended")
    return positions


def test_a_killed_child_is_started_again(folder: Path) -> None:
    """SIGKILL of what computes costs a moment and no position."""
    assert kill_at_work(one_job(folder), 20) == list(range(20))


def test_an_item_that_kills_is_named(folder: Path) -> None:
    """After three deaths at the same item, and one at a time; what comes before is delivered."""
    file = one_job(folder, processor={"type": "./roles.py:Killed"})
    loader = looking(f"local:{file}")
    batches = iter(loader)
    assert [next(batches).position for _ in range(2)] == [0, 1]

    with pytest.raises(WorkerCrashed) as caught:
        next(batches)

    loader.close()
    assert "main[5] in epoch 0 ended its worker 3 times, at last killed by signal SIGKILL" in str(
        caught.value
    )
    assert caught.value.fields["item"] == "main[5] in epoch 0"


EXITS = [
    ({"processor": "./exits.py:Any"}, InvalidJob, "cannot be imported: SystemExit: code of a role"),
    ({"function": "./exits.py:any"}, InvalidJob, "cannot be imported: SystemExit"),
    ({"source": {"type": "torch", "factory": "./exits.py:any"}}, InvalidJob, "SystemExit"),
    ({"processor": "constructor"}, InvalidJob, "Ends cannot be built: SystemExit"),
    ({"processor": "setup"}, InvalidJob, r"Ends.setup\(\) of job 'one' fails with SystemExit"),
    (
        {"processor": "process"},
        PenstockError,
        "item main.0. .* fails in Ends.process.. with SystemExit",
    ),
    (
        {"batcher": {"type": "simple", "batch_size": 2}, "collator": "./roles.py:Interrupts"},
        PenstockError,
        "KeyboardInterrupt",
    ),
]


@pytest.mark.parametrize(("keys", "kind", "sentence"), EXITS)
def test_a_role_that_ends_its_process_is_an_error(
    keys: dict[str, Any], kind: type[PenstockError], sentence: str, folder: Path
) -> None:
    """At import, in a constructor, in setup(), process() and collate(): one sentence each."""
    with looking(f"local:{one_job(folder, **exiting(keys))}") as loader:
        with pytest.raises(kind, match=sentence) as caught:
            next(iter(loader))

        assert type(caught.value) is not PenstockError


def exiting(keys: dict[str, Any]) -> dict[str, Any]:
    where = keys.get("processor")
    if where in ("constructor", "setup", "process"):
        keys = {**keys, "processor": {"type": "./roles.py:Ends", "where": where}}
    return {"batch_size": None, **keys} if "collator" in keys else keys


@pytest.mark.parametrize("command", [["check"], ["show"], ["serve"]])
@pytest.mark.parametrize("keys", [EXITS[0][0], EXITS[3][0]], ids=["import", "constructor"])
def test_no_command_ends_in_silence(keys: dict[str, Any], command: list[str], folder: Path) -> None:
    """Status 2 and the sentence, where it was 0 and nothing."""
    more = {"show": ["one", "--position", "0"]}.get(command[0], [])

    ended = run_command(["penstock.server.cli", *command, one_job(folder, **exiting(keys)), *more])

    assert ended.returncode == 2
    assert "SystemExit" in ended.stderr.splitlines()[-1]
    assert "[invalid_job]" in ended.stderr


@pytest.mark.parametrize("command", [["check"], ["show"], ["serve"]])
def test_no_command_ends_at_once_and_in_silence(command: list[str], folder: Path) -> None:
    """`os._exit(0)` at import, which no `except` sees; a child that the role forks ends by it."""
    (folder / "exits.py").write_text(
        "import os\nif not (pid := os.fork()):\n    os._exit(3)\n"
        "print('child', os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)\n"
        "os._exit(0)\n"
    )
    more = {"show": ["one", "--position", "0"]}.get(command[0], [])

    ended = run_command(
        ["penstock.server.cli", *command, one_job(folder, processor="./exits.py:Any"), *more]
    )

    assert ended.returncode == 2, ended
    assert "cannot be imported: ProcessExit: os._exit(0)" in ended.stderr.splitlines()[-1]
    assert "exits.py, line 5" in ended.stderr
    assert "child 3" in ended.stdout


def test_a_python_job_file_that_exits_is_an_error(folder: Path) -> None:
    """`jobs.py:jobs` that calls sys.exit() at import, or in the function that makes the jobs."""
    (folder / "made.py").write_text("import sys\ndef jobs():\n    sys.exit(0)\n")

    for target in ("exits.py", "made.py"):
        ended = run_command(["penstock.server.cli", "serve", str(folder / target)])
        assert ended.returncode == 2
        assert "SystemExit" in ended.stderr.splitlines()[-1]


NOTEBOOK = """
import os, random, signal, sys, threading, time
from penstock.client import Loader

loader, seen, interrupts = Loader(sys.argv[1], "one", rank=0, world_size=1, as_numpy=True), 0, 0
begun, pressed = threading.Event(), threading.Event()
def press():
    pause = random.Random(5)
    begun.wait()
    for _ in range(150):
        time.sleep(pause.random() * 0.01)
        os.killpg(0, signal.SIGINT)
    pressed.set()
threading.Thread(target=press, daemon=True).start()
batches = iter(loader)
while seen < 400 or not pressed.is_set():
    try:
        begun.is_set() or begun.set()
        batch = next(batches)
        seen = batch.position + 1
    except KeyboardInterrupt:
        interrupts += 1
        batches = iter(loader)
loader.close()
print(interrupts)
"""


def test_a_ctrl_c_in_the_terminal_is_the_trainers(folder: Path) -> None:
    """It reaches the whole foreground group, at any moment: the node and the Loader go on."""
    notebook = subprocess.run(
        [sys.executable, "-c", NOTEBOOK, f"local:{one_job(folder)}"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        start_new_session=True,
        check=False,
    )

    assert notebook.returncode == 0, notebook.stderr
    assert int(notebook.stdout) > 50


def test_a_fork_leaves_the_child_to_its_parent(folder: Path) -> None:
    """A fork that ends, or that closes the Loader, disturbs nobody; one that reads is told so."""
    with looking(f"local:{one_job(folder)}") as loader:
        batches = iter(loader)
        assert next(batches).position == 0

        pid = os.fork()
        if pid == 0:
            told = 1
            with contextlib.suppress(ForkedLoader):
                next(batches)
                told = 0
            loader.close()
            os._exit(1 - told)

        assert os.waitpid(pid, 0)[1] == 0
        assert [next(batches).position for _ in range(30)] == list(range(1, 31))


def test_short_calls_do_not_wait_for_a_long_batch(folder: Path) -> None:
    """A commit is answered while a role computes: the store is not the roles' business."""
    begun = folder / "begun"
    slow = job(processor={"type": "./roles.py:Sleeps", "begun": str(begun)})
    slow["source"]["items"] = [{"x": number} for number in range(64)]
    file = write_job_file(folder / "jobs.yaml", {"one": slow})
    with looking(f"local:{file}", group="run", prefetch=64) as loader:
        next(iter(loader))
        eventually(lambda: begun.exists(), 60, "the role is at a long item")
        began = time.monotonic()
        assert loader.commit() == 1
        assert time.monotonic() - began < 15
