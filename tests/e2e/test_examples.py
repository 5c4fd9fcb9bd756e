"""The job files to begin with pass `check` on data of the kind that they describe, and train."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness import call_command
from penstock.client import Loader

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "deploy" / "examples"

TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def write_chat_tokenizer(tokenizer: Tokenizer, folder: Path, template: str = TEMPLATE) -> None:
    """Write the tokenizer as transformers does for a model, with a chat template."""
    from transformers import PreTrainedTokenizerFast

    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    whole.chat_template = template
    whole.save_pretrained(str(folder))


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
        special_tokens=["<eos>", "<|user|>", "<|assistant|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_chat_tokenizer(tokenizer, folder / "tokenizer")
    for name in ("train", "val"):
        (folder / name).mkdir()
        pq.write_table(pa.table({"text": texts}), folder / name / "0.parquet", row_group_size=50)
    (folder / "chats").mkdir()
    chats = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": text}]}
        for n, text in enumerate(texts)
    ]
    lines = "\n".join(map(json.dumps, chats))
    (folder / "chats" / "0.jsonl").write_text(lines)
    return folder


@pytest.mark.parametrize(
    ("file", "jobs"),
    [
        ("packed-text.yaml", ["train", "val"]),
        ("chat.yaml", ["chat"]),
        ("chat-stream.yaml", ["chat"]),
    ],
)
def test_an_example_passes_check(
    file: str, jobs: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every role builds, is pure, and gives batches."""
    monkeypatch.setenv("PENSTOCK_WORKERS", "1")

    done = call_command("penstockd", "check", str(folder / file), "--json", "--items", "32")

    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
    assert [job["job"] for job in found] == jobs
    assert all(job["ok"] for job in found)


ROW_TOKENS = 256

TRAINED = [
    ("packed-text.yaml", "train"),
    ("packed-text.yaml", "val"),
    ("chat.yaml", "chat"),
    ("chat-stream.yaml", "chat"),
]


def test_every_job_of_every_example_is_trained_below() -> None:
    files = {str(file.relative_to(EXAMPLES)): file for file in EXAMPLES.rglob("*.yaml")}

    jobs = {
        (name, job)
        for name, file in files.items()
        for job in yaml.safe_load(file.read_text())["jobs"]
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
    assert cuts >= 1
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

    with Loader(f"local:{folder / 'chat.yaml'}", "chat", as_numpy=True) as loader:
        batch = next(iter(loader))

    labels, ids = np.asarray(batch["labels"]), np.asarray(batch["input_ids"])
    learned = tokenizer.decode(labels[labels != -100].tolist(), skip_special_tokens=False)
    assert "the answer to question" in learned
    assert "<eos>" in learned
    assert "<|user|>" not in learned
    assert "<|assistant|>" not in learned
    shown = tokenizer.decode(ids.ravel().tolist(), skip_special_tokens=False)
    assert "?<eos><|assistant|>the answer" in shown
    assert np.array_equal(labels[labels != -100], ids[labels != -100])


OPENAI = [
    {"role": "user", "content": "3?"},
    {"role": "assistant", "content": "the answer", "tool_calls": None},
    {"role": "user", "content": "4?"},
    {"role": "assistant", "content": "is 4"},
]
SHAREGPT = [
    {"from": {"user": "human", "assistant": "gpt"}[turn["role"]], "value": turn["content"]}  # type: ignore[index]
    for turn in OPENAI
]


@pytest.mark.parametrize(
    ("turns", "arguments", "said"),
    [
        (OPENAI, ["--max-tokens", "64"], "packed into rows of 64"),
        (SHAREGPT, ["--batch-size", "4"], "4 to a batch, padded"),
    ],
)
def test_init_of_conversations_is_the_chat_example(
    turns: list[dict[str, Any]], arguments: list[str], said: str, folder: Path
) -> None:
    """It finds the column, writes the processor, and gives batches."""
    from transformers import AutoTokenizer

    column = "messages" if turns is OPENAI else "conversations"
    lines = [json.dumps({"id": str(n), column: turns[: 2 + n % 3]}) for n in range(60)]
    (folder / "mine.jsonl").write_text("\n".join(lines))
    init = ["init", "mine.jsonl", "--tokenizer", "tokenizer", *arguments]

    made = call_command("penstockd", *init, folder=folder)
    [batch, text] = (
        call_command("penstockd", "show", str(folder / "penstock.yaml"), "main", *how)
        for how in (["--position", "0", "--json"], ["--position", "0", "--text"])
    )

    assert made.returncode == 0, made.stderr
    assert f"conversations of column {column}" in made.stdout
    assert said in made.stdout
    assert batch.returncode == 0, batch.stderr
    counts = json.loads(batch.stdout)["counts"]
    assert 0 < counts["loss_tokens"] < counts["tokens"]
    assert "<|user|>3?<eos><|assistant|>the answer" in text.stdout
    assert AutoTokenizer.from_pretrained(folder / "tokenizer").chat_template == TEMPLATE
