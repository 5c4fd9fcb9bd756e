"""docs/loss.md: the gradient of a step is the same on 1, 2 and 3 ranks, with DDP and with FSDP2."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import ENVIRONMENT, Server, serving
from penstock.client import Loader
from ports import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "loss.md").read_text()
FILES: dict[str, str] = dict(
    re.findall(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```", PAGE, re.M | re.S)
)

# Runs a script as ranks, each a fork of a process that has imported torch once, and keeps the
# gradient of every step.
DRIVER = """
import faulthandler, json, os, runpy, sys, traceback
import torch, torch.distributed.fsdp, torch.distributed.device_mesh, torch.nn.parallel
import grpc.aio, penstock.client, penstock.client.masks
from torch.distributed.tensor import DTensor

torch.set_num_threads(1)
kept = []


def rank_main(told, rank):
    os.environ |= {**told["environ"], "RANK": str(rank), "LOCAL_RANK": str(rank)}
    sys.path.insert(0, os.getcwd())
    faulthandler.dump_traceback_later(100, exit=True)  # a rank that hangs says where, and ends
    found = []

    def step(optimizer):
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        whole = [g.full_tensor() if isinstance(g, DTensor) else g for g in gradients]
        found.append([g.clone() for g in whole])
        real(optimizer)

    real, torch.optim.SGD.step = torch.optim.SGD.step, step
    # Kept until the process ends at once: gloo can wait for ever where what a script left is taken
    # down in Python, since it joins its threads with the interpreter's lock held.
    kept.append(runpy.run_path(told["script"], run_name="__main__"))
    torch.save(found, told["record"] + str(rank))


for line in sys.stdin:
    told = json.loads(line)
    ranks = []
    for rank in range(told["world"]):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            try:
                rank_main(told, rank)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    print(json.dumps(codes), flush=True)
"""

Gradients = list[list[Any]]
"""Of each step, of each parameter."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files."""
    folder = tmp_path_factory.mktemp("loss")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def node(folder: Path) -> Iterator[Server]:
    """The page's job, served."""
    free = ("--listen", "127.0.0.1:0", "--metrics", "off", "--workers", "1")
    with serving(folder / "loss.yaml", *free) as server:
        for script in ("train_ddp.py", "train_fsdp2.py"):
            text = (folder / script).read_text()
            assert "127.0.0.1:50051" in text
            (folder / script).write_text(text.replace("127.0.0.1:50051", server.address))
        yield server


@pytest.fixture(scope="module")
def driver(folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**environment, "CUDA_VISIBLE_DEVICES": ""},
    )
    yield process
    process.communicate(timeout=60)


def gradients(driver: subprocess.Popen[str], folder: Path, script: str, world: int) -> Gradients:
    """Return those of rank 0, after looking that all ranks have the same."""
    port = str(free_port())
    record = str(folder / f"{script}-{world}-")
    environ = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world)}
    told = {"script": script, "world": world, "record": record, "environ": environ}
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write(json.dumps(told) + "\n")
    driver.stdin.flush()
    assert json.loads(driver.stdout.readline()) == [0] * world
    found: list[Gradients] = [torch.load(record + str(rank)) for rank in range(world)]
    for other in found[1:]:
        torch.testing.assert_close(found[0], other, rtol=0, atol=0)
    return found[0]


@pytest.fixture(scope="module")
def page(folder: Path) -> dict[str, Any]:
    """What the page's model.py defines."""
    return runpy.run_path(str(folder / "model.py"))


