"""Every offset again, with the sources and processors that jobs really have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from penstock.server.jobs.load import load
from penstock.server.pipeline.line import Line

ITEMS = 23
OFFSETS = 24

SOURCES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "parquet": ({"type": "parquet", "files": "rows.parquet"}, ("blocks", "none")),
    "jsonl": ({"type": "jsonl", "files": "rows.jsonl", "block_bytes": 150}, ("blocks", "none")),
    "meta": ({"type": "meta", "file": "meta.yaml"}, ("blocks", "none")),
    "hf": ({"type": "hf", "path": "json", "data_files": "rows.jsonl"}, ("full", "none")),
    "torch": ({"type": "torch", "factory": "./data.py:Rows"}, ("full", "none")),
    "items": ({"type": "items", "items": []}, ("full", "none")),
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "tokenize": {
        "processor": {
            "type": "tokenize",
            "tokenizer": "tokenizer.json",
            "column": "text",
            "append": "<eos>",
            "max_length": 40,
        }
    },
    "function": {"function": "./data.py:to_sample"},
}
BATCHERS: dict[str, tuple[dict[str, Any], str]] = {
    "simple": ({"type": "simple", "batch_size": 3}, "padded"),
    "sequential": ({"type": "sequential", "max_sequence_length": 33}, "packed"),
    "pool": ({"type": "pool", "max_tokens": 64, "pool_size": 5, "max_batch_size": 3}, "padded"),
    "best_fit": ({"type": "best_fit", "max_tokens": 32, "pool_size": 6, "rows": 2}, "packed"),
    "best_fit_error": (
        {"type": "best_fit", "max_tokens": 32, "pool_size": 6, "overlong": "error"},
        "packed",
    ),
}
PLANS = [
    (source, shuffles[h], processor, batcher)
    for (s, (source, (_, shuffles))), h, (p, processor), (b, batcher) in itertools.product(
        enumerate(SOURCES.items()), range(2), enumerate(PROCESSORS), enumerate(BATCHERS)
    )
    if (s + h + p + b) % 2 == 0
]
"""Half of all: each batcher meets each source with both shuffles and both processors, and each
processor meets each source with both shuffles. No role knows more than one other."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same items as Parquet of five row groups, JSON lines and a Dataset; a tokenizer."""
    folder = tmp_path_factory.mktemp("real")
    texts = ["abcdefgh"[n % 8] * (1 + n * 13 % 41) for n in range(ITEMS)]
    pq.write_table(pa.table({"text": texts}), folder / "rows.parquet", row_group_size=5)
    (folder / "rows.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    (folder / "meta.yaml").write_text("a: {file_name: rows.jsonl, options: {block_bytes: 150}}\n")
    (folder / "data.py").write_text(
        f"TEXTS = {texts!r}\n"
        "class Rows:\n"
        "    def __len__(self): return len(TEXTS)\n"
        "    def __getitem__(self, index): return {'text': TEXTS[index]}\n"
        "def to_sample(raw, context):\n"
        "    return {'input_ids': [ord(c) + int(context.rng.integers(9)) for c in raw['text']]}\n"
    )
    tokenizer = Tokenizer(models.WordLevel({**{c: ord(c) for c in "abcdefgh"}, "<eos>": 0}))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    SOURCES["items"][0]["items"] = [{"text": text} for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        import datasets

        patch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "cache")
        yield folder


def step(line: Line) -> tuple[bytes, bytes, bytes]:
    snapshot = line.planner.snapshot()
    made = line.make(line.advance())
    body = bytearray(made.nbytes)
    header = made.write(memoryview(body))
    return snapshot, header, bytes(body)


@pytest.mark.parametrize(
    ("source", "shuffle", "processor", "batcher"), PLANS, ids=["-".join(plan) for plan in PLANS]
)
def test_every_offset_restores_exactly(
    folder: Path, source: str, shuffle: str, processor: str, batcher: str
) -> None:
    """Two batches behind every snapshot are those of the line that was never interrupted.

    Each restored line belongs to a job that was built anew from the job file.
    """
    import yaml

    roles, collator = BATCHERS[batcher]
    plan = {
        "seed": 5,
        "lanes": 2,
        "on_item_error": "quarantine",
        "source": SOURCES[source][0],
        "distributor": {"type": "map", "shuffle": shuffle, "window_blocks": 2},
        **PROCESSORS[processor],
        "batcher": roles,
        "collator": {"type": collator},
    }
    file = folder / f"{source}-{shuffle}-{processor}-{batcher}.yaml"
    file.write_text(yaml.safe_dump({"jobs": {"job": plan}}))
    line = Line(load(str(file)).job("job"), 1)
    truth = [step(line) for _ in range(OFFSETS)]
    assert line.planner.drawn * 2 > ITEMS, "the proof must cross an epoch's border"

    fresh = load(str(file)).job("job")
    for offset in range(OFFSETS - 1):
        restored = Line(fresh, 1, snapshot=truth[offset][0])
        assert [step(restored), step(restored)] == truth[offset : offset + 2], f"offset {offset}"
