"""The README's quick start is run as it stands, on real small data."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from penstock.client import cli as client_cli
from penstock.client.loop.counters import LoaderCounters
from penstock.common.programs import COMMANDS
from penstock.server.commands.group import cli as server_cli
from penstock.server.metrics.node_metrics import Metrics
from penstock.wire import errors
from ports import free_port

HOME = Path(__file__).parents[2]
STEPS = 12

# Runs the README's script in forks of a process that has imported what the script imports, and ends
# a fork without warning, by SIGKILL, where it is told to. Everything else is the script's.
DRIVER = """
import hashlib, json, os, runpy, signal, sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)


def train(script, ending, record):
    done = {}

    def on(name):
        done[name] = done.get(name, 0) + 1
        if [name, done[name]] == ending:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(owner, attribute):
        real = getattr(owner, attribute)

        def hooked(*args, **kwargs):
            on(attribute)
            return real(*args, **kwargs)

        setattr(owner, attribute, hooked)

    from penstock.client import Loader

    before(LlamaForCausalLM, "forward")
    forward = LlamaForCausalLM.forward

    def without_cache(*args, **kwargs):
        found = forward(*args, **kwargs)
        assert found.past_key_values is None, "with a cache, documents of a row see each other"
        return found

    LlamaForCausalLM.forward = without_cache
    before(torch, "save")
    before(os, "replace")
    before(Loader, "commit")
    real = torch.optim.AdamW.step
    weights = hashlib.sha256()

    def step(self, *args, **kwargs):
        on("optimizer")
        result = real(self, *args, **kwargs)
        seen = hashlib.sha256()
        for group in self.param_groups:
            for parameter in group["params"]:
                seen.update(parameter.detach().numpy().tobytes())
        print("weights", seen.hexdigest(), flush=True)
        return result

    torch.optim.AdamW.step = step
    sys.stdout = os.fdopen(os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "w")
    runpy.run_path(script, run_name="__main__")


for line in sys.stdin:
    told = json.loads(line)
    os.chdir(told["folder"])
    child = os.fork()
    if child == 0:
        train(told["script"], told["ending"], told["record"])
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language below the page's first heading with "Quick start"."""
    text = re.split(r"^#+ Quick start$", page.read_text(), maxsplit=1, flags=re.M)[1]
    section = re.split(r"^## (?!\d)", text, maxsplit=1, flags=re.M)[0]
    return re.findall(rf"^```{language}\n(.*?)^```", section, re.M | re.S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the reader's data: Parquet files and a tokenizer."""
    texts = [
        f"def function_{n}(value):\n    return value * {n}\n" * (n % 7 + 1) for n in range(300)
    ]
    (tmp_path / "corpus").mkdir()
    for part in range(2):
        table = pa.table({"text": texts[part::2], "number": list(range(150))})
        pq.write_table(table, tmp_path / "corpus" / f"{part}.parquet", row_group_size=50)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
def environ(folder: Path, runtime: Path) -> dict[str, str]:
    """The shell of somebody who has installed penstock: its commands are found."""
    commands = folder / "bin"
    commands.mkdir()
    for name, module in (("penstockd", "penstock.server.cli"), ("penstock", "penstock.client.cli")):
        script = commands / name
        script.write_text(
            f"#!{sys.executable}\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "XDG_RUNTIME_DIR": str(runtime),
        "PENSTOCK_METRICS": "off",
        "PENSTOCK_WORKERS": "1",
    }


def run(command: list[str], folder: Path, environ: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Trainer:
    """Runs training scripts, each in a process of its own that ends by SIGKILL."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, script: str, folder: Path, name: str, count: int) -> dict[int, tuple[str, str]]:
        """Run a script until it is about to do something for the `count`-th time.

        Args:
            script: Its text.
            folder: Where it runs.
            name: `forward`, `optimizer`, `save`, `replace` or `commit`.
            count: Then it is killed.

        Returns:
            By step: the loss as the script has printed it, and a hash of the weights after it.
        """
        (folder / "train.py").write_text(script)
        record = folder / "record.txt"
        record.unlink(missing_ok=True)
        told = {"script": "train.py", "folder": str(folder), "record": str(record)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(told | {"ending": [name, count]}) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{-signal.SIGKILL}\n"
        found = re.findall(
            r"^weights (\w{64})\nstep (\d+) loss (\S+)$", record.read_text(), re.MULTILINE
        )
        return {int(step): (loss, weights) for weights, step, loss in found}

    def close(self) -> None:
        """End the process that forks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@pytest.fixture
def trainer(environ: dict[str, str]) -> Iterator[Trainer]:
    running = Trainer(environ)
    yield running
    running.close()


@contextmanager
def serving(command: list[str], folder: Path, environ: dict[str, str]) -> Iterator[None]:
    """A node that serves within the block.

    The node that `spawn:` started holds the store until some seconds after its last reader, so
    starting is tried again for as long as that is what the error says.
    """
    while True:
        node = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.PIPE, text=True)
        assert node.stderr is not None
        said = []
        for line in node.stderr:
            said.append(line)
            if '"event": "ready"' in line:
                break
        else:
            node.stderr.close()
            node.wait()
            assert "[store_locked]" in said[-1], said
            continue
        try:
            yield
        finally:
            node.terminate()
            node.stderr.read()
            node.stderr.close()
            assert node.wait(60) == 0
        return


def free_address() -> str:
    return f"127.0.0.1:{free_port()}"


def test_the_quick_start_runs_as_it_stands(
    folder: Path, environ: dict[str, str], trainer: Trainer
) -> None:
    """Its commands, then its script: killed again and again, it trains as if it never had died.

    It dies before its first checkpoint is there, then between the checkpoint and its commit, then
    at a seeded point, and ends against the served address. Each time losses and weights are those
    of a run that nobody touched, to the last bit.
    """
    prepare, serve = blocks(HOME / "README.md", "sh")
    script, other_line = blocks(HOME / "README.md", "python")
    [loader_line] = re.findall(r"^loader = .*$", script, re.M)
    assert "0.0.0.0:50051" in serve
    assert "127.0.0.1:50051" in other_line
    address = free_address()
    remote = script.replace(loader_line, other_line.strip().replace("127.0.0.1:50051", address))
    run(["bash", "-euc", prepare], folder, environ)
    whole = Path(shutil.copytree(folder, folder / "whole"))
    seeded = random.Random(20).randrange(4 + 1, 4 * 5)

    untouched = trainer.run(script, whole, "forward", 4 * STEPS + 1)
    killed = [
        trainer.run(script, folder, "replace", 1),
        trainer.run(script, folder, "commit", 1),
        trainer.run(script, folder, "forward", seeded),
    ]
    with serving(serve.replace("0.0.0.0:50051", address).split(), folder, environ):
        killed.append(trainer.run(remote, folder, "forward", 4 * (STEPS - 5) + 1))

    assert list(untouched) == list(range(STEPS))
    assert [next(iter(steps), None) for steps in killed] == [0, 0, 5, 5]
    assert [list(steps)[-1] for steps in killed[:2]] == [4, 4]
    for steps in killed:
        assert steps == {step: untouched[step] for step in steps}
    assert list(killed[-1]) == list(range(5, STEPS))
    assert len({weights for _, weights in untouched.values()}) == STEPS


def test_the_script_of_the_quick_start_is_short() -> None:
    """One screen, imports and all: what a newcomer has to take in at once."""
    script = blocks(HOME / "README.md", "python")[0]

    assert len(script.splitlines()) <= 40


def test_the_page_for_small_steps_runs_too(folder: Path, environ: dict[str, str]) -> None:
    """Its commands that need no running node, and its look at a batch with `local:`.

    The page of the Loader begins with such a look, too.
    """
    page = HOME / "docs" / "quick-start.md"
    commands = [
        line
        for block in blocks(page, "")
        for line in block.splitlines()
        if line.startswith("penstockd ")
    ]
    [look] = blocks(page, "python")
    assert len(commands) >= 3

    for command in commands:
        run(["bash", "-euc", command], folder, environ)
    (folder / "look.py").write_text(look)

    assert run([sys.executable, "look.py"], folder, environ).startswith("0 {'input_ids': ")
    [other] = re.findall(
        r"^```python\n(.*?)^```", (HOME / "docs" / "loader.md").read_text(), re.M | re.S
    )
    (folder / "look.py").write_text(other)
    assert run([sys.executable, "look.py"], folder, environ).startswith("0 {'")


def test_the_page_names_the_codes_that_exist() -> None:
    """The table of what one may see holds real codes."""
    known = {
        error.code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.PenstockError)
    }

    named = set(re.findall(r"`\[(\w+)\]`", (HOME / "docs" / "quick-start.md").read_text()))

    assert named
    assert named <= known


