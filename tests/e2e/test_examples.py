"""The job files in deploy/examples pass `check` on data of the kind that they describe."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from penstock.client import Loader

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the examples with data and a tokenizer beside the job files."""
    folder = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    texts = [f"the answer to question {n} is {n * n}. " * (1 + n % 5) for n in range(200)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    for place in (folder, folder / "chat"):
        tokenizer.save(str(place / "tokenizer.json"))
    for name in ("train", "val"):
        (folder / name).mkdir()
        pq.write_table(pa.table({"text": texts}), folder / name / "0.parquet", row_group_size=50)
    (folder / "chat" / "chats").mkdir()
    chats = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": text}]}
        for n, text in enumerate(texts)
    ]
    lines = "\n".join(map(json.dumps, chats))
    (folder / "chat" / "chats" / "0.jsonl").write_text(lines)
    return folder


@pytest.mark.parametrize(
    ("file", "jobs"), [("packed-text.yaml", ["train", "val"]), ("chat/penstock.yaml", ["chat"])]
)
def test_an_example_passes_check(file: str, jobs: list[str], folder: Path) -> None:
    """Every role builds, is pure, and gives batches."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock.server.cli", "check", str(folder / file), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
    assert [job["job"] for job in found] == jobs
    assert all(job["ok"] for job in found)


ROW_TOKENS = 256

TRAINED = [
    ("packed-text.yaml", "train"),
    ("packed-text.yaml", "val"),
    ("chat/penstock.yaml", "chat"),
]


def test_every_job_of_every_example_is_trained_below() -> None:
    files = {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.yaml")}

    jobs = {
        (file, job)
        for file in files
        for job in yaml.safe_load((EXAMPLES / file).read_text())["jobs"]
    }

    assert jobs == set(TRAINED)


@pytest.mark.parametrize(("file", "job"), TRAINED)
def test_a_real_model_trains_a_step_of_an_example(file: str, job: str, folder: Path) -> None:
    """A small Llama of transformers takes the batch as it comes, and learns from it.

    Rows are made shorter: attention over 8,192 tokens takes this processor half a minute.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    text, cuts = re.subn(
        r"(max_tokens|pad_to): \d+", rf"\1: {ROW_TOKENS}", (folder / file).read_text()
    )
    (folder / file).write_text(text)
    assert cuts >= 2
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=400,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=ROW_TOKENS,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    losses = []

    with Loader(f"local:{folder / file}", job) as loader:
        batch = next(iter(loader))
    for _ in range(2):
        loss = model(**batch, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    assert batch["labels"].dtype == torch.int64
    assert losses[1] < losses[0] == pytest.approx(np.log(400), rel=0.05)


def test_every_validation_pass_is_the_same(folder: Path) -> None:
    """Each iteration of the `val` job begins at its first step."""
    with Loader(
        f"local:{folder / 'packed-text.yaml'}",
        "val",
        mode="eval",
        max_steps=1,
        batches_per_step=4,
        as_numpy=True,
    ) as loader:
        first, second = ([batch["input_ids"].tobytes() for batch in loader] for _ in range(2))

    assert first == second
    assert len(first) == 4


def test_only_answers_carry_loss(folder: Path) -> None:
    """Labels of the `chat` job are the tokens of assistants, and -100 everywhere else."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    with Loader(f"local:{folder / 'chat' / 'penstock.yaml'}", "chat", as_numpy=True) as loader:
        batch = next(iter(loader))

    labels, ids = np.asarray(batch["labels"]), np.asarray(batch["input_ids"])
    learned = tokenizer.decode(labels[labels != -100].tolist())
    assert "the answer to question" in learned
    assert "user:" not in learned
    assert "user:" in tokenizer.decode(ids.ravel().tolist())
    assert np.array_equal(labels[labels != -100], ids[labels != -100])