@pytest.fixture(scope="module")
def one_by_one(node: Server, page: dict[str, Any]) -> Gradients:
    """The gradient of each step's mean over its tokens, every document in a call of its own."""
    model = page["Model"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with Loader(node.address, "train", rank=0, world_size=1) as loader:
        for step in loader.steps():
            total, tokens = torch.zeros((), dtype=torch.float64), 0
            for batch in step:
                for start, stop in zip(
                    batch["cu_seq_lens_q"][:-1], batch["cu_seq_lens_q"][1:], strict=True
                ):
                    names = ("input_ids", "position_ids", "document_ids", "labels")
                    document = {name: batch[name].view(1, -1)[:, start:stop] for name in names}
                    if batch.is_padding or not document["document_ids"].any():
                        continue
                    total = total + page["loss_sum"](model(document), document["labels"])
                    tokens += int((document["labels"] != -100).sum())
            (total / tokens).backward()
            found.append([p.grad.clone() for p in model.parameters()])
            optimizer.step()
            optimizer.zero_grad()
    return found


@pytest.mark.parametrize("script", ["train_ddp.py", "train_fsdp2.py"])
def test_any_number_of_ranks_has_the_same_gradient(
    script: str, driver: subprocess.Popen[str], folder: Path, one_by_one: Gradients
) -> None:
    """In every step: that of all its documents, whoever read them, with padding and fillers."""
    assert len(one_by_one) >= 3
    for world in (1, 2, 3):
        found = gradients(driver, folder, script, world)

        assert len(found) == len(one_by_one)
        torch.testing.assert_close(found, one_by_one, rtol=1e-10, atol=1e-13)


def test_the_mean_of_means_is_another_gradient(
    node: Server, page: dict[str, Any], one_by_one: Gradients
) -> None:
    """The comparison can fail: what most loops do is off by a tenth and more."""
    model = page["Model"]()
    with Loader(node.address, "train", rank=0, world_size=1) as loader:
        step = next(loader.steps())
        for batch in step:
            loss = page["loss_sum"](model(batch), batch["labels"])
            (loss / batch.counts["loss_tokens"] / 4).backward()

    pairs = zip(model.parameters(), one_by_one[0], strict=True)
    off = [float((p.grad - right).norm() / right.norm()) for p, right in pairs]
    assert max(off) > 0.1


def test_the_job_has_padding_and_fillers(node: Server) -> None:
    """Three ranks read four batches a step, and the last step is not full."""
    with Loader(node.address, "train", rank=2, world_size=3, uneven="fill") as loader:
        kinds = [[(b.is_padding, b.is_filler) for b in step] for step in loader.steps()]
    with Loader(node.address, "train", rank=0, world_size=1) as loader:
        padding = [batch.is_padding for batch in loader]
        assert loader.layout == ("flash", False, -100)

    assert all(len(step) == 2 for step in kinds)
    assert kinds[0] == [(False, False), (True, True)]
    assert padding[-1]
    assert not any(padding[:-4])


def test_what_is_logged_is_what_was_trained(node: Server, folder: Path) -> None:
    """Tokens, pairs that attend and the utilization of every step, by the page's own code."""
    weights, layers, width, peak = 1000, 2, 8, 5e6
    make = runpy.run_path(str(folder / "watch.py"))["Watch"]
    clock = SimpleNamespace(perf_counter=itertools.count(0, 4).__next__)  # 4 s a step
    make.step.__globals__["time"] = clock
    watch, found, expected, seen = make(weights, layers, width, peak), [], [], 0

    with Loader(node.address, "train", rank=0, world_size=1) as loader:
        for step in loader.steps():
            lengths: list[int] = []
            for batch in step:
                watch.batch(batch)
                for row in [] if batch.is_padding else batch["document_ids"].tolist():
                    lengths += [row.count(number) for number in set(row) - {0}]
            found.append(watch.step(step))
            tokens = sum(lengths)
            seen += tokens
            pairs = sum(length * (length + 1) // 2 for length in lengths)
            flops = 6 * weights * tokens + 12 * layers * width * pairs
            expected.append(
                {
                    "tokens_least": tokens,
                    "tokens_mean": tokens,
                    "tokens_most": tokens,
                    "tokens_seen": seen,
                    "tokens_per_s": tokens / 4,
                    "tokens_per_s_per_rank": tokens / 4,
                    "mfu": pytest.approx(flops / 4 / peak),
                }
            )

    assert len(found) >= 3
    assert found == expected