def test_the_page_for_operators_names_every_metric() -> None:
    """The table in docs/operate.md is what `/metrics` shows, and what a trainer counts."""
    metrics = Metrics("0")
    store = {"away_s": 0, "snapshots_waiting": 0}
    status = {"workers": [], "jobs": [], "memory": {}, "store": store, "start_s": 0}
    status |= {"lent_bytes": 0, "bound_bytes": 0, "started_at": 0}
    metrics.watch(lambda: status)
    metrics.watch_certificate(lambda: 1.0)
    metrics.watch_callers(lambda: [], dict)
    page = (HOME / "docs" / "operate.md").read_text()

    shown = {
        family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        for family in (*metrics.registry.collect(), *LoaderCounters().collect())
    }

    assert set(re.findall(r"^\| `(penstock_\w+)` \|", page, re.M)) == shown


@pytest.mark.parametrize(
    "page",
    [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").glob("*.md"))],
    ids=lambda page: page.name,
)
def test_pages_name_make_targets_and_commands_that_exist(page: Path) -> None:
    """`make X`, `penstock X` and `penstockd X` in a page can be typed."""
    text = page.read_text()
    typed = "\n".join(
        fenced or quoted
        for fenced, quoted in re.findall(r"^```\w*\n(.*?)^```|`([^`\n]+)`", text, re.M | re.S)
    )

    assert words_after("make", typed) <= set(
        re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(), re.M)
    )
    assert words_after("penstockd", typed) <= set(server_cli.commands)
    assert words_after("penstock", typed) <= set(COMMANDS["penstock"])


@pytest.mark.parametrize(
    "page", [HOME / "README.md", *sorted((HOME / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_every_command_line_of_a_page_is_understood(page: Path) -> None:
    """Whole lines of a block, with their options and arguments, as the commands parse them."""
    fenced = "".join(re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.M | re.S))
    for line in re.findall(r"^(penstockd? .*)$", fenced, re.M):
        program, name, *arguments = shlex.split(line.partition(" > ")[0])

        if program == "penstockd":
            server_cli.commands[name].make_context(name, arguments).close()
        else:
            client_cli.build_parser().parse_args([name, *arguments])


def words_after(command: str, typed: str) -> set[str]:
    return set(re.findall(rf"^{command} ([a-z][a-z-]*)\b", typed, re.M))
