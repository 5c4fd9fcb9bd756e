"""The job files to begin with pass `check` on data of the kind that they describe, and train."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from harness import call_command
from penstock.client import Loader, media
from robots import RobotFolder, video_writer
from vision import drawn, encoded, loss_and_tokens, small_qwen, write_vision_folder

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


CLASSES = ("cat", "dog")
PICTURES = 48


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A copy of the examples with pictures of two colours, a folder for each."""
    folder = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    for name in ("pictures", "pictures-val"):
        for number in range(PICTURES):
            kind = CLASSES[number % 2]
            (folder / name / kind).mkdir(parents=True, exist_ok=True)
            pixels = np.asarray(drawn(260 + number % 7, 270, number)).copy()
            pixels[..., 0] = 255 * (number % 2)
            data = encoded(Image.fromarray(pixels), "JPEG")
            (folder / name / kind / f"{number}.jpg").write_bytes(data)
    return folder


CHATS = 24


@pytest.fixture
def chats_of_pictures(tmp_path: Path) -> Path:
    """A copy of the examples with conversations of no, one and two pictures, and a processor."""
    folder = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    for name in ("photos", "chats"):
        (folder / name).mkdir()
    lines = []
    for number in range(CHATS):
        names = [f"{number}-{place}.png" for place in range(number % 3)]
        for place, name in enumerate(names):
            (folder / "photos" / name).write_bytes(encoded(drawn(60 + number, 70 + place, number)))
        turns = [
            {"from": "human", "value": "<image>\n" * len(names) + f"What is {number}?"},
            {"from": "gpt", "value": f"It is {number}."},
        ]
        lines.append(json.dumps({"conversations": turns, "images": names}))
    (folder / "chats" / "0.jsonl").write_text("\n".join(lines))
    write_vision_folder(folder / "model", "qwen2_vl")
    return folder


def check(file: Path, *options: str) -> list[dict[str, Any]]:
    """Return what a check says of the jobs of a file, each of which passes."""
    done = call_command("penstockd", "check", str(file), "--json", "--items", "32", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["jobs"]
    assert all(job["ok"] for job in found)
    return found


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

    assert [job["job"] for job in check(folder / file)] == jobs


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

    by_class = {("pictures.yaml", "train"), ("pictures.yaml", "val")}
    trained = {*TRAINED, *by_class, ("chat-pictures.yaml", "chat"), ("robots.yaml", "robots")}
    assert jobs == trained


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


def test_pictures_by_class_train_a_model(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small net tells two colours, from batches as they come: by the loss of both jobs."""
    monkeypatch.setenv("PENSTOCK_WORKERS", "1")
    file = pictures / "pictures.yaml"

    assert [job["job"] for job in check(file, "--batches", "1")] == ["train", "val"]
    batches = {}
    for job in ("train", "val"):
        with Loader(f"local:{file}", job) as loader:
            batches[job] = next(iter(loader))

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 16, stride=16),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, len(CLASSES)),
    )

    def loss(job: str) -> torch.Tensor:
        batch = batches[job]
        assert (batch["image"].shape, batch["image"].dtype) == ((32, 3, 224, 224), torch.uint8)
        assert batch["label"].dtype == torch.int64
        return torch.nn.functional.cross_entropy(net(batch["image"].float() / 255), batch["label"])

    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    before = loss("train").item(), loss("val").item()
    for _ in range(20):
        optimizer.zero_grad()
        loss("train").backward()
        optimizer.step()

    assert set(batches["train"]["label"].tolist()) == {0, 1}
    assert loss("train").item() < before[0] / 2
    assert loss("val").item() < before[1]


def test_conversations_with_pictures_train_a_model(
    chats_of_pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small Qwen2-VL takes the batch as it comes, and its vision tower learns from it."""
    monkeypatch.setenv("PENSTOCK_WORKERS", "1")
    file = chats_of_pictures / "chat-pictures.yaml"
    text, cuts = re.subn(r"(max_tokens|pad_to): \d+", rf"\1: {ROW_TOKENS}", file.read_text())
    file.write_text(text)
    assert cuts == 2
    model = small_qwen()
    tower = model.model.visual.patch_embed.proj.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []

    [checked] = check(file, "--batches", "2")
    ready = partial(media.normalize, dtype=torch.float32)
    with Loader(f"local:{file}", "chat", arrive=ready) as loader:
        batch = next(iter(loader))
    for _ in range(2):
        loss, tokens = loss_and_tokens(model, batch)
        (loss / tokens).backward()
        assert tower.grad.abs().sum() > 0
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    assert checked["efficiency"] > 0.3
    assert len(batch["image_grid_thw"]) <= 8
    assert losses[1] < losses[0]


def train_robots(folder: Path, *options: str) -> list[tuple[int, float]]:
    """Run the script; return its steps and their losses."""
    command = [sys.executable, "robots_train.py", "--device", "cpu", *options]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d+ items, [\d.,]+ in a second$", done.stdout, re.M)
    found = re.findall(r"^step (\d+) loss ([\d.]+)$", done.stdout, re.M)
    return [(int(step), float(loss)) for step, loss in found]


def test_episodes_of_robots_train_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It learns; started again it goes on at its checkpoint; and it takes batches alone."""
    monkeypatch.setenv("PENSTOCK_WORKERS", "1")
    folder = Path(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    robots = RobotFolder(lengths=(17, 14, 19, 21, 16))
    robots.write(folder / "robots", video_writer(robots.fps))

    [checked] = check(folder / "robots.yaml", "--batches", "1")
    first = train_robots(folder, "--steps", "6", "--save-every", "4")
    again = train_robots(folder, "--steps", "6", "--save-every", "4")
    alone = train_robots(folder, "--steps", "3", "--dummy")

    assert checked["job"] == "robots"
    assert [step for step, _ in first] == [*range(6)]
    assert first[5][1] < first[0][1]
    assert again[:2] == first[4:]
    assert alone == []


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
