"""The README's quick start is run as it stands, on real small data."""

from __future__ import annotations

import os
import re
import socket
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
from penstock.server.commands.group import cli as server_cli
from penstock.server.metrics import Metrics
from penstock.wire import errors

HOME = Path(__file__).parents[2]
STEPS_PER_RUN = 12

# What the README leaves to its reader: a model, an optimizer, and a reason to stop.
BEFORE = f"""
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(512, 8)
        self.head = torch.nn.Linear(8, 512)

    def forward(self, input_ids, position_ids, labels):
        assert input_ids.shape == position_ids.shape == labels.shape
        logits = self.head(self.embed(input_ids))
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten().long(), ignore_index=-100, reduction="sum"
        )

class Optimizer(torch.optim.SGD):
    steps = 0

    def step(self):
        super().step()
        print("trained", loader.last.step, flush=True)

    def zero_grad(self):
        super().zero_grad()
        Optimizer.steps += 1
        if Optimizer.steps == {STEPS_PER_RUN}:
            raise SystemExit

model = Model()
optimizer = Optimizer(model.parameters(), lr=0.1)
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
def environ(folder: Path) -> dict[str, str]:
    """The shell of somebody who has installed penstock: its commands are found."""
    commands = folder / "bin"
    commands.mkdir()
    for name, module in (("penstockd", "penstock.server.cli"), ("penstock", "penstock.client.cli")):
        script = commands / name
        script.write_text(
            f"#!{sys.executable}\nimport sys\nfrom {module} import main\nsys.exit(main())\n"
        )
        script.chmod(0o755)
    runtime = folder / "run"
    runtime.mkdir()
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


def train(script: str, folder: Path, environ: dict[str, str]) -> list[int]:
    """Run a training script; return the steps that it trained on."""
    (folder / "train.py").write_text(BEFORE + script)
    output = run([sys.executable, "train.py"], folder, environ)
    return [int(step) for step in re.findall(r"^trained (\d+)$", output, re.M)]


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_the_quick_start_runs_as_it_stands(folder: Path, environ: dict[str, str]) -> None:
    """Its commands, its loop, the loop again, and the loop against the served address.

    Every run goes on at the step that the one before committed last.
    """
    prepare, serve = blocks(HOME / "README.md", "sh")
    loop, other_line = blocks(HOME / "README.md", "python")
    loader_line = re.search(r"^loader = .*$", loop, re.M)
    assert loader_line is not None
    assert "0.0.0.0:50051" in serve
    assert "127.0.0.1:50051" in other_line
    address = free_address()

    run(["bash", "-euc", prepare], folder, environ)
    first = train(loop, folder, environ)
    second = train(loop, folder, environ)
    with serving(serve.replace("0.0.0.0:50051", address).split(), folder, environ):
        remote = loop.replace(
            loader_line[0], other_line.strip().replace("127.0.0.1:50051", address)
        )
        third = train(remote, folder, environ)

    assert first == list(range(12))
    assert second == list(range(10, 22))
    assert third == list(range(20, 32))


def test_the_loop_of_the_quick_start_is_short() -> None:
    """Ten lines and the import: what a newcomer has to take in at once."""
    loop = blocks(HOME / "README.md", "python")[0]

    lines = [line for line in loop.splitlines() if line.strip() and "import" not in line]

    assert len(lines) <= 12


def test_the_page_for_small_steps_runs_too(folder: Path, environ: dict[str, str]) -> None:
    """Its commands that need no running node, and its look at a batch with `local:`."""
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
    """The table in docs/operate.md is what `/metrics` shows: no more, no less."""
    metrics = Metrics("0")
    metrics.watch(lambda: {"workers": [], "jobs": []})
    page = (HOME / "docs" / "operate.md").read_text()

    shown = {
        family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        for family in metrics.registry.collect()
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
    assert words_after("penstock", typed) <= set(client_cli.COMMANDS)


def words_after(command: str, typed: str) -> set[str]:
    return set(re.findall(rf"^{command} ([a-z][a-z-]*)\b", typed, re.M))
