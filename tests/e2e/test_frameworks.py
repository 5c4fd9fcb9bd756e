"""Every script of docs/frameworks.md trains with the real framework, is killed, and goes on.

The scripts are run as the page has them, each rank in a process of its own. What they do is watched
from outside: every call of the model, which batch it got and which loss it gave.
"""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from harness import ENVIRONMENT, Server, serving
from penstock.client import Loader
from ports import free_port

pytestmark = pytest.mark.frameworks

HOME = Path(__file__).parents[2]
PAGE = HOME / "docs" / "frameworks.md"
FILES: dict[str, str] = dict(
    re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```", PAGE.read_text(), re.M | re.S)
)
ADDRESS = "127.0.0.1:50051"
STEPS, SAVED_EVERY, BATCHES_PER_STEP, VALIDATION_STEPS = 8, 3, 4, 2

# Runs scripts in forks of a process that has imported the frameworks once: a fork for each rank of
# each run. When one of them dies the others are killed, as a launcher does.
DRIVER = """
import faulthandler, functools, hashlib, json, os, runpy, signal, sys, threading, traceback
import accelerate, lightning, torch, torchdata.stateful_dataloader, transformers
import torch.distributed.checkpoint.state_dict, torch.distributed.fsdp, torch.distributed.run
from transformers import LlamaForCausalLM, Trainer
import grpc.aio, penstock.client

assert threading.active_count() == 1, "forks of threads"
torch.set_num_threads(1)
LEFT = []
DEADLINE_S = 100  # a rank that hangs says where, and ends


def rank_main(told, rank):
    os.environ |= told["environ"]
    if told["environ"]:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.path.insert(0, told["folder"])
    said = os.open(f"said-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    if told["arguments"]:  # torchrun: what it starts are processes of its own
        sys.argv = [told["script"], *told["arguments"]]
        runpy.run_module(told["script"], run_name="__main__", alter_sys=True)
        return
    record = open(told["record"] + str(rank), "w", buffering=1)
    real, count = LlamaForCausalLM.forward, 0

    @functools.wraps(real)
    def forward(self, *args, **kwargs):
        nonlocal count
        training = torch.is_grad_enabled()
        count += training
        if training and [rank, count] == told["ending"]:
            os.kill(os.getpid(), signal.SIGKILL)
        found = real(self, *args, **kwargs)
        assert found.past_key_values is None, "with a cache, documents of a row see each other"
        ids = kwargs["input_ids"].contiguous().numpy().tobytes()
        loss = found.loss.item().hex()
        print(json.dumps([training, hashlib.sha256(ids).hexdigest(), loss]), file=record)
        return found

    LlamaForCausalLM.forward = forward
    sys.argv = [told["script"]]
    # What the script leaves is kept, not freed one by one: torch joins threads while it does that.
    LEFT.append(runpy.run_path(told["script"], run_name="__main__"))


for line in sys.stdin:
    told = json.loads(line)
    os.chdir(told["folder"])
    ranks = {}
    for rank in range(told["world"]):
        pid = os.fork()
        if pid == 0:
            try:
                rank_main(told, rank)
            except BaseException:
                traceback.print_exc()
                sys.stdout.flush()
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        ranks[pid] = rank
    codes = {}
    while ranks:
        pid, status = os.wait()
        codes[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    print(json.dumps([codes[rank] for rank in sorted(codes)]), flush=True)
"""


class Call(NamedTuple):
    """One call of the model: of which position, and the loss to the last bit."""

    position: int
    loss: str


class Run(NamedTuple):
    """What a run did, rank by rank.

    Attributes:
        codes: Exit statuses.
        trained: Calls with gradients.
        validated: Calls without, of the last pass.
        said: What the ranks printed.
    """

    codes: list[int]
    trained: list[list[Call]]
    validated: list[list[str]]
    said: str


class Ranks:
    """Runs scripts of the page against a node."""

    def __init__(self, node: Server, folder: Path) -> None:
        self.node = node
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-c", DRIVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **ENVIRONMENT,
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "CUDA_VISIBLE_DEVICES": "",
                "HF_HUB_OFFLINE": "1",
            },
        )
        with Loader(node.address, "train", as_numpy=True, rank=0, world_size=1) as loader:
            self._positions = {
                sha256(batch["input_ids"].tobytes()).hexdigest(): batch.position
                for _, batch in zip(range(STEPS * BATCHES_PER_STEP + 8), loader, strict=False)
            }
        assert len(self._positions) == STEPS * BATCHES_PER_STEP + 8

    def folder(self, name: str) -> Path:
        """Return a new folder with the page's files."""
        folder = self._folder / name
        folder.mkdir()
        for file, text in FILES.items():
            (folder / file).write_text(text.replace(ADDRESS, self.node.address))
        return folder

    def run(
        self, script: str, folder: Path, world: int, ending: tuple[int, int] | None = None
    ) -> Run:
        """Run a script as `world` ranks to its end, or until it is killed.

        Args:
            script: Its name.
            folder: From `folder`.
            world: How many ranks.
            ending: A rank, and before which of its calls with gradients it is killed.
        """
        environ = {}
        if world > 1:  # as a launcher sets them
            environ = {
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port()),
            }
        told = {
            "script": script,
            "folder": str(folder),
            "record": str(folder / "calls-"),
            "world": world,
            "environ": environ,
            "ending": ending,
        }
        codes = self._fork(told)
        calls = [whole_lines(folder / f"calls-{rank}") for rank in range(world)]
        validated = VALIDATION_STEPS * BATCHES_PER_STEP // world
        return Run(
            codes,
            [
                [Call(self._positions[digest], loss) for training, digest, loss in rank if training]
                for rank in calls
            ],
            [
                [f"{digest} {loss}" for training, digest, loss in rank if not training][-validated:]
                for rank in calls
            ],
            "".join((folder / f"said-{rank}.txt").read_text() for rank in range(world)),
        )

    def torchrun(self, folder: Path, *arguments: str) -> tuple[int, str]:
        """Run torchrun; return its exit status and what it said.

        Args:
            folder: Where it runs.
            arguments: Of its command line.
        """
        told = {
            "script": "torch.distributed.run",
            "arguments": arguments,
            "folder": str(folder),
            "world": 1,
            "environ": {},
        }
        [code] = self._fork(told)
        return code, (folder / "said-0.txt").read_text()

    def _fork(self, told: Mapping[str, Any]) -> list[int]:
        """Have something run by forks; return their exit statuses."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"arguments": None, **told}) + "\n")
        self._process.stdin.flush()
        codes: list[int] = json.loads(self._process.stdout.readline())
        return codes

    def close(self) -> None:
        """End the process that forks."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


def whole_lines(file: Path) -> list[list[Any]]:
    """Return the records of a file; a line that a death has cut is left out."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A node that serves the page's job file, as the page has it."""
    folder = tmp_path_factory.mktemp("node")
    for file in ("penstock.yaml", "data.py"):
        (folder / file).write_text(FILES[file])
    flags = ("--listen", "127.0.0.1:0", "--metrics", "off", "--workers", "1")
    with serving(folder / "penstock.yaml", *flags, "--log-format", "json") as running:
        yield running


@pytest.fixture(scope="module")
def ranks(node: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    running = Ranks(node, tmp_path_factory.mktemp("ranks"))
    yield running
    running.close()


SCRIPTS: Mapping[str, int] = {
    "train.py": 1,
    "train_ddp.py": 2,
    "train_fsdp2.py": 2,
    "train_accelerate.py": 2,
    "train_trainer.py": 2,
    "train_lightning.py": 2,
    "train_torchdata.py": 1,
}


def test_every_script_of_the_page_is_run() -> None:
    assert {name for name in FILES if name.startswith("train")} == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_killed_run_goes_on_as_if_it_had_not_been(script: str, ranks: Ranks) -> None:
    """The same losses to the last bit, of every batch, and every position trained on once.

    The rank and the batch at which it is killed are drawn; never the batch right after a save,
    which other ranks may still be writing.
    """
    world = SCRIPTS[script]
    micro = BATCHES_PER_STEP // world
    drawn = random.Random(script)
    saved = drawn.choice([SAVED_EVERY, 2 * SAVED_EVERY])
    ending = (drawn.randrange(world), drawn.randrange(micro * (saved + 1) + 1, micro * (saved + 2)))
    whole, cut = ranks.folder(f"{script}-whole"), ranks.folder(f"{script}-cut")

    untouched = ranks.run(script, whole, world)
    killed = ranks.run(script, cut, world, ending)
    resumed = ranks.run(script, cut, world)

    assert untouched.codes == [0] * world, untouched.said
    assert -signal.SIGKILL in killed.codes, killed.said
    assert resumed.codes == [0] * world, resumed.said
    positions = sorted(call.position for rank in untouched.trained for call in rank)
    assert positions == list(range(STEPS * BATCHES_PER_STEP))
    assert "holds a batch ahead" not in untouched.said + killed.said + resumed.said
    for rank in range(world):
        calls = untouched.trained[rank]
        assert killed.trained[rank] == calls[: len(killed.trained[rank])]
        assert len(killed.trained[rank]) >= saved * micro
        assert killed.trained[rank][: saved * micro] + resumed.trained[rank] == calls
    assert resumed.validated == untouched.validated


def test_a_trainer_evaluates_while_it_trains(ranks: Ranks) -> None:
    """With `eval_strategy="steps"`, on `eval_loader`; training goes on where it was."""
    folder = ranks.folder("trainer-evaluates")
    script = (
        (folder / "train_trainer.py")
        .read_text()
        .replace(
            "    save_steps=3,", '    save_strategy="no", eval_strategy="steps", eval_steps=3,'
        )
    )
    script = script.replace('"run-5"', '"run-evaluates"')
    (folder / "train_evaluates.py").write_text(script)

    run = ranks.run("train_evaluates.py", folder, 2)

    assert run.codes == [0, 0], run.said
    assert run.said.count("eval_loss") >= 2, run.said
    options = {"mode": "eval", "max_steps": VALIDATION_STEPS, "rank": 0, "world_size": 1}
    with Loader(ranks.node.address, "val", as_numpy=True, **options) as loader:
        read = sum(batch.counts["samples"] for batch in loader)
    batches = VALIDATION_STEPS * BATCHES_PER_STEP // 2
    assert read > 2 * batches
    # All samples that both ranks have read, and the batches of one; not the rows of tokens.
    evaluations = re.findall(
        r"'eval_runtime': '?([0-9.]+).*?'eval_samples_per_second': '?([0-9.]+)"
        r".*?'eval_steps_per_second': '?([0-9.]+)",
        run.said,
    )
    assert evaluations, run.said
    for runtime, samples, steps in evaluations:
        assert float(samples) * float(runtime) == pytest.approx(read, rel=0.02), run.said
        assert float(steps) * float(runtime) == pytest.approx(batches, rel=0.02), run.said
    positions = sorted(call.position for rank in run.trained for call in rank)
    assert positions == list(range(STEPS * BATCHES_PER_STEP))


def test_lightning_without_the_callback_is_noticed_once(ranks: Ranks) -> None:
    """Its states count a batch that was only fetched: each rank says so, once, with the remedy."""
    folder = ranks.folder("lightning-alone")
    script = FILES["train_lightning.py"].replace("LoaderCallback(data), ", "")
    assert "LoaderCallback(" not in script
    (folder / "alone.py").write_text(script.replace(ADDRESS, ranks.node.address))

    run = ranks.run("alone.py", folder, 2)

    assert run.codes == [0, 0], run.said
    assert len(re.findall(r"Lightning holds a batch ahead .*\.LoaderCallback", run.said)) == 2


def test_accelerates_data_loader_is_noticed_and_its_skipping_refused(ranks: Ranks) -> None:
    """The same for a DataLoader that Accelerate wraps; with a StatefulDataLoader it is right.

    A Loader itself stays as it is: nothing shards it a second time.
    """
    folder = ranks.folder("accelerate-wrapped")
    (folder / "wrapped.py").write_text(WRAPPED.replace(ADDRESS, ranks.node.address))

    run = ranks.run("wrapped.py", folder, 1)

    assert run.codes == [0], run.said
    assert len(re.findall(r"Accelerate's data loader holds a batch ahead", run.said)) == 1
    assert "stateful 3" in run.said
    assert run.said.count("untouched True") == 2
    assert "it resumes by load_state_dict()" in run.said
    assert "pass num_workers=0" in run.said


WRAPPED = """
from accelerate import Accelerator, skip_first_batches
from torch.utils.data import DataLoader
from accelerate.utils import DataLoaderConfiguration
from penstock.client import Loader
from penstock.client.frameworks.data import LoaderDataset

NODE = "127.0.0.1:50051"
loader = Loader(NODE, "train", batches_per_step=1)
try:
    skip_first_batches(loader, 2)
except AttributeError as error:
    print(error)
try:
    next(iter(DataLoader(LoaderDataset(loader), batch_size=None, num_workers=1)))
except Exception as error:
    print(error)

for stateful in (False, True):
    loader = Loader(NODE, "train", batches_per_step=1)
    settings = DataLoaderConfiguration(dispatch_batches=False, use_stateful_dataloader=stateful)
    accelerator = Accelerator(cpu=True, dataloader_config=settings)
    print("untouched", accelerator.prepare(loader) is loader)
    batches = accelerator.prepare(DataLoader(LoaderDataset(loader), batch_size=None))
    for number, batch in enumerate(batches):
        if number == 2:
            break
    if stateful:
        print("stateful", batches.state_dict()["dataset_state"]["step"])
    else:
        loader.state_dict()
        loader.state_dict()
"""


def test_a_checkpoint_without_a_loaders_state_is_refused(ranks: Ranks) -> None:
    """A Trainer that resumes from it would train on other data than its weights have seen."""
    folder = ranks.folder("trainer-alone")
    [killed] = {-signal.SIGKILL} & set(ranks.run("train_trainer.py", folder, 2, (0, 11)).codes)
    state = folder / "checkpoints" / "checkpoint-3" / "trainer_state.json"
    found = json.loads(state.read_text())
    del found["stateful_callbacks"]["PenstockLoader"]
    state.write_text(json.dumps(found))

    run = ranks.run("train_trainer.py", folder, 2)

    assert killed
    assert 1 in run.codes
    assert "checkpoint of step 3 holds no state of a Loader" in run.said


# A model for which importing transformers is not needed: what it is does not matter to torchrun.
SMALL_MODEL = """
import os
import signal
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 8)
        self.head = torch.nn.Linear(8, 64)
        self.calls = 0

    def forward(self, input_ids, labels, num_items_in_batch, **more):
        self.calls += 1
        if os.environ["RANK"] == "1" and self.calls == 10 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        logits = self.head(self.embed(input_ids))[:, :-1]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100, reduction="sum"
        )
        return type("Output", (), {"loss": loss / num_items_in_batch})

def make_model():
    torch.manual_seed(0)
    return Model()

"""


def test_torchrun_goes_on_where_it_was_killed(ranks: Ranks) -> None:
    """The same command twice: rank 1 dies in step 4; the losses since step 3 come again."""
    folder = ranks.folder("torchrun")
    evaluate = FILES["model.py"][FILES["model.py"].index("def evaluate") :]
    (folder / "model.py").write_text("import torch.distributed as dist\n" + SMALL_MODEL + evaluate)
    command = ("--standalone", "--nproc-per-node", "2", "--redirects", "1")

    runs = [
        ranks.torchrun(folder, *command, "--log-dir", f"logs-{number}", "train_ddp.py")
        for number in range(2)
    ]
    # A file for each rank: in one pipe their lines would run into each other.
    printed = [
        "".join(file.read_text() for file in (folder / f"logs-{number}").rglob("stdout.log"))
        for number in range(2)
    ]

    assert (folder / "killed").exists(), runs[0][1]
    assert runs[0][0] != 0
    assert runs[1][0] == 0, runs[1][1]
    first, second = (
        {(rank, int(step)): loss for rank, step, loss in re.findall(LOSS_LINE, text)}
        for text in printed
    )
    assert sorted(second) == [(rank, step) for rank in "01" for step in range(3, STEPS)]
    assert sorted(first | second) == [(rank, step) for rank in "01" for step in range(STEPS)]
    again = first.keys() & second.keys()
    assert {step for _, step in again} == {3}
    assert {key: first[key] for key in again} == {key: second[key] for key in again}


LOSS_LINE = r"rank (\d) step (\d+) loss (\S+)"
